// A thousand short threads, sixteen at a time; then main exits by pthread_exit.
//#flags: -pthread
//#oracle: no: threads interleave differently
#include <pthread.h>
#include "check.h"
static void *run(void *arg) { volatile char a[5000]; a[4999] = (long)arg; return (void *)(a[4999] + 1L); }
static void *last(void *arg) { pthread_join((pthread_t)arg, 0); puts("ok"); return 0; }
int main(void) {
    long total = 0;
    for (int round = 0; round < 64; round++) {
        pthread_t t[16];
        for (long i = 0; i < 16; i++) CHECK(!pthread_create(&t[i], 0, run, (void *)i));
        for (int i = 0; i < 16; i++) { void *r; pthread_join(t[i], &r); total += (long)r; }
    }
    CHECK(total == 64 * 136);
    pthread_t t;
    pthread_create(&t, 0, last, (void *)pthread_self());
    pthread_exit(0);
}
