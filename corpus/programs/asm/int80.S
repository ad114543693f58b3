// A system call of 32-bit programs (its exit), right behind branches.
//#refused: makes a system call with int
#include "common.h"
_start: mov eax, 1
        xor ebx, ebx
        push rax
        jmp 1f
1:      pop rcx
        jmp 2f
2:      int 0x80
        hlt
