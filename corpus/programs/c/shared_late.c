// Threads run already when memory is shared with a child: two wait for a condition, one for a pipe, one computes, and
// one never comes back.
//#flags: -pthread
//#oracle: no: threads run as they please
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
#define PAUSE(x) x x x
enum { THREADS = 4, ROUNDS = 3000 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static int is_open, ends[2];
static atomic_int there, stop;
static _Atomic uint64_t *both;
static uint64_t sums[THREADS];
static void *sleeps(void *arg) {
    there++;
    for (;;) pause();
    return arg;
}
static void *waits(void *arg) {
    uint64_t number = (uintptr_t)arg, sum = number;
    char byte = 0;
    there++;
    switch (number) {
    case 0:
        CHECK(read(ends[0], &byte, 1) == 1);
        sum += (unsigned char)byte;
        break;
    case 1:
        // Few blocks for the time that it takes.
        while (!stop) PAUSE(PAUSE(PAUSE(PAUSE(__builtin_ia32_pause();))))
        break;
    default:
        pthread_mutex_lock(&lock);
        while (!is_open) pthread_cond_wait(&opened, &lock);
        pthread_mutex_unlock(&lock);
    }
    for (int i = 0; i < ROUNDS; i++) {
        ++*both;
        sum += (uint64_t)i ^ number;
    }
    sums[number] = sum;
    return NULL;
}
int main(void) {
    pthread_t sleeper, threads[THREADS];
    CHECK(pipe(ends) == 0);
    CHECK(pthread_create(&sleeper, NULL, sleeps, NULL) == 0);
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, waits, (void *)i) == 0);
    while (there < THREADS + 1) usleep(500);
    usleep(2000);
    // So much, and so low, that all threads are watched for it.
    both = mmap((void *)0x100000000000, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(both != MAP_FAILED);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < ROUNDS; i++) ++*both;
        _exit(3);
    }
    CHECK(write(ends[1], "a", 1) == 1);
    pthread_mutex_lock(&lock);
    is_open = 1;
    pthread_cond_broadcast(&opened);
    pthread_mutex_unlock(&lock);
    stop = 1;
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 3);
    printf("%llu", (unsigned long long)*both);
    for (int i = 0; i < THREADS; i++) printf(" %llu", (unsigned long long)sums[i]);
    puts("");
    return 0;
}
