// Code that is writable from the start, and changes itself.
//#flags: -Wl,-N,--no-warn-rwx-segments
//#variants: static
#include "common.h"
value:  mov eax, 5
        ret
_start: mov r12d, 3
again:  call value
        cmp eax, 5
        check e, 1
        mov byte ptr [rip + value + 1], 9
        call value
        cmp eax, 9
        check e, 2
        mov byte ptr [rip + value + 1], 5
        dec r12d
        jnz again
        pass
