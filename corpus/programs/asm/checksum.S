// Reads its own code as data.
#include "common.h"
_start: lea rsi, [rip + fail]
        lea rdi, [rip + last]
        xor eax, eax
1:      movzx ecx, byte ptr [rsi]
        rol eax, 5
        xor eax, ecx
        inc rsi
        cmp rsi, rdi
        jb 1b
        mov ebx, eax
        // The call's displacement and the instruction's bytes are the original ones.
        mov eax, [rip + 2f + 1]
        lea rcx, [rip + 2f + 5]
        movsxd rax, eax
        add rax, rcx
        lea rdx, [rip + target]
        cmp rax, rdx
        check e, 1
        cmp byte ptr [rip + 2f], 0xe8
        check e, 2
2:      call target
        pass
target: ret
last:
