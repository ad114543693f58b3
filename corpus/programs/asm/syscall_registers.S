// After a system call rcx holds the original next pc, r11 the flags; the rest is untouched.
#include "common.h"
_start: stc
        mov eax, 39
        syscall
1:      lea rbx, [rip + 1b]
        cmp rcx, rbx
        check e, 1
        test r11d, 1
        check nz, 2
        test r11d, 0x100
        check z, 3
        mov eax, 100000                 // no such call
        syscall
        cmp rax, -38
        check e, 4
        mov eax, 334                    // rseq: refused on both sides
        xor edi, edi
        syscall
        pass
