// A file is mapped to be read, and another process changes it meanwhile, with a call and by storing to its own mapping.
//#oracle: no: processes run as they please
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"

enum { LENGTH = 5 * 4096 - 100, ROUNDS = 60 };

static sigjmp_buf refused;

static void on_fault(int signal) { siglongjmp(refused, signal); }

static void writes(int fd, int round) {
    uint64_t value = round;
    CHECK(pwrite(fd, &value, 8, 4096) == 8);
    char *all = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(all != MAP_FAILED);
    memset(all + 2 * 4096, round, 4096);
    *(volatile uint64_t *)all = round;
    munmap(all, LENGTH);
}

int main(void) {
    char path[] = "/tmp/shared_read.XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && ftruncate(fd, LENGTH) == 0);
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        for (int round = 1; round <= ROUNDS; round++) writes(fd, round), usleep(round % 7 * 300);
        _exit(7);
    }
    int readable = open(path, O_RDONLY);
    const char *all = mmap(NULL, LENGTH, PROT_READ, MAP_SHARED, readable, 0);
    CHECK(all != MAP_FAILED);
    close(readable);
    volatile const uint64_t *first = (void *)all, *written = (void *)(all + 4096);
    volatile const uint32_t *filled = (void *)(all + 2 * 4096 + 8);
    uint64_t seen = 0, changes = 0, last = 0;
    int ends[2];
    CHECK(pipe(ends) == 0);
    struct sigaction action = {.sa_handler = on_fault};
    sigaction(SIGSEGV, &action, NULL);
    for (uint64_t looks = 0; *first != ROUNDS; looks++) {
        uint64_t now = *written;
        changes += now != last;
        last = now;
        seen = (seen * 31 + now) * 31 + *filled;
        // The kernel reads it, too.
        if (looks % 50 == 0) {
            uint64_t both[2];
            CHECK(write(ends[1], all, 8) == 8 && write(ends[1], all + 4096, 8) == 8);
            CHECK(read(ends[0], both, 16) == 16);
            seen = (seen * 31 + both[0]) * 31 + both[1];
        }
        // Nobody may store there.
        if (looks % 400 == 0) {
            if (sigsetjmp(refused, 1) == 0) {
                *(volatile char *)all = 1;
                CHECK(!"refused");
            }
        }
        if (looks % 3 == 0) usleep(100);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
    CHECK(changes > 0 && *written == ROUNDS && *filled == ROUNDS * 0x01010101u);
    unlink(path);
    // What was seen decides how long this takes, in turns.
    for (volatile uint64_t n = seen % 64; n > 0; n--) {}
    puts("done");
    return 0;
}
