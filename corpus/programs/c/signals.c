// raise, kill, sigqueue with a value, nesting, masks, sigsuspend, sigpending, SA_RESETHAND, SA_NODEFER.
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <unistd.h>
#include "check.h"
static volatile int log_[32], n, depth, deepest;
static volatile int value;
static void one(int s) { log_[n++] = s; if (s == SIGUSR1) { raise(SIGUSR2); log_[n++] = -s; } }
static void info(int s, siginfo_t *i, void *u) { value = i->si_value.sival_int; CHECK(i->si_pid == getpid()); }
static void nest(int s) { if (++depth > deepest) deepest = depth; if (depth < 5) raise(s); depth--; }
int main(void) {
    struct sigaction a = {.sa_handler = one};
    sigaction(SIGUSR1, &a, 0);
    sigaction(SIGUSR2, &a, 0);
    raise(SIGUSR1);
    CHECK(n == 3 && log_[0] == SIGUSR1 && log_[1] == SIGUSR2 && log_[2] == -SIGUSR1);
    sigaddset(&a.sa_mask, SIGUSR2);
    sigaction(SIGUSR1, &a, 0);
    n = 0;
    kill(getpid(), SIGUSR1);
    CHECK(n == 3 && log_[1] == -SIGUSR1 && log_[2] == SIGUSR2);
    a = (struct sigaction){.sa_sigaction = info, .sa_flags = SA_SIGINFO};
    sigaction(SIGRTMIN + 3, &a, 0);
    sigqueue(getpid(), SIGRTMIN + 3, (union sigval){.sival_int = 1234});
    CHECK(value == 1234);
    a = (struct sigaction){.sa_handler = nest, .sa_flags = SA_NODEFER};
    sigaction(SIGURG, &a, 0);
    raise(SIGURG);
    CHECK(deepest == 5 && depth == 0);
    a = (struct sigaction){.sa_handler = one, .sa_flags = SA_RESETHAND};
    sigaction(SIGWINCH, &a, 0);
    n = 0;
    raise(SIGWINCH);
    raise(SIGWINCH);
    CHECK(n == 1);
    sigset_t block, old, pending;
    sigemptyset(&block);
    sigaddset(&block, SIGUSR2);
    sigprocmask(SIG_BLOCK, &block, &old);
    n = 0;
    raise(SIGUSR2);
    sigpending(&pending);
    CHECK(n == 0 && sigismember(&pending, SIGUSR2));
    CHECK(sigsuspend(&old) == -1 && n == 1);
    raise(SIGUSR2);
    int got;
    CHECK(!sigwait(&block, &got) && got == SIGUSR2 && n == 1);
    sigprocmask(SIG_SETMASK, &old, 0);
    signal(SIGTRAP, one);
    raise(SIGTRAP);
    CHECK(n == 2 && log_[1] == SIGTRAP);
    signal(SIGCHLD, SIG_IGN);
    raise(SIGCHLD);
    puts("ok");
}
