// A string instruction that uses the gs segment, in the middle of a block that ends with a branch, behind branches and
// references. Natively it faults: nothing is there.
//#expect-signal: 11
//#refused: uses the gs segment in an unusual way
#include "common.h"
_start: mov ecx, 3
1:      push rcx
        jmp 2f
2:      pop rax
        dec ecx
        jnz 1b
        call 3f
3:      mov rbx, [rsp]
        jmp 4f
4:      push rbx
        xor esi, esi
        lods rax, qword ptr gs:[rsi]
        mov rdx, [rsp]
        mov [rsp - 8], rdx
        cmp rbx, rdx
        check e, 1
        pass
