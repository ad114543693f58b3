// Loads of the program that fault where a look-up of the runtime could: the handler sees the
// register as it was.
//#variants: pie no-pie static
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <ucontext.h>
#include "check.h"
static sigjmp_buf back;
static volatile uint64_t rcx;
static void handler(int n, siginfo_t *info, void *context) {
    (void)n, (void)info;
    rcx = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RCX];
    siglongjmp(back, 1);
}
#define FAULTS(load, index)                                                          \
    if (!sigsetjmp(back, 1)) {                                                       \
        __asm__ volatile(load : : "c"((uint64_t)(index)) : "rax", "memory");         \
        CHECK(!"reached");                                                           \
    }                                                                                \
    CHECK(rcx == (uint64_t)(index))
int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    CHECK(!sigaction(SIGSEGV, &action, 0));
    FAULTS("movl 0x600000(,%%rcx,4), %%eax", 0xffffffff);
    FAULTS("movl 0x600000(,%%rcx,4), %%ecx", 0xffffffff);
    FAULTS("movq 0x600000(,%%rcx,8), %%rcx", 0xffffffff);
    FAULTS("movl 0x7ffff000(,%%rcx,4), %%ecx", 0x3fffffff);
    FAULTS("movq 0x7ffff000(,%%rcx,8), %%rcx", 0x3fffffff);
    FAULTS("call *0x7ffff000(,%%rcx,8)", 0x3fffffff);
    FAULTS("jmp *0x7ffff000(,%%rcx,8)", 0x3fffffff);
    FAULTS("jmp *0x600000(,%%rcx,8)", 0xffffffff);
    puts("ok");
}
