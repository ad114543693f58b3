// A handler begins with the floating-point and vector registers of a program's start, whatever was interrupted, and
// what was interrupted has its own again behind it.
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include "check.h"
struct state {
    unsigned mxcsr;
    unsigned short x87[14];
    unsigned long long xmm[2][2], high[2];
};
static volatile int hits;
static struct state seen;
static int has_avx;
static char *page;
static inline __attribute__((always_inline)) void look(struct state *s) {
    __asm__ volatile("movups %%xmm5, (%0)\n movups %%xmm15, 16(%0)" : : "r"(s->xmm) : "memory");
    __asm__ volatile("stmxcsr %0" : "=m"(s->mxcsr));
    // It masks exceptions.
    __asm__ volatile("fnstenv %0\n fldenv %0" : "+m"(s->x87));
    if (has_avx) __asm__ volatile("vextractf128 $1, %%ymm15, (%0)" : : "r"(s->high) : "memory");
}
static void handler(int signal) {
    struct state s = {0};
    look(&s);
    seen = s;
    hits++;
    if (signal == SIGSEGV) mprotect(page, 4096, PROT_READ | PROT_WRITE);
}
static void check(int signal) {
    unsigned mxcsr = 0x5f80;
    unsigned short control = 0xb7f;
    struct state s = {0};
    int before = hits;
    // Rounding upwards, all registers of x87's stack in use, no zero anywhere.
    __asm__ volatile("ldmxcsr %0\n fldcw %1\n fld1\n fld1\n fld1\n fld1\n fld1\n fld1\n fld1\n fld1"
                     : : "m"(mxcsr), "m"(control));
    if (has_avx) __asm__ volatile("vcmpps $15, %%ymm15, %%ymm15, %%ymm15" : : : "xmm15");
    __asm__ volatile("pcmpeqd %%xmm5, %%xmm5" : : : "xmm5");
    if (!has_avx) __asm__ volatile("pcmpeqd %%xmm15, %%xmm15" : : : "xmm15");
    if (signal == SIGSEGV) *(volatile char *)page = 1;
    else raise(signal);
    look(&s);
    __asm__ volatile("fninit");
    CHECK(hits == before + 1);
    CHECK((seen.mxcsr & 0xffc0) == 0x1f80 && seen.x87[0] == 0x37f && seen.x87[4] == 0xffff);
    CHECK(!seen.xmm[0][0] && !seen.xmm[0][1] && !seen.xmm[1][0] && !seen.xmm[1][1]);
    CHECK(!seen.high[0] && !seen.high[1]);
    CHECK((s.mxcsr & 0xffc0) == 0x5f80 && s.x87[0] == 0xb7f && s.x87[4] == 0);
    // raise may have used the others.
    if (signal == SIGSEGV) {
        CHECK(s.xmm[0][0] == ~0ull && s.xmm[1][1] == ~0ull);
        CHECK(!has_avx || s.high[1] == ~0ull);
    }
}
int main(void) {
    has_avx = __builtin_cpu_supports("avx");
    page = mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    signal(SIGUSR1, handler);
    signal(SIGSEGV, handler);
    check(SIGUSR1);
    check(SIGSEGV);
    puts("ok");
}
