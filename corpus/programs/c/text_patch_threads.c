// The program changes its own text segment while other threads run it: made writable and executable, patched, and
// made read-only again, over and over; one that was never called; and functions that call through it all the while.
//#flags: -pthread
//#oracle: no: threads interleave differently
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include "check.h"
// nop; ... mov eax, imm32; ret: the imm32 lies in one aligned word.
#define NUMBER(name, value) \
    __asm__(".text\n.p2align 12\n.globl " #name "\n.type " #name ",@function\n" #name \
            ": nop\n nop\n nop\n mov $" #value ", %eax\n ret\n.size " #name ", .-" #name "\n.p2align 12"); \
    extern int name(void)
NUMBER(first, 1);
NUMBER(second, 1);
NUMBER(never_called, 1);
enum { THREADS = 3, ROUNDS = 16, RECURSION = 4 };
static atomic_int stop, rounds[THREADS];
static int deep(int n, int (*f)(void)) { return n ? deep(n - 1, f) + f() : 0; }

static void *run(void *number) {
    atomic_int *round = number;
    int (*volatile f[2])(void) = {first, second};
    for (int last[2] = {0, 0}; !atomic_load(&stop); atomic_fetch_add(round, 1), sched_yield()) {
        for (int i = 0; i < 2; i++) {
            int got = f[i]();
            CHECK(last[i] <= got && got <= ROUNDS);
            last[i] = got;
            int sum = deep(RECURSION, f[i]);
            CHECK(RECURSION * last[i] <= sum && sum <= RECURSION * ROUNDS);
        }
    }
    return 0;
}

static void patch(int (*f)(void), int value, int prot) {
    CHECK(!mprotect((void *)f, 4096, prot));
    atomic_store((atomic_int *)((char *)f + 4), value);
    if (prot & PROT_EXEC) CHECK(f() == value);
    CHECK(!mprotect((void *)f, 4096, PROT_READ | PROT_EXEC));
    CHECK(f() == value);
}

int main(void) {
    pthread_t threads[THREADS];
    CHECK(first() == 1 && second() == 1);
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_create(&threads[i], 0, run, &rounds[i]));
    for (int value = 2; value <= ROUNDS; value++) {
        int (*f)(void) = value & 1 ? first : second;
        int before = atomic_load(&rounds[0]);
        patch(f, value, PROT_READ | PROT_WRITE | PROT_EXEC);
        while (atomic_load(&rounds[0]) == before) sched_yield();
        if (value == ROUNDS / 2) patch(never_called, value, PROT_READ | PROT_WRITE);
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_join(threads[i], 0));
    CHECK(never_called() == ROUNDS / 2 && first() == ROUNDS - 1 && second() == ROUNDS);
    puts("ok");
}
