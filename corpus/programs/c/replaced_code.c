// Code that other code has branched to is replaced: patched while generated code jumps to it, and
// exchanged by moving another page over it.
//#oracle: no: where the kernel puts a page decides how it jumps
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include "check.h"
#define NUMBER(name, value) \
    __asm__(".text\n.p2align 12\n.globl " #name "\n.type " #name ",@function\n" #name \
            ": mov $" #value ", %eax\n ret\n.size " #name ", .-" #name "\n.p2align 12"); \
    extern int name(void)
NUMBER(patched, 1);
NUMBER(exchanged, 2);
NUMBER(made_executable_later, 3);
static unsigned char *page(int prot) {
    // Near the program, so that a jump reaches it.
    unsigned char *hint = (unsigned char *)(((uintptr_t)patched + (64 << 20)) & -4096ul);
    unsigned char *p = mmap(hint, 4096, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}
int main(void) {
    unsigned char *g = page(PROT_READ | PROT_WRITE);
    long distance = (char *)patched - (char *)(g + 5);
    if (distance == (int)distance) {
        g[0] = 0xe9;
        memcpy(g + 1, &distance, 4);
    } else {
        g[0] = 0xff, g[1] = 0x25, memset(g + 2, 0, 4);
        int (*f)(void) = patched;
        memcpy(g + 6, &f, 8);
    }
    CHECK(!mprotect(g, 4096, PROT_READ | PROT_EXEC));
    int (*jumps)(void) = (void *)g;
    CHECK(jumps() == 1 && patched() == 1);
    CHECK(!mprotect((void *)patched, 4096, PROT_READ | PROT_WRITE));
    *((char *)patched + 1) = 10;
    CHECK(!mprotect((void *)patched, 4096, PROT_READ | PROT_EXEC));
    CHECK(jumps() == 10 && patched() == 10);

    CHECK(exchanged() == 2 && made_executable_later() == 3);
    for (int later = 0; later < 2; later++) {
        void *old = later ? (void *)made_executable_later : (void *)exchanged;
        unsigned char *copy = page(PROT_READ | PROT_WRITE);
        memcpy(copy, old, 4096);
        copy[1] = 20 + later;
        if (!later) CHECK(!mprotect(copy, 4096, PROT_READ | PROT_EXEC));
        CHECK(mremap(copy, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, old) == old);
        if (later) CHECK(!mprotect(old, 4096, PROT_READ | PROT_EXEC));
    }
    CHECK(exchanged() == 20 && made_executable_later() == 21);
    puts("ok");
}
