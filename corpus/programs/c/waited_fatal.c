// A signal without a handler ends the process when it is sent, though a thread waits for it that has not blocked it.
//#oracle: no: threads
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "check.h"

static void *sender(void *unused) {
    struct timespec second = {1, 0};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    kill(getpid(), SIGTERM);
    sigtimedwait(&set, 0, &second);
    return unused;
}

int main(void) {
    for (int i = 0; i < 5; i++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            pthread_t thread;
            pthread_create(&thread, 0, sender, 0);
            pthread_join(thread, 0);
            _exit(1);
        }
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    }
    // What is blocked is only waited for.
    struct timespec second = {1, 0};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    CHECK(sigprocmask(SIG_BLOCK, &set, 0) == 0);
    kill(getpid(), SIGTERM);
    CHECK(sigtimedwait(&set, 0, &second) == SIGTERM);
    puts("ended by what was waited for");
}
