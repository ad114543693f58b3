// fork + exec, vfork + exec, vfork + _exit, posix_spawn, popen, system.
//#oracle: no: posix_spawn looks at its mask, in which the oracle leaves no SIGTRAP
#define _GNU_SOURCE
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
extern char **environ;
int main(void) {
    char *argv[] = {"sh", "-c", "exit 5", 0};
    int st;
    pid_t pid = fork();
    if (!pid) { execv("/bin/sh", argv); _exit(1); }
    CHECK(waitpid(pid, &st, 0) == pid && WEXITSTATUS(st) == 5);
    volatile int seen = 0;
    pid = vfork();
    if (!pid) { seen = 1; execv("/bin/sh", argv); _exit(1); }
    CHECK(waitpid(pid, &st, 0) == pid && WEXITSTATUS(st) == 5 && seen);
    pid = vfork();
    if (!pid) { seen = 2; _exit(6); }
    CHECK(waitpid(pid, &st, 0) == pid && WEXITSTATUS(st) == 6 && seen == 2);
    CHECK(!posix_spawn(&pid, "/bin/sh", 0, 0, argv, environ));
    CHECK(waitpid(pid, &st, 0) == pid && WEXITSTATUS(st) == 5);
    CHECK(posix_spawn(&pid, "/nonexistent", 0, 0, argv, environ));
    FILE *f = popen("echo piped", "r");
    char line[32];
    CHECK(fgets(line, sizeof line, f));
    CHECK(pclose(f) == 0);
    fflush(stdout);
    CHECK(WEXITSTATUS(system("echo $0; exit 4")) == 4);
    printf("ok %s", line);
}
