// A handler that raises what it was told again, with all that the kernel said, and dies of it; before
// that, such signals are caught, blocked and let in.
//#expect-signal: 11
//#oracle: no: the signals of a stepped program pass through the stepper
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "check.h"
static volatile int count;
static void again(int n, siginfo_t *info) {
    CHECK(!syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), n, info));
}
static void handler(int n, siginfo_t *info, void *context) {
    (void)context;
    CHECK(n == SIGSEGV && info->si_code == SEGV_MAPERR && info->si_addr == (void *)16);
    if (++count < 5) return;
    CHECK(signal(SIGSEGV, SIG_DFL) != SIG_ERR);
    CHECK(write(1, "last\n", 5) == 5);
    again(n, info);
}
int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_NODEFER};
    CHECK(!sigaction(SIGSEGV, &action, 0));
    siginfo_t info = {.si_signo = SIGSEGV, .si_code = SEGV_MAPERR, .si_addr = (void *)16};
    again(SIGSEGV, &info);
    CHECK(count == 1);
    sigset_t set, pending;
    sigemptyset(&set);
    sigaddset(&set, SIGSEGV);
    for (int i = 2; i < 5; i++) {
        CHECK(!sigprocmask(SIG_BLOCK, &set, 0));
        again(SIGSEGV, &info);
        CHECK(count == i - 1 && !sigpending(&pending) && sigismember(&pending, SIGSEGV));
        CHECK(!sigprocmask(SIG_UNBLOCK, &set, 0));
        CHECK(count == i);
    }
    *(volatile char *)16 = 1;
}
