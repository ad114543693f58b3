// Registers and memory change right behind an instruction that names xmm15, which translated code may keep for itself:
// what is recorded there fills a buffer at each place of the sequence.
#include "common.h"
        .bss
        .balign 16
room:   .skip 256
        .text
// Between the uses of xmm15, so many words are recorded that each comes to another place of the buffer.
.macro round words
        .rept \words
        add rdx, rbp
        .endr
        paddq xmm15, xmm1
        lea rdx, [rdx + rbp + 1]
        mov [rdi], rdx
        xor rcx, rdx
        paddq xmm15, xmm1
        push rcx
        paddq xmm15, xmm2
        call does_nothing
        paddq xmm15, xmm2
        pop rcx
        mov [rdi + 8], rcx
        mov [rdi + 16], rdx
        movq r8, xmm15
        add r9, r8
        jmp 1f
1:
.endm
does_nothing:
        paddq xmm15, xmm2
        ret
_start: lea rdi, [rip + room]
        mov eax, 1
        movq xmm1, rax
        pxor xmm15, xmm15
        pxor xmm2, xmm2
        xor edx, edx
        xor ecx, ecx
        xor r9d, r9d
        mov ebp, 3
        mov ebx, 4000
again:
        .irp words, 1, 2, 3, 4, 5, 6, 7
        round \words
        .endr
        dec ebx
        jnz again
        movq rax, xmm15
        cmp rax, 4000 * 14
        check e, 1
        // 7 rounds of 4 each, and 28 more of 3.
        cmp rdx, 4000 * (7 * 4 + 28 * 3)
        check e, 2
        cmp rdx, [rdi + 16]
        check e, 3
        cmp rcx, [rdi + 8]
        check e, 4
        // 2, 4, ... 56000
        mov rax, 4000 * 7 * (4000 * 7 + 1)
        cmp rax, r9
        check e, 5
        pass
