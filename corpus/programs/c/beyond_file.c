// Code behind the end of a mapped file: SIGBUS at that address, from a jump there and from running
// into it.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "check.h"
static sigjmp_buf back;
static unsigned char *expected;
static void handler(int signal, siginfo_t *info, void *context) {
    CHECK(signal == SIGBUS && info->si_code == BUS_ADRERR && info->si_addr == expected);
    siglongjmp(back, 1);
}
int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    CHECK(!sigaction(SIGBUS, &action, 0));
    int fd = memfd_create("code", 0);
    CHECK(fd >= 0 && !ftruncate(fd, 4096));
    unsigned char *write_here = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    unsigned char *p = mmap(0, 2 * 4096, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0);
    CHECK(write_here != MAP_FAILED && p != MAP_FAILED);
    memset(write_here, 0x90, 4096);
    memcpy(write_here, "\xb8\x05\0\0\0\xc3", 6);
    expected = p + 4096;
    for (int i = 0; i < 3; i++) {
        CHECK(((int (*)(void))p)() == 5);
        if (!sigsetjmp(back, 1)) {
            ((void (*)(void))(p + 4096))();
            CHECK(0);
        }
        if (!sigsetjmp(back, 1)) {
            ((void (*)(void))(p + 4090))();
            CHECK(0);
        }
    }
    puts("ok");
}
