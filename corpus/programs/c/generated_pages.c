// Code and data that share writable and executable pages: code that stores beside itself, by single
// stores and by repeated ones, system calls that write there, an instruction on two pages of which
// one changes, and a mapping that is made executable in two pieces.
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "check.h"
enum { PAGE = 4096, PAGES = 16 };
typedef long (*function)(void *, long, long);
static unsigned char *p;
static function put(unsigned at, const void *code, unsigned long len) {
    memcpy(p + at, code, len);
    return (function)(p + at);
}
int main(void) {
    p = mmap(0, PAGES * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    // mov %rsi,(%rdi); mov (%rdi),%rax; inc %rax; ret
    function store = put(0, "\x48\x89\x37\x48\x8b\x07\x48\xff\xc0\xc3", 10);
    for (long i = 0; i < 20; i++) {
        CHECK(store(p + 15 * PAGE, i, 0) == i + 1);
        CHECK(store(p + 512, i, 0) == i + 1);
        CHECK(*(long *)(p + 512) == i);
    }
    // mov %rdx,%rcx; mov %esi,%eax; rep stosb; mov %rdi,%rax; ret
    function fill = put(64, "\x48\x89\xd1\x89\xf0\xf3\xaa\x48\x89\xf8\xc3", 11);
    for (int i = 1; i < 5; i++) {
        CHECK(fill(p + 1000, i, 200) == (long)(p + 1200));
        for (int k = 0; k < 200; k++) CHECK(p[1000 + k] == i);
    }
    // Repeated stores over the code behind them: nop; nop; ... ret becomes inc %eax (2 bytes) four times.
    // mov $4,%ecx; lea 6(%rip),%rdi; mov $0xc0ff,%eax; rep stosw; xor %eax,%eax; 8 x nop; ret
    static const unsigned char over[] = {0xb9, 4, 0, 0, 0, 0x48, 0x8d, 0x3d, 10, 0, 0, 0, 0xb8, 0xff, 0xc0,
        0, 0, 0x66, 0xf3, 0xab, 0x31, 0xc0, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0xc3};
    for (int i = 0; i < 3; i++) CHECK(put(2048, over, sizeof over)(0, 0, 0) == 4);
    // System calls write beside code, and over it.
    int ends[2];
    CHECK(!pipe(ends));
    for (int i = 1; i < 20; i++) {
        unsigned char value[] = {0xb8, i, 0, 0, 0, 0xc3};
        CHECK(write(ends[1], value, sizeof value) == sizeof value);
        CHECK(read(ends[0], p + 3 * PAGE, sizeof value) == sizeof value);
        CHECK(((function)(p + 3 * PAGE))(0, 0, 0) == i);
        CHECK(!fstat(ends[0], (struct stat *)(p + 3 * PAGE + 64)));
        CHECK(((struct stat *)(p + 3 * PAGE + 64))->st_nlink == 1);
        CHECK(((function)(p + 3 * PAGE))(0, 0, 0) == i);
    }
    // mov $imm32,%eax; ret on two pages: the immediate changes on the second.
    function across = put(6 * PAGE - 3, "\xb8\x01\x02\x03\x04\xc3", 6);
    for (int i = 0; i < 20; i++) {
        p[6 * PAGE] = i;
        CHECK(across(0, 0, 0) == (i << 16 | 0x04000201));
        p[6 * PAGE - 1] = 2;
        p[6 * PAGE - 2] = 1;
    }
    // The same instruction where two pieces meet that became executable one after the other.
    unsigned char *q = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(q != MAP_FAILED);
    memcpy(q + PAGE - 3, "\xb8\x01\x02\x03\x04\xc3", 6);
    CHECK(!mprotect(q, PAGE, PROT_READ | PROT_EXEC));
    CHECK(!mprotect(q + PAGE, PAGE, PROT_READ | PROT_EXEC));
    CHECK(((function)(q + PAGE - 3))(0, 0, 0) == 0x04030201);
    // Written while it is not executable: some of it is the same as before, some is not.
    for (int i = 0; i < 20; i++) {
        CHECK(!mprotect(q, PAGE, PROT_READ | PROT_WRITE));
        memcpy(q, "\xb8\x07\0\0\0\xc3", 6);
        memcpy(q + 16, (unsigned char[]){0xb8, i, 0, 0, 0, 0xc3}, 6);
        CHECK(!mprotect(q, PAGE, PROT_READ | PROT_EXEC));
        CHECK(((function)q)(0, 0, 0) == 7 && ((function)(q + 16))(0, 0, 0) == i);
    }
    puts("ok");
}
