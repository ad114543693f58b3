// Jumps to data, which is not executable: SIGSEGV.
//#expect-signal: 11
#include "common.h"
        .data
code:   .byte 0xc3, 0xc3
        .text
_start: lea rax, [rip + code]
        call rax
        pass
