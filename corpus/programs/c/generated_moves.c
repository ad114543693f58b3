// Writable code whose mapping moves, that lies beside a signal stack, that is another view of a shared
// mapping and becomes executable late, and calls whose number has noise above it.
//#oracle: no: the signals of a stepped program pass through the stepper
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "check.h"
enum { PAGE = 4096, PAGES = 16, RWX = PROT_READ | PROT_WRITE | PROT_EXEC };
static int call(unsigned char *p) { return ((int (*)(void))p)(); }
static void put(unsigned char *p, int value) {
    unsigned char code[] = {0xb8, 0, 0, 0, 0, 0xc3};
    memcpy(code + 1, &value, 4);
    memcpy(p, code, sizeof code);
}
static volatile int got;
static void handler(int signal) { got += signal == SIGUSR1; }
int main(void) {
    unsigned char *p = mmap(0, PAGES * PAGE, RWX, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    put(p + 3 * PAGE, 1);
    put(p + 5 * PAGE, 2);
    CHECK(call(p + 3 * PAGE) == 1 && call(p + 5 * PAGE) == 2);
    // A frame that ends in a page whose code has run.
    stack_t stack = {p + 8 * PAGE, 0, 4 * PAGE}, none = {.ss_flags = SS_DISABLE};
    CHECK(!sigaltstack(&stack, 0));
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    CHECK(!sigaction(SIGUSR1, &action, 0));
    for (int i = 0; i < 4; i++) {
        put(p + (8 + i) * PAGE, 10 + i);
        CHECK(call(p + (8 + i) * PAGE) == 10 + i);
        put(p + 12 * PAGE - 16, 3);
        CHECK(call(p + 12 * PAGE - 16) == 3);
        CHECK(!raise(SIGUSR1) && got == i + 1);
    }
    CHECK(!sigaltstack(&none, 0));
    int ends[2];
    CHECK(!pipe(ends));
    unsigned char *moved = mremap(p, PAGES * PAGE, 2 * PAGES * PAGE, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED);
    CHECK(call(moved + 3 * PAGE) == 1 && call(moved + 5 * PAGE) == 2);
    for (int i = 0; i < 10; i++) {
        put(moved + 5 * PAGE, 20 + i);
        CHECK(write(ends[1], moved + 5 * PAGE, 6) == 6 && read(ends[0], moved + 3 * PAGE, 6) == 6);
        CHECK(call(moved + 3 * PAGE) == 20 + i);
    }
    int fd = memfd_create("code", 0);
    CHECK(fd >= 0 && !ftruncate(fd, PAGE));
    unsigned char *w = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    unsigned char *x = mmap(0, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(w != MAP_FAILED && x != MAP_FAILED);
    for (int i = 0; i < 5; i++) {
        CHECK(!mprotect(x, PAGE, PROT_READ | PROT_EXEC));
        put(w, i);
        CHECK(call(x) == i);
        put(w, -i);
        CHECK(call(x) == -i);
        CHECK(!mprotect(x, PAGE, PROT_READ));
    }
    long number = 0x1234567800000000 | 39, result;
    asm volatile("syscall" : "=a"(result) : "a"(number) : "rcx", "r11", "memory");
    CHECK(result == getpid());
    puts("ok");
}
