// An instruction that starts in the last bytes of one page and ends in another one with other rights.
//#oracle: no: it makes mappings
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "check.h"
enum { RX = PROT_READ | PROT_EXEC, RWX = PROT_READ | PROT_WRITE | PROT_EXEC, PAGE = 4096 };
// mov $..., %eax; ret, from `at` bytes before the border, behind a few nops.
static unsigned char *put(unsigned char *pages, int at, int value) {
    unsigned char *code = pages + PAGE - at;
    memset(pages, 0x90, PAGE);
    code[0] = 0xb8;
    memcpy(code + 1, &value, 4);
    code[5] = 0xc3;
    return code;
}
static int run(unsigned char *code) { return ((int (*)(void))code)(); }
static void both(int first, int second, int fd) {
    int flags = MAP_PRIVATE | (fd < 0 ? MAP_ANONYMOUS : 0);
    for (int at = 1; at < 5; at++) {
        unsigned char *pages = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, flags, fd, 0);
        CHECK(pages != MAP_FAILED);
        unsigned char *code = put(pages, at, 1000 + at);
        CHECK(mprotect(pages, PAGE, first) == 0 && mprotect(pages + PAGE, PAGE, second) == 0);
        CHECK(run(code) == 1000 + at);
        CHECK(run(code - 8) == 1000 + at && run(code - 100) == 1000 + at);
        // What is in the page that may be written changes.
        for (int i = 0; i < 300; i++) {
            if (second == RWX) {
                code[4] = i;
                CHECK(run(code - (i & 7)) == (int)((unsigned)i << 24 | (1000 + at)));
            }
            if (first == RWX) {
                // mov to %ecx, and to %eax again
                code[0] = 0xb9;
                code[0] = 0xb8;
                CHECK((run(code) & 0xffffff) == 1000 + at);
            }
        }
        munmap(pages, 2 * PAGE);
    }
}
int main(void) {
    both(RX, RWX, -1);
    both(RWX, RX, -1);
    both(RWX, RWX, -1);
    both(RX, RX, -1);
    char name[] = "/tmp/splitXXXXXX";
    int fd = mkstemp(name);
    unlink(name);
    CHECK(fd >= 0 && ftruncate(fd, 2 * PAGE) == 0);
    both(RX, RWX, fd);
    both(RWX, RX, fd);
    both(RX, RX, fd);
    puts("ok");
}
