// The base of fs, changed by the program itself: what is addressed by it lies elsewhere meanwhile.
//#requires: fsgsbase
#include <string.h>
#include "check.h"
static long block[2][16];
__attribute__((noinline)) static long by_fs(long n) {
    long value;
    __asm__ volatile("mov %%fs:(,%1,8), %0" : "=r"(value) : "r"(n));
    return value;
}
__attribute__((noinline)) static void *base_of(void) {
    void *base;
    __asm__ volatile("rdfsbase %0" : "=r"(base));
    return base;
}
__attribute__((noinline)) static void set_base(void *base) {
    __asm__ volatile("wrfsbase %0" : : "r"(base) : "memory");
}
// Half of the register: the upper half of the base becomes zero.
__attribute__((noinline)) static void set_low(unsigned base) {
    __asm__ volatile("wrfsbase %0" : : "r"(base) : "memory");
}
int main(void) {
    for (int i = 0; i < 16; i++) block[0][i] = i, block[1][i] = 100 + i;
    void *own = base_of();
    long seen[4];
    for (int round = 0; round < 3; round++) {
        set_base(block[0]);
        seen[0] = by_fs(3);
        set_base(block[1]);
        seen[1] = by_fs(4);
        seen[2] = 0;
        if ((unsigned long)block[0] >> 32 == 0) {
            set_low((unsigned)(unsigned long)block[0]);
            seen[2] = by_fs(5);
        }
        set_base(own);
        CHECK(seen[0] == 3 && seen[1] == 104 && (seen[2] == 5 || seen[2] == 0));
    }
    CHECK(base_of() == own);
    puts("ok");
}
