// A system call of 32-bit programs that only they have (the end of their handlers), right behind branches. Natively
// nothing that makes sense is on the stack.
//#expect-signal: 11
//#refused: makes a 32-bit system call that is not followed
#include "common.h"
_start: mov ecx, 200
1:      push 0
        dec ecx
        jnz 1b
        mov eax, 173
        push rax
        jmp 1f
1:      pop rcx
        jmp 2f
2:      int 0x80
        hlt
