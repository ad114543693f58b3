// Vector instructions under masks, on memory that another thread has just changed. A bit of a mask speaks of an element of the
// result: of that element of memory, of the one that is repeated, of any that is rearranged, of the first ones that are expanded.
//#oracle: no: threads wait for each other in loops
//#requires: avx512f avx512bw avx512dq avx512vl avx512cd
//#flags: -pthread
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include "check.h"

__asm__(
    ".section .data.rel.ro, \"aw\"\n .balign 8\nforms:\n .previous\n"
    // Under the mask k2, with 128(%rsi) in memory, and the registers 17 and 18.
    ".macro form insn:vararg\n"
    " .text\n9: \\insn\n ret\n"
    " .section .data.rel.ro, \"aw\"\n .quad 9b\n .text\n"
    ".endm\n"
    // Results of 16 and of 64 bytes; memory is as large, or one element.
    ".macro dwords m:vararg\n"
    " form \\m 128(%rsi), %zmm18, %zmm17{%k2}\n form \\m 128(%rsi){1to16}, %zmm18, %zmm17{%k2}\n"
    " form \\m 128(%rsi){1to4}, %xmm18, %xmm17{%k2}{z}\n"
    ".endm\n"
    ".macro qwords m:vararg\n"
    " form \\m 128(%rsi), %zmm18, %zmm17{%k2}\n form \\m 128(%rsi){1to8}, %zmm18, %zmm17{%k2}{z}\n"
    " form \\m 128(%rsi){1to2}, %xmm18, %xmm17{%k2}\n"
    ".endm\n"
    ".macro both m:vararg\n"
    " form \\m 128(%rsi), %zmm18, %zmm17{%k2}\n form \\m 128(%rsi), %xmm18, %xmm17{%k2}{z}\n"
    ".endm\n"
    ".irp m, vpaddd, vpandnd, vpmulld, vpmaxsd, vpord, vprolvd, vpblendmd, vaddps, vdivps, vfmadd231ps, vpermi2d,"
    " vpermt2ps, vpunpckldq, vpunpckhdq, vunpcklps, vpackssdw, vpermilps\n"
    " dwords \\m\n.endr\n form vpermd 128(%rsi){1to16}, %zmm18, %zmm17{%k2}\n"
    ".irp m, vpaddq, vpxorq, vpmuludq, vpmuldq, vpmullq, vpunpcklqdq, vunpckhpd, vpermi2q, vpermilpd, vmulpd, vfmsub132pd, vpblendmq\n"
    " qwords \\m\n.endr\n"
    ".irp m, vpaddb, vpavgw, vpshufb, vpunpcklbw, vpunpckhwd, vpmaddubsw, vpmaddwd, vpacksswb, vpackuswb, vpermw, vpermt2w, vpblendmb\n"
    " both \\m\n.endr\n"
    ".irp m, vpsllw, vpsrad, vpsrlq\n"
    " form \\m 128(%rsi), %zmm18, %zmm17{%k2}\n form \\m $3, 128(%rsi), %zmm17{%k2}\n.endr\n"
    ".irp m, valignd, vshuff32x4, vshufps, vpternlogd, vfixupimmps\n"
    " form \\m $0x1b, 128(%rsi), %zmm18, %zmm17{%k2}\n form \\m $0x1b, 128(%rsi){1to16}, %zmm18, %zmm17{%k2}\n.endr\n"
    ".irp m, vpalignr, vdbpsadbw\n form \\m $5, 128(%rsi), %zmm18, %zmm17{%k2}\n.endr\n"
    ".irp m, vpshufd, vpermilps, vpshufhw, vpshuflw, vpermq\n form \\m $0x1b, 128(%rsi), %zmm17{%k2}\n.endr\n"
    ".irp m, vinserti32x4, vinserti64x2, vinserti32x8, vinsertf64x4\n form \\m $1, 128(%rsi), %zmm18, %zmm17{%k2}\n.endr\n"
    ".irp m, vpbroadcastb, vpbroadcastw, vpbroadcastd, vpbroadcastq, vbroadcastss, vbroadcasti32x2\n"
    " form \\m 128(%rsi), %zmm17{%k2}\n form \\m 128(%rsi), %xmm17{%k2}{z}\n.endr\n"
    ".irp m, vbroadcasti32x4, vbroadcasti64x2, vbroadcastf32x8, vbroadcasti64x4, vbroadcastsd, vmovddup, vmovshdup, vmovsldup,"
    " vpexpandd, vexpandpd, vpconflictd, vpconflictq, vplzcntd, vpmovzxbw, vpmovsxdq, vpmovzxbq, vcvtps2pd, vcvtdq2ps, vpabsw,"
    " vmovdqu8, vmovdqu16, vmovdqu32, vmovupd, vsqrtps, vgetexppd\n"
    " form \\m 128(%rsi), %zmm17{%k2}\n form \\m 128(%rsi), %zmm17{%k2}{z}\n.endr\n"
    "form vcvtpd2ps 128(%rsi){1to4}, %xmm17{%k2}\n form vcvtpd2dq 128(%rsi){1to8}, %ymm17{%k2}\n"
    "form vcvtqq2ps 128(%rsi), %ymm17{%k2}\n form vpconflictd 128(%rsi){1to16}, %zmm17{%k2}\n"
    ".irp m, vpcmpeqd, vptestmd, vpcmpgtd\n"
    " form \\m 128(%rsi), %zmm18, %k3{%k2}\n form \\m 128(%rsi){1to16}, %zmm18, %k3{%k2}\n.endr\n"
    ".irp m, vpcmpeqb, vptestnmw\n form \\m 128(%rsi), %zmm18, %k3{%k2}\n.endr\n"
    ".irp m, vmovdqu8, vmovdqu16, vmovdqu32, vmovupd, vpmovdb, vpmovqd, vpcompressd, vcompresspd\n"
    " form \\m %zmm17, 128(%rsi){%k2}\n.endr\n"
    "form vextracti32x4 $2, %zmm17, 128(%rsi){%k2}\n form vextractf64x4 $1, %zmm17, 128(%rsi){%k2}\n"
    // Masks of older kinds.
    ".macro older load:vararg\n"
    " .text\n9: \\load (%rsi), %xmm1\n movdqu 64(%rsi), %xmm2\n lea 128(%rsi), %rdi\n maskmovdqu %xmm2, %xmm1\n"
    " movq 72(%rsi), %mm1\n movq 16(%rsi), %mm2\n add $32, %rdi\n maskmovq %mm2, %mm1\n emms\n"
    " vmovdqu 64(%rsi), %ymm1\n vpmaskmovd 128(%rsi), %ymm1, %ymm2\n vmovdqu %ymm2, 192(%rsi)\n"
    " vmaskmovpd %ymm1, %ymm2, 224(%rsi)\n ret\n"
    " .section .data.rel.ro, \"aw\"\n .quad 9b\n .text\n"
    ".endm\n"
    "older movdqu\n older vlddqu\n"
    " .section .data.rel.ro, \"aw\"\nforms_end:\n .previous\n");

extern void (*const forms[])(void), (*const forms_end[])(void);

static struct {
    unsigned char vectors[2][64];
    uint64_t mask;
} state;
// (In a page of its own: nothing else that changes there is looked at.)
static unsigned char memory[4096] __attribute__((aligned(4096)));
static void (*form)(void);
static pthread_barrier_t barrier;

static void *run(void *unused) {
    for (;;) {
        pthread_barrier_wait(&barrier);
        if (!form) return unused;
        __asm__ volatile(
            "vmovdqu64 (%0), %%zmm17\n vmovdqu64 64(%0), %%zmm18\n kmovq 128(%0), %%k2\n kxorq %%k3, %%k3, %%k3\n"
            "mov %1, %%rsi\n call *%2\n"
            "vmovdqu64 %%zmm17, (%0)\n vmovdqu64 %%zmm18, 64(%0)\n kmovq %%k3, 128(%0)\n vzeroupper\n"
            :
            : "b"(&state), "r"(memory), "r"(form)
            : "rsi", "rdi", "memory", "cc", "xmm1", "xmm2");
        pthread_barrier_wait(&barrier);
    }
}

static uint64_t next = 88172645463325252;

static void fill(void *to, unsigned long len) {
    for (unsigned char *at = to; len--; at++) {
        next ^= next << 13, next ^= next >> 7, next ^= next << 17;
        *at = next;
    }
}

static uint64_t sum(uint64_t sum, const void *from, unsigned long len) {
    for (const unsigned char *at = from; len--; at++) sum = (sum ^ *at) * 1099511628211u;
    return sum;
}

int main(void) {
    static const uint64_t masks[] = {0xfffffffffffffffe, 0xaaaaaaaaaaaaaaaa, 4, 0x5a3cf00f1234abcd, 0};
    pthread_t thread;
    CHECK(!pthread_barrier_init(&barrier, 0, 2) && !pthread_create(&thread, 0, run, 0));
    unsigned long number = forms_end - forms;
    for (unsigned long at = 0; at < number; at++) {
        uint64_t all = 0;
        for (unsigned i = 0; i < sizeof masks / sizeof *masks; i++) {
            fill(&state, sizeof state);
            fill(memory, 256);
            state.mask = masks[i];
            form = forms[at];
            pthread_barrier_wait(&barrier);
            pthread_barrier_wait(&barrier);
            all = sum(sum(all, &state, sizeof state), memory, 256);
        }
        printf("%lu %lx\n", at, (unsigned long)all);
    }
    form = 0;
    pthread_barrier_wait(&barrier);
    CHECK(!pthread_join(thread, 0));
    return 0;
}
