// AVX2: broadcasts, masked moves, lane extracts, gathers with partial masks.
//#requires: avx2 f16c fma
#include "common.h"
        .data
        .balign 64
data:   .long 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16
index:  .long 0, 15, 3, 2, 1, 8, 7, -1
index8: .quad 0, 7, 2, 1
mask:   .long -1, 0, -1, -1, 0, 0, -1, 0
        .bss
        .balign 64
room:   .skip 256
        .text
_start: lea rsi, [rip + data]
        lea rdi, [rip + room]
        vmovdqa ymm0, [rsi]
        vmovdqu ymm1, [rsi + 4]
        vpaddd ymm2, ymm0, [rsi + 32]
        vmovdqu [rdi], ymm2
        vbroadcastss ymm3, [rsi]
        vbroadcastsd ymm3, [rsi]
        vbroadcasti128 ymm4, [rsi]
        vpbroadcastb xmm4, [rsi]
        vpbroadcastw ymm4, [rsi]
        vextracti128 [rdi + 32], ymm0, 1
        vinserti128 ymm5, ymm0, [rsi], 1
        vperm2i128 ymm5, ymm0, [rsi], 0x21
        vmovdqa ymm6, [rip + mask]
        vpmaskmovd ymm7, ymm6, [rsi]
        vpmaskmovd [rdi + 64], ymm6, ymm0
        vmaskmovpd xmm8, xmm6, [rsi]
        vmaskmovps [rdi + 96], ymm6, ymm0
        vmovdqa ymm9, [rip + index]
        vpgatherdd ymm10, [rsi + ymm9*4], ymm6
        vmovdqu ymm6, [rip + mask]
        vmovdqu ymm11, [rip + index8]
        vpgatherqq ymm12, [rsi + ymm11*8], ymm6
        vmovdqu xmm6, [rip + mask]
        vgatherqps xmm13, [rsi + ymm11*4 + 4], xmm6
        vmovdqu ymm6, [rip + mask]
        vgatherdpd ymm14, [rsi + xmm9*4], ymm6
        vmovdqu [rdi + 128], ymm10
        vmovdqu [rdi + 160], ymm12
        cmp dword ptr [rdi + 128], 1
        check e, 1
        cmp dword ptr [rdi + 132], 0
        check e, 2
        cmp dword ptr [rdi + 152], 8
        check e, 3
        cmp qword ptr [rdi + 160], 1
        check ne, 4
        vcvtph2ps ymm1, [rsi]
        vcvtps2ph [rdi + 192], ymm1, 0
        vfmadd213ps ymm1, ymm2, [rsi]
        vfmadd231sd xmm1, xmm2, [rsi]
        vpmovzxbd ymm1, [rsi]
        vmovntdq [rdi], ymm0
        vzeroupper
        pass
