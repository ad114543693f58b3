// Signals and system calls where the stack ends so far: the kernel makes it grow for them.
//#oracle: no: the signals of a stepped program pass through the stepper
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "check.h"
static volatile int got;
static pid_t self;
static void handler(int signal) { got += signal == SIGUSR1; }
// Without a stack frame of its own: what libc needs would make the stack grow first.
static inline long direct(long number, long a, long b, long c, long d) {
    register long r10 asm("r10") = d;
    asm volatile("syscall" : "+a"(number) : "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return number;
}
__attribute__((noinline)) static int deep(int n) {
    volatile char room[3000];
    room[0] = n;
    direct(SYS_kill, self, SIGUSR1, 0, 0);
    return n ? deep(n - 1) + room[0] : 0;
}
__attribute__((noinline)) static long below(unsigned long distance) {
    char here;
    return direct(SYS_rt_sigprocmask, SIG_BLOCK, 0, (long)((unsigned long)(&here - distance) & ~7ul), 8);
}
int main(void) {
    self = getpid();
    signal(SIGUSR1, handler);
    deep(300);
    CHECK(got == 301);
    CHECK(below(2000000) == 0);
    CHECK(below(2500000) == 0);
    puts("ok");
}
