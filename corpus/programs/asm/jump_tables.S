// Jump tables: absolute addresses, 32-bit distances, and a two-level one of bytes.
#include "common.h"
        .section .data.rel.ro,"aw"
absolute: .quad a0, a1, a2, a3
        .section .rodata
        .balign 4
relative: .long r0 - relative, r1 - relative, r2 - relative, r3 - relative
small:  .byte 3, 2, 1, 0
        .text
_start: xor ebx, ebx
        xor r12d, r12d
next:   cmp r12, 3
        ja done
        lea rax, [rip + absolute]
        jmp [rax + r12*8]
a3:     add ebx, 1000
a2:     add ebx, 100
        jmp second
a0:     add ebx, 1
        jmp second
a1:     add ebx, 10
second: lea rdx, [rip + relative]
        movsxd rax, dword ptr [rdx + r12*4]
        add rax, rdx
        jmp rax
r0:     add ebx, 0x10000
        jmp third
r1:     add ebx, 0x20000
        nop
r2:     add ebx, 0x30000
r3:     add ebx, 0x40000
third:  lea rcx, [rip + small]
        movzx ecx, byte ptr [rcx + r12]
        movsxd rax, dword ptr [rdx + rcx*4]
        add rax, rdx
        cmp r14, 1
        je fourth
        inc r14
        jmp rax
fourth: xor r14d, r14d
        inc r12
        jmp next
done:   cmp ebx, 1 + 10 + 100 + 1100 + 0x10000 + 0x90000 + 0x70000 + 0x40000 + 0x40000 + 0x70000 + 0x90000 + 0x10000
        check e, 1
        pass
