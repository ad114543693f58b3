// Paths that part and meet again: blocks that fault, trap, are left by longjmp and entered from elsewhere, between
// branches whose other way leads around them.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>
#include "check.h"

static sigjmp_buf env;
static volatile int faults, leaves;

// The load is two bytes long: the handler goes on behind it, or far away.
static void handler(int s, siginfo_t *info, void *context) {
    ucontext_t *u = context;
    faults++;
    if (leaves) siglongjmp(env, s);
    u->uc_mcontext.gregs[REG_RIP] += 2;
    u->uc_mcontext.gregs[REG_RAX] = 40;
}

// Around the load, or through it; then both ways are one.
__attribute__((noinline)) static int load(const int *p, int through) {
    int r = 1;
    __asm__ volatile(
        "test %2, %2\n je 1f\n"
        "mov (%1), %%eax\n add $2, %%eax\n jmp 2f\n"
        "1: add $3, %%eax\n"
        "2: add $4, %%eax\n test $1, %%al\n jne 3f\n add $8, %%eax\n"
        "3: add $1, %%eax\n"
        : "+a"(r) : "r"(p), "r"(through) : "memory", "cc");
    return r;
}

// A loop whose parts can be entered from its head, from each other, and in the middle.
__attribute__((noinline)) static long mixed(long n, const void *middle) {
    long sum = 0;
    void *volatile at[] = {&&first, &&second, &&third};
    if (middle) goto *at[(long)middle % 3];
first:
    if (n & 1) sum += 3;
    else sum ^= n;
second:
    if (n & 2) sum += n;
third:
    if (n & 4) { if (n & 8) sum -= 5; else sum += 7; }
    if (--n > 0) goto first;
    return sum;
}

// Called directly, through a pointer, and by a jump at the end of another function.
__attribute__((noinline)) static int leaf(int n) { return n > 2 ? n * 3 : n < -2 ? n - 1 : n; }
__attribute__((noinline)) static int tail(int n) { return n & 1 ? leaf(n) : leaf(-n); }
__attribute__((noinline)) static int deep(int n) {
    if (n == 0) return leaf(7);
    int r = n & 3 ? deep(n - 1) : deep(n - 1) + tail(n);
    return n & 1 ? r + 1 : r;
}
__attribute__((noinline)) static void out(int n) {
    if (n & 1) faults++;
    if (n == 0) siglongjmp(env, 9);
    if (n & 2) out(n - 1);
    else out(n - 1);
    faults += 1000;
}

int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, 0);
    int value = 5;
    int got = 0;
    for (int i = 0; i < 12; i++) got += load(i % 3 ? &value : (int *)8, i & 1);
    printf("%d %d\n", got, faults);
    leaves = 1;
    for (volatile int i = 0; i < 6; i++)
        if (!sigsetjmp(env, 1)) got += load((int *)8, i & 1);
    printf("%d %d\n", got, faults);
    for (volatile int i = 0; i < 4; i++)
        if (!sigsetjmp(env, 1)) out(9 + i);
    printf("%d\n", faults);
    long sum = 0;
    for (long i = 0; i < 20; i++) sum += mixed(i + 1, (void *)i);
    int (*volatile pointer)(int) = leaf;
    printf("%ld %d %d\n", sum, deep(60), pointer(9) + leaf(-9) + tail(4));
    puts("ok");
}
