// An engine's code lies in a large file without a name, mapped twice: for executing, while it is still empty, and for writing.
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "check.h"

enum { SIZE = 64 << 20, PIECE = 64, PIECES = 40 };

int main(void) {
    int fd = memfd_create("code", 0);
    CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0);
    unsigned char *executes = mmap(NULL, SIZE, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0);
    unsigned char *writes = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(executes != MAP_FAILED && writes != MAP_FAILED);
    long sum = 0;
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < PIECES; i++) {
            long at = (long)i * (SIZE / PIECES) / PIECE * PIECE;
            // lea eax, [rdi + i + round]; ret
            memcpy(writes + at, (unsigned char[]){0x8d, 0x47, i + round, 0xc3}, 4);
            sum = sum * 3 + ((int (*)(int))(executes + at))(round);
            CHECK(executes[at + 2] == i + round);
        }
    printf("%lx\n", sum);
    return 0;
}
