// Flags that live across every kind of transfer.
#include "common.h"
        .data
there:  .quad jumped
called: .quad keeps
        .text
keeps:  nop
        lea rax, [rax + 1]
        ret
sets:   cmp rax, rax
        stc
        ret
_start: xor eax, eax
        stc
        call keeps
        check c, 1
        clc
        call [rip + called]
        check nc, 2
        call sets
        check c, 3
        call sets
        check be, 4
        mov eax, 0x7fffffff
        add eax, 1                      // OF and SF set
        jmp 1f
        .skip 200
1:      check o, 5
        check s, 6
        jmp [rip + there]
        hlt
jumped: check o, 7
        lea rax, [rip + 2f]
        jmp rax
2:      check o, 8
        push rax
        lea rax, [rip + 3f]
        mov [rsp], rax
        ret
3:      check o, 9
        check s, 10
        // Through a chain of branches that are not taken.
        jz 4f
        jnc 5f
4:      hlt
5:      check o, 11
        // Direction flag across a call.
        std
        call keeps
        cld
        // Parity and auxiliary carry through lahf and sahf.
        mov ah, 0xd5
        sahf
        call keeps2
        lahf
        cmp ah, 0xd7
        check e, 12
        pass
keeps2: mov rcx, rsp
        ret
