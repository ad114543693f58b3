// Jumps into the middle of an instruction, and runs the same bytes both ways.
#include "common.h"
_start: xor ebx, ebx
        xor ecx, ecx
again:  cmp ecx, 1
        je inner + 1
inner:  mov eax, 0xc0ff9090     // from the second byte: nop; nop; inc eax
        add ebx, eax
        inc ecx
        cmp ecx, 2
        jb again
        cmp ebx, 0x81ff2121
        check e, 1
        // A prefix that is skipped by a jump (the lock idiom of libc).
        lea rdx, [rsp - 64]
        mov qword ptr [rdx], 5
        test ecx, ecx
        jnz 1f
        .byte 0xf0
1:      add qword ptr [rdx], 2
        cmp qword ptr [rdx], 7
        check e, 2
        pass
