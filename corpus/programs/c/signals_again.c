// A handler's way back (its restorer) is interrupted by a signal that comes again as soon as its own handler, which goes the
// same way, has returned there.
#define _GNU_SOURCE
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "check.h"
struct action { void (*handler)(int); unsigned long flags; void (*restorer)(void); unsigned long mask; };
volatile long first_left, pid, tid;
static volatile long second, sums;
void way_back(void);
__asm__(
    ".text\n.globl way_back\n"
    // The kernel returns with this rcx, too.
    "way_back: lea 1f(%rip), %rcx\n"
    "mov first_left@GOTPCREL(%rip), %rdx\n subq $1, (%rdx)\n js 1f\n"
    "mov pid@GOTPCREL(%rip), %rdx\n mov (%rdx), %rdi\n"
    "mov tid@GOTPCREL(%rip), %rdx\n mov (%rdx), %rsi\n"
    "mov $12, %edx\n mov $234, %eax\n syscall\n" // tgkill(pid, tid, SIGUSR2)
    "1: mov $15, %eax\n syscall\n");
#define SA_RESTORER 0x04000000
static void set(int signal, void (*handler)(int)) {
    struct action a = {handler, SA_RESTORER, way_back, 0};
    CHECK(syscall(SYS_rt_sigaction, signal, &a, 0, 8) == 0);
}
static void one(int s) { sums = sums * 3 + 1; }
static void two(int s) {
    // It is blocked until this handler has returned.
    if (++second < 4) syscall(SYS_tgkill, pid, tid, s);
    sums = sums * 5 + second;
}
int main(void) {
    pid = getpid();
    tid = syscall(SYS_gettid);
    set(SIGUSR1, one);
    set(SIGUSR2, two);
    for (int i = 0; i < 3; i++) {
        first_left = 1;
        second = 0;
        syscall(SYS_tgkill, pid, tid, SIGUSR1);
        CHECK(second == 4);
    }
    printf("%ld\n", sums);
    return 0;
}
