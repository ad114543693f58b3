// A child of vfork that asks to be traced, does much before it executes a program, and is stopped there.
//#oracle: no: is traced by its parent
//#except: undo: the child is traced by another one under the watcher
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
static volatile long sum;
static int less(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
static void work(void) {
    static int numbers[5000];
    for (int i = 0; i < 5000; i++) numbers[i] = i * 7919 % 5003;
    qsort(numbers, 5000, sizeof *numbers, less);
    for (int i = 0; i < 300000; i++) sum += numbers[i % 5000] & i;
    char text[64] = "";
    strcat(text, "some text");
    sum += strtol("1234", 0, 10) + (long)strlen(text) + atoi("99");
}
int main(void) {
    for (int round = 0; round < 3; round++) {
        int st;
        pid_t pid = vfork();
        if (!pid) {
            if (ptrace(PTRACE_TRACEME, 0, 0, 0)) _exit(90);
            if (ptrace(PTRACE_TRACEME, 0, 0, 0) != -1 || errno != EPERM) _exit(91);
            work();
            char *argv[] = {"sh", "-c", "exit 5", 0};
            if (round) execv("/nonexistent", argv);
            if (round == 2) _exit(6);
            execv("/bin/sh", argv);
            _exit(92);
        }
        CHECK(pid > 0 && waitpid(pid, &st, 0) == pid);
        if (round < 2) {
            CHECK(WIFSTOPPED(st) && WSTOPSIG(st) == SIGTRAP);
            CHECK(!ptrace(PTRACE_CONT, pid, 0, 0));
            CHECK(waitpid(pid, &st, 0) == pid);
        }
        CHECK(WIFEXITED(st) && WEXITSTATUS(st) == (round < 2 ? 5 : 6));
    }
    CHECK(sum > 0);
    puts("ok");
    return 0;
}
