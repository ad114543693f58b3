// Two threads add to a number, and one of them minds a lock that the other does not.
//#race: adds adds
//#race: adds_locked adds
#include <pthread.h>
#include <stdio.h>
static long number, locked;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t start;
__attribute__((noinline)) static void adds_locked(void) {
    pthread_mutex_lock(&lock);
    locked++;
    pthread_mutex_unlock(&lock);
}
__attribute__((noinline)) static void adds(long id) {
    for (int i = 0; i < 1000; i++) ++*(volatile long *)&number;
    if (id == 0) locked++;
}
static void *work(void *id) {
    pthread_barrier_wait(&start);
    adds((long)id);
    if (id) adds_locked();
    return 0;
}
int main(void) {
    pthread_t threads[2];
    pthread_barrier_init(&start, 0, 2);
    for (long i = 0; i < 2; i++) pthread_create(&threads[i], 0, work, (void *)i);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    printf("%ld\n", locked);
}
