// Signals that come as fast as they can leave the program enough to go on: instructions, system calls, and calls that wait.
//#oracle: no: a timer fires anywhere
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "check.h"
static volatile sig_atomic_t ticks;
static void handler(int s) { ticks++; }
static void action(int number, int flags) {
    struct sigaction a = {.sa_handler = handler, .sa_flags = flags};
    CHECK(sigaction(number, &a, 0) == 0);
}
static void every(int us) {
    struct itimerval it = {{0, us}, {0, us}};
    CHECK(setitimer(ITIMER_REAL, &it, 0) == 0);
}
// A child that writes a byte after a while.
static int late_byte(pid_t *child) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    *child = fork();
    if (*child == 0) {
        struct timespec t = {0, 20000000};
        nanosleep(&t, 0);
        _exit(write(ends[1], "x", 1) != 1);
    }
    close(ends[1]);
    return ends[0];
}
static void reap(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) != child) CHECK(errno == EINTR);
    CHECK(status == 0);
}
static volatile int stop;
static void *count(void *arg) {
    unsigned long h = 1;
    for (int i = 0; i < 300000; i++) h = h * 6364136223846793005UL + i;
    for (int i = 0; i < 300; i++) getppid();
    stop = 1;
    return (void *)h;
}
int main(void) {
    action(SIGALRM, 0);
    for (int i = 0; i < 300; i++) {
        every(10);
        every(0);
    }
    puts("on and off");
    every(10);
    unsigned long h = 1;
    for (int i = 0; i < 300000; i++) h = h * 6364136223846793005UL + i;
    every(0);
    printf("computed %lu\n", h);

    pid_t child;
    char byte = 0;
    int from, interrupted = 0;
    // Nearly always the first time.
    while (!interrupted) {
        from = late_byte(&child);
        every(10);
        while (read(from, &byte, 1) != 1) {
            CHECK(errno == EINTR);
            interrupted++;
        }
        reap(child);
        every(0);
        close(from);
        CHECK(byte == 'x');
    }
    puts("read, interrupted");

    action(SIGALRM, SA_RESTART);
    from = late_byte(&child);
    every(10);
    CHECK(read(from, &byte, 1) == 1);
    reap(child);
    every(0);
    puts("read, restarted");

    every(10);
    int again = 0;
    while (!again) {
        struct timespec left = {0, 5000000};
        while (nanosleep(&left, &left) != 0) again++;
    }
    sigset_t none;
    sigemptyset(&none);
    CHECK(sigsuspend(&none) == -1 && errno == EINTR);
    every(0);
    puts("slept");

    // Sent by another thread.
    action(SIGUSR1, SA_RESTART);
    pthread_t thread;
    void *sum;
    CHECK(pthread_create(&thread, 0, count, 0) == 0);
    while (!stop) pthread_kill(thread, SIGUSR1);
    pthread_join(thread, &sum);
    printf("counted %lu\n", (unsigned long)sum);
    CHECK(ticks > 0);

    // What is sent before the program goes on is handled before it does.
    ticks = 0;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    action(SIGRTMIN, 0);
    for (int i = 0; i < 500; i++) CHECK(sigqueue(getpid(), SIGRTMIN, (union sigval){i}) == 0);
    raise(SIGUSR1);
    raise(SIGALRM);
    pthread_sigmask(SIG_SETMASK, &old, 0);
    CHECK(ticks == 502);
    puts("all handled");
}
