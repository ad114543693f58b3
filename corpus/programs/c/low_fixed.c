// Addresses from 2 GiB on that a program chooses itself, as emulators do, Wine, and sanitizers for
// their shadow memory: nothing is there, and what is mapped there stays the program's.
//#variants: pie no-pie static static-pie
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include "check.h"
#define NOREPLACE 0x100000
static int twice(int x) { return 2 * x; }
static int (*volatile call)(int) = twice;
static unsigned char *map(unsigned long at, unsigned long len, int prot, int how) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    unsigned char *got = mmap((void *)at, len, prot, flags | how, -1, 0);
    CHECK(got == (unsigned char *)at);
    return got;
}
static void code(unsigned char *at, int n) {
    memcpy(at, (unsigned char[]){0x8d, 0x47, n, 0xc3}, 4);      // lea n(%rdi), %eax; ret
    for (int k = 0; k < 3; k++) CHECK(((int (*)(int))at)(k) == k + n);
}
int main(void) {
    const int rwx = PROT_READ | PROT_WRITE | PROT_EXEC;
    static const unsigned long at[] = {
        0x7fff8000, 0x7ffff000, 0x80000000, 0x80400000, 0x100000000, 0x123456000,
        0x200000000, 0x47ffff000, 0x500000000, 0x87ffff000, 0x900000000, 0xc00000000, 0x1000000000};
    for (int i = 0; i < 13; i++) {
        unsigned char *p = map(at[i], 0x10000 - (at[i] & 0xffff), rwx, i & 1 ? MAP_FIXED : MAP_FIXED | NOREPLACE);
        code(p, i);
        code(p + 100, i + 20);
    }
    for (int i = 0; i < 13; i++) CHECK(((int (*)(int))at[i])(1) == 1 + i);
    for (int i = 0; i < 13; i++) {
        CHECK(!munmap((void *)at[i], 0x10000 - (at[i] & 0xffff)));
    }
    // The shadow of AddressSanitizer, and the gap in it.
    unsigned char *low = map(0x7fff8000, 0x8fff7000 - 0x7fff8000, PROT_READ | PROT_WRITE, MAP_FIXED | NOREPLACE);
    map(0x8fff7000, 0x02008fff7000 - 0x8fff7000, PROT_NONE, MAP_FIXED | NOREPLACE);
    unsigned char *high = map(0x02008fff7000, 0x10007fff8000 - 0x02008fff7000, PROT_READ | PROT_WRITE, MAP_FIXED | NOREPLACE);
    for (unsigned long i = 0; i < 0x8fff7000 - 0x7fff8000; i += 0x400000) low[i] = high[i * 50000] = i >> 22;
    CHECK(call(21) == 42);
    for (unsigned long i = 0; i < 0x8fff7000 - 0x7fff8000; i += 0x400000)
        CHECK(low[i] == (unsigned char)(i >> 22) && high[i * 50000] == low[i]);
    puts("ok");
}
