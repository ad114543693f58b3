// SSE memory forms: partial loads and stores, masked stores, inserts, conversions, non-temporal.
#include "common.h"
        .data
        .balign 64
data:   .long 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16
mask:   .quad 0x80008000800080, 0
        .bss
        .balign 64
room:   .skip 256
        .text
_start: lea rsi, [rip + data]
        lea rdi, [rip + room]
        movaps xmm0, [rsi]
        movups xmm1, [rsi + 4]
        movlps xmm2, [rsi + 8]
        movhps xmm2, [rsi + 16]
        movlps [rdi], xmm2
        movhps [rdi + 8], xmm2
        movss xmm3, [rsi]
        movsd xmm4, [rsi]
        movss [rdi + 16], xmm3
        movsd [rdi + 24], xmm4
        movd xmm5, [rsi]
        movq xmm6, [rsi]
        movd [rdi + 32], xmm5
        movq [rdi + 40], xmm6
        movdqa [rdi + 48], xmm0
        movntdq [rdi + 64], xmm0
        movntps [rdi + 80], xmm1
        movnti [rdi + 96], rax
        movntdqa xmm7, [rsi]
        pinsrb xmm0, [rsi + 1], 3
        pinsrw xmm0, [rsi + 2], 3
        pinsrd xmm0, [rsi + 4], 3
        pinsrq xmm0, [rsi + 8], 1
        pextrb [rdi + 104], xmm0, 1
        pextrw [rdi + 106], xmm0, 1
        pextrd [rdi + 108], xmm0, 1
        pextrq [rdi + 112], xmm0, 1
        insertps xmm1, [rsi + 4], 0x10
        extractps [rdi + 120], xmm1, 1
        pmovzxbw xmm2, [rsi]
        pmovzxbd xmm2, [rsi]
        pmovsxbq xmm2, [rsi]
        pmovsxdq xmm2, [rsi]
        cvtdq2pd xmm3, [rsi]
        cvtsi2sd xmm3, qword ptr [rsi]
        cvtsi2ss xmm3, dword ptr [rsi]
        cvttsd2si rax, [rsi]
        cvtps2pd xmm3, [rsi]
        cvtpd2ps xmm3, [rsi]
        movddup xmm4, [rsi]
        lddqu xmm5, [rsi + 3]
        addps xmm5, [rsi]
        sqrtsd xmm6, [rsi + 8]
        cmpltsd xmm6, [rsi]
        cmpltps xmm6, [rsi]
        ucomiss xmm6, [rsi]
        ptest xmm6, [rsi]
        pshufb xmm6, [rsi]
        pcmpistri xmm6, [rsi], 8
        psllq xmm1, [rsi]
        movq xmm8, [rip + mask]
        push rdi
        add rdi, 128
        maskmovdqu xmm0, xmm8
        maskmovq mm0, mm1
        pop rdi
        emms
        stmxcsr [rdi + 160]
        ldmxcsr [rdi + 160]
        movdqa xmm15, [rsi + 16]
        pcmpeqd xmm15, [rsi + 16]
        pmovmskb eax, xmm15
        cmp eax, 0xffff
        check e, 1
        cmp dword ptr [rdi], 3
        check e, 2
        cmp dword ptr [rdi + 12], 6
        check e, 3
        cmp dword ptr [rdi + 64], 1
        check e, 4
        crc32 eax, byte ptr [rsi]
        movbe eax, [rsi]
        movbe [rdi], eax
        cmp dword ptr [rdi], 1
        check e, 5
        pass
