// Absolute and 32-bit addresses, in an executable at a fixed place.
//#variants: no-pie
#include "common.h"
        .data
cell:   .quad 0x42, 0
table:  .quad one, two
        .text
_start: mov rax, [cell]
        cmp rax, 0x42
        check e, 1
        movabs al, [cell]
        movabs eax, [cell]
        movabs [cell + 8], rax
        cmp qword ptr [cell + 8], 0x42
        check e, 2
        mov ecx, 1
        mov edx, offset cell
        mov eax, [edx + ecx*8]
        cmp eax, 0x42
        check e, 3
        mov edx, offset cell
        bts rdx, 32
        .byte 0x67
        mov eax, [rdx]
        cmp eax, 0x42
        check e, 4
        jmp [table + rcx*8]
one:    hlt
two:    mov eax, offset three
        call rax
        push offset four
        ret
three:  ret
four:   mov rsi, offset cell
        mov edi, offset cell + 8
        mov ecx, 2
        .byte 0x67
        rep movsb
        pass
