// Memory that is shared with a child has the stacks of signal handlers and of a thread.
//#flags: -pthread
//#oracle: no: processes run as they please
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
enum { PART = 65536, SIGNALS = 30, ROUNDS = 20 };
static volatile uint64_t *counts;
static volatile int handled, run;
static int me;
static void handler(int signal) {
    volatile char room[300];
    room[5] = (char)signal;
    handled += room[5];
    counts[me]++;
    getppid();
}
static void *runs(void *arg) {
    for (int i = 0; i < ROUNDS; i++) counts[2]++, run++;
    return arg;
}
int main(void) {
    char *shared = mmap(NULL, 3 * PART, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    counts = (uint64_t *)shared;
    pid_t child = fork();
    me = child == 0;
    stack_t own = {.ss_sp = shared + PART + me * PART / 2, .ss_size = PART / 2};
    CHECK(sigaltstack(&own, NULL) == 0);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    for (int i = 0; i < SIGNALS; i++) CHECK(raise(SIGUSR1) == 0);
    CHECK(handled == SIGNALS * SIGUSR1 && counts[me] == SIGNALS);
    if (child == 0) {
        pthread_attr_t attributes;
        pthread_t thread;
        pthread_attr_init(&attributes);
        CHECK(pthread_attr_setstack(&attributes, shared + 2 * PART, PART) == 0);
        CHECK(pthread_create(&thread, &attributes, runs, NULL) == 0 && pthread_join(thread, NULL) == 0);
        _exit(run == ROUNDS ? 5 : 6);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 5 && counts[1] == SIGNALS);
    puts("done");
    return 0;
}
