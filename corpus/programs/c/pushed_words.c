// Words that are pushed out of memory, with each kind of address, while other threads write to them; fences on the stack, of which
// nothing changes but the flags.
//#flags: -pthread
//#oracle: no: threads interleave differently
#include <pthread.h>
#include <stdatomic.h>
#include "check.h"
enum { THREADS = 3, TIMES = 4000 };
static volatile long words[8] = {1, 1, 1, 1, 1, 1, 1, 1};
static atomic_int stop;

// Pushes what lies there and takes it off again, by each way in turn; their sum.
static long pushed(volatile long *at, long i) {
    long sum = 0, value;
    __asm__ volatile("sub $256, %%rsp\n push (%2)\n pop %0\n add $256, %%rsp" : "=&r"(value), "+m"(*at) : "r"(at) : "memory");
    sum += value;
    __asm__ volatile("sub $256, %%rsp\n push 8(%2,%3,8)\n pop %0\n add $256, %%rsp"
                     : "=&r"(value), "+m"(*at)
                     : "r"(at), "r"(i)
                     : "memory");
    sum += value;
    // rcx and a register that is pushed with.
    __asm__ volatile("sub $256, %%rsp\n push -8(%%rcx,%%rdx,8)\n pop %%rcx\n add $256, %%rsp"
                     : "=&c"(value)
                     : "0"(at), "d"(i + 1)
                     : "memory");
    sum += value;
    __asm__ volatile("sub $256, %%rsp\n push words(%%rip)\n pop %0\n add $256, %%rsp" : "=&r"(value) : : "memory");
    sum += value;
    // From the stack itself, by rsp as it was before.
    __asm__ volatile("sub $256, %%rsp\n push %1\n push (%%rsp)\n pop %0\n pop %0\n add $256, %%rsp"
                     : "=&r"(value)
                     : "r"(sum)
                     : "memory");
    CHECK(value == sum);
    // Flags that were set before stay.
    char carries, is_zero;
    __asm__ volatile("sub $256, %%rsp\n stc\n push (%3)\n setc %1\n pop %0\n add $256, %%rsp\n"
                     "lock orl $0, -64(%%rsp)\n setz %2"
                     : "=&r"(value), "=&q"(carries), "=&q"(is_zero)
                     : "r"(at)
                     : "memory");
    CHECK(carries == 1 && (is_zero & ~1) == 0);
    sum += value;
    __asm__ volatile("sub $256, %%rsp\n movq $0, (%%rsp)\n lock addq $0, (%%rsp)\n setz %0\n"
                     "movl $-3, 8(%%rsp)\n lock addl $0, 8(%%rsp)\n sets %1\n add $256, %%rsp"
                     : "=&q"(is_zero), "=&q"(carries)
                     :
                     : "memory");
    CHECK(is_zero == 1 && carries == 1);
    return sum;
}

static void *run(void *unused) {
    long before = 0;
    for (int n = 0; n < TIMES; n++) {
        int i = n & 3;
        long sum = pushed(words + i, i & 1);
        // All grow.
        CHECK(sum >= 5 && (i || sum >= before));
        if (!i) before = sum;
    }
    return unused;
}

static void *write(void *unused) {
    for (long n = 1; !stop; n++)
        for (int i = 0; i < 8; i++) words[i] = n;
    return unused;
}

int main(void) {
    pthread_t threads[THREADS], writer;
    CHECK(!pthread_create(&writer, 0, write, 0));
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_create(&threads[i], 0, run, 0));
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_join(threads[i], 0));
    stop = 1;
    CHECK(!pthread_join(writer, 0));
    return 0;
}
