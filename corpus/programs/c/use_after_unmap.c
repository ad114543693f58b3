// Memory that was given back, and used: natively nothing is there, however much happens in between.
//#expect-signal: 11
#include <string.h>
#include <sys/mman.h>
#include "check.h"
enum { SIZE = 1 << 20 };
int main(void) {
    unsigned char *block = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned char *code = mmap(0, 1 << 16, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(block != MAP_FAILED && code != MAP_FAILED);
    memset(block, 1, SIZE);
    CHECK(!munmap(block, SIZE));
    // Whoever records or translates needs memory for this.
    for (int i = 0; i < 300; i++) {
        memcpy(code + 64 * i, (unsigned char[]){0xb8, i, i >> 8, 0, 0, 0xc3}, 6);
        CHECK(((int (*)(void))(code + 64 * i))() == i);
    }
    puts("still there");
    fflush(stdout);
    for (int i = SIZE; i-- > 0;) ((volatile unsigned char *)block)[i] = 2;
    puts("nobody missed it");
}
