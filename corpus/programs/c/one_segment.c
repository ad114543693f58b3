// A library whose code and headers are one segment, which the loader maps as long as the whole library is; data lies over
// its end. Threads read and change that data, in a library of the start and in one that comes later.
//#flags: -pthread
//#link: one_segment_library.c
//#shared: one_segment_later.c
//#variants: pie no-pie
//#oracle: no: threads interleave differently
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include "check.h"
extern int one_segment_count;
extern int (*const one_segment_functions[])(int);
extern int *const one_segment_words[];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int sum;
static void *work(void *argument) {
    long number = (long)argument;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 100; i++) {
        sum += one_segment_functions[i % 2](i);
        ++*one_segment_words[i % 2];
    }
    pthread_mutex_unlock(&lock);
    if (number == 1) {
        void *later = dlopen("libone_segment_later.so", RTLD_NOW);
        CHECK(later);
        int (*const *functions)(int) = dlsym(later, "later_functions");
        int *count = dlsym(later, "later_count");
        for (int i = 0; i < 100; i++) *count += functions[i % 2](i);
        printf("later %d\n", *count);
    }
    return 0;
}
int main(void) {
    for (long number = 0; number < 3; number++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, 0, work, (void *)number) == 0);
        work((void *)2);
        CHECK(pthread_join(thread, 0) == 0);
    }
    printf("%d %d\n", one_segment_count, sum != 0);
    return 0;
}
