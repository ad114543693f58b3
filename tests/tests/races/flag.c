// What a plain flag announces, which orders nothing.
//#race: announces waits
//#race: produces uses
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
static volatile int ready;
static char text[64];
static pthread_barrier_t start;
__attribute__((noinline)) static void announces(void) { ready = 1; }
__attribute__((noinline)) static void waits(void) { while (!ready) sched_yield(); }
__attribute__((noinline)) static void produces(void) {
    for (int i = 0; i < 60; i++) ((volatile char *)text)[i] = 'a' + i % 26;
}
__attribute__((noinline)) static int uses(void) {
    int sum = 0;
    for (int i = 0; i < 60; i++) sum += ((volatile char *)text)[i];
    return sum;
}
static void *producer(void *unused) {
    pthread_barrier_wait(&start);
    produces();
    announces();
    return unused;
}
static void *consumer(void *unused) {
    pthread_barrier_wait(&start);
    waits();
    return (void *)(long)uses();
}
int main(void) {
    pthread_t threads[2];
    void *sum;
    pthread_barrier_init(&start, 0, 2);
    pthread_create(&threads[0], 0, producer, 0);
    pthread_create(&threads[1], 0, consumer, 0);
    pthread_join(threads[0], 0);
    pthread_join(threads[1], &sum);
    printf("%ld\n", (long)sum);
}
