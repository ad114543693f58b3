// Locks that inherit priorities: threads contend for them, wait for some time only, try, and end with them.
//#flags: -pthread
//#oracle: no: threads run as they please
//#except: undo: the kernel marks a lock when a thread comes to wait for it, while others run
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include <linux/futex.h>
#include "check.h"
enum { THREADS = 4, ROUNDS = 1500 };
static pthread_mutex_t often, mostly, dies;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static volatile uint64_t count, turn, ticks;
static atomic_int there;
static void tick(int signal) { (void)signal, ticks++; }
static struct timespec in(long milliseconds) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    at.tv_nsec += milliseconds * 1000000;
    at.tv_sec += at.tv_nsec / 1000000000, at.tv_nsec %= 1000000000;
    return at;
}
static void take(uint64_t way) {
    struct timespec at = in(60000);
    switch (way) {
    case 0: CHECK(pthread_mutex_timedlock(&often, &at) == 0); break;
    case 1: while (pthread_mutex_trylock(&often) == EBUSY) sched_yield(); break;
    default: CHECK(pthread_mutex_lock(&often) == 0);
    }
}
static void *contends(void *arg) {
    uint64_t number = (uintptr_t)arg;
    for (int i = 0; i < ROUNDS; i++) {
        take((number + i) % 4);
        uint64_t seen = count;
        for (volatile int k = 0; k < 300; k++);
        if (i % 100 == 0) sched_yield();
        count = seen + 1;
        CHECK(pthread_mutex_unlock(&often) == 0);
        if (i % 64) continue;
        // In turn, by way of a condition.
        CHECK(pthread_mutex_lock(&mostly) == 0);
        while (turn % THREADS != number) CHECK(pthread_cond_wait(&changed, &mostly) == 0);
        turn++;
        CHECK(pthread_cond_broadcast(&changed) == 0);
        CHECK(pthread_mutex_unlock(&mostly) == 0);
    }
    return 0;
}
static void *waits_in_vain(void *arg) {
    struct timespec at = in(30);
    CHECK(pthread_mutex_timedlock(&mostly, &at) == ETIMEDOUT);
    CHECK(pthread_mutex_trylock(&mostly) == EBUSY);
    return arg;
}
static void *ends_with_it(void *arg) {
    CHECK(pthread_mutex_lock(&dies) == 0);
    there++;
    // Somebody comes to wait.
    usleep(20000);
    return arg;
}
static void *inherits(void *arg) {
    CHECK(pthread_mutex_lock(&dies) == EOWNERDEAD);
    CHECK(pthread_mutex_consistent(&dies) == 0);
    CHECK(pthread_mutex_unlock(&dies) == 0);
    return arg;
}
static void make(pthread_mutex_t *lock, int robust) {
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    CHECK(pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT) == 0);
    pthread_mutexattr_setrobust(&kind, robust);
    CHECK(pthread_mutex_init(lock, &kind) == 0);
}
static void refused(void) {
    static uint32_t word, odd[2];
    uint32_t own = syscall(SYS_gettid);
    word = own;
    CHECK(syscall(SYS_futex, &word, FUTEX_LOCK_PI, 0, 0) == -1 && errno == EDEADLK);
    word = 0;
    CHECK(syscall(SYS_futex, &word, FUTEX_UNLOCK_PI) == -1 && errno == EPERM);
    CHECK(syscall(SYS_futex, (char *)odd + 1, FUTEX_LOCK_PI, 0, 0) == -1 && errno == EINVAL);
    CHECK(syscall(SYS_futex, 16, FUTEX_LOCK_PI, 0, 0) == -1 && errno == EFAULT);
    // Of a thread that there is not.
    word = 0x3ffffff0;
    CHECK(syscall(SYS_futex, &word, FUTEX_LOCK_PI, 0, 0) == -1 && errno == ESRCH);
    word = FUTEX_OWNER_DIED;
    CHECK(syscall(SYS_futex, &word, FUTEX_LOCK_PI, 0, 0) == 0 && word == (FUTEX_OWNER_DIED | own));
    CHECK(syscall(SYS_futex, &word, FUTEX_UNLOCK_PI) == 0 && (word & FUTEX_TID_MASK) == 0);
}
static void *others(void *arg) {
    while (!there) usleep(1000);
    refused();
    return arg;
}
int main(void) {
    pthread_t threads[THREADS], one, other;
    make(&often, 0), make(&mostly, 0), make(&dies, PTHREAD_MUTEX_ROBUST);
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    struct itimerval each = {{0, 2000}, {0, 2000}}, never = {0};
    setitimer(ITIMER_REAL, &each, 0);
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, contends, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    setitimer(ITIMER_REAL, &never, 0);
    CHECK(pthread_mutex_lock(&mostly) == 0);
    pthread_create(&one, 0, waits_in_vain, 0);
    pthread_join(one, 0);
    CHECK(pthread_mutex_unlock(&mostly) == 0);
    pthread_create(&other, 0, others, 0);
    pthread_create(&one, 0, ends_with_it, 0);
    while (!there) usleep(1000);
    pthread_create(&threads[0], 0, inherits, 0);
    pthread_join(one, 0);
    pthread_join(threads[0], 0);
    pthread_join(other, 0);
    printf("%d of %d, %s\n", (int)count, THREADS * ROUNDS, ticks ? "interrupted" : "not interrupted");
    return 0;
}
