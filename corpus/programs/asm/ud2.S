// Dies of SIGILL.
//#expect-signal: 4
#include "common.h"
_start: mov eax, 1
        ud2
        pass
