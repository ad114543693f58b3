// `int` with every kind of number: faults at itself, traps behind itself; a handler that prints what
// it is told and steps over what stands there, and at last none.
//#expect-signal: 11
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>
#include "check.h"
static volatile int count;
static void handler(int number, siginfo_t *info, void *context) {
    greg_t *g = ((ucontext_t *)context)->uc_mcontext.gregs;
    unsigned char *pc = (unsigned char *)g[REG_RIP];
    char line[128];
    int n = snprintf(line, sizeof line, "%d: signal %d, code %d, address %p, trap %lld, error %llx, at %02x\n",
                     ++count, number, info->si_code, info->si_addr, (long long)g[REG_TRAPNO],
                     (unsigned long long)g[REG_ERR], *pc);
    CHECK(write(1, line, n) == n);
    if (*pc == 0xcd) g[REG_RIP] += 2;
}
int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    CHECK(!sigaction(SIGSEGV, &action, 0) && !sigaction(SIGTRAP, &action, 0));
    for (int i = 0; i < 3; i++) {
        __asm__ volatile("int $0x2e; int $0; nop; int $255; nop; int $1");
        __asm__ volatile(".byte 0xcd, 3; nop; int3; nop; .byte 0xcd, 3; jmp 1f; 1:" ::: "memory");
        __asm__ volatile("int $4; nop; int $4; jmp 1f; 1: nop" ::: "memory");
    }
    CHECK(count == 27);
    CHECK(signal(SIGSEGV, SIG_DFL) == (void *)handler);
    __asm__ volatile("int $0x21");
}
