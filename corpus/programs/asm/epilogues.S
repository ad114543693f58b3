// What stands in front of a return: registers that are overwritten, rsp that moves, return addresses that were
// replaced, and where control comes in between.
#include "common.h"
// Pops two registers, and returns; r15 counts those that came back right.
.macro pops a, b
        lea rsp, [rsp - 24]             // the return address of a call, if there was one
        mov qword ptr [rsp], 0x1111
        mov qword ptr [rsp + 8], 0x2222
        lea rax, [rip + .Lback\@]
        mov [rsp + 16], rax
        xor eax, eax                    // flags
        jmp .Lpop\@
        int3
.Lpop\@: pop \a
        pop \b
        ret
        int3
.Lback\@:
        check e, 1
        cmp \a, 0x1111
        check e, 2
        cmp \b, 0x2222
        check e, 3
        xor r15d, 1
.endm
_start: xor r15d, r15d
        .irp a, rax, rcx, rdx, rbx, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14
        .irp b, rax, rbp, r12, r13, r8
        .ifnc \a, \b
        pops \a, \b
        .endif
        .endr
        .endr
        // One register, all kinds of loads.
        mov ebx, 77
        mov r14d, 5
        call one
        cmp eax, 77
        check e, 10
        call two
        cmp rax, -3
        check e, 11
        call three
        cmp eax, 5
        check e, 12
        lea rdi, [rip + value]
        call four
        cmp rdi, 0x99
        check e, 13
        push 1
        push 2
        call five
        cmp rcx, 9
        check e, 14
        // The address is replaced in the same unit, and by what the unit calls.
        call replaces
        mov edi, 20
        jmp fail
1:      cmp eax, 4
        check e, 21
        mov r12, rsp
        call goes_back
        cmp rsp, r12
        check e, 22
        cmp eax, 6
        check e, 23
        // One return leads to many places.
        mov ebp, 1000
        xor r13d, r13d
2:      call same
        add r13, rax
        call same
        sub r13, rax
        call same
        add r13, rax
        dec ebp
        jne 2b
        cmp r13, 3000
        check e, 24
        // Control comes in between what stands in front of the return.
        push 8
        lea rax, [rip + 3f]
        push rax
        push 7
        jmp between
3:      cmp rbx, 7
        check e, 25
        pop rax
        // Flags live through it.
        push 3
        lea rax, [rip + 4f]
        mov [rip + other], rax
        push rax
        push 5
        stc
        jmp keeps
4:      check c, 26
        pop rax
        // A stack elsewhere, taken over in the same unit.
        lea rbp, [rip + there]
        lea rax, [rip + 5f]
        mov [rbp + 8], rax
        mov r12, rsp
        jmp leaves
5:      mov rsp, r12
        cmp rbp, 0x55
        check e, 27
        cmp r15d, 1
        check be, 28
        pass
one:    mov eax, ebx
        ret
two:    mov rax, -3
        nop
        ret
three:  movzx eax, r14b
        xor ecx, ecx
        lea rdx, [rax + rcx]
        mov rax, rdx
        ret
four:   mov rdi, [rdi]
        ret
five:   mov ecx, 9
        ret 16
replaces: lea rax, [rip + 1b]
        mov [rsp], rax
        mov eax, 4
        ret
goes_back: push rbx
        push rbp
        call helps
        add rsp, 8                      // not reached from helps
        mov edi, 30
        jmp fail
6:      mov eax, 6
        pop rbp
        pop rbx
        ret
helps:  lea rax, [rip + 6b]
        mov [rsp], rax
        push rbx
        pop rbx
        ret
same:   push rbx
        sub rsp, 32
        mov ebx, 3
        mov eax, ebx
        add rsp, 32
        pop rbx
        ret
        pop rcx                         // the unit begins here, if not behind it
between: pop rbx
        mov eax, 1
        ret
keeps:  pop rax
        mov ecx, 2
        ret
leaves: mov rsp, rbp
        pop rbp
        mov eax, 1
        ret
        .data
value:  .quad 0x99
other:  .quad 0
        .balign 16
there:  .quad 0x55, 0, 0, 0
