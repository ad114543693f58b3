// The XSAVE family, fxsave, and what they leave in memory.
//#requires: xsave xsavec xsaveopt
#include "common.h"
        .bss
        .balign 64
area:   .skip 16384
        .text
_start: lea rbx, [rip + area]
        mov eax, 0x1234
        movd xmm5, eax
        movd xmm15, eax
        fxsave [rbx]
        pxor xmm5, xmm5
        fxrstor [rbx]
        movd ecx, xmm5
        cmp ecx, 0x1234
        check e, 1
        fxsave64 [rbx]
        mov eax, 7
        xor edx, edx
        xsave [rbx + 1024]
        pxor xmm15, xmm15
        xrstor [rbx + 1024]
        movd ecx, xmm15
        cmp ecx, 0x1234
        check e, 2
        mov eax, 3
        xsaveopt64 [rbx + 1024]
        mov eax, -1
        mov edx, -1
        xsave64 [rbx + 1024]
        xrstor64 [rbx + 1024]
        mov eax, 0xee
        xor edx, edx
        lea rdi, [rbx + 4096]
        xsavec [rdi]
        pxor xmm15, xmm15
        xrstor [rdi]
        movd ecx, xmm15
        cmp ecx, 0x1234
        check e, 3
        mov eax, 1
        xsave [rbx + 1024]
        pass
