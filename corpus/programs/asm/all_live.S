// No register and no flag changes across any kind of transfer.
#include "common.h"
        .bss
        .balign 16
saved_rsp: .skip 8
vector: .skip 16
        .data
to2:    .quad back2
callee: .quad empty
        .text
empty:  ret
leaf16: ret 16
// Fills everything, runs the body, and checks everything.
.macro fill
        mov [rip + saved_rsp], rsp
        mov rax, 0x1010101010101010
        movq xmm0, rax
        movq xmm7, rax
        movq xmm15, rax
        mov rcx, 0x1111111111111111
        mov rdx, 0x1212121212121212
        mov rbx, 0x1313131313131313
        mov rbp, 0x1515151515151515
        mov rsi, 0x1616161616161616
        mov rdi, 0x1717171717171717
        mov r8, 0x1818181818181818
        mov r9, 0x1919191919191919
        mov r10, 0x1a1a1a1a1a1a1a1a
        mov r11, 0x1b1b1b1b1b1b1b1b
        mov r12, 0x1c1c1c1c1c1c1c1c
        mov r13, 0x1d1d1d1d1d1d1d1d
        mov r14, 0x1e1e1e1e1e1e1e1e
        mov r15, 0x1f1f1f1f1f1f1f1f
        push 0xad7                      // CF PF AF ZF SF OF IF, and DF clear
        and qword ptr [rsp], 0x8d5
        popfq
.endm
.macro same reg, value, n
        push rax
        mov rax, \value
        cmp \reg, rax
        check e, \n
        pop rax
.endm
.macro verify n
        pushfq
        and qword ptr [rsp], 0x8d5
        cmp qword ptr [rsp], 0x8d5
        check e, \n
        lea rsp, [rsp + 8]
        cmp rsp, [rip + saved_rsp]
        check e, \n
        same rcx, 0x1111111111111111, \n
        same rdx, 0x1212121212121212, \n
        same rbx, 0x1313131313131313, \n
        same rbp, 0x1515151515151515, \n
        same rsi, 0x1616161616161616, \n
        same rdi, 0x1717171717171717, \n
        same r8, 0x1818181818181818, \n
        same r9, 0x1919191919191919, \n
        same r10, 0x1a1a1a1a1a1a1a1a, \n
        same r11, 0x1b1b1b1b1b1b1b1b, \n
        same r12, 0x1c1c1c1c1c1c1c1c, \n
        same r13, 0x1d1d1d1d1d1d1d1d, \n
        same r14, 0x1e1e1e1e1e1e1e1e, \n
        same r15, 0x1f1f1f1f1f1f1f1f, \n
        mov rcx, 0x1010101010101010
        cmp rax, rcx
        check e, \n
        movq rax, xmm0
        cmp rax, rcx
        check e, \n
        movq rax, xmm7
        cmp rax, rcx
        check e, \n
        movq rax, xmm15
        cmp rax, rcx
        check e, \n
.endm
_start: fill
        jmp 1f
        .skip 300
1:      verify 1
        fill
        call empty
        verify 2
        fill
        call [rip + callee]
        verify 3
        fill
        jmp [rip + to2]
        hlt
back2:  verify 4
        fill
        jz 5f
        hlt
5:      verify 5
        fill
        jnz 6f
        jrcxz 6f
        jnc 6f
        jmp 7f
6:      hlt
7:      verify 6
        fill
        push rax
        push rax
        call leaf16
        verify 7
        // Transfers through a register and through a return keep all but that register.
        fill
        lea rax, [rip + 8f]
        jmp rax
8:      mov rax, 0x1010101010101010
        verify 8
        fill
        lea rax, [rip + empty]
        call rax
        mov rax, 0x1010101010101010
        verify 9
        fill
        lea rax, [rip + 9f]
        push rax
        mov rax, 0x1010101010101010
        ret
9:      verify 10
        // A system call changes rax, rcx and r11 only.
        fill
        mov eax, 102
        syscall
        mov rax, 0x1010101010101010
        mov rcx, 0x1111111111111111
        mov r11, 0x1b1b1b1b1b1b1b1b
        verify 11
        fill
        call deep
        verify 12
        pass
deep:   call 1f
        ret
1:      call empty
        jmp [rip + callee]
