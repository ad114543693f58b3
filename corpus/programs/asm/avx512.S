// AVX-512: zmm16..31 used directly, masks, broadcasts, compress, expand, gather, scatter.
//#requires: avx512f avx512vl avx512bw avx512dq
#include "common.h"
        .data
        .balign 64
data:   .long 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16
index:  .long 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0
kmask:  .quad 0x5555
        .bss
        .balign 64
room:   .skip 1024
        .text
_start: lea rsi, [rip + data]
        lea rdi, [rip + room]
        vmovdqa64 zmm16, [rsi]
        vmovdqu32 zmm31, [rip + index]
        vpaddd zmm30, zmm16, zmm31
        vmovdqu64 [rdi], zmm30
        cmp dword ptr [rdi], 16
        check e, 1
        cmp dword ptr [rdi + 60], 16
        check e, 2
        kmovw k1, [rip + kmask]
        kmovq k2, [rip + kmask]
        kmovb [rdi + 64], k1
        vmovdqu32 zmm17{k1}{z}, [rsi]
        vmovdqu32 [rdi + 64]{k1}, zmm16
        cmp dword ptr [rdi + 68], 0
        check e, 3
        vpaddd zmm18, zmm16, dword ptr [rsi + 4]{1to16}
        vpaddq zmm18, zmm16, qword ptr [rsi + 8]{1to8}
        vaddps ymm19, ymm16, dword ptr [rsi]{1to8}
        vpcompressd [rdi + 128]{k1}, zmm16
        cmp dword ptr [rdi + 132], 3
        check e, 4
        vpexpandd zmm20{k1}{z}, [rsi]
        vcompresspd [rdi + 192]{k1}, ymm16
        vexpandps xmm20{k1}, [rsi]
        kmovw k3, [rip + kmask]
        vpgatherdd zmm21{k3}, [rsi + zmm31*4]
        kmovw k3, [rip + kmask]
        vpscatterdd [rdi + zmm31*4 + 256]{k3}, zmm16
        cmp dword ptr [rdi + 256 + 60], 1
        check e, 5
        vpmovsxdq zmm22, [rip + index]
        kmovw k3, [rip + kmask]
        vgatherqpd zmm23{k3}, [rsi + zmm22*4]
        kmovw k3, [rip + kmask]
        vscatterqps [rdi + zmm22*4 + 384]{k3}, ymm16
        kmovw k3, [rip + kmask]
        vgatherdpd ymm24{k3}, [rsi + xmm31*4]
        vpmovdb [rdi + 512], zmm16
        vpmovqd [rdi + 528]{k1}, zmm16
        cmp byte ptr [rdi + 515], 4
        check e, 6
        vbroadcasti32x4 zmm25, [rsi]
        vbroadcasti64x4 zmm25, [rsi]
        vbroadcastf32x2 zmm25, [rsi]
        vextracti32x4 [rdi + 576], zmm16, 3
        vextracti64x4 [rdi + 592], zmm16, 1
        vinserti32x4 zmm25, zmm25, [rsi], 2
        vmovss xmm26{k1}{z}, [rsi]
        vmovsd [rdi + 640]{k1}, xmm16
        vpcmpeqd k4, zmm16, [rsi]
        kortestw k4, k4
        check c, 7
        vpternlogd zmm27, zmm28, [rsi], 0x96
        vpermd zmm27, zmm31, [rsi]
        vmovdqu8 [rdi + 704]{k1}, ymm16
        vmovdqu16 zmm29{k2}{z}, [rsi]
        vmovntdq [rdi + 768], zmm16
        // xmm31 survives a call and a system call.
        vmovdqa32 xmm31, [rsi]
        mov eax, 39
        syscall
        call 1f
        vmovd eax, xmm31
        cmp eax, 1
        check e, 8
        vzeroall
        pass
1:      ret
