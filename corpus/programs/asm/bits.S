// bt, bts, btr, btc with register offsets far outside the operand, negative ones included.
#include "common.h"
        .bss
        .balign 64
field:  .skip 512
        .text
_start: lea rbx, [rip + field + 256]
        mov eax, -1
        bts [rbx], eax                  // bit 31 of the dword before
        check nc, 1
        cmp dword ptr [rbx - 4], 0x80000000
        check e, 2
        mov rax, -129
        bts [rbx], rax
        cmp byte ptr [rbx - 17], 0x80
        check e, 3
        bt [rbx], rax
        check c, 4
        btr [rbx], rax
        check c, 5
        cmp byte ptr [rbx - 17], 0
        check e, 6
        mov ax, -2000
        btc word ptr [rbx], ax
        cmp byte ptr [rbx - 250], 1
        check e, 7
        mov eax, 1999
        lock bts dword ptr [rbx], eax
        cmp byte ptr [rbx + 249], 0x80
        check e, 8
        bt dword ptr [rbx + 248], 15    // immediate: modulo the size
        check c, 9
        bts qword ptr [rbx + 8], 70
        cmp byte ptr [rbx + 8], 64
        check e, 10
        mov ecx, 3
        bts dword ptr [rbx + rcx*8 - 16], ecx
        cmp dword ptr [rbx + 8], 72
        check e, 11
        bt ecx, ecx
        pass
