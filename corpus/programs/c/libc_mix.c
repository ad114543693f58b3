// Much of libc in one program: string routines (by IFUNC), printf of floats, malloc, qsort, bsearch.
//#args: one two three
//#flags: -lm
#include <ctype.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include "check.h"
static int cmp(const void *a, const void *b) { return *(int *)a < *(int *)b ? -1 : *(int *)a > *(int *)b; }
int main(int argc, char **argv) {
    char buf[4096], other[4096];
    unsigned long h = 1469598103934665603UL;
    for (int n = 0; n < 300; n += 7) {
        memset(buf, 'a' + n % 26, n);
        buf[n] = 0;
        memcpy(other, buf, n + 1);
        memmove(other + 1, other, n + 1);
        h = (h ^ strlen(other) ^ (unsigned long)(strchr(other, 'z') != 0)) * 1099511628211UL;
        // Only the signs: sse2 and avx2 routines return different numbers, and an emulated processor that is
        // asked twice for its features answers differently once in 300 runs.
        h ^= (memcmp(buf, other, n + 1) < 0) + 2 * (strcmp(buf, other + 1) < 0);
        CHECK(strstr(other, buf) == other);
        CHECK(strrchr(buf, 0) == buf + n && memchr(buf, 0, n + 1) == buf + n);
    }
    int a[500];
    for (int i = 0; i < 500; i++) a[i] = (i * 7919) % 1009;
    qsort(a, 500, sizeof *a, cmp);
    for (int i = 1; i < 500; i++) CHECK(a[i - 1] <= a[i]);
    int key = a[123];
    CHECK(bsearch(&key, a, 500, sizeof *a, cmp));
    void *p[64] = {0};
    for (int i = 0; i < 2000; i++) {
        int k = (i * 37) % 64;
        p[k] = realloc(p[k], 1 + (i * 97) % 5000);
        memset(p[k], i, 1);
        if (i % 5 == 0) { free(p[k]); p[k] = 0; }
    }
    void *huge = malloc(3 << 20);
    memset(huge, 1, 3 << 20 >> 8);
    huge = realloc(huge, 9 << 20);
    free(huge);
    printf("%.10g %e %a %Lg %s %d\n", sin(1.25) + pow(2.5, 1.5), 1e-300, 1.0 / 3, 1e4000L, strerror(2), argc);
    long double ld = strtold("3.25", 0);
    snprintf(buf, sizeof buf, "%08.3Lf %5d|%-5d|%x", ld, 42, 43, 0xbeef);
    puts(buf);
    struct tm tm = {.tm_year = 100, .tm_mday = 60};
    time_t t = timegm(&tm);
    strftime(buf, sizeof buf, "%Y-%m-%d %j", gmtime(&t));
    printf("%s %lu %d\n", buf, h, isalpha(*argv[argc - 1]) != 0);
    puts("ok");
}
