// IFUNC: resolved before relocation is finished, called directly and through a pointer.
//#variants: pie no-pie static noplt
#include "check.h"
static int fast(int x) { return x * 2; }
static int slow(int x) { return x + x; }
static int (*resolve(void))(int) { return __builtin_cpu_init(), __builtin_cpu_supports("sse2") ? fast : slow; }
int twice(int) __attribute__((ifunc("resolve")));
static int (*volatile p)(int) = twice;
int main(void) {
    CHECK(twice(21) == 42 && p(4) == 8);
    puts("ok");
}
