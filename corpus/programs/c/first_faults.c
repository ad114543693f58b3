// The first process of a PID namespace ends by its faults, though not by what it is sent.
//#oracle: no: a signal that a tracer passes on does not end the first process of a namespace, which faults again
//#except: undo: outside of its namespace the first process has another number, under which the test does not look for it
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void fault(int signal) {
    switch (signal) {
    case SIGSEGV: *(volatile int *)0 = 1; break;
    case SIGILL: __asm__ volatile("ud2"); break;
    case SIGTRAP: __asm__ volatile("int3"); break;
    case SIGFPE: __asm__ volatile("xor %%eax, %%eax; cltd; idiv %%eax" : : : "eax", "edx"); break;
    case SIGBUS: {
        FILE *file = tmpfile();
        char *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
        *(volatile char *)page = 1;
    }
    }
}

int main(void) {
    static const int SIGNALS[] = {SIGSEGV, SIGILL, SIGTRAP, SIGFPE, SIGBUS, SIGTERM};
    for (int i = 0; i < 6; i++) {
        pid_t outer = fork();
        if (outer == 0) {
            if (unshare(CLONE_NEWPID) && unshare(CLONE_NEWUSER | CLONE_NEWPID)) _exit(1);
            pid_t first = fork();
            if (first == 0) {
                if (getpid() != 1) _exit(2);
                raise(SIGNALS[i]);
                fault(SIGNALS[i]);
                _exit(3);
            }
            int status;
            waitpid(first, &status, 0);
            _exit(WIFSIGNALED(status) ? WTERMSIG(status) : 100 + WEXITSTATUS(status));
        }
        int status;
        waitpid(outer, &status, 0);
        printf("%d: %d\n", SIGNALS[i], WEXITSTATUS(status));
    }
}
