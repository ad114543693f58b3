// String instructions: both directions, repeated and not, zero counts, all sizes.
#include "common.h"
        .data
source: .ascii "the quick brown fox jumps over the lazy dog, twice and again...."
        .bss
        .balign 64
room:   .skip 256
        .text
_start: lea rsi, [rip + source]
        lea rdi, [rip + room]
        cld
        xor ecx, ecx
        rep movsb               // zero times
        rep stosq
        repe cmpsb
        repne scasb
        rep lodsb
        lea rax, [rip + room]
        cmp rdi, rax
        check e, 1
        mov ecx, 3
        rep movsb
        mov ecx, 2
        rep movsw
        mov ecx, 4
        rep movsd
        mov ecx, 5
        rep movsq
        movsb
        lea rsi, [rip + source]
        lea rdi, [rip + room]
        mov ecx, 64
        repe cmpsb
        check e, 2
        mov byte ptr [rip + room + 20], 'X'
        lea rsi, [rip + source]
        lea rdi, [rip + room]
        mov ecx, 16
        repe cmpsd
        cmp ecx, 10
        check e, 3
        lea rdi, [rip + room]
        mov ecx, 64
        mov al, 'X'
        repne scasb
        cmp ecx, 43
        check e, 4
        std
        lea rdi, [rip + room + 248]
        mov rax, 0x4142434445464748
        mov ecx, 8
        rep stosq
        stosd
        stosw
        stosb
        lea rsi, [rip + room + 240]
        lea rdi, [rip + room + 127]
        mov ecx, 9
        rep movsb
        lodsq
        lodsb
        cmpsw
        scasq
        lea rsi, [rip + room + 255]
        lea rdi, [rip + room + 254]
        mov ecx, 20
        repe cmpsb
        cld
        // Overlapping copy, one byte on: a fill.
        lea rsi, [rip + room]
        lea rdi, [rip + room + 1]
        mov ecx, 63
        rep movsb
        cmp qword ptr [rip + room + 50], 0x74747474
        check ne, 5
        mov rax, 0x7474747474747474
        cmp [rip + room + 50], rax
        check e, 6
        // A segment override and an unneeded prefix.
        lea rsi, [rip + room]
        .byte 0x3e
        lodsb
        nop
        movsb
        pass
