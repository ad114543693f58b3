// Stack instructions with memory operands, rsp as operand, enter and leave, ret imm16, pushf.
#include "common.h"
        .bss
cell:   .skip 64
        .text
two:    mov rax, [rsp + 8]
        add rax, [rsp + 16]
        ret 16
framed: enter 32, 0
        mov [rbp - 8], rdi
        mov rax, [rbp - 8]
        leave
        ret
nested: enter 16, 0
        mov r8, rbp
        enter 16, 2
        mov rax, [rbp - 8]
        cmp rax, [r8]
        leave
        leave
        ret
_start: mov r12, rsp
        push 5
        push -6
        call two
        cmp rax, -1
        check e, 1
        cmp rsp, r12
        check e, 2
        lea rbx, [rip + cell]
        mov qword ptr [rbx], 77
        push [rbx]
        pop [rbx + 8]
        cmp qword ptr [rbx + 8], 77
        check e, 3
        push 1
        push 2
        push 3
        pop qword ptr [rsp + 8]         // the address uses the incremented rsp
        cmp qword ptr [rsp + 8], 3
        check e, 4
        push qword ptr [rsp + 8]
        cmp qword ptr [rsp], 3
        check e, 5
        mov rsp, r12
        push rsp
        pop rax
        cmp rax, r12
        check e, 6
        lea rax, [rip + cell + 32]
        push rax
        pop rsp
        cmp rsp, rax
        check e, 7
        mov rsp, r12
        push ax
        pop cx
        cmp ax, cx
        check e, 8
        push word ptr [rbx]
        pop word ptr [rbx + 16]
        cmp word ptr [rbx + 16], 77
        check e, 9
        .byte 0x66; push 0x1234
        pop dx
        mov rsp, r12
        mov edi, 99
        call framed
        cmp eax, 99
        check e, 10
        mov rbp, r12
        call nested
        stc
        pushfq
        pop rax
        bt eax, 8                       // no trap flag in sight
        check nc, 11
        push rax
        xor eax, eax
        popfq
        check c, 12
        pushf
        pop rax
        pushfw
        popfw
        push fs
        pop fs
        mov rsp, r12
        // The red zone survives.
        mov qword ptr [rsp - 8], 11
        mov qword ptr [rsp - 128], 12
        jmp 1f
1:      mov rax, [rsp - 8]
        add rax, [rsp - 128]
        cmp rax, 23
        check e, 13
        pass
