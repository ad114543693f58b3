// Executes itself with other arguments; the environment and argv arrive intact.
//#args: 3
#include <string.h>
#include <unistd.h>
#include "check.h"
int main(int argc, char **argv) {
    int n = atoi(argv[1]);
    printf("%d %s\n", n, getenv("ROUND") ? getenv("ROUND") : "-");
    fflush(stdout);
    if (!n) return 0;
    char next[8], round[16];
    sprintf(next, "%d", n - 1);
    sprintf(round, "%d", n);
    setenv("ROUND", round, 1);
    char exe[4096];
    ssize_t len = readlink("/proc/self/exe", exe, sizeof exe - 1);
    CHECK(len > 0);
    exe[len] = 0;
    execl(exe, argv[0], next, (char *)0);
    return 1;
}
