// The same loops with 512-bit vectors, masks, gathers and scatters.
//#requires: avx512f avx512vl avx512bw avx512dq
//#flags: -O3 -march=skylake-avx512 -mprefer-vector-width=512
#include "check.h"
static float a[1024], b[1024];
static int ia[1024];
static unsigned char c[1024];
int main(void) {
    for (int i = 0; i < 1024; i++) a[i] = i * 0.5f, ia[i] = (i * 37) & 1023, c[i] = i;
    for (int k = 0; k < 10; k++)
        for (int i = 0; i < 1024; i++) b[i] += a[i] * 3 + a[ia[i]];
    double s = 0;
    long t = 0;
    for (int i = 0; i < 1024; i++) s += b[i], t += c[i] * ia[i];
    printf("ok %.1f %ld\n", s, t);
}
