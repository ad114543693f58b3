// Code generated at run time: written, made executable, run, changed, run again; remapped.
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "check.h"
static int call(void *p, int x) { return ((int (*)(int))p)(x); }
int main(void) {
    unsigned char *p = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 20; i++) {
        unsigned char code[] = {0x8d, 0x47, i, 0xc3};            // lea i(%rdi), %eax; ret
        CHECK(!mprotect(p, 8192, PROT_READ | PROT_WRITE));
        memcpy(p + 4094, code, 4);                               // across a page boundary
        CHECK(!mprotect(p, 8192, PROT_READ | PROT_EXEC));
        CHECK(call(p + 4094, 100) == 100 + i);
    }
    munmap(p, 8192);
    unsigned char *q = mmap(p, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    memcpy(q, (unsigned char[]){0x89, 0xf8, 0xf7, 0xd8, 0xc3}, 5);  // mov; neg; ret
    CHECK(!mprotect(q, 4096, PROT_READ | PROT_EXEC));
    CHECK(call(q, 5) == -5);
    // The same memory through two mappings.
    int fd = memfd_create("code", 0);
    if (fd >= 0 && !ftruncate(fd, 4096)) {
        unsigned char *w = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        unsigned char *x = mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0);
        for (int i = 0; i < 5; i++) {
            memcpy(w, (unsigned char[]){0xb8, i, 0, 0, 0, 0xc3}, 6);
            CHECK(call(x, 0) == i);
        }
    }
    puts("ok");
}
