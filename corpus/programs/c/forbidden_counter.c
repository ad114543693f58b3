// The time stamp counter is forbidden (PR_SET_TSC), and allowed again, in a child and in the program.
#include <setjmp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <x86intrin.h>
#include "check.h"
static sigjmp_buf back;
static volatile int faults;
static void handle(int signal, siginfo_t *info, void *context) {
    faults += signal == SIGSEGV && info->si_addr == 0;
    siglongjmp(back, 1);
}
static int reads(void) {
    unsigned processor;
    if (sigsetjmp(back, 1)) return 0;
    return __rdtsc() + __rdtscp(&processor) != 0;
}
int main(void) {
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};
    CHECK(!sigaction(SIGSEGV, &action, 0));
    printf("%d", reads());
    for (int round = 0; round < 3; round++) {
        CHECK(!prctl(PR_SET_TSC, PR_TSC_SIGSEGV));
        int before = reads();
        CHECK(!prctl(PR_SET_TSC, PR_TSC_ENABLE));
        printf(" %d%d", before, reads());
    }
    CHECK(!prctl(PR_SET_TSC, PR_TSC_SIGSEGV));
    fflush(stdout);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) {
        printf(" child %d", reads());
        CHECK(!prctl(PR_SET_TSC, PR_TSC_ENABLE));
        printf("%d", reads());
        fflush(stdout);
        _exit(faults);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    int last = reads();
    printf(" %d, %d faults, %d in the child\n", last, faults, WEXITSTATUS(status));
}
