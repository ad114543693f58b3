// A linker maps the program that it is writing, and changes it once more behind that.
//#oracle: no: its name is one of many
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "check.h"

enum { SIZE = 200000 };

int main(void) {
    static unsigned char bytes[SIZE];
    char name[] = "made-XXXXXX";
    int fd = mkstemp(name), self = open("/proc/self/exe", O_RDONLY);
    CHECK(fd >= 0 && self >= 0 && read(self, bytes, 4096) == 4096);
    for (int i = 4096; i < SIZE; i++) bytes[i] = i * 7;
    CHECK(write(fd, bytes, SIZE) == SIZE);
    unsigned char *at = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(at != MAP_FAILED && !memcmp(at, bytes, SIZE));
    unsigned sum = 0;
    for (int i = 4096; i < SIZE; i++) sum = sum * 31 + at[i];
    CHECK(!munmap(at, SIZE));
    CHECK(pwrite(fd, "changed", 7, 100000) == 7 && !close(fd));
    // It has another name at the end.
    CHECK(!rename(name, "made") && !unlink("made"));
    printf("%x\n", sum);
    return 0;
}
