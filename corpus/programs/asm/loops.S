// loop, loope, loopne, jrcxz, jecxz: taken and not taken, flags preserved.
#include "common.h"
_start: mov ecx, 10
        xor ebx, ebx
1:      inc ebx
        loop 1b
        cmp ebx, 10
        check e, 1
        mov ecx, 10
        xor ebx, ebx
2:      inc ebx
        cmp ebx, 4
        loopne 2b
        cmp ecx, 6
        check e, 2
        mov ecx, 5
3:      cmp ecx, ecx
        loope 3b
        check e, 3
        mov rcx, 0x100000000
        stc
        jrcxz bad
        jecxz 4f
bad:    mov edi, 4
        jmp fail
4:      check c, 5
        mov ecx, 3
        .byte 0x67
5:      loop 6f
6:      xor ecx, ecx
        jrcxz 7f
        jmp bad
7:      pass
