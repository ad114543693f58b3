// zmm30 and zmm31 over a signal that comes while all the other upper registers are zero, and while
// instructions that use them run.
//#requires: avx512f avx512vl
//#flags: -mavx512f -mavx512vl
//#oracle: no: the timer fires anywhere
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/time.h>
#include "check.h"
static volatile int got;
static void handler(int n) { (void)n, got++; }
#define ZERO(n) "vpxorq %%zmm" #n ",%%zmm" #n ",%%zmm" #n "\n"
int main(void) {
    signal(SIGALRM, handler);
    struct itimerval timer = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &timer, 0);
    for (int which = 0; which < 2; which++) {
        uint64_t in[16], out[16];
        memset(in, 0, sizeof in);
        memset(in + 8 * which, 0x5a, 64);
        int before = got;
        __asm__ volatile(ZERO(16) ZERO(17) ZERO(18) ZERO(19) ZERO(20) ZERO(21) ZERO(22) ZERO(23)
                         ZERO(24) ZERO(25) ZERO(26) ZERO(27) ZERO(28) ZERO(29)
                         "vmovdqu64 (%1), %%zmm30\n vmovdqu64 64(%1), %%zmm31\n"
                         "1: cmpl %0, %2\n je 1b\n"
                         "vmovdqu64 %%zmm30, (%3)\n vmovdqu64 %%zmm31, 64(%3)\n"
                         : : "r"(before), "r"(in), "m"(got), "r"(out)
                         : "memory", "xmm30", "xmm31");
        CHECK(!memcmp(in, out, sizeof in));
    }
    // Gathers by each of them, interrupted anywhere: no other register changes.
    static int table[64], sums[16];
    for (int i = 0; i < 64; i++) table[i] = i * i;
    int indices[16];
    for (int i = 0; i < 16; i++) indices[i] = (i * 7) & 63;
    for (int before = got; got < before + 100;) {
        uint64_t r8 = 8, r9 = 9, r10 = 10, r11 = 11, kept = 0;
        __asm__ volatile("mov %4, %%r8\n mov %5, %%r9\n mov %6, %%r10\n mov %7, %%r11\n"
                         "vmovdqu64 (%1), %%zmm30\n vmovdqu64 (%1), %%zmm31\n"
                         "kxnorw %%k1, %%k1, %%k1\n vpgatherdd (%2,%%zmm30,4), %%zmm16 %{%%k1%}\n"
                         "kxnorw %%k1, %%k1, %%k1\n vpgatherdd (%2,%%zmm31,4), %%zmm17 %{%%k1%}\n"
                         "vpaddd %%zmm17, %%zmm16, %%zmm31\n vmovdqu64 %%zmm31, (%3)\n"
                         "lea (%%r8,%%r9), %0\n add %%r10, %0\n add %%r11, %0\n"
                         : "=&r"(kept)
                         : "r"(indices), "r"(table), "r"(sums), "r"(r8), "r"(r9), "r"(r10), "r"(r11)
                         : "r8", "r9", "r10", "r11", "k1", "memory", "xmm16", "xmm17", "xmm30", "xmm31");
        CHECK(kept == 8 + 9 + 10 + 11);
        for (int i = 0; i < 16; i++) CHECK(sums[i] == 2 * table[indices[i]]);
    }
    puts("ok");
}
