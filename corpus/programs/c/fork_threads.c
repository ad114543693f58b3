// fork from a second thread while four threads compute; the child makes threads of its own.
//#flags: -pthread
//#oracle: no: threads run as they please
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
static atomic_int stop;
static void *compute(void *arg) {
    volatile unsigned x = (unsigned)(long)arg, table[256] = {0};
    while (!stop) {
        x = x * 1664525 + 1013904223;
        table[x >> 24]++;
        free(malloc(x & 1023));
    }
    return 0;
}
static void *thread_of_child(void *arg) {
    *(int *)arg += 1;
    return 0;
}
static void *forks(void *arg) {
    int *sum = arg;
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork();
        if (!pid) {
            int n = i;
            pthread_t t;
            if (i % 4 == 0) {
                if (pthread_create(&t, 0, thread_of_child, &n)) _exit(99);
                pthread_join(t, 0);
                n--;
            }
            volatile unsigned x = n;
            for (int k = 0; k < 1000; k++) x = x * 3 + 1;
            _exit(n);
        }
        int st;
        CHECK(waitpid(pid, &st, 0) == pid && WEXITSTATUS(st) == i);
        *sum += WEXITSTATUS(st);
    }
    return 0;
}
int main(void) {
    pthread_t t[4], f;
    int sum = 0;
    for (long i = 0; i < 4; i++) CHECK(!pthread_create(&t[i], 0, compute, (void *)i));
    CHECK(!pthread_create(&f, 0, forks, &sum));
    CHECK(!pthread_join(f, 0));
    stop = 1;
    for (int i = 0; i < 4; i++) CHECK(!pthread_join(t[i], 0));
    printf("sum %d\n", sum);
}
