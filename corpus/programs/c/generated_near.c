// Code that is generated as near as asked for, below the program and above it: each place is in reach of the program,
// a place that only this mapping may have is that place, and what is generated there calls the program.
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include "check.h"
enum { LEN = 0x10000, TIMES = 2000 };
static const intptr_t REACH = (1l << 30) - (1l << 21);

// sub $8,%rsp; mov $0,%rax; call *%rax; add $8,%rsp; inc %eax; ret
static const char CALL[] = "\x48\x83\xec\x08\x48\xb8\0\0\0\0\0\0\0\0\xff\xd0\x48\x83\xc4\x08\xff\xc0\xc3";

__attribute__((noinline)) int helper(int n) { return n + 2; }

static int is_free(uintptr_t at) {
    void *p = mmap((void *)at, LEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (p == MAP_FAILED) return 0;
    CHECK(p == (void *)at && !munmap(p, LEN));
    return 1;
}

static void generate(intptr_t from) {
    uintptr_t here = (uintptr_t)helper & ~(uintptr_t)0xffff, wish = here + from;
    // A program at fixed addresses has nothing below it.
    if ((intptr_t)wish < LEN || !is_free(wish)) return;
    unsigned char *p = mmap((void *)wish, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    intptr_t away = (intptr_t)p - (intptr_t)here;
    CHECK(-REACH <= away && away + LEN <= REACH);
    memcpy(p, CALL, sizeof CALL);
    uintptr_t to = (uintptr_t)helper;
    memcpy(p + 6, &to, sizeof to);
    CHECK(!mprotect(p, LEN, PROT_READ | PROT_EXEC));
    int n = 0;
    for (int i = 0; i < TIMES; i++) n = ((int (*)(int))p)(n);
    CHECK(n == 3 * TIMES);
    // Written again, and not where it was.
    CHECK(!mprotect(p, LEN, PROT_READ | PROT_WRITE));
    p[21] = 0xc8; // dec %eax
    CHECK(!mprotect(p, LEN, PROT_READ | PROT_EXEC));
    CHECK(((int (*)(int))p)(5) == 6);
    CHECK(!munmap(p, LEN));
    // A place that it must be.
    p = mmap((void *)wish, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(p == (void *)wish && !munmap(p, LEN));
}

int main(void) {
    for (intptr_t from = -(1000l << 20); from <= 1000l << 20; from += 40 << 20) generate(from);
    puts("ok");
    return 0;
}
