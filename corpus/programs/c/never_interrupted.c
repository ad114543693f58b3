// Calls that do not wait never fail because of a signal, however many come; those that wait and have a
// time limit always do, even with SA_RESTART.
//#oracle: no: the timer fires anywhere
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>
#include "check.h"
static volatile int ticks;
static void handler(int s) { ticks++; }
static void every(int microseconds) {
    struct itimerval it = {{0, microseconds}, {0, microseconds}};
    CHECK(!setitimer(ITIMER_REAL, &it, 0));
}
int main(void) {
    int pipes[2], pair[2];
    CHECK(!pipe(pipes) && !socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    int ep = epoll_create1(0), file = open("/proc/self/exe", O_RDONLY);
    CHECK(ep >= 0 && file >= 0);
    pid_t pid = getpid();
    for (int restart = 0; restart < 2; restart++) {
        struct sigaction action = {.sa_handler = handler, .sa_flags = restart ? SA_RESTART : 0};
        CHECK(!sigaction(SIGALRM, &action, 0));
        ticks = 0;
        every(100);
        while (ticks < 300) {
            CHECK(syscall(SYS_getpid) == pid);
            struct stat st;
            CHECK(!fstat(file, &st));
            int copy = dup(file);
            CHECK(copy >= 0 && !close(copy));
            struct epoll_event event = {.events = EPOLLIN};
            CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, pipes[0], &event));
            CHECK(!epoll_ctl(ep, EPOLL_CTL_DEL, pipes[0], &event));
            CHECK(!lseek(file, 0, SEEK_SET) && !kill(pid, 0));
        }
        every(20000);
        struct timeval limit = {10, 0};
        struct timespec until = {10, 0};
        char byte;
        int word = 0;
        CHECK(!setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
        CHECK(recv(pair[0], &byte, 1, 0) == -1 && errno == EINTR);
        CHECK(syscall(SYS_futex, &word, FUTEX_WAIT, 0, &until, 0, 0) == -1 && errno == EINTR);
        every(0);
    }
    puts("ok");
}
