// A stack that becomes executable, as far down as it will ever grow, and is not any more; then a jump
// to where nothing is.
//#expect-signal: 11
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include "check.h"
#define GROWSDOWN 0x01000000
static sigjmp_buf back;
static void handler(int n) { siglongjmp(back, n); }
static int run(int n, int depth) {
    volatile unsigned char code[3000] = {0xb8, n, 0, 0, 0, 0xc3};
    int r = ((int (*)(void))(unsigned long)code)();
    code[1] = n + 1;
    r += ((int (*)(void))(unsigned long)code)();
    return depth ? r + run(n, depth - 1) : r;
}
int main(void) {
    CHECK(signal(SIGSEGV, handler) == SIG_DFL);
    char *page = (char *)((unsigned long)__builtin_frame_address(0) & -4096);
    for (int i = 0; i < 3; i++) {
        int n = sigsetjmp(back, 1);
        if (!n) {
            run(5, 0);
            CHECK(!"a stack is not executable");
        }
        CHECK(n == SIGSEGV);
        CHECK(!mprotect(page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC | GROWSDOWN));
        CHECK(run(5, 100) == 11 * 101);
        CHECK(!mprotect(page, 4096, PROT_READ | PROT_WRITE | GROWSDOWN));
    }
    CHECK(!mprotect(page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC | GROWSDOWN));
    CHECK(mprotect(page, -8192, PROT_READ | PROT_WRITE) == -1);
    CHECK(signal(SIGSEGV, SIG_DFL) == handler);
    puts("ok");
    fflush(stdout);
    ((void (*)(void))(page - (64 << 20)))();
}
