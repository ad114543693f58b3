// One thread at a time, so that each thread's listing is the same in every run.
//#flags: -pthread
#include <pthread.h>
#include "check.h"
#include "gone.h"
static void *run(void *arg) { long s = 0; for (long i = 0; i < 50; i++) s += i * (long)arg; going(); return (void *)s; }
int main(void) {
    long total = 0;
    for (long i = 0; i < 3; i++) {
        before_going();
        pthread_t t;
        void *r;
        CHECK(!pthread_create(&t, 0, run, (void *)i));
        join_gone(t, &r);
        total += (long)r;
    }
    printf("ok %ld\n", total);
}
