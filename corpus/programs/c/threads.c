// Threads with a mutex, a condition, atomics, thread exit and cancellation; a deterministic sum.
//#flags: -pthread
//#oracle: no: threads interleave differently
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>
#include "check.h"
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static long sum, turn;
static atomic_long atomic_sum;
static void *run(void *arg) {
    for (int i = 0; i < 2000; i++) {
        pthread_mutex_lock(&m);
        sum += i;
        pthread_mutex_unlock(&m);
        atomic_fetch_add(&atomic_sum, i);
    }
    pthread_mutex_lock(&m);
    while (turn != (long)arg) pthread_cond_wait(&c, &m);
    turn++;
    pthread_cond_broadcast(&c);
    pthread_mutex_unlock(&m);
    pthread_exit(arg);
}
static void *sleeper(void *arg) { for (;;) pause(); }
int main(void) {
    pthread_t t[8];
    for (long i = 0; i < 8; i++) CHECK(!pthread_create(&t[i], 0, run, (void *)i));
    for (long i = 0; i < 8; i++) { void *r; pthread_join(t[i], &r); CHECK((long)r == i); }
    CHECK(sum == 8L * 1999 * 1000 && atomic_sum == sum);
    pthread_create(&t[0], 0, sleeper, 0);
    pthread_cancel(t[0]);
    void *r;
    pthread_join(t[0], &r);
    CHECK(r == PTHREAD_CANCELED);
    puts("ok");
}
