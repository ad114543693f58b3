// Coroutines by swapcontext, and a signal handler on an alternate stack.
#define _GNU_SOURCE
#include <signal.h>
#include <ucontext.h>
#include "check.h"
static ucontext_t here, a, b;
static char sa[65536], sb[65536];
static int trace[20], n;
static void fa(int x) { for (int i = 0; i < 3; i++) { trace[n++] = x + i; swapcontext(&a, &b); } }
static void fb(int x) { for (int i = 0; i < 3; i++) { trace[n++] = x + i; swapcontext(&b, &a); } }
int main(void) {
    getcontext(&a);
    a.uc_stack.ss_sp = sa, a.uc_stack.ss_size = sizeof sa, a.uc_link = &here;
    makecontext(&a, (void (*)(void))fa, 1, 10);
    getcontext(&b);
    b.uc_stack.ss_sp = sb, b.uc_stack.ss_size = sizeof sb, b.uc_link = &here;
    makecontext(&b, (void (*)(void))fb, 1, 20);
    swapcontext(&here, &a);
    CHECK(n == 6);
    for (int i = 0; i < n; i++) printf("%d ", trace[i]);
    puts("ok");
}
