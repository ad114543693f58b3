// What a program at a fixed address finds below 2 GiB: nothing, until it maps something there.
//#variants: no-pie pie
#define _GNU_SOURCE
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "check.h"
#define NOREPLACE 0x100000
static sigjmp_buf back;
static siginfo_t seen;
static void handler(int n, siginfo_t *info, void *context) {
    (void)context;
    seen = *info;
    siglongjmp(back, n);
}
static void *map(unsigned long at, int flags) {
    return mmap((void *)at, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}
int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_NODEFER};
    CHECK(!sigaction(SIGSEGV, &action, 0));
    static const unsigned long nowhere[] = {0x12345000, 0x31000000, 0x50000000, 0x68000000};
    for (int i = 0; i < 4; i++) {
        if (!sigsetjmp(back, 1)) *(volatile char *)nowhere[i] = 1;
        CHECK(seen.si_code == SEGV_MAPERR && seen.si_addr == (void *)nowhere[i]);
        memset(&seen, 0, sizeof seen);
        if (!sigsetjmp(back, 1)) ((void (*)(void))nowhere[i])();
        CHECK(seen.si_code == SEGV_MAPERR && seen.si_addr == (void *)nowhere[i]);
    }
    void *low = (void *)0x31000000;
    CHECK(msync(low, 4096, MS_ASYNC) == -1 && errno == ENOMEM);
    CHECK(mprotect(low, 4096, PROT_READ) == -1 && errno == ENOMEM);
    CHECK(mremap(low, 4096, 8192, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
    CHECK(map(0x10000000, MAP_FIXED | NOREPLACE) == (void *)0x10000000);
    CHECK(map(0x20000000, 0) == (void *)0x20000000);
    for (int i = 0; i < 100; i++) CHECK((unsigned long)map(0, MAP_32BIT) < 0x80000000);
    for (int i = 0; i < 100; i++) free(malloc(1 << 16));
    // What is moved in front of the heap's end stops it.
    char *end = sbrk(0), *behind = (char *)(((unsigned long)end + 0x21fff) & -4096);
    CHECK(mremap(map(0, 0), 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, behind) == behind);
    *behind = 42;
    CHECK(brk(end + 0x40000) == -1 && sbrk(0) == end && *behind == 42);
    puts("ok");
}
