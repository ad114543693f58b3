// Children that begin without their parent's signal handlers: clone3 with CLONE_CLEAR_SIGHAND, as posix_spawn of newer C
// libraries makes them.
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
static const unsigned long CLEARS = 1ul << 32;
static volatile int handled, seen;
static void handle(int signal) { handled += signal; }
struct arguments {
    unsigned long flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
};
static long clone3(struct arguments *arguments) {
    return syscall(SYS_clone3, arguments, sizeof *arguments);
}
static char name(int signal) {
    struct sigaction action;
    CHECK(!sigaction(signal, 0, &action));
    if (action.sa_handler == SIG_DFL) return 'd';
    if (action.sa_handler == SIG_IGN) return 'i';
    return 'h';
}
static void tell(void) {
    printf("%c%c%c%c%c\n", name(SIGUSR1), name(SIGUSR2), name(SIGSEGV), name(SIGCHLD), name(SIGRTMIN + 3));
    fflush(stdout);
}
// (It ends without a signal, which would come at any time.)
static int ended(long pid) {
    int status;
    CHECK(pid > 0 && waitpid(pid, &status, __WALL) == pid);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}
// On a stack of its own, in its parent's memory, while its parent waits. It does not come back.
static char stack[65536] __attribute__((aligned(16)));
__attribute__((noreturn, used)) static void lent(void) {
    seen = name(SIGUSR1) == 'd' && name(SIGUSR2) == 'i' && name(SIGSEGV) == 'd';
    raise(SIGCHLD);
    CHECK(signal(SIGUSR2, handle) == SIG_IGN);
    raise(SIGUSR2);
    seen += handled * 100;
    raise(SIGUSR1);
    _exit(9);
}
static int lends(void) {
    struct arguments arguments = {
        .flags = CLEARS | CLONE_VM | CLONE_VFORK,
        .stack = (unsigned long)stack, .stack_size = sizeof stack,
    };
    long pid;
    asm volatile("syscall\n test %%rax, %%rax\n jnz 1f\n xor %%ebp, %%ebp\n call lent\n1:"
                 : "=a"(pid) : "a"(SYS_clone3), "D"(&arguments), "S"(sizeof arguments)
                 : "rcx", "r11", "memory");
    return ended(pid);
}
int main(void) {
    int all[] = {SIGUSR1, SIGSEGV, SIGCHLD, SIGRTMIN + 3};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) CHECK(signal(all[i], handle) != SIG_ERR);
    CHECK(signal(SIGUSR2, SIG_IGN) != SIG_ERR);
    struct arguments both = {.flags = CLEARS | CLONE_SIGHAND};
    CHECK(clone3(&both) == -1);
    printf("%s\n", strerror(errno));
    tell();
    int signals[] = {0, SIGCHLD, SIGUSR1, SIGUSR2, SIGSEGV, SIGRTMIN + 3};
    for (unsigned i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct arguments arguments = {.flags = CLEARS};
        long pid = clone3(&arguments);
        if (!pid) {
            if (!i) tell();
            raise(signals[i]);
            // One of its own.
            signal(SIGUSR1, handle);
            handled = 0;
            raise(SIGUSR1);
            _exit(handled);
        }
        printf("%d\n", ended(pid));
    }
    // The child in lent memory sees and changes its own actions only.
    handled = 0;
    int status = lends();
    printf("%d %d\n", status, seen);
    tell();
    handled = 0;
    raise(SIGUSR1);
    raise(SIGUSR2);
    printf("%d\n", handled);
}
