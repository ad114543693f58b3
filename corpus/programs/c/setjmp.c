// setjmp and longjmp: through frames, from a handler with the signal mask.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include "check.h"
static jmp_buf env;
static sigjmp_buf senv;
static int depth;
__attribute__((noinline)) static void down(int n) {
    volatile char pad[64];
    pad[n & 63] = n;
    depth++;
    if (n == 0) longjmp(env, 7);
    down(n - 1);
    depth += pad[0];
}
static void handler(int s) { siglongjmp(senv, s); }
int main(void) {
    volatile int rounds = 0;
    int got = setjmp(env);
    if (rounds++ < 5) down(20);
    CHECK(got == 7 && depth == 5 * 21);
    signal(SIGSEGV, handler);
    for (volatile int i = 0; i < 3; i++)
        if (!sigsetjmp(senv, 1)) { *(volatile int *)8 = 1; CHECK(0); }
    puts("ok");
}
