// Child processes on a stack of their own: clone and clone3 without CLONE_VM.
#define _GNU_SOURCE
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
static char stack[1 << 16] __attribute__((aligned(64)));
static int variable = 1;
static int child(void *argument) {
    char here;
    int inside = &here > stack && &here < stack + sizeof stack;
    variable = 9;
    return inside ? (int)(intptr_t)argument : 99;
}
static __attribute__((noreturn, used)) void enter(void) { _exit(child((void *)43)); }
static int ends(long pid) {
    int status;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}
int main(void) {
    CHECK(ends(clone(child, stack + sizeof stack, SIGCHLD, (void *)42)) == 42);
    pid_t parent = 0;
    CHECK(ends(clone(child, stack + sizeof stack, SIGCHLD | CLONE_PARENT_SETTID, (void *)44, &parent)) == 44);
    CHECK(parent > 0);
    struct clone_args args = {.exit_signal = SIGCHLD, .stack = (uintptr_t)stack, .stack_size = sizeof stack};
    CHECK(syscall(SYS_clone3, &args, 40) == -1 && syscall(SYS_clone3, &args, 1 << 20) == -1);
    long pid;
    __asm__ volatile(
        "syscall\n"
        "test %%rax, %%rax\n"
        "jnz 1f\n"
        "xor %%ebp, %%ebp\n"
        "call enter\n"
        "1:"
        : "=a"(pid)
        : "a"(SYS_clone3), "D"(&args), "S"(sizeof args)
        : "rcx", "r11", "memory");
    CHECK(ends(pid) == 43 && variable == 1);
    puts("ok");
}
