// cmpxchg of all sizes (failing too), cmpxchg8b and 16b, xadd, xchg, locked arithmetic.
#include "common.h"
        .data
        .balign 64
cell:   .quad 5, 6, 7, 8
        .text
_start: lea rsi, [rip + cell]
        mov eax, 5
        mov ecx, 50
        lock cmpxchg [rsi], ecx
        check e, 1
        lock cmpxchg [rsi], rcx         // fails and loads
        check ne, 2
        cmp rax, 50
        check e, 3
        cmpxchg byte ptr [rsi + 8], cl
        cmpxchg word ptr [rsi + 8], cx
        mov eax, 50
        xor edx, edx
        mov ebx, 51
        mov ecx, 52
        lock cmpxchg8b [rsi]
        check e, 4
        lock cmpxchg8b [rsi]
        check ne, 5
        mov rax, [rsi]
        mov rdx, [rsi + 8]
        mov rbx, 1
        mov rcx, 2
        lock cmpxchg16b [rsi]
        check e, 6
        cmpxchg16b [rsi]
        check ne, 7
        cmp qword ptr [rsi + 8], 2
        check e, 8
        mov eax, 10
        lock xadd [rsi], rax
        cmp rax, 1
        check e, 9
        xchg [rsi], eax
        cmp eax, 11
        check e, 10
        lock neg qword ptr [rsi]
        lock not dword ptr [rsi]
        lock dec word ptr [rsi + 16]
        lock or byte ptr [rsi + 16], 1
        lock xor [rsi + 24], rax
        lock sbb qword ptr [rsi + 24], 0
        mfence
        pass
