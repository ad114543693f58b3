// What all programs here share: each makes an error at ROOT_CAUSE, goes on for a while, and crashes.
//
// With -DSEVERAL the error is made in one of several threads that work at the same time.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The label stands in the symbol table, so that everybody can find the place.
#define ROOT_CAUSE __asm__ volatile(".globl root_cause\n.type root_cause, @function\nroot_cause:" ::: "memory")

static volatile unsigned long worked;

__attribute__((noinline, noclone)) static void work(int rounds) {
    unsigned long sum = 1;
    for (int i = 0; i < rounds; i++) sum = sum * 6364136223846793005ul + i;
    worked = sum;
}

__attribute__((noinline, noclone)) static void fill(volatile char *to, char with, int len) {
    for (int i = 0; i < len; i++) to[i] = with;
}

#ifdef SEVERAL
static pthread_mutex_t bug_lock = PTHREAD_MUTEX_INITIALIZER;
static long bug_shared;
static void *bug_busy(void *unused) {
    for (;;) {
        pthread_mutex_lock(&bug_lock);
        bug_shared++;
        pthread_mutex_unlock(&bug_lock);
        work(100);
    }
    return unused;
}
static void (*bug_body)(void);
static void *bug_thread(void *unused) {
    bug_body();
    return unused;
}
static int run(void (*bug)(void)) {
    pthread_t threads[3];
    bug_body = bug;
    pthread_create(&threads[0], 0, bug_busy, 0);
    pthread_create(&threads[1], 0, bug_busy, 0);
    pthread_create(&threads[2], 0, bug_thread, 0);
    pthread_join(threads[2], 0);
    return 0;
}
#else
static int run(void (*bug)(void)) {
    bug();
    return 0;
}
#endif
