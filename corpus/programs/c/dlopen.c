// dlopen, dlsym, calls into and out of the library, its thread-local data, dlclose and reload.
//#shared: shared.c
//#flags: -ldl -rdynamic -pthread
#include <dlfcn.h>
#include <pthread.h>
#include "check.h"
#include "gone.h"
int callback(int x) { return x + 1000; }
static int (*get)(void);
static void *thread(void *arg) {
    long got = get();
    going();
    return (void *)got;
}
int main(void) {
    for (int i = 0; i < 3; i++) {
        void *h = dlopen("libshared.so", RTLD_NOW | RTLD_LOCAL);
        if (!h) { puts(dlerror()); return 1; }
        int (*f)(int, int (*)(int)) = dlsym(h, "shared_apply");
        get = dlsym(h, "shared_tls");
        CHECK(f(5, callback) == 1011);
        CHECK(get() == 1 && get() == 2);
        before_going();
        pthread_t t;
        void *r;
        pthread_create(&t, 0, thread, 0);
        join_gone(t, &r);
        CHECK((long)r == 1);
        CHECK(!dlclose(h));
    }
    CHECK(!dlopen("/nonexistent.so", RTLD_NOW) && dlerror());
    puts("ok");
}
