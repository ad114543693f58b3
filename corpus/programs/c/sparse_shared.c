// Shared memory of a descriptor that is made large before it is filled, as clients of sound and window servers do.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SIZE = 64 << 20, PAGE = 4096 };

static unsigned long sum(const unsigned char *at, unsigned long len) {
    unsigned long sum = 0;
    for (unsigned long i = 0; i < len; i += 61)
        sum = sum * 31 + at[i];
    return sum;
}

static unsigned char *map(int fd, off_t from, unsigned long len) {
    unsigned char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, from);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return at;
}

int main(void) {
    int fd = memfd_create("sparse", MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, SIZE) != 0) {
        perror("memfd_create");
        return 1;
    }
    // Empty, at first.
    unsigned char *at = map(fd, 0, SIZE);
    printf("%lx\n", sum(at, SIZE));
    memset(at + 5 * PAGE, 7, 3 * PAGE);
    at[SIZE - 1] = 9;
    munmap(at, SIZE);
    // With a few bytes in it: some through the descriptor, in two pages.
    if (pwrite(fd, "hello", 5, 1000 * PAGE - 2) != 5)
        return 1;
    at = map(fd, 4 * PAGE, SIZE - 4 * PAGE);
    printf("%lx %.5s %d\n", sum(at, SIZE - 4 * PAGE), at + 996 * PAGE - 2, at[SIZE - 4 * PAGE - 1]);
    strcpy((char *)at, "stored");
    // What is written meanwhile is seen.
    if (pwrite(fd, "again", 5, 2000 * PAGE) != 5)
        return 1;
    char text[16];
    if (pread(fd, text, 7, 4 * PAGE) != 7)
        return 1;
    printf("%s %.5s\n", text, at + 1996 * PAGE);
    munmap(at, SIZE - 4 * PAGE);
    return 0;
}
