// zmm25 to zmm31 over a signal that comes while all the other upper registers are zero, while instructions that use
// them run, and at a fault in the midst of one.
//#requires: avx512f avx512vl
//#flags: -mavx512f -mavx512vl
//#oracle: no: the timer fires anywhere
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>
#include "check.h"
static volatile int got;
static void handler(int n) { (void)n, got++; }
#define ZERO(n) "vpxorq %%zmm" #n ",%%zmm" #n ",%%zmm" #n "\n"
static char *pages;
static int faults;
// What it maps is read by the gather, which then goes on where it was.
static void fault(int n) {
    (void)n, faults++;
    if (mprotect(pages + 4096, 4096, PROT_READ | PROT_WRITE)) _exit(3);
    for (int i = 0; i < 1024; i++) ((int *)(pages + 4096))[i] = 1024 + i;
    __asm__ volatile(ZERO(25) ZERO(26) ZERO(27) ZERO(28) ZERO(29) ZERO(30) ZERO(31)
                     : : : "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31");
}
#define EACH(do, from) do(25, from, 0) do(26, from, 1) do(27, from, 2) do(28, from, 3) do(29, from, 4) \
    do(30, from, 5) do(31, from, 6)
#define LOAD(n, from, at) "vmovdqu64 " #at "*64(" from "), %%zmm" #n "\n"
#define STORE(n, to, at) "vmovdqu64 %%zmm" #n ", " #at "*64(" to ")\n"
int main(void) {
    signal(SIGALRM, handler);
    struct itimerval timer = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &timer, 0);
    for (int which = 0; which < 7; which++) {
        uint64_t in[56], out[56];
        memset(in, 0, sizeof in);
        memset(in + 8 * which, 0x5a, 64);
        int before = got;
        __asm__ volatile(ZERO(16) ZERO(17) ZERO(18) ZERO(19) ZERO(20) ZERO(21) ZERO(22) ZERO(23) ZERO(24)
                         EACH(LOAD, "%1")
                         "1: cmpl %0, %2\n je 1b\n"
                         EACH(STORE, "%3")
                         : : "r"(before), "r"(in), "m"(got), "r"(out)
                         : "memory", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31");
        CHECK(!memcmp(in, out, sizeof in));
    }
    // Instructions that fault: a gather when it has done a part of its work, one that only writes its register, that keeps
    // or clears a part of it, that reads it, too, and one that only reads it. Its own registers, and those beside it.
    signal(SIGSEGV, fault);
    pages = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 1024; i++) ((int *)pages)[i] = i;
#define RUN(insn) __asm__ volatile(EACH(LOAD, "%0") "kmovw %3, %%k1\n" insn EACH(STORE, "%2") \
                                   : : "r"(in), "r"(pages), "r"(out), "r"(mask) \
                                   : "k1", "memory", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31")
    for (int round = 0; round < 60; round++) {
        uint64_t in[56], out[56];
        for (int i = 0; i < 56; i++) in[i] = 0x0101010101010101 * (uint64_t)(i + round);
        for (int i = 0; i < 16; i++) ((int *)(in + 2 * 8))[i] = 1016 + i;
        if (mprotect(pages + 4096, 4096, PROT_NONE)) return 4;
        int mask = 0x5555, which = round % 6;
        int *changed = (int *)(in + 8 * (int[]){3, 1, 4, 6, 0, 5}[which]), stored[16];
        switch (which) {
        case 0: mask = 0xffff; RUN("vpgatherdd (%1,%%zmm27,4), %%zmm28 %{%%k1%}\n"); break;
        case 1: RUN("vmovdqu64 4064(%1), %%zmm26\n"); break;
        case 2: RUN("vmovdqu32 4064(%1), %%zmm29 %{%%k1%}\n"); break;
        case 3: RUN("vmovdqu32 4064(%1), %%zmm31 %{%%k1%} %{z%}\n"); break;
        case 4: RUN("vpaddd 4064(%1), %%zmm25, %%zmm25\n"); break;
        case 5: RUN("vmovdqu64 %%zmm30, 4064(%1)\n"); break;
        }
        memcpy(stored, pages + 4064, sizeof stored);
        if (which == 5) CHECK(!memcmp(stored, changed, sizeof stored));
        for (int i = 0; i < 16 && which < 5; i++) {
            CHECK(stored[i] == 1016 + i);
            if (which == 4) changed[i] += 1016 + i;
            else if (mask >> i & 1 || which < 2) changed[i] = 1016 + i;
            else if (which == 3) changed[i] = 0;
        }
        for (int i = 0; i < 8 && which == 5; i++) ((int *)(pages + 4064))[i] = 1016 + i;
        CHECK(!memcmp(in, out, sizeof in));
        CHECK(faults == round + 1);
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
