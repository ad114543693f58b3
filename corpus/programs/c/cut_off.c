// An instruction that goes on in a page where nothing can be executed: the fault is that page's.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include "check.h"
static sigjmp_buf back;
static unsigned char *page;
static int expected, code;
static void handler(int signal, siginfo_t *info, void *context) {
    unsigned char *pc = (void *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    CHECK(signal == expected && info->si_code == code);
    CHECK(info->si_addr == page + 4096 && pc == page + 4094);
    siglongjmp(back, 1);
}
static void falls(int signal, int si_code) {
    expected = signal;
    code = si_code;
    for (int i = 0; i < 3; i++) {
        if (!sigsetjmp(back, 1)) {
            ((void (*)(void))(page + 4090))();
            CHECK(0);
        }
    }
}
int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    CHECK(!sigaction(SIGSEGV, &action, 0) && !sigaction(SIGBUS, &action, 0));
    // nop ...; movabs $0x0807060504030201, %rax; ret
    static const unsigned char movabs[] = {0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8, 0xc3};
    int fd = memfd_create("code", 0);
    CHECK(fd >= 0 && !ftruncate(fd, 4096));
    for (int file = 0; file < 2; file++) {
        int flags = file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
        page = mmap(0, 3 * 4096, PROT_READ | PROT_WRITE, flags, file ? fd : -1, 0);
        CHECK(page != MAP_FAILED);
        memset(page, 0x90, 4096);
        if (file) {
            memcpy(page + 4094, movabs, 2);
            CHECK(!mprotect(page, 2 * 4096, PROT_READ | PROT_EXEC));
            falls(SIGBUS, BUS_ADRERR);
            continue;
        }
        memcpy(page + 4094, movabs, sizeof movabs);
        CHECK(!mprotect(page, 2 * 4096, PROT_READ | PROT_EXEC));
        CHECK(((long (*)(void))(page + 4090))() == 0x0807060504030201);
        CHECK(!mprotect(page + 4096, 4096, PROT_READ));
        falls(SIGSEGV, SEGV_ACCERR);
        CHECK(!mprotect(page + 4096, 4096, PROT_NONE));
        falls(SIGSEGV, SEGV_ACCERR);
        CHECK(!munmap(page + 4096, 4096));
        falls(SIGSEGV, SEGV_MAPERR);
    }
    puts("ok");
}
