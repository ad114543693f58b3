// What a descriptor stands for changes between writes to it: to a file that is mapped, and away from it.
//#flags: -pthread
//#oracle: no: processes run as they please
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
static char *shared, *own;
static int file;
static void writes(int fd, const char *text) {
    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
}
// What the mappings show where the text was written.
static void shows(const char *what, int at) {
    printf("%s: %.4s %.4s\n", what, shared + at, own + at);
}
static int takes_place(void *fd) {
    return dup2(file, *(int *)fd) != *(int *)fd;
}
static void *closes(void *fd) {
    CHECK(!close(*(int *)fd));
    CHECK(fcntl(file, F_DUPFD, *(int *)fd) == *(int *)fd);
    return 0;
}
int main(void) {
    char path[32], bytes[64];
    memset(bytes, '.', sizeof bytes);
    // A file without a name: a name of random letters would refer to other memory in each run.
    file = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    sprintf(path, "/proc/self/fd/%d", file);
    CHECK(file >= 0 && write(file, bytes, sizeof bytes) == sizeof bytes && !lseek(file, 0, SEEK_SET));
    shared = mmap(0, 64, PROT_READ, MAP_SHARED, file, 0);
    own = mmap(0, 64, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    CHECK(shared != MAP_FAILED && own != MAP_FAILED);
    int ends[2], pair[2];
    CHECK(!pipe(ends) && !socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    int fd = ends[1];
    // To a pipe, often enough for anybody to remember it.
    for (int n = 0; n < 3; n++) writes(fd, "pipe");
    CHECK(dup2(file, fd) == fd);
    writes(fd, "dup2");
    shows("dup2", 0);
    CHECK(dup2(pair[1], fd) == fd);
    for (int n = 0; n < 3; n++) writes(fd, "pair");
    CHECK(!close(fd) && open(path, O_RDWR) == fd && lseek(fd, 4, SEEK_SET) == 4);
    writes(fd, "open");
    shows("open", 4);
    // A child that has the descriptors with us, and no memory.
    CHECK(dup2(pair[1], fd) == fd);
    for (int n = 0; n < 3; n++) writes(fd, "pair");
    CHECK(lseek(file, 8, SEEK_SET) == 8);
    static char stack[65536] __attribute__((aligned(16)));
    int status, pid = clone(takes_place, stack + sizeof stack, CLONE_FILES | SIGCHLD, &fd);
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
    writes(fd, "kept");
    shows("shared", 8);
    // A child that has its own, and our memory for a while.
    CHECK(dup2(pair[1], fd) == fd);
    for (int n = 0; n < 3; n++) writes(fd, "pair");
    CHECK(lseek(file, 12, SEEK_SET) == 12);
    pid = vfork();
    if (!pid) {
        dup2(file, fd);
        write(fd, "fork", 4);
        _exit(0);
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
    for (int n = 0; n < 3; n++) writes(fd, "pair");
    shows("vfork", 12);
    // Another thread.
    pthread_t thread;
    CHECK(lseek(file, 16, SEEK_SET) == 16);
    CHECK(!pthread_create(&thread, 0, closes, &fd) && !pthread_join(thread, 0));
    writes(fd, "join");
    shows("thread", 16);
    // Mapped later than written to.
    int other = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    CHECK(other >= 0);
    for (int n = 0; n < 3; n++) writes(other, "late");
    char *late = mmap(0, 64, PROT_READ, MAP_SHARED, other, 0);
    CHECK(late != MAP_FAILED && pwrite(other, "then", 4, 4) == 4);
    printf("late: %.12s\n", late);
}
