// Signals of the kinds that faults raise, sent while they are blocked: they wait, calls that let
// them in for a moment do, and calls that ask for them find them.
//#oracle: no: the signals of a stepped program pass through the stepper
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "check.h"
static volatile int count[64];
static void handler(int n) { count[n]++; }
int main(void) {
    int numbers[] = {SIGSEGV, SIGFPE, SIGTRAP, SIGBUS, SIGILL, SIGUSR1};
    sigset_t all, none, pending;
    sigemptyset(&none);
    sigemptyset(&all);
    for (int i = 0; i < 6; i++) {
        struct sigaction action = {.sa_handler = handler};
        CHECK(!sigaction(numbers[i], &action, 0));
        sigaddset(&all, numbers[i]);
    }
    // They come when they may, each once.
    for (int round = 1; round <= 20; round++) {
        CHECK(!sigprocmask(SIG_BLOCK, &all, 0));
        for (int i = 0; i < 6; i++) CHECK(!raise(numbers[i]) && !raise(numbers[i]));
        for (int i = 0; i < 6; i++) CHECK(count[numbers[i]] == round - 1);
        CHECK(!sigprocmask(SIG_UNBLOCK, &all, 0));
        for (int i = 0; i < 6; i++) CHECK(count[numbers[i]] == round);
    }
    CHECK(!sigprocmask(SIG_BLOCK, &all, 0));
    for (int i = 0; i < 6; i++) {
        int n = numbers[i], before = count[n];
        struct timespec soon = {0, 1000000};
        sigset_t one;
        sigemptyset(&one);
        sigaddset(&one, n);
        // Let in by a call's own mask.
        CHECK(!raise(n) && sigsuspend(&none) == -1 && errno == EINTR && count[n] == before + 1);
        CHECK(!raise(n) && ppoll(0, 0, &soon, &none) == -1 && count[n] == before + 2);
        // Found by whoever asks.
        CHECK(!raise(n) && !sigpending(&pending) && sigismember(&pending, n));
        CHECK(sigtimedwait(&one, 0, &soon) == n && !sigpending(&pending) && !sigismember(&pending, n));
        struct signalfd_siginfo info;
        int fd = signalfd(-1, &one, 0);
        CHECK(!raise(n) && read(fd, &info, sizeof info) == sizeof info && info.ssi_signo == (unsigned)n);
        close(fd);
        // Not the child's, and no reason to wake up.
        CHECK(!raise(n));
        pid_t child = fork();
        if (!child) _exit(!sigprocmask(SIG_UNBLOCK, &all, 0) && count[n] == before + 2 ? 7 : 1);
        int status;
        CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
        CHECK(!nanosleep(&soon, 0));
        // Ignored, it is gone.
        struct sigaction ignore = {.sa_handler = SIG_IGN}, action = {.sa_handler = handler};
        CHECK(!sigaction(n, &ignore, 0) && !sigaction(n, &action, 0));
        CHECK(!sigpending(&pending) && !sigismember(&pending, n) && count[n] == before + 2);
    }
    puts("ok");
}
