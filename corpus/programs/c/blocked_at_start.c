// Started with signals blocked of the kinds that faults raise, some of which wait already.
//#args: 1
//#oracle: no: the signals of a stepped program pass through the stepper
#define _GNU_SOURCE
#include <signal.h>
#include <unistd.h>
#include "check.h"
static volatile int count[65];
static void handler(int n) { count[n]++; }
static volatile unsigned numbers[4096];
int main(int argc, char **argv) {
    int blocked[] = {SIGSEGV, SIGTRAP, SIGBUS, SIGUSR1};
    sigset_t set, now, waiting;
    sigemptyset(&set);
    for (int i = 0; i < 4; i++) sigaddset(&set, blocked[i]);
    CHECK(argc == 2);
    if (atoi(argv[1])) {
        CHECK(!sigprocmask(SIG_BLOCK, &set, 0));
        CHECK(!raise(SIGSEGV) && !raise(SIGUSR1));
        char exe[4096];
        ssize_t len = readlink("/proc/self/exe", exe, sizeof exe - 1);
        CHECK(len > 0);
        exe[len] = 0;
        execl(exe, argv[0], "0", (char *)0);
        return 1;
    }
    // More than a recording's buffers hold at once.
    for (unsigned i = 0; i < 1000000; i++) numbers[i % 4096] += i;
    CHECK(!sigprocmask(SIG_BLOCK, 0, &now) && !sigpending(&waiting));
    for (int i = 0; i < 4; i++) CHECK(sigismember(&now, blocked[i]));
    CHECK(sigismember(&waiting, SIGSEGV) && sigismember(&waiting, SIGUSR1));
    CHECK(!sigismember(&waiting, SIGTRAP) && !sigismember(&waiting, SIGBUS));
    for (int i = 0; i < 4; i++) {
        struct sigaction action = {.sa_handler = handler};
        CHECK(!sigaction(blocked[i], &action, 0));
    }
    CHECK(!sigprocmask(SIG_UNBLOCK, &set, 0));
    CHECK(count[SIGSEGV] == 1 && count[SIGUSR1] == 1 && !count[SIGTRAP] && !count[SIGBUS]);
    CHECK(!raise(SIGTRAP) && count[SIGTRAP] == 1);
    puts("ok");
    return 0;
}
