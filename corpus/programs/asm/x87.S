// x87: all operand sizes, environment and whole state.
#include "common.h"
        .data
        .balign 16
int2:   .short 3
int4:   .long 4
int8:   .quad 5
real4:  .float 1.5
real8:  .double 2.5
room:   .skip 256
        .text
_start: lea rbx, [rip + room]
        fninit
        fild word ptr [rip + int2]
        fild dword ptr [rip + int4]
        fild qword ptr [rip + int8]
        fadd dword ptr [rip + real4]
        fmul qword ptr [rip + real8]
        faddp
        fiadd word ptr [rip + int2]
        fisub dword ptr [rip + int4]
        fist dword ptr [rbx]
        fst dword ptr [rbx + 4]
        fst qword ptr [rbx + 8]
        fld st(0)
        fstp tbyte ptr [rbx + 16]
        fld tbyte ptr [rbx + 16]
        fcomp qword ptr [rbx + 8]
        fnstsw word ptr [rbx + 32]
        fnstsw ax
        fld st(0)
        fbstp tbyte ptr [rbx + 48]
        fbld tbyte ptr [rbx + 48]
        fistp qword ptr [rbx + 40]
        fld dword ptr [rbx + 4]
        fisttp word ptr [rbx + 34]
        fnstcw [rbx + 36]
        fldcw [rbx + 36]
        fnstenv [rbx + 64]
        fldenv [rbx + 64]
        fnsave [rbx + 128]
        frstor [rbx + 128]
        fistp dword ptr [rbx + 4]
        cmp dword ptr [rbx], 19
        check e, 1
        cmp dword ptr [rbx + 4], 19
        check e, 2
        emms
        movq mm0, [rbx]
        movq [rbx + 8], mm0
        emms
        pass
