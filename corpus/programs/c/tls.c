// Thread-local storage in all models, with threads.
//#variants: pie no-pie static O0
//#flags: -pthread
#include <pthread.h>
#include "check.h"
#include "gone.h"
static __thread int local = 5;
__thread int global = 7;
__thread char zero[300];
__attribute__((tls_model("global-dynamic"))) __thread int dynamic = 9;
static void *run(void *arg) {
    CHECK(local == 5 && global == 7 && dynamic == 9 && zero[299] == 0);
    local += (long)arg;
    global += local;
    dynamic = global;
    zero[299] = 1;
    going();
    return (void *)(long)dynamic;
}
int main(void) {
    for (long i = 0; i < 4; i++) {
        before_going();
        pthread_t t;
        void *r;
        CHECK(!pthread_create(&t, 0, run, (void *)i));
        join_gone(t, &r);
        CHECK((long)r == 12 + i);
    }
    CHECK(local == 5 && global == 7 && dynamic == 9 && zero[299] == 0);
    puts("ok");
}
