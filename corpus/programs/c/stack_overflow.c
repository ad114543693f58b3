// A stack overflow is caught on an alternate stack and left by siglongjmp, twice.
//#except: bits: how often a function that records nothing has called itself when a fault ends that is not in the trace
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <sys/resource.h>
#include "check.h"
static sigjmp_buf env;
static char alt[65536];
static void handler(int s) {
    char here;
    CHECK(&here >= alt && &here < alt + sizeof alt);
    siglongjmp(env, s);
}
__attribute__((noinline)) static int forever(int n) {
    volatile char pad[4000];
    pad[0] = n;
    return forever(n + 1) + pad[0];
}
int main(void) {
    stack_t ss = {.ss_sp = alt, .ss_size = sizeof alt};
    struct rlimit r = {1 << 20, 1 << 20};
    setrlimit(RLIMIT_STACK, &r);
    sigaltstack(&ss, 0);
    struct sigaction a = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    sigaction(SIGSEGV, &a, 0);
    for (volatile int i = 0; i < 2; i++)
        if (!sigsetjmp(env, 1)) { forever(0); CHECK(0); }
    puts("ok");
}
