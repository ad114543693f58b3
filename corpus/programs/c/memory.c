// brk up and down, large mappings, mremap growing and moving, madvise, a hole in the middle.
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "check.h"
int main(void) {
    char *b = sbrk(0);
    CHECK(sbrk(64 << 20) == b);
    memset(b, 1, 4096);
    b[(64 << 20) - 1] = 2;
    CHECK(sbrk(-(32 << 20)) == b + (64 << 20));
    CHECK(sbrk(0) == b + (32 << 20));
    CHECK(!brk(b));
    CHECK(sbrk(4096) == b && b[0] == 0);
    char *p = mmap(0, 1L << 36, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(p != MAP_FAILED);
    p[1L << 35] = 1;
    CHECK(!munmap(p, 1L << 36));
    p = mmap(0, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 4; i++) p[i * 4096] = i;
    CHECK(!munmap(p + 4096, 4096));
    p[0] = p[2 * 4096];
    char *q = mmap(p + 4096, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(q == p + 4096 && q[0] == 0);
    char *m = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    m[5] = 55;
    char *n = mremap(m, 4096, 1 << 20, MREMAP_MAYMOVE);
    CHECK(n != MAP_FAILED && n[5] == 55);
    n[(1 << 20) - 1] = 1;
    n = mremap(n, 1 << 20, 4096, 0);
    CHECK(n != MAP_FAILED && n[5] == 55);
    CHECK(!madvise(n, 4096, MADV_DONTNEED) && n[5] == 0);
    void *bad = mmap(0, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(bad == MAP_FAILED);
    puts("ok");
}
