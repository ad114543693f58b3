// The handler that ends a call with a mask of its own (sigsuspend, ppoll, ...) runs under that mask.
//#oracle: no: when the child sends its signals is not fixed
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
static volatile sig_atomic_t second;
static pid_t parent;
static void on_second(int s) { second = 1; }
// Waits for the other signal, which is blocked but for the call.
static void on_first(int s) {
    while (!second) usleep(1000);
}
static int waits(int how) {
    sigset_t none;
    sigemptyset(&none);
    static int ep;
    struct epoll_event event;
    if (!ep) ep = epoll_create1(0);
    switch (how) {
    case 0: return sigsuspend(&none);
    case 1: return ppoll(0, 0, 0, &none);
    case 2: return pselect(0, 0, 0, 0, 0, &none);
    default: return epoll_pwait(ep, &event, 1, -1, &none);
    }
}
int main(void) {
    sigset_t all, now;
    sigfillset(&all);
    sigdelset(&all, SIGINT);
    sigdelset(&all, SIGCHLD);
    CHECK(!sigprocmask(SIG_BLOCK, &all, 0));
    struct sigaction one = {.sa_handler = on_first}, two = {.sa_handler = on_second};
    CHECK(!sigaction(SIGUSR1, &one, 0) && !sigaction(SIGUSR2, &two, 0));
    parent = getpid();
    for (int how = 0; how < 4; how++) {
        second = 0;
        pid_t child = fork();
        if (!child) {
            kill(parent, SIGUSR1);
            usleep(20000);
            kill(parent, SIGUSR2);
            _exit(0);
        }
        CHECK(waits(how) == -1 && errno == EINTR && second);
        CHECK(!sigprocmask(SIG_BLOCK, 0, &now));
        CHECK(sigismember(&now, SIGUSR1) && sigismember(&now, SIGUSR2));
        CHECK(!sigismember(&now, SIGINT) && waitpid(child, 0, 0) == child);
    }
    puts("ok");
}
