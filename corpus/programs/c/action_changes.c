// A signal has the action of the moment when it is delivered, however soon another one follows.
//#oracle: no: threads
//#except: undo: it is another one under the watcher, which traces it
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
#include "check.h"
static volatile int first, second, go;
static volatile pid_t ready;
static void one(int s) { first++; }
static void two(int s) { second++; }
static void begin(void) {
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    pthread_sigmask(SIG_UNBLOCK, &term, 0);
    ready = gettid();
}
static void *spin(void *arg) {
    begin();
    while (!go) {}
    return 0;
}
static void *call(void *arg) {
    begin();
    while (!go) getppid();
    return 0;
}
// Whether a signal waits for the thread, as the kernel sees it.
static int waits(int status) {
    static char text[4096];
    ssize_t n = pread(status, text, sizeof text - 1, 0);
    CHECK(n > 0);
    text[n] = 0;
    char *pending = strstr(text, "SigPnd:");
    CHECK(pending);
    return strtoul(pending + 7, 0, 16) != 0;
}
static void sent(void *(*body)(void *), void (*then)(int)) {
    for (int i = 0; i < 25; i++) {
        first = second = go = ready = 0;
        pthread_t thread;
        signal(SIGTERM, one);
        CHECK(pthread_create(&thread, 0, body, 0) == 0);
        while (!ready) sched_yield();
        char path[64];
        sprintf(path, "/proc/self/task/%d/status", ready);
        int status = open(path, O_RDONLY);
        CHECK(status >= 0);
        pthread_kill(thread, SIGTERM);
        while (!first && waits(status)) {}
        // The kernel has delivered it.
        signal(SIGTERM, then);
        while (!first && !second) sched_yield();
        go = 1;
        pthread_join(thread, 0);
        close(status);
        CHECK(first == 1 && second == 0);
    }
}
int main(void) {
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &term, 0);
    sent(spin, SIG_DFL);
    sent(call, SIG_DFL);
    sent(spin, SIG_IGN);
    sent(call, two);
    // One that waits, blocked, has the action of when it is let in.
    raise(SIGTERM);
    first = second = 0;
    signal(SIGTERM, two);
    pthread_sigmask(SIG_UNBLOCK, &term, 0);
    CHECK(second == 1 && first == 0);
    // A handler for one time.
    struct sigaction once = {.sa_handler = one, .sa_flags = SA_RESETHAND}, now;
    CHECK(sigaction(SIGTERM, &once, 0) == 0);
    raise(SIGTERM);
    CHECK(first == 1 && sigaction(SIGTERM, 0, &now) == 0 && now.sa_handler == SIG_DFL);
    puts("ok");
}
