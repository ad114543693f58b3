// Code far from the program and from other code, in many places whose addresses are alike in their low bits:
// calls and jumps there, back and from one to the other, code that is replaced, memory that is given back.
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include "check.h"
enum { PAGE = 4096, PLACES = 40, TIMES = 30 };
typedef long (*function)(long, void *);
static unsigned char *places[PLACES];
// lea value(%rdi),%rax; ret
static void put(unsigned char *to, int value) {
    memcpy(to, "\x48\x8d\x87", 3);
    memcpy(to + 3, &value, 4);
    to[7] = 0xc3;
}
int main(void) {
    for (int i = 0; i < PLACES; i++) {
        // Some in one window, most in windows of their own.
        void *hint = (void *)(0x100000000000 + (i % 32) * 0x700000000 + i / 32 * 0x10000000);
        places[i] = mmap(hint, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(places[i] != MAP_FAILED);
        put(places[i], i);
    }
    for (int n = 0; n < TIMES; n++)
        for (int i = 0; i < PLACES; i++) CHECK(((function)places[i])(n, 0) == n + i);
    // From one to the next: sub $8,%rsp; call *%rsi; add $8,%rsp; inc %rax; ret
    for (int i = 0; i < PLACES; i++)
        memcpy(places[i] + 64, "\x48\x83\xec\x08\xff\xd6\x48\x83\xc4\x08\x48\xff\xc0\xc3", 14);
    for (int n = 0; n < TIMES; n++)
        for (int i = 0; i < PLACES; i++) {
            int to = (i + n) % PLACES;
            CHECK(((function)(places[i] + 64))(n, places[to]) == n + to + 1);
        }
    // jmp *%rsi
    memcpy(places[1] + 128, "\xff\xe6", 2);
    for (int n = 0; n < TIMES; n++) CHECK(((function)(places[1] + 128))(n, places[n % PLACES]) == n + n % PLACES);
    // What is there changes.
    for (int n = 0; n < TIMES; n++) {
        put(places[n % PLACES], n);
        CHECK(((function)places[n % PLACES])(1, 0) == n + 1);
    }
    // Other memory in its place.
    for (int n = 0; n < 20; n++) {
        unsigned char *p = places[3];
        CHECK(!munmap(p, PAGE));
        CHECK(mmap(p, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
        put(p, n);
        CHECK(((function)p)(5, 0) == n + 5);
    }
    return 0;
}
