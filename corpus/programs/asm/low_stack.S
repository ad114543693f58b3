// A stack in the lowest 4 GiB, addressed with 32 bits.
#include "common.h"
_start: mov r12, rsp
        xor edi, edi
        mov esi, 4096
        mov edx, 3                      // PROT_READ | PROT_WRITE
        mov r10d, 0x62                  // MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT
        mov r8, -1
        xor r9d, r9d
        mov eax, 9
        syscall
        mov rbx, rax
        shr rax, 32
        check e, 1
        lea rsp, [rbx + 512]
        push 7
        push 9
        addr32 pop qword ptr [esp + 16] // the address uses the incremented esp
        cmp qword ptr [rbx + 520], 9
        check e, 2
        addr32 pop qword ptr [esp]
        cmp qword ptr [rbx + 512], 7
        check e, 3
        mov ecx, 3
        push 11
        addr32 pop qword ptr [esp + 8 * ecx]
        cmp qword ptr [rbx + 536], 11
        check e, 4
        push 13
        addr32 pop qword ptr [esp - 40]
        cmp qword ptr [rbx + 472], 13
        check e, 5
        lea ebp, [rbx + 512]
        movdqu xmm1, [rbx + 472]
        movdqu [ebp - 64], xmm1
        cmp qword ptr [rbx + 448], 13
        check e, 6
        addr32 push qword ptr [esp + 8]
        addr32 pop word ptr [esp + 32]
        mov rsp, r12
        pass
