// Calls wild pointers; a handler checks the faulting pc and the return address, and gets out.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <ucontext.h>
#include "check.h"
static sigjmp_buf env;
static volatile unsigned long want;
static char data[64] = {0xc3};
static void handler(int s, siginfo_t *i, void *u) {
    unsigned long pc = ((ucontext_t *)u)->uc_mcontext.gregs[REG_RIP];
    unsigned long sp = ((ucontext_t *)u)->uc_mcontext.gregs[REG_RSP];
    CHECK(s == SIGSEGV && pc == want && (unsigned long)i->si_addr == want);
    unsigned long ra = *(unsigned long *)sp;
    CHECK(ra > (unsigned long)want || ra < (unsigned long)want);
    siglongjmp(env, 1);
}
int main(void) {
    struct sigaction a = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &a, 0);
    unsigned long places[] = {0, 1, 0x1234, (unsigned long)data, 0x10000000000, 0x7fffffffe000};
    for (volatile unsigned i = 0; i < 6; i++) {
        want = places[i];
        if (!sigsetjmp(env, 1)) { ((void (*)(void))want)(); CHECK(0); }
    }
    puts("ok");
}
