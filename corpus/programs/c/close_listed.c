// Closes what is listed as open until nothing is.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "check.h"
static void close_all(const char *folder) {
    for (int round = 0;; round++) {
        DIR *dir = opendir(folder);
        CHECK(dir && round < 100);
        int closed = 0;
        for (struct dirent *entry; (entry = readdir(dir));) {
            int fd = atoi(entry->d_name);
            if (entry->d_name[0] == '.' || fd == dirfd(dir) || fd < 3) continue;
            CHECK(close(fd) == 0);
            closed++;
        }
        closedir(dir);
        printf("%s: closed %d\n", folder, closed);
        if (!closed) return;
    }
}
int main(void) {
    static const char *const folders[] = {"/proc/self/fd", "/proc/thread-self/fd", "/proc/self/fdinfo"};
    for (int i = 0; i < 3; i++) {
        for (int n = 0; n < 50; n++) CHECK(open("/dev/null", O_RDONLY) >= 0);
        close_all(folders[i]);
    }
    // Relative, and through one's number (to which the link leads), an entry at a time. The
    // number itself is not printed: it has other digits in each run, and so other references.
    CHECK(chdir("/proc/self") == 0);
    int fd = open("fd", O_RDONLY | O_DIRECTORY), entries = 0;
    CHECK(fd >= 0);
    static char some[32];
    long len;
    while ((len = syscall(SYS_getdents64, fd, some, sizeof some)) > 0) entries++;
    printf("%d entries\n", entries);
    CHECK(len == 0);
    // Folders that are none of descriptors have what they have.
    CHECK(chdir("/proc/self/task") == 0);
    DIR *tasks = opendir(".");
    int count = 0;
    while (readdir(tasks)) count++;
    printf("%d\n", count);
}
