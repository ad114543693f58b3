// Code in the middle of large pieces of address space that were reserved before, as engines do: wherever the kernel
// has put them, functions of the program return to that code.
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include "check.h"
// Together more than 4 GiB, so whatever lies at one place in each 4 GiB is in one of them.
enum { PAGE = 4096, PIECES = 9, TIMES = 1500 };
static const size_t LENGTH = 512 << 20;
typedef long (*function)(long, long (*)(long));

// push %rbx; push %r12; push %r13; mov %rdi,%rbx; mov %rsi,%r12; xor %r13d,%r13d; 1: mov %rbx,%rdi; call *%r12;
// add %rax,%r13; dec %rbx; jnz 1b; mov %r13,%rax; pop %r13; pop %r12; pop %rbx; ret
static const unsigned char CODE[] = {0x53, 0x41, 0x54, 0x41, 0x55, 0x48, 0x89, 0xfb, 0x49, 0x89, 0xf4, 0x45, 0x31, 0xed,
                                     0x48, 0x89, 0xdf, 0x41, 0xff, 0xd4, 0x49, 0x01, 0xc5, 0x48, 0xff, 0xcb, 0x75, 0xf2,
                                     0x4c, 0x89, 0xe8, 0x41, 0x5d, 0x41, 0x5c, 0x5b, 0xc3};

static long twice(long n) { return 2 * n; }

int main(void) {
    static unsigned char *pieces[PIECES];
    for (int i = 0; i < PIECES; i++) {
        pieces[i] = mmap(0, LENGTH, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        CHECK(pieces[i] != MAP_FAILED);
    }
    for (int i = 0; i < PIECES; i++) {
        unsigned char *piece = pieces[i], *code = piece + LENGTH / 2;
        CHECK(!mprotect(code, PAGE, PROT_READ | PROT_WRITE));
        memcpy(code, CODE, sizeof CODE);
        CHECK(!mprotect(code, PAGE, PROT_READ | PROT_EXEC));
        long sum = ((function)(uintptr_t)code)(TIMES, twice);
        CHECK(sum == (long)TIMES * (TIMES + 1));
        // The whole piece is the program's.
        CHECK(!mprotect(piece, LENGTH, PROT_READ));
        for (size_t at = 0; at < LENGTH; at += 32 << 20) CHECK(piece[at] == 0 || at == LENGTH / 2);
    }
    puts("ok");
    return 0;
}
