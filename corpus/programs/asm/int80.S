// System calls of 32-bit programs: numbers, registers and widths of their own. All registers but rax stay, upper
// halves of arguments do not count.
#include "common.h"
        .bss
        .balign 8
cell:   .zero 8
        .text
_start: mov r12, 0x1234567800000000
        // getpid, by both ways.
        mov eax, 39
        syscall
        mov r15, rax
        mov [rip + cell], rax
        lea rax, [r12 + 20]
        mov rcx, 0x1111111122222222
        mov r11, 0x3333333344444444
        mov r8, 5
        cmp r8, r8
        int 0x80
        check e, 2
        cmp rax, r15
        check e, 3
        mov rdx, 0x1111111122222222
        cmp rcx, rdx
        check e, 4
        mov rdx, 0x3333333344444444
        cmp r11, rdx
        check e, 5
        cmp r8, 5
        check e, 6
        // mmap2 without an address: memory that 32 bits reach.
        mov eax, 192
        xor ebx, ebx
        mov ecx, 4096
        mov edx, 3
        mov esi, 0x22
        mov rdi, -1
        xor ebp, ebp
        int 0x80
        mov r14, rax
        shr rax, 32
        check e, 7
        mov rax, 0x0a6d726f66696e75
        mov [r14], rax
        // write, with upper halves that mean nothing.
        lea rbx, [r12 + 1]
        lea rcx, [r12 + r14]
        lea rdx, [r12 + 8]
        mov eax, 4
        int 0x80
        cmp rax, 8
        check e, 8
        // lseek backwards on what cannot be read from there: a number with a sign.
        mov eax, 19
        mov ebx, 99
        mov ecx, -1
        xor edx, edx
        int 0x80
        cmp rax, -9
        check e, 9
        // uname writes.
        mov eax, 122
        mov ebx, r14d
        int 0x80
        test rax, rax
        check e, 10
        cmp dword ptr [r14], 0x756e694c
        check e, 11
        // A child that ends with 5, also by this way.
        mov eax, 2
        int 0x80
        test eax, eax
        jnz 1f
        mov eax, 1
        mov ebx, 5
        int 0x80
        hlt
1:      mov ebx, eax
        mov eax, 7
        lea ecx, [r14 + 16]
        xor edx, edx
        int 0x80
        cmp eax, ebx
        check e, 12
        cmp dword ptr [r14 + 16], 0x500
        check e, 13
        // munmap; behind it the memory is gone.
        mov eax, 91
        mov ebx, r14d
        mov ecx, 4096
        int 0x80
        test rax, rax
        check e, 14
        mov eax, 4
        mov ebx, 1
        mov ecx, r14d
        mov edx, 1
        int 0x80
        cmp rax, -14
        check e, 15
        pass
