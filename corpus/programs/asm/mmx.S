// Masked stores of MMX registers, behind x87 code that leaves the top of the stack elsewhere.
#include "common.h"
        .data
        .balign 64
mask:   .byte 0x80, 0, 0x80, 0, 0, 0, 0, 0x80
text:   .ascii "ABCDEFGH"
room:   .skip 64, '.'
        .text
_start: lea rdi, [rip + room]
        mov ebp, 8
again:  fninit
        movq mm0, [rip + text]
        movq mm5, [rip + mask]
        emms
        mov ecx, ebp
push1:  fld1                            // one register deeper each time: the masks are elsewhere
        dec ecx
        jnz push1
        maskmovq mm0, mm5
        emms
        add rdi, 8
        dec ebp
        jnz again
        cmp byte ptr [rip + room + 1], '.'
        check e, 1
        pass
