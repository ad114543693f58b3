// vfork: the child stores in its parent's memory, is killed, fails to start a program, forks.
#define _GNU_SOURCE
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
static volatile int table[32];
static void fill(int from) {
    for (int i = 0; i < 32; i++) table[i] += from + i;
}
int main(void) {
    int st;
    pid_t pid = vfork();
    if (!pid) { fill(3); _exit(6); }
    CHECK(waitpid(pid, &st, 0) == pid && WEXITSTATUS(st) == 6 && table[5] == 8);
    pid = vfork();
    if (!pid) { fill(1); kill(getpid(), SIGKILL); _exit(6); }
    CHECK(waitpid(pid, &st, 0) == pid && WIFSIGNALED(st) && table[5] == 14);
    pid = vfork();
    if (!pid) {
        char *argv[] = {"nothing", 0};
        execv("/nonexistent", argv);
        fill(0);
        _exit(7);
    }
    CHECK(waitpid(pid, &st, 0) == pid && WEXITSTATUS(st) == 7 && table[5] == 19);
    pid = vfork();
    if (!pid) {
        pid_t own = fork();
        if (!own) { fill(5); _exit(table[5]); }
        if (waitpid(own, &st, 0) != own) _exit(99);
        _exit(WEXITSTATUS(st));
    }
    CHECK(waitpid(pid, &st, 0) == pid && WEXITSTATUS(st) == 29 && table[5] == 19);
    puts("ok");
}
