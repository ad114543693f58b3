// A privileged instruction: SIGSEGV.
//#expect-signal: 11
#include "common.h"
_start: hlt
        pass
