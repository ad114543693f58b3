// A timer at 1 kHz interrupts string functions, which are long runs without a branch.
//#oracle: no: the timer fires anywhere
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include "check.h"
static volatile sig_atomic_t ticks;
static void handler(int s) { (void)s, ticks++; }
static char a[1 << 16], b[1 << 16];
// Calls that the compiler cannot see through.
static void *(*volatile set)(void *, int, size_t) = memset;
static void *(*volatile copy)(void *, const void *, size_t) = memcpy;
static size_t (*volatile length)(const char *) = strlen;
int main(void) {
    signal(SIGALRM, handler);
    struct itimerval timer = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &timer, 0);
    size_t first = 0, sum;
    for (int round = 0; ticks < 150; round++) {
        sum = 0;
        for (int i = 1; i < 20; i++) {
            set(a, i, sizeof a - (i & 63));
            copy(b, a, sizeof b - (i & 31));
            b[sizeof b - 100] = 0;
            sum += length(b + i);
            for (int k = 0; k < 200; k++) sum += length(&"hello, world"[k & 7]);
        }
        if (!round) first = sum;
        CHECK(sum == first);
    }
    printf("ok %zu\n", sum);
}
