// Processes that share the program's memory and run beside it: each with signal actions of its own,
// one ended by a signal, one while its parent is stopped by it.
//#variants: pie static
//#oracle: no: runs beside its parent
//#except: undo: it is another one under the watcher, which traces it
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
static volatile int go, value, handled;
static pid_t parent;
static void handler(int n) { handled += n; }
static int work(void *x) {
    signal(SIGUSR1, SIG_IGN);
    while (!go) ;
    for (long i = 0; i < (long)x; i++) __atomic_fetch_add(&value, 1, __ATOMIC_SEQ_CST);
    return 7;
}
static int dies(void *x) {
    *(volatile int *)x = 1;
    return 1;
}
static int looks(void *x) {
    int status;
    while (!go) ;
    if (ptrace(PTRACE_ATTACH, parent, 0, 0)) return 1;
    if (waitpid(parent, &status, __WALL) != parent || !WIFSTOPPED(status)) return 2;
    char text[100];
    snprintf(text, sizeof text, "%d %s", value, (char *)x);
    if (strcmp(text, "3000 text")) return 3;
    if (ptrace(PTRACE_DETACH, parent, 0, 0)) return 4;
    value = 1;
    return 9;
}
static char *stack(void);
static volatile int begun;
static int sleeps(void *x) {
    begun = 1;
    for (;;) syscall(SYS_pause);
}
static int ends_both(void *x) {
    const int like_this = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD;
    if (clone(sleeps, x, like_this, 0) <= 0) return 1;
    while (!begun) ;
    syscall(SYS_exit_group, 11);
    return 2;
}
static char *stack(void) {
    char *at = mmap(0, 1 << 18, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at + (1 << 18);
}
static int end(pid_t pid) {
    int status = -1;
    while (waitpid(pid, &status, __WALL) != pid) ;
    return status;
}
int main(void) {
    signal(SIGUSR1, handler);
    parent = getpid();
    pid_t pids[3];
    for (int i = 0; i < 3; i++) {
        pids[i] = clone(work, stack(), CLONE_VM | SIGCHLD, (void *)1000);
        CHECK(pids[i] > 0);
    }
    go = 1;
    for (int i = 0; i < 3; i++) CHECK(end(pids[i]) == 7 << 8);
    CHECK(value == 3000);
    raise(SIGUSR1);
    CHECK(handled == SIGUSR1);
    pid_t pid = clone(dies, stack(), CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD, 0);
    CHECK(pid > 0 && WTERMSIG(end(pid)) == SIGSEGV);
    pid = clone(ends_both, stack(), CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | SIGCHLD, stack());
    CHECK(pid > 0 && end(pid) == 11 << 8);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    go = 0;
    pid = clone(looks, stack(), CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_UNTRACED, "text");
    CHECK(pid > 0);
    go = 1;
    CHECK(end(pid) == 9 << 8);
    CHECK(value == 1);
    puts("ok");
}
