// Children that go on computing, children of children, many in a row, one that changes its folder.
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
static unsigned data[64];
__attribute__((noinline)) static unsigned mix(unsigned x, int n) {
    for (int i = 0; i < n; i++) {
        data[i & 63] += x;
        x = x * 1664525 + data[(x >> 20) & 63];
    }
    return x;
}
static int ended(pid_t pid) {
    int st;
    CHECK(waitpid(pid, &st, 0) == pid && WIFEXITED(st));
    return WEXITSTATUS(st);
}
static unsigned tree(int depth, unsigned x) {
    x = mix(x, 20);
    if (depth) {
        pid_t pid = fork();
        if (!pid) _exit(tree(depth - 1, x + 1) & 127);
        x += ended(pid);
    }
    return mix(x, 10);
}
int main(void) {
    printf("tree %u\n", tree(4, 1));
    unsigned sum = 0;
    for (int i = 0; i < 12; i++) {
        pid_t pid = fork();
        if (!pid) _exit(mix(i, 5) & 127);
        sum += ended(pid);
    }
    printf("row %u\n", sum);
    pid_t pid = fork();
    if (!pid) {
        CHECK(!chdir("/"));
        pid = fork();
        if (!pid) _exit(mix(9, 30) & 127);
        _exit(ended(pid));
    }
    printf("elsewhere %d\n", ended(pid));
}
