// An interval timer interrupts computation at arbitrary instructions; the result must not change.
//#oracle: no: the timer fires anywhere
#include <signal.h>
#include <sys/time.h>
#include "check.h"
static volatile sig_atomic_t ticks;
static void handler(int s) { ticks++; }
int main(void) {
    signal(SIGALRM, handler);
    struct itimerval it = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &it, 0);
    unsigned long h = 1, rounds = 0;
    double d = 1;
    char a[256], b[256];
    while (ticks < 200) {
        h = 1, d = 1;
        for (int i = 0; i < 20000; i++) { h = h * 6364136223846793005UL + i; d = d * 1.000001 + h % 3; }
        for (int i = 0; i < 256; i++) a[i] = i;
        for (int i = 0; i < 50; i++) { __builtin_memcpy(b, a, 256); __asm__ volatile("" : : "r"(a), "r"(b) : "memory"); }
        CHECK(h == 0x0 || b[77] == 77);
        rounds++;
        static unsigned long h0; static double d0;
        if (rounds == 1) h0 = h, d0 = d;
        CHECK(h == h0 && d == d0);
    }
    printf("ok %lu\n", h);
}
