// Deep recursion, alloca, variable-length arrays, large frames, red-zone leaves, variadics.
//#variants: pie O0 static cet
#include <alloca.h>
#include <stdarg.h>
#include <string.h>
#include "check.h"
__attribute__((noinline)) static unsigned long deep(unsigned n) { return n ? deep(n - 1) * 3 + n : 1; }
__attribute__((noinline)) static int is_odd(unsigned n);
__attribute__((noinline)) static int is_even(unsigned n) { return n == 0 ? 1 : is_odd(n - 1); }
__attribute__((noinline)) static int is_odd(unsigned n) { return n == 0 ? 0 : is_even(n - 1); }
__attribute__((noinline)) static int vla(int n) {
    int a[n], sum = 0;
    char *p = alloca(n * 3);
    memset(p, 1, n * 3);
    for (int i = 0; i < n; i++) a[i] = i + p[i];
    for (int i = 0; i < n; i++) sum += a[i];
    return sum;
}
__attribute__((noinline)) static int big(int x) {
    volatile char a[100000];
    a[0] = x;
    a[99999] = x + 1;
    return a[0] + a[99999];
}
__attribute__((noinline)) static double sum(int n, ...) {
    va_list l;
    double s = 0;
    va_start(l, n);
    for (int i = 0; i < n; i++) s += i % 2 ? va_arg(l, double) : va_arg(l, int);
    va_end(l);
    return s;
}
__attribute__((noinline)) static int redzone(int a, int b) {
    volatile int x[12];
    for (int i = 0; i < 12; i++) x[i] = a + b * i;
    return x[3] + x[11];
}
int main(void) {
    CHECK(deep(20000) != 0);
    CHECK(is_even(1000) && !is_even(1001));
    CHECK(vla(100) == 5050);
    CHECK(big(3) == 7);
    CHECK(sum(4, 1, 2.5, 3, 4.5) == 11);
    CHECK(redzone(1, 2) == 30);
    printf("ok %lu\n", deep(100));
}
