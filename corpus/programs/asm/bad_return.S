// Returns to a non-canonical address: the ret itself faults.
//#expect-signal: 11
#include "common.h"
_start: mov rax, 0x1234567812345678
        push rax
        ret
