// execveat with flags that the kernel refuses, or with which it only says whether the file could be executed.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
static int says(int folder, const char *path, int flags) {
    char *arguments[] = {"true", 0}, *none[] = {0};
    fflush(stdout);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) _exit(100 + (syscall(SYS_execveat, folder, path, arguments, none, flags) ? errno : 0));
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}
int main(void) {
    enum { ONLY_CHECKS = 0x10000 };
    int bin = open("/bin", O_PATH | O_DIRECTORY), file = open("/bin/true", O_RDONLY);
    CHECK(bin >= 0 && file >= 0);
    printf("%d %d %d\n", says(bin, "true", 0xffff), says(bin, "true", 1), says(bin, "true", 0x200));
    printf("%d %d\n", says(bin, "true", ONLY_CHECKS), says(file, "", AT_EMPTY_PATH | ONLY_CHECKS));
    printf("%d %d\n", says(bin, "nothing", ONLY_CHECKS), says(bin, ".", ONLY_CHECKS));
    printf("%d %d %d\n", says(bin, "true", 0), says(file, "", AT_EMPTY_PATH), says(file, "", 0));
}
