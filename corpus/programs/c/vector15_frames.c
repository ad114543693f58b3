// ymm15 in the frames of signals: what a handler leaves out of one, takes away or writes, and where it goes on elsewhere.
//#requires: avx avx2 fxsr xsave
//#flags: -O1 -mavx2 -mfxsr -mxsave
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
#include "check.h"
typedef uint64_t Four[4] __attribute__((aligned(32)));
enum { LOOK, NO_SSE, NO_AVX, NEITHER, NOT_ASKED_AVX, LEGACY, NO_STATE, LOW, HIGH, NESTED, JUMP, KINDS };
static volatile int kind;
static Four seen, other = {0xaaaa, 0xbbbb, 0xcccc, 0xdddd};
static uint32_t mxcsr_seen;
static sigjmp_buf back;
static uint64_t *at(uint8_t *area, int offset) { return (uint64_t *)(area + offset); }
static void look(int n, siginfo_t *info, void *data) {
    (void)info;
    ucontext_t *context = data;
    uint8_t *area = (uint8_t *)context->uc_mcontext.fpregs;
    uint64_t *present = at(area, 512), *asked = at(area, 472);
    CHECK(*(uint32_t *)(area + 464) == 0x46505853 && (*asked & 6) == 6);
    memset(seen, 0, 32);
    if (*present & 2) memcpy(seen, area + 160 + 240, 16);
    if (*present & 4) memcpy(seen + 2, area + 576 + 240, 16);
    mxcsr_seen = *(uint32_t *)(area + 24);
    if (kind == NESTED && n == SIGUSR1) {
        __asm__ volatile("vmovdqu %0, %%ymm15" : : "m"(other) : "xmm15");
        CHECK(!raise(SIGUSR2));
        Four now;
        __asm__ volatile("vmovdqu %%ymm15, %0" : "=m"(now));
        (void)now;
    }
    switch (kind) {
    case NO_SSE: *present &= ~2ull; break;
    case NO_AVX: *present &= ~4ull; break;
    case NEITHER: *present &= ~6ull; break;
    case NOT_ASKED_AVX: *asked &= ~4ull; break;
    case LEGACY: *(uint32_t *)(area + 464) = 0; break;
    case NO_STATE: context->uc_mcontext.fpregs = 0; break;
    case LOW:
        memcpy(area + 160 + 240, other, 16);
        break;
    case HIGH:
        if (!(*present & 4)) memset(area + 576, 0, 256);
        *present |= 4;
        memcpy(area + 576 + 240, other + 2, 16);
        break;
    case JUMP: siglongjmp(back, 1);
    }
    __asm__ volatile("vpcmpeqb %%ymm15, %%ymm15, %%ymm15\n vpcmpeqb %%ymm14, %%ymm14, %%ymm14" : : : "xmm14", "xmm15");
}
int main(void) {
    Four full = {0x1111, 0x2222, 0x3333, 0x4444}, low = {0x5555, 0x6666}, high = {0, 0, 0x7777, 0x8888}, nothing = {0};
    uint64_t *all[] = {full, low, high, nothing};
    struct sigaction action = {.sa_sigaction = look, .sa_flags = SA_SIGINFO};
    sigaction(SIGUSR1, &action, 0);
    sigaction(SIGUSR2, &action, 0);
    long pid = getpid();
    for (int round = 0; round < 4 * KINDS; round++) {
        uint64_t *in = all[round & 3];
        Four out = {9, 9, 9, 9}, fourteen = {9, 9, 9, 9}, expected;
        kind = round / 4;
        memcpy(expected, in, 32);
        int no_sse = kind == NO_SSE || kind == NEITHER || kind == NO_STATE;
        int no_avx = kind == NO_AVX || kind == NEITHER || kind == NOT_ASKED_AVX || kind == LEGACY || kind == NO_STATE;
        if (no_sse) memset(expected, 0, 16);
        if (no_avx) memset(expected + 2, 0, 16);
        if (kind == LOW) memcpy(expected, other, 16);
        if (kind == HIGH) memcpy(expected + 2, other + 2, 16);
        if (sigsetjmp(back, 1)) {
            // ymm15 is whatever it was in the handler; the next round loads it.
            CHECK(kind == JUMP && !memcmp(seen, in, 32));
            continue;
        }
        long number = SYS_kill, a = pid, b = SIGUSR1;
        __asm__ volatile("vzeroall\n vmovdqu (%3), %%ymm15\n vmovdqa %%ymm15, %%ymm14\n syscall\n"
                         "vmovdqu %%ymm15, (%4)\n vmovdqu %%ymm14, (%5)\n"
                         : "+a"(number), "+D"(a), "+S"(b) : "r"(in), "r"(out), "r"(fourteen)
                         : "memory", "rcx", "r11", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                           "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
        CHECK(!memcmp(out, expected, 32));
        if (kind != LOW && kind != HIGH) CHECK(!memcmp(fourteen, expected, 32));
        // In a frame inside of a handler it is the handler's.
        CHECK(!memcmp(seen, kind == NESTED ? other : in, 32));
        CHECK(mxcsr_seen == 0x1f80);
    }

    // A context that was taken and is gone back to keeps no vector register.
    ucontext_t here;
    volatile int times = 0;
    Four out;
    CHECK(!getcontext(&here));
    if (times++ < 3) setcontext(&here);
    __asm__ volatile("vmovdqu (%0), %%ymm15\n" : : "r"(full) : "xmm15");
    __asm__ volatile("vmovdqu %%ymm15, (%0)\n" : : "r"(out) : "memory");
    CHECK(!memcmp(out, full, 32));
    puts("ok");
}
