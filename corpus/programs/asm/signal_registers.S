// A handler sees the original pc and registers in its frame, and may change them.
#include "common.h"
        .data
action: .quad handler, 0x04000004, restorer, 0
        .text
restorer: mov eax, 15
        syscall
handler:                                // rdi: signal, rsi: siginfo, rdx: ucontext
        lea rax, [rip + faults]
        cmp [rdx + 168], rax            // rip
        check e, 2
        mov rax, 0x1c1c
        cmp [rdx + 72], rax             // r12
        check e, 3
        mov rax, [rdx + 160]            // rsp
        cmp rax, r13
        check e, 4
        mov rax, [rsi + 16]             // si_addr
        cmp rax, 0x10
        check e, 5
        test dword ptr [rdx + 176], 1   // CF
        check nz, 6
        lea rax, [rip + resumes]
        mov [rdx + 168], rax
        mov qword ptr [rdx + 72], 77
        xor r12d, r12d
        xor ebx, ebx
        ret
_start: mov edi, 11
        lea rsi, [rip + action]
        xor edx, edx
        mov r10d, 8
        mov eax, 13
        syscall
        test eax, eax
        check z, 1
        mov r12d, 0x1c1c
        mov r13, rsp
        mov ebx, 0x10
        movd xmm9, ebx
        stc
faults: mov rax, [rbx]
        hlt
resumes: check c, 7
        cmp r12, 77
        check e, 8
        cmp ebx, 0x10
        check e, 9
        movd eax, xmm9
        cmp eax, 0x10
        check e, 10
        pass
