// Every kind of rip-relative operand.
#include "common.h"
        .data
        .balign 64
cells:   .quad 0x1122334455667788, 2, 3, 4, 5, 6, 7, 8
target: .quad callee
after:  .quad jumped
real:  .double 1.5
        .text
callee: mov eax, 42
        ret
_start: lea rbx, [rip + cells]
        cmp dword ptr [rip + cells], 0x55667788
        check e, 1
        cmp byte ptr [rip + cells + 7], 0x11
        check e, 2
        mov rax, [rip + cells]
        cmp rax, [rbx]
        check e, 3
        test byte ptr [rip + cells], 8
        check nz, 4
        imul rcx, qword ptr [rip + cells + 8], 1000
        cmp rcx, 2000
        check e, 5
        imul ecx, dword ptr [rip + cells + 8], -3
        cmp ecx, -6
        check e, 6
        mov word ptr [rip + cells + 16], 0x1234
        cmp qword ptr [rip + cells + 16], 0x1234
        check e, 7
        mov qword ptr [rip + cells + 16], -1
        inc qword ptr [rip + cells + 16]
        check z, 8
        lock add dword ptr [rip + cells + 24], 0x1000
        cmp dword ptr [rip + cells + 24], 0x1004
        check e, 9
        push qword ptr [rip + cells + 8]
        pop qword ptr [rip + cells + 32]
        cmp qword ptr [rip + cells + 32], 2
        check e, 10
        movdqu xmm0, [rip + cells + 8]
        paddq xmm0, xmmword ptr [rip + cells + 48 - 48]
        movsd xmm1, [rip + real]
        mulsd xmm1, [rip + real]
        ucomisd xmm1, [rip + real]
        check a, 11
        pshufd xmm2, [rip + cells], 0x1b
        movd eax, xmm2
        cmp eax, 0
        check e, 12
        shld qword ptr [rip + cells + 40], rbx, 4
        bts dword ptr [rip + cells + 56], 6
        cmp dword ptr [rip + cells + 56], 0x48
        check e, 13
        xchg rax, [rip + cells + 56]
        cmp rax, 0x48
        check e, 14
        call [rip + target]
        cmp eax, 42
        check e, 15
        sete byte ptr [rip + cells]
        cmovne rax, [rip + cells]
        cmp eax, 42
        check e, 16
        lea ecx, [eip + cells]
        cmp ecx, ebx
        check e, 17
        fld qword ptr [rip + real]
        fstp tbyte ptr [rip + cells]
        jmp [rip + after]
        hlt
jumped: pass
