// fork and wait: exit statuses, signals, a pipe, nested forks.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
int main(void) {
    int p[2], st;
    CHECK(!pipe(p));
    for (int i = 0; i < 5; i++) {
        pid_t pid = fork();
        if (!pid) {
            char c = 'a' + i;
            if (write(p[1], &c, 1) != 1) _exit(99);
            if (i == 3) raise(SIGTERM);
            if (i == 4) { if (!fork()) _exit(7); wait(&st); _exit(WEXITSTATUS(st)); }
            _exit(i);
        }
        CHECK(waitpid(pid, &st, 0) == pid);
        char c;
        CHECK(read(p[0], &c, 1) == 1 && c == 'a' + i);
        if (i == 3) CHECK(WIFSIGNALED(st) && WTERMSIG(st) == SIGTERM);
        else CHECK(WEXITSTATUS(st) == (i == 4 ? 7 : i));
    }
    puts("ok");
}
