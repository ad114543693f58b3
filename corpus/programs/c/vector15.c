// ymm15 over system calls, signals, fork and instructions that name it or mean all registers.
//#requires: avx avx2 fxsr xsave
//#flags: -O1 -mavx2 -mfxsr -mxsave
//#oracle: no: the timer fires anywhere
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#include "check.h"
typedef uint64_t Four[4] __attribute__((aligned(32)));
static volatile int ticks;
static Four seen, told;
static int tells;
static char *page;
static uint8_t *area_of(ucontext_t *context) { return (uint8_t *)context->uc_mcontext.fpregs; }
static void tick(int n) { (void)n, ticks++; }
// The frame has the program's register; what is put there is loaded.
static void look(int n, siginfo_t *info, void *data) {
    (void)info;
    CHECK(n == SIGUSR1 || page);
    uint8_t *area = area_of(data);
    uint64_t present;
    memcpy(&present, area + 512, 8);
    memset(seen, 0, 32);
    if (present & 2) memcpy(seen, area + 160 + 240, 16);
    if (present & 4) memcpy(seen + 2, area + 576 + 240, 16);
    if (tells) {
        if (!(present & 2)) memset(area + 160, 0, 256);
        if (!(present & 4)) memset(area + 576, 0, 256);
        present |= 6;
        memcpy(area + 512, &present, 8);
        memcpy(area + 160 + 240, told, 16);
        memcpy(area + 576 + 240, told + 2, 16);
    }
    if (page) CHECK(!mprotect(page, 4096, PROT_READ));
    // The handler uses it, too.
    __asm__ volatile("vpcmpeqb %%ymm15, %%ymm15, %%ymm15" : : : "xmm15");
}
#define LOAD "vmovdqu (%0), %%ymm15\n"
#define STORE "vmovdqu %%ymm15, (%1)\n"
#define ZEROS "vzeroall\n"
#define AROUND(in, out, code) \
    __asm__ volatile(ZEROS LOAD code STORE : : "r"(in), "r"(out) : "memory", "rax", "rcx", "rdi", "rsi", "r11", \
                     "xmm0", "xmm1", "xmm2", "xmm3", "xmm15")
static void is(const uint64_t *out, uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    CHECK(out[0] == a && out[1] == b && out[2] == c && out[3] == d);
}
int main(void) {
    Four in = {0x1111, 0x2222, 0x3333, 0x4444}, low = {0x5555, 0x6666}, out;
    Four high = {0, 0, 0x7777, 0x8888}, nothing = {0};
    uint64_t *all[] = {in, low, high, nothing};
    signal(SIGALRM, tick);
    struct sigaction action = {.sa_sigaction = look, .sa_flags = SA_SIGINFO};
    sigaction(SIGUSR1, &action, 0);
    sigaction(SIGSEGV, &action, 0);
    int pid = getpid();

    // System calls, and signals while nothing else is in use.
    for (int i = 0; i < 4; i++) {
        AROUND(all[i], out, "mov $39, %%eax\n syscall\n");
        CHECK(!memcmp(all[i], out, 32));
    }
    struct itimerval timer = {{0, 1000}, {0, 1000}}, off = {0};
    setitimer(ITIMER_REAL, &timer, 0);
    for (int i = 0; i < 40; i++) {
        int before = ticks;
        __asm__ volatile(ZEROS LOAD "1: cmpl %2, %3\n je 1b\n" STORE
                         : : "r"(all[i & 3]), "r"(out), "r"(before), "m"(ticks) : "memory", "xmm15");
        CHECK(!memcmp(all[i & 3], out, 32));
    }
    setitimer(ITIMER_REAL, &off, 0);

    // What a handler sees, and what it leaves.
    for (int i = 0; i < 16; i++) {
        tells = i >= 8;
        memcpy(told, all[(i + 1) & 3], 32);
        __asm__ volatile(ZEROS LOAD "syscall\n" STORE
                         : : "r"(all[i & 3]), "r"(out), "a"(SYS_kill), "D"(pid), "S"(SIGUSR1)
                         : "memory", "rcx", "r11", "xmm15");
        CHECK(!memcmp(seen, all[i & 3], 32));
        CHECK(!memcmp(out, tells ? told : all[i & 3], 32));
    }
    tells = 0;

    // A child has it.
    long child = SYS_fork;
    __asm__ volatile("vmovdqu (%1), %%ymm15\n syscall\n vmovdqu %%ymm15, (%2)\n"
                     : "+a"(child) : "r"(in), "r"(out) : "memory", "rcx", "r11", "xmm15");
    CHECK(!memcmp(in, out, 32));
    if (!child) _exit(7);
    int status;
    CHECK(wait(&status) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);

    // The two encodings, and what empties upper halves.
    AROUND(in, out, "movq %%xmm15, %%rax\n movq %%rax, %%xmm1\n");
    is(out, 0x1111, 0x2222, 0x3333, 0x4444);
    AROUND(in, out, "movapd %%xmm0, %%xmm15\n");
    is(out, 0, 0, 0x3333, 0x4444);
    AROUND(in, out, "paddq %%xmm15, %%xmm15\n");
    is(out, 0x2222, 0x4444, 0x3333, 0x4444);
    AROUND(in, out, "vpaddq %%xmm15, %%xmm15, %%xmm15\n");
    is(out, 0x2222, 0x4444, 0, 0);
    AROUND(in, out, "vpaddq %%ymm15, %%ymm15, %%ymm15\n");
    is(out, 0x2222, 0x4444, 0x6666, 0x8888);
    AROUND(in, out, "vzeroupper\n");
    is(out, 0x1111, 0x2222, 0, 0);
    AROUND(in, out, "vzeroall\n");
    is(out, 0, 0, 0, 0);
    AROUND(in, out, "vextracti128 $1, %%ymm15, %%xmm2\n vmovdqa %%xmm2, %%xmm15\n");
    is(out, 0x3333, 0x4444, 0, 0);

    // What stores and loads all registers.
    static uint8_t area[4096] __attribute__((aligned(64)));
    __asm__ volatile(LOAD "fxsave64 (%2)\n vzeroall\n fxrstor64 (%2)\n" STORE
                     : : "r"(in), "r"(out), "r"(area) : "memory", "xmm15");
    CHECK(!memcmp(area + 160 + 240, in, 16));
    is(out, 0x1111, 0x2222, 0, 0);
    memset(area, 0, sizeof area);
    __asm__ volatile(LOAD "xsave64 (%2)\n vzeroall\n xrstor64 (%2)\n" STORE
                     : : "r"(in), "r"(out), "r"(area), "a"(6), "d"(0) : "memory", "xmm15");
    CHECK(!memcmp(area + 160 + 240, in, 16) && !memcmp(area + 576 + 240, in + 2, 16));
    CHECK(!memcmp(in, out, 32));

    // Gathers with it as an index, as what is gathered and as a mask; some fault half way.
    char *pages = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int *table = (int *)(pages + 4096) - 4;
    for (int i = 0; i < 8; i++) table[i] = i * i + 1;
    int indices[8] = {0, 1, 2, 3, 4, 5, 6, 7}, sums[8];
    for (int kind = 0; kind < 3; kind++) {
        for (int faults = 0; faults < 2; faults++) {
            page = faults ? pages + 4096 : 0;
            if (faults) CHECK(!mprotect(page, 4096, PROT_NONE));
            memset(sums, 0, sizeof sums);
            if (kind == 0)
                __asm__ volatile("vpcmpeqd %%ymm1, %%ymm1, %%ymm1\n vmovdqu (%0), %%ymm15\n"
                                 "vpgatherdd %%ymm1, (%1,%%ymm15,4), %%ymm2\n vmovdqu %%ymm2, (%2)\n"
                                 : : "r"(indices), "r"(table), "r"(sums) : "memory", "xmm1", "xmm2", "xmm15");
            else if (kind == 1)
                __asm__ volatile("vpcmpeqd %%ymm1, %%ymm1, %%ymm1\n vmovdqu (%0), %%ymm2\n"
                                 "vpgatherdd %%ymm1, (%1,%%ymm2,4), %%ymm15\n vmovdqu %%ymm15, (%2)\n"
                                 : : "r"(indices), "r"(table), "r"(sums) : "memory", "xmm1", "xmm2", "xmm15");
            else
                __asm__ volatile("vpcmpeqd %%ymm15, %%ymm15, %%ymm15\n vmovdqu (%0), %%ymm1\n"
                                 "vpgatherdd %%ymm15, (%1,%%ymm1,4), %%ymm2\n vmovdqu %%ymm2, (%2)\n"
                                 : : "r"(indices), "r"(table), "r"(sums) : "memory", "xmm1", "xmm2", "xmm15");
            CHECK(!memcmp(sums, table, sizeof sums));
            // Only the elements in the first page had come.
            if (faults && kind == 1) CHECK(!memcmp(seen, table, 16));
        }
    }
    // So many, with other loads of another number between them, that the index itself meets the end of a buffer.
    int places[8], *volatile chase[8];
    for (int k = 0; k < 8; k++) places[k] = k, chase[k] = &places[k];
    for (int i = 0; i < 20000; i++) {
        for (int k = 0; k < i % 8; k++) CHECK(*chase[k] == k);
        for (int k = 0; k < 8; k++) indices[k] = i + k & 7;
        __asm__ volatile("vpcmpeqd %%ymm1, %%ymm1, %%ymm1\n vmovdqu (%0), %%ymm15\n"
                         "vpgatherdd %%ymm1, (%1,%%ymm15,4), %%ymm2\n vmovdqu %%ymm2, (%2)\n"
                         : : "r"(indices), "r"(table), "r"(sums) : "memory", "xmm1", "xmm2", "xmm15");
        for (int k = 0; k < 8; k++) CHECK(sums[k] == table[i + k & 7]);
    }
    puts("ok");
}
