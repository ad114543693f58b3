// The calls at the addresses of the vsyscall page, which the kernel carries out where somebody jumps there: their
// results, the registers behind them, and what comes instead of an error.
//#requires: vsyscall
//#except: replay: a replay does not follow a signal that comes during such a call
//#oracle: no: there is no code at these addresses
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>
#include "check.h"
static const unsigned long PAGE = 0xffffffffff600000;
static sigjmp_buf back;
static volatile unsigned long at;
static volatile int alarms;
static void faulted(int s, siginfo_t *i, void *u) {
    at = ((ucontext_t *)u)->uc_mcontext.gregs[REG_RIP];
    siglongjmp(back, 1);
}
static void alarmed(int s) { alarms++; }
int main(void) {
    int (*day)(struct timeval *, void *) = (void *)PAGE;
    time_t (*now)(time_t *) = (void *)(PAGE + 1024);
    int (*cpu)(unsigned *, unsigned *, void *) = (void *)(PAGE + 2048);
    for (int i = 0; i < 100; i++) {
        struct timeval before, there, after;
        gettimeofday(&before, 0);
        CHECK(!day(&there, 0));
        gettimeofday(&after, 0);
        CHECK(!timercmp(&there, &before, <) && !timercmp(&there, &after, >));
        time_t stored = 0, returned = now(&stored);
        // It counts in ticks: right behind a second's start it may still be the one before.
        CHECK(stored == returned && returned >= before.tv_sec - 1);
        unsigned processor = ~0u, node = ~0u;
        CHECK(!cpu(&processor, &node, 0) && processor < 65536 && node < 65536);
    }
    // It is no `syscall`, which changes rcx and r11. One call leads to the next one.
    unsigned long c = 0x1234, d = 0x5678, result = 0;
    __asm__ volatile("mov %1, %%rcx; mov %2, %%r11; xor %%edi, %%edi; lea 1f(%%rip), %%rax; push %%rax; push %3;"
                     "jmp *%3; 1: mov %%rcx, %1; mov %%r11, %2; mov %%rax, %0"
                     : "=&r"(result), "+&r"(c), "+&r"(d) : "r"(now) : "rax", "rcx", "rdi", "r11", "memory", "cc");
    CHECK(c == 0x1234 && d == 0x5678 && result >= 1);
    // Under a timer.
    signal(SIGALRM, alarmed);
    struct itimerval often = {{0, 300}, {0, 300}}, off = {};
    CHECK(!setitimer(ITIMER_REAL, &often, 0));
    while (alarms < 50) CHECK(now(0) > 0);
    CHECK(!setitimer(ITIMER_REAL, &off, 0));
    struct sigaction a = {.sa_sigaction = faulted, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &a, 0);
    // Where nothing can be written; in front of, between and behind the calls.
    if (!sigsetjmp(back, 1)) {
        now((time_t *)8);
        CHECK(0);
    }
    CHECK(at == PAGE + 1024);
    unsigned long wrong[] = {PAGE + 1, PAGE + 3072};
    for (int i = 0; i < 2; i++) {
        if (!sigsetjmp(back, 1)) {
            ((void (*)(void))wrong[i])();
            CHECK(0);
        }
        CHECK(at == wrong[i]);
    }
    return 0;
}
