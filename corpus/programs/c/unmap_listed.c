// Unmaps and drops what is listed among its mappings and is none of its own.
//#oracle: no: reads /proc/self/maps, whose text differs
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
int main(void) {
    static char text[1 << 20];
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    size_t len = fread(text, 1, sizeof text - 1, maps);
    fclose(maps);
    text[len] = 0;
    // Where nothing of a program's is that the kernel has placed.
    for (char *line = text; line && *line; line = strchr(line, '\n'), line += line != 0) {
        unsigned long start, end;
        CHECK(sscanf(line, "%lx-%lx", &start, &end) == 2);
        if (start < 0x7e8000000000 || start >= 0x7ec000000000) continue;
        madvise((void *)start, end - start, MADV_DONTNEED);
        munmap((void *)start, end - start);
        CHECK(mremap((void *)start, end - start, 2 * (end - start), 0) == MAP_FAILED);
    }
    int child = fork();
    if (child == 0) {
        for (int i = 0; i < 1000; i++) free(malloc(i * 100));
        _exit(7);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
    puts("ok");
}
