// Division by zero: SIGFPE.
//#expect-signal: 8
#include "common.h"
_start: xor ecx, ecx
        div ecx
        pass
