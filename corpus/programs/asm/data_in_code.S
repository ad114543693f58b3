// Data between functions and inside them, tail jumps, a function that falls into the next.
#include "common.h"
_start: jmp over
        .ascii "text that would decode as something"
        .byte 0x0f, 0x0b, 0xe8, 0xff, 0xff, 0xff, 0xff
over:   call first
        cmp eax, 111
        check e, 1
        lea rsi, [rip + _start + 5]
        cmp word ptr [rsi], 0x6574
        check ne, 2
        mov rax, [rip + inside]
        cmp rax, [rip + copy]
        check e, 3
        pass
        .quad 0x0102030405060708
first:  mov eax, 1
        jmp second              // tail jump forwards
inside: .quad 0x8b48c3cc90e8e9eb
copy:   .quad 0x8b48c3cc90e8e9eb
third:  add eax, 100            // falls through
return: ret
second: add eax, 10
        jne third               // conditional tail jump backwards
        hlt
