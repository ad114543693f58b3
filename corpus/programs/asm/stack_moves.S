// rsp changes in every way: from registers, from memory, in part, on a condition; stacks are exchanged by
// hand. What follows uses it at once, in the same block, in the next one, behind a call or a return.
#include "common.h"
        .bss
        .balign 16
other:  .skip 4096
other_top: .skip 64
kept:   .skip 8                         // rsp of the one that does not run
cell:   .skip 8
count:  .skip 8
        .text
// Goes over to the other stack, which returns to where it was left.
exchange:
        push rbx
        push rbp
        xchg rsp, [rip + kept]
        pop rbp
        pop rbx
        ret
// Runs on the other stack.
second: add qword ptr [rip + count], 1
        push qword ptr [rip + count]
        call exchange
        pop rax
        cmp rax, [rip + count]
        jne 1f
        jmp second
1:      mov edi, 40
        jmp fail
// Takes rsp from its caller's word, returns on the other side of it.
leaps:  mov rsp, [rsp + 8]
        ret
aligned: push rbp
        mov rbp, rsp
        and rsp, -64
        push rdi
        pop rax
        lea rsp, [rbp]
        pop rbp
        ret
variable: push rbp
        mov rbp, rsp
        sub rsp, rdi
        mov [rsp], rdi
        mov rax, [rsp]
        mov rsp, rbp
        pop rbp
        ret
_start: mov r12, rsp
        mov r13d, 60
again:  mov [rip + cell], r12
        mov rsp, [rip + cell]
        push 1
        pop rax
        cmp eax, 1
        check e, 1
        lea rax, [rsp - 64]
        xchg rsp, rax
        push 2
        xchg rax, rsp
        cmp qword ptr [rsp - 72], 2
        check e, 2
        lea rax, [rsp - 128]
        cmp r13d, 30
        cmovb rsp, rax
        push 3
        cmp qword ptr [rsp], 3
        check e, 3
        mov rsp, r12
        mov rax, rsp
        sub rax, 32
        push rax
        pop rsp
        push 4
        cmp qword ptr [rax - 8], 4
        check e, 4
        mov [rsp], r12
        mov rsp, [rsp]
        mov edi, 64
        call variable
        cmp eax, 64
        check e, 5
        mov rdi, r13
        shl rdi, 4
        call variable
        cmp rax, rdi
        check e, 6
        mov edi, 7
        call aligned
        cmp eax, 7
        check e, 7
        mov rcx, -4
        lea rsp, [rsp + rcx * 8]
        push 8
        add rsp, 8
        mov qword ptr [rip + cell], 32
        add rsp, [rip + cell]
        cmp rsp, r12
        check e, 8
        mov eax, esp
        sub ax, 16
        jc 1f                           // the low half only, unless it overflows
        mov sp, ax
        push 9
        pop rcx
        cmp ecx, 9
        check e, 9
1:      mov rsp, r12
        movq xmm0, r12
        sub rsp, 256
        push 10
        movq rsp, xmm0
        cmp qword ptr [rsp - 264], 10
        check e, 10
        mov rax, r12
        lea rbx, [rsp - 48]
        cmpxchg rsp, rbx                // rax is rsp: rsp is rbx
        push 11
        cmp qword ptr [rbx - 8], 11
        check e, 11
        mov rax, r12
        xadd rax, rsp                   // rax is the sum
        mov rsp, r12
        bswap rsp
        bswap rsp
        neg rsp
        not rsp
        add rsp, 1
        push 12
        pop rax
        cmp eax, 12
        check e, 12
        imul rsp, rsp, 1
        shl rsp, 1
        shr rsp, 1
        push 13
        pop rax
        cmp eax, 13
        check e, 13
        mov qword ptr [rip + cell], -1
        and rsp, [rip + cell]
        jmp 2f
2:      push 14
        pop rax
        cmp eax, 14
        check e, 14
        lea rax, [rip + 3f]
        push rax
        mov rax, rsp
        push rax
        call leaps                      // to the word below: returns to 3
        hlt
3:      cmp rsp, r12
        check e, 15
        push -7
        lea rax, [rip + 4f]
        push rax
        mov rcx, rsp
        sub rsp, 512
        push rcx
        call leaps
        hlt
4:      pop rax
        cmp rax, -7
        check e, 16
        // The stack pointer is the last thing of a block that a branch leads to, too.
        mov [rip + cell], r12
        test r13d, 1
        jz 5f
        mov rsp, [rip + cell]
5:      push 17
        pop rax
        mov rsp, [rip + cell]
        call 6f
6:      pop rax
        mov rsp, [rip + cell]
        dec r13d
        jnz again
        // Two that take turns.
        lea rax, [rip + other_top]
        lea rcx, [rip + second]
        mov [rax - 8], rcx
        sub rax, 24
        mov [rip + kept], rax
        mov r13d, 1000
7:      mov rbx, r13
        mov rbp, r13
        call exchange
        cmp rbx, r13
        check e, 18
        dec r13d
        jnz 7b
        cmp rsp, r12
        check e, 19
        cmp qword ptr [rip + count], 1000
        check e, 20
        pass
