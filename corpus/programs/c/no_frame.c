// A signal whose frame does not fit anywhere: SIGSEGV instead, for which there may be a handler.
//#expect-signal: 11
//#oracle: no: the signals of a stepped program pass through the stepper
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "check.h"
static volatile int count;
static void handler(int n, siginfo_t *info, void *context) {
    (void)context;
    CHECK(n == SIGSEGV && info->si_code == SI_KERNEL && !info->si_addr);
    count++;
}
static void never(int n) { _exit(n); }
int main(void) {
    void *nothing = mmap(0, 1 << 16, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(nothing != MAP_FAILED);
    stack_t stack = {.ss_sp = nothing, .ss_size = 1 << 16};
    CHECK(!sigaltstack(&stack, 0));
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    CHECK(!sigaction(SIGSEGV, &action, 0));
    struct sigaction other = {.sa_handler = never, .sa_flags = SA_ONSTACK};
    CHECK(!sigaction(SIGUSR1, &other, 0) && !sigaction(SIGUSR2, &other, 0));
    for (int i = 0; i < 3; i++) {
        CHECK(!raise(SIGUSR1) && !raise(SIGUSR2));
        CHECK(count == 2 * i + 2);
    }
    CHECK(!sigaction(SIGSEGV, &other, 0));
    puts("ok");
    fflush(stdout);
    raise(SIGUSR1);
}
