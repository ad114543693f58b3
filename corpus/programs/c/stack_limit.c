// The stack overflows where its limit says, which is no multiple of a page.
//#except: bits: how often a function that records nothing has called itself when a fault ends that is not in the trace
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>
#include "check.h"

static char alternate[65536];
static char *volatile deepest;

static void overflow(int signal, siginfo_t *info, void *context) {
    static const char SAID[] = "overflow at the limit\n";
    (void)signal, (void)context;
    char *at = info->si_addr;
    if (deepest - at < 8192) _exit(write(1, SAID, sizeof SAID - 1) < 0);
    _exit(1);
}

__attribute__((noinline)) static int deep(int n) {
    volatile char frame[200];
    frame[0] = (char)n;
    deepest = (char *)frame;
    return n < 1000000 ? deep(n + 1) + frame[0] : 0;
}

int main(void) {
    struct rlimit limit = {500000, 500000};
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    struct sigaction action = {.sa_sigaction = overflow, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    CHECK(sigaltstack(&stack, 0) == 0 && sigaction(SIGSEGV, &action, 0) == 0);
    CHECK(setrlimit(RLIMIT_STACK, &limit) == 0);
    return deep(0);
}
