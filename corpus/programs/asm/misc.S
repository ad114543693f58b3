// xlat, cmov and setcc on memory, address-size prefix, segment bases, hints, multi-byte nops.
#include "common.h"
        .data
        .balign 64
table:  .byte 9, 8, 7, 6, 5, 4, 3, 2, 1, 0
cell:   .quad 0, 0, 0
        .text
_start: lea rbx, [rip + table]
        mov eax, 0xffffff03
        xlatb
        cmp al, 6
        check e, 1
        xor ecx, ecx
        mov edx, 7
        cmovnz rdx, [rbx]               // reads, moves nothing
        cmp edx, 7
        check e, 2
        cmp edx, 7
        sete byte ptr [rip + cell]
        setne byte ptr [rip + cell + 1]
        cmp word ptr [rip + cell], 1
        check e, 3
        nop dword ptr [rax + rax*1 + 0x12345678]
        prefetcht0 [rbx]
        prefetchw [rbx]
        endbr64
        pause
        clflush [rbx]
        lea r8, [rbx + rcx*8 + 5]
        movzx eax, byte ptr [r8]
        cmp eax, 4
        check e, 4
        movsx rax, word ptr [rbx]
        movsxd rax, dword ptr [rbx]
        // fs belongs to the program.
        mov rsi, rbx
        mov edi, 0x1002
        mov eax, 158
        syscall
        movzx eax, byte ptr fs:[1]
        cmp eax, 8
        check e, 5
        mov ecx, 2
        mov al, fs:[rcx + 1]
        cmp al, 6
        check e, 6
        mov rax, fs:[0]
        cmp rax, [rbx]
        check e, 7
        mov eax, 20
        div byte ptr [rbx + 7]
        mul dword ptr [rbx]
        shl dword ptr [rip + cell + 8], cl
        shrd [rip + cell + 8], rax, 3
        rcl byte ptr [rip + cell + 8], 1
        adc qword ptr [rip + cell + 8], 0
        popcnt rax, [rbx]
        bsf rax, [rbx]
        tzcnt rax, [rbx]
        cmp dword ptr [rip + cell + 16], 0
        check e, 8
        cqo
        bswap rax
        pass
