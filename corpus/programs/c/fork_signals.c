// A timer signal at 1 kHz around forks, and forks in its handler; clone with a stack of its own.
//#oracle: no: when the signal comes is not determined
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
static volatile sig_atomic_t ticks, forked, bad;
static int status_of(pid_t pid) {
    int st;
    pid_t got;
    do got = waitpid(pid, &st, 0);
    while (got < 0 && errno == EINTR);
    return got == pid && WIFEXITED(st) ? WEXITSTATUS(st) : -1;
}
static void tick(int signal) {
    int saved = errno;
    (void)signal;
    ticks++;
    if (ticks % 8 == 0 && forked < 10) {
        // All arguments: `syscall` takes those that are not given from the stack, where ld.so left what was in use (xsavec).
        pid_t pid = syscall(SYS_fork, 0, 0, 0, 0, 0, 0);
        if (!pid) _exit(33);
        forked++;
        if (status_of(pid) != 33) bad++;
    }
    errno = saved;
}
static int on_own_stack(void *arg) {
    volatile int x = 0;
    for (int i = 0; i < 1000; i++) x += i & *(int *)arg;
    return x & 63;
}
int main(void) {
    struct sigaction sa = {.sa_handler = tick, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    CHECK(!sigaction(SIGALRM, &sa, 0));
    CHECK(!setitimer(ITIMER_REAL, &often, 0));
    int mask = 1, wanted = on_own_stack(&mask);
    char *stack = malloc(1 << 16);
    for (int i = 0; i < 40; i++) {
        pid_t pid;
        if (i % 4 == 3)
            pid = clone(on_own_stack, stack + (1 << 16), SIGCHLD, &mask);
        else if (!(pid = fork())) {
            // The timer is not inherited; handlers are.
            if (i % 4 == 1) raise(SIGALRM);
            volatile unsigned x = i;
            for (int k = 0; k < 2000; k++) x = x * 3 + 1;
            _exit(i);
        }
        CHECK(pid > 0);
        CHECK(status_of(pid) == (i % 4 == 3 ? wanted : i));
    }
    while (forked < 10) {}
    CHECK(!setitimer(ITIMER_REAL, &never, 0));
    CHECK(!bad);
    puts("ok");
}
