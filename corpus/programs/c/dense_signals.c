// Another process sends signals, one every few microseconds, until the program has done its work: between them it
// gets on, and no call that may be started again fails.
//#oracle: no: signals from another process
//#except: undo: the watcher takes longer for a signal than it is to the next one
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "check.h"
enum { INTERVAL_NS = 10000, CALLS = 200 };
static volatile int signals;
static void handler(int s) { signals++; }
static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000 + t.tv_nsec;
}
static void send(pid_t to) {
    for (long next = now();;) {
        while (now() < next) continue;
        next = now() + INTERVAL_NS;
        if (kill(to, SIGUSR1)) _exit(1);
    }
}
int main(void) {
    struct sigaction a = {.sa_handler = handler, .sa_flags = SA_RESTART};
    CHECK(!sigaction(SIGUSR1, &a, 0));
    int ends[2];
    CHECK(!pipe(ends));
    pid_t parent = getpid(), sender = fork();
    if (!sender) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        send(parent);
    }
    CHECK(sender > 0);
    while (!signals) continue;
    // Code, also some that is looked up at each turn.
    static long (*volatile calls[])(long) = {labs, labs};
    volatile long sum = 0;
    for (long i = 0; i < 300000; i++) sum += calls[i & 1](-i);
    CHECK(sum == 299999l * 300000 / 2);
    // Calls that return at once, and one that waits.
    for (int i = 0; i < CALLS; i++) {
        char byte = i;
        CHECK(write(ends[1], &byte, 1) == 1 && read(ends[0], &byte, 1) == 1 && byte == (char)i);
        CHECK(syscall(SYS_getpid) == parent);
    }
    pid_t writer = fork();
    if (!writer) _exit(write(ends[1], "x", 1) != 1);
    char byte;
    CHECK(read(ends[0], &byte, 1) == 1 && byte == 'x');
    int status;
    CHECK(waitpid(writer, &status, 0) == writer && !status);
    CHECK(!kill(sender, SIGKILL) && waitpid(sender, &status, 0) == sender);
    return 0;
}
