// Code that another piece of code changes: writable and executable memory, another instruction each
// round, from code that cannot be written to and from another such mapping.
#include <string.h>
#include <sys/mman.h>
#include "check.h"
int main(void) {
    unsigned char *p = mmap(0, 3 * 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    // Two mappings with a hole between them.
    CHECK(!munmap(p + 4096, 4096));
    unsigned char *q = p + 2 * 4096;
    int sum = 0;
    for (int i = 0; i < 100; i++) {
        memcpy(p, (unsigned char[]){0xb8, i, 0, 0, 0, 0xc3}, 6);
        sum += ((int (*)(void))p)();
    }
    CHECK(sum == 4950);
    // incb (%rdi); mov %rsi,%rax; jmp *%rax: changes the immediate in the other mapping, then goes there.
    unsigned char bump[] = {0xfe, 0x07, 0x48, 0x89, 0xf0, 0xff, 0xe0};
    unsigned char value[] = {0xb8, 0, 0, 0, 0, 0xc3};
    memcpy(p + 64, bump, sizeof bump);
    memcpy(q, value, sizeof value);
    for (int i = 1; i < 50; i++)
        CHECK(((int (*)(void *, void *))(p + 64))(q + 1, q) == i);
    puts("ok");
}
