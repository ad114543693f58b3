// One thread generates functions, others run those that are there already, in the same pages.
//#flags: -pthread
//#oracle: no: threads interleave differently
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include "check.h"
enum { FUNCTIONS = 400, THREADS = 3 };
static unsigned char *code;
static atomic_int ready, stop;
static void generate(int i) {
    // mov $i,%eax; mov $3,%ecx; 1: dec %ecx; jnz 1b; add %edi,%eax; ret
    unsigned char bytes[] = {0xb8, 0, 0, 0, 0, 0xb9, 3, 0, 0, 0, 0xff, 0xc9, 0x75, 0xfc, 0x01, 0xf8, 0xc3};
    memcpy(bytes + 1, &i, 4);
    memcpy(code + 32 * i, bytes, sizeof bytes);
    atomic_store(&ready, i + 1);
}
static int call(int i, int x) { return ((int (*)(int))(code + 32 * i))(x); }
static void *run(void *unused) {
    for (long n = 0; !atomic_load(&stop) || n < FUNCTIONS; n++) {
        int i = n % atomic_load(&ready);
        CHECK(call(i, 5) == i + 5);
    }
    return unused;
}
int main(void) {
    code = mmap(0, 32 * FUNCTIONS, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(code != MAP_FAILED);
    generate(0);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_create(&threads[i], 0, run, 0));
    for (int i = 1; i < FUNCTIONS; i++) {
        generate(i);
        CHECK(call(i, 1) == i + 1);
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_join(threads[i], 0));
    puts("ok");
}
