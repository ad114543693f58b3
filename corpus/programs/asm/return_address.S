// Return addresses are the original ones: read, compared, replaced, computed from.
#include "common.h"
_start: lea rbx, [rip + 1f]
        call reads
1:      cmp rax, rbx
        check e, 1
        call 2f                         // the classic way to learn the pc
2:      pop rax
        lea rcx, [rip + 2b]
        cmp rax, rcx
        check e, 2
        call skips                      // returns past the data
        .quad 0x1234
        cmp eax, 0x1234
        check e, 3
        call elsewhere
        mov edi, 4
        jmp fail
3:      lea rdx, [rip + 4f]
        push rdx
        ret                             // a jump, not a return
        hlt
4:      xor ebx, ebx
        call twice
        inc ebx
        cmp ebx, 2
        je 5f
        jmp rsi                         // "return" once more to the same place
5:      lea rax, [rip + reads]
        mov rcx, rsp
        call rax
6:      lea rcx, [rip + 6b]
        cmp rax, rcx
        check e, 5
        // Dead bytes below rsp still hold the address.
        cmp [rsp - 8], rcx
        check e, 6
        pass
reads:  mov rax, [rsp]
        ret
skips:  mov rax, [rsp]
        mov eax, [rax]
        add qword ptr [rsp], 8
        ret
elsewhere:
        lea rax, [rip + 3b]
        mov [rsp], rax
        ret
twice:  mov rsi, [rsp]
        ret
