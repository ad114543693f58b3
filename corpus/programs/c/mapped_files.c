#define _GNU_SOURCE
// Files that are changed by storing to memory, and memory that changes because a file is written to: all that
// is printed depends on what is there.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };

int main(void) {
    // A file without a name: a name of random letters would refer to other memory in each run.
    int fd = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    if (fd < 0 || ftruncate(fd, 3 * PAGE + 100)) return 1;
    signed char *at = mmap(0, 3 * PAGE + 100, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    for (int i = 0; i < 3 * PAGE; i++) at[i] = i * 7;
    madvise(at, 2 * PAGE, MADV_DONTNEED);
    printf("%d %d\n", at[5], at[3 * PAGE + 99]);

    // Two ways to write to what is mapped, one to write beside it.
    pwrite(fd, "words", 5, PAGE + 10);
    lseek(fd, 20, SEEK_SET);
    write(fd, "other", 5);
    printf("%.5s %.5s %d\n", (char *)at + PAGE + 10, (char *)at + 20, at[PAGE + 15]);
    msync(at, PAGE, MS_SYNC);
    signed char *last = mremap(at + 2 * PAGE, PAGE + 100, PAGE, MREMAP_MAYMOVE);
    printf("%d\n", last[9]);
    munmap(at, PAGE);

    munmap(at + PAGE, PAGE);
    munmap(last, PAGE);

    // The private copy of one page, and pages that are still the file's.
    char *mine = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    const char *read_only = mmap(0, 2 * PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
    mine[1] = 'm';
    pwrite(fd, "xyz", 3, 0);
    pwrite(fd, "xyz", 3, PAGE);
    printf("%c %d %c %c %c\n", mine[1], mine[7], mine[PAGE], read_only[1], read_only[PAGE + 2]);

    // Shared memory that is given back is still there.
    signed char *shared = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(shared, 9, PAGE);
    madvise(shared, PAGE, MADV_DONTNEED);
    printf("%d\n", shared[77]);
    munmap(shared, PAGE);

    // A child that has not all of the memory.
    char *parents = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(parents, PAGE, MADV_DONTFORK);
    fflush(stdout);
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
        char *again = mmap(parents, PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
        _exit(again == parents && again[3] == 0 ? 7 : 8);
    }
    waitpid(child, &status, 0);
    parents[0] = 1;
    printf("%d\n", WEXITSTATUS(status));
    return 0;
}
