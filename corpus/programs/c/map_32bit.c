// MAP_32BIT: addresses below 2 GiB, whatever is mapped there, and code runs there.
//#oracle: no: where MAP_32BIT maps depends on what is mapped already
//#variants: pie no-pie static static-pie
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include "check.h"
static unsigned char *map(unsigned long len, int prot) {
    unsigned char *at = mmap(0, len, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    CHECK(at != MAP_FAILED && (unsigned long)at + len <= 0x80000000);
    return at;
}
int main(void) {
    const int rw = PROT_READ | PROT_WRITE, rwx = rw | PROT_EXEC;
    for (int i = 0; i < 200; i++) {
        unsigned long len = (i % 20 + 1) * 4096ul;
        unsigned char *code = map(len, i & 1 ? rwx : rw);
        memset(code, 0xcc, len);
        memcpy(code, (unsigned char[]){0x8d, 0x47, i & 63, 0xc3}, 4);       // lea i(%rdi), %eax; ret
        CHECK(!mprotect(code, len, i & 2 ? rwx : PROT_READ | PROT_EXEC));
        for (int k = 0; k < 3; k++) CHECK(((int (*)(int))code)(k) == k + (i & 63));
        CHECK(!mprotect(code, len, rw));
        code[0] = 0x8d;
        if (i % 3) CHECK(!munmap(code, len));
    }
    // All of it, down to single pages.
    int pieces = 0;
    for (unsigned long len = 1ul << 30; len >= 65536; len /= 2) {
        for (;;) {
            unsigned char *at = mmap(0, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_32BIT, -1, 0);
            if (at == MAP_FAILED) break;
            CHECK((unsigned long)at + len <= 0x80000000);
            CHECK(!mprotect(at, 4096, rw));
            *at = 1;
            if (++pieces > 5000) return 1;
        }
    }
    puts("ok");
}
