// Filters of system calls: what they allow, refuse and trap is what the program's own calls come to, in
// threads, children, and behind an exec, too.
//#flags: -pthread
//#oracle: no: threads interleave differently
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#include "check.h"
static volatile int trapped;
static void handler(int signal, siginfo_t *info, void *context) {
    ucontext_t *uc = context;
    CHECK(signal == SIGSYS && info->si_code == 1 && info->si_errno == 9);
    CHECK(info->si_syscall == SYS_getpgrp && info->si_arch == AUDIT_ARCH_X86_64);
    CHECK((greg_t)info->si_call_addr == uc->uc_mcontext.gregs[REG_RIP]);
    CHECK(uc->uc_mcontext.gregs[REG_RAX] == SYS_getpgrp);
    uc->uc_mcontext.gregs[REG_RAX] = 4711;
    trapped++;
}
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define ON(number, answer) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, answer)
#define ANSWER(answer) BPF_STMT(BPF_RET | BPF_K, answer)
static int install(struct sock_filter *filter, unsigned short len, int flags) {
    struct sock_fprog program = {len, filter};
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}
static void *in_a_thread(void *filtered) {
    CHECK(syscall(SYS_getpgrp) == 4711);
    CHECK(syscall(SYS_getppid) == -1 && errno == (filtered ? 33 : EPERM));
    return 0;
}
static int status_of(void (*run)(void)) {
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        run();
        _exit(7);
    }
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}
static void killed(void) {
    struct sock_filter kill[] = {LOAD(nr), ON(SYS_getppid, SECCOMP_RET_KILL_PROCESS), ANSWER(SECCOMP_RET_ALLOW)};
    CHECK(!install(kill, sizeof kill / sizeof *kill, 0));
    syscall(SYS_getppid);
}
static void killed_when_it_ends(void) {
    struct sock_filter kill[] = {LOAD(nr), ON(SYS_exit_group, SECCOMP_RET_KILL_PROCESS), ANSWER(SECCOMP_RET_ALLOW)};
    CHECK(!install(kill, sizeof kill / sizeof *kill, 0));
    _exit(6);
}
static void strict(void) {
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) _exit(1);
    syscall(SYS_exit, 9);
}
static void strict_killed(void) {
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) _exit(1);
    syscall(SYS_getpid);
}
static void in_another_program(void) {
    // ld.so maps libc, which the filter does not let it.
    execl("/nonexistent/sh", "sh", (char *)0);
    execl("/bin/sh", "sh", "-c", "exit 5", (char *)0);
}
int main(void) {
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    CHECK(!sigaction(SIGSYS, &action, 0));
    // Where whoever started us has installed a filter there is no strict mode any more.
    int unfiltered = prctl(PR_GET_SECCOMP) == SECCOMP_MODE_DISABLED;
    CHECK(status_of(strict) == (unfiltered ? 9 << 8 : 1 << 8));
    CHECK(status_of(strict_killed) == (unfiltered ? SIGKILL : 1 << 8));
    struct sock_filter bad[] = {LOAD(nr)};
    CHECK(install(bad, 1, 0) == -1 && errno == EINVAL);
    // How libraries find out what the kernel knows.
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, 0) == -1 && errno == EFAULT);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 1 << 20, 0) == -1 && errno == EINVAL);
    // Calls that the runtime makes, too, are the program's only where it makes them.
    struct sock_filter first[] = {
        LOAD(arch), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0), ANSWER(SECCOMP_RET_KILL_PROCESS),
        LOAD(nr), ON(SYS_mmap, SECCOMP_RET_ERRNO | ENOMEM), ON(SYS_getpgrp, SECCOMP_RET_TRAP | 9),
        ON(SYS_getppid, SECCOMP_RET_ERRNO | EPERM), ON(SYS_process_vm_readv, SECCOMP_RET_KILL_PROCESS),
        ON(SYS_fallocate, SECCOMP_RET_KILL_PROCESS), ON(SYS_rt_tgsigqueueinfo, SECCOMP_RET_KILL_PROCESS),
        ON(SYS_madvise, SECCOMP_RET_ERRNO | 1),
        ANSWER(SECCOMP_RET_ALLOW)};
    pthread_t early;
    CHECK(!pthread_create(&early, 0, (void *(*)(void *))pause, 0));
    CHECK(!install(first, sizeof first / sizeof *first, SECCOMP_FILTER_FLAG_TSYNC));
    CHECK(mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == ENOMEM);
    CHECK(syscall(SYS_getpgrp) == 4711 && trapped == 1);
    in_a_thread(0);
    CHECK(prctl(PR_GET_SECCOMP) == SECCOMP_MODE_FILTER);
    // A second one: the stricter answer counts, among equal ones that of the later filter.
    struct sock_filter second[] = {LOAD(nr), ON(SYS_getppid, SECCOMP_RET_ERRNO | 33),
        ON(SYS_getpgrp, SECCOMP_RET_ERRNO | 34), ANSWER(SECCOMP_RET_ALLOW)};
    CHECK(!install(second, sizeof second / sizeof *second, 0));
    in_a_thread("");
    CHECK(WTERMSIG(status_of(killed)) == SIGSYS && WTERMSIG(status_of(killed_when_it_ends)) == SIGSYS);
    CHECK(status_of(in_another_program) != 5 << 8);
    puts("ok");
    fflush(stdout);
    _exit(0);
}
