// System calls that write memory, of every shape: one range, vectors, messages, sets, arrays.
#define _GNU_SOURCE
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "check.h"
static char buffer[8192], other[64], control[64];
static int pipes[2], pair[2];
static struct stat status;
static struct utsname name;
static struct epoll_event events[4];
static struct mmsghdr messages[2];
int main(void) {
    CHECK(!pipe2(pipes, 0));
    CHECK(!socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
    CHECK(write(pipes[1], "0123456789abcdef", 16) == 16);
    CHECK(read(pipes[0], buffer, sizeof buffer) == 16 && buffer[15] == 'f');
    CHECK(write(pipes[1], "ABCDEFGHIJ", 10) == 10);
    struct iovec v[2] = {{buffer + 100, 4}, {other, sizeof other}};
    CHECK(readv(pipes[0], v, 2) == 10 && other[5] == 'J');
    struct iovec here = {"to oneself", 10}, there[2] = {{buffer + 200, 4}, {buffer + 300, 6}};
    CHECK(process_vm_writev(getpid(), &here, 1, there, 2, 0) == 10 && buffer[305] == 'f');
    int available = 7;
    CHECK(write(pipes[1], "x", 1) == 1 && !ioctl(pipes[0], FIONREAD, &available) && available == 1);
    // A request that nobody knows, on a descriptor that refuses it.
    CHECK(ioctl(pipes[0], 0x7899, buffer + 4096) == -1);
    struct pollfd p = {pipes[0], POLLIN, 0};
    CHECK(poll(&p, 1, 0) == 1 && p.revents == POLLIN);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pipes[0], &set);
    struct timeval soon = {0, 0};
    CHECK(select(pipes[0] + 1, &set, 0, 0, &soon) == 1);
    int e = epoll_create1(0);
    struct epoll_event wanted = {.events = EPOLLIN, .data.u64 = 42};
    CHECK(!epoll_ctl(e, EPOLL_CTL_ADD, pipes[0], &wanted));
    CHECK(epoll_wait(e, events, 4, 0) == 1 && events[0].data.u64 == 42);
    CHECK(send(pair[0], "datagram", 8, 0) == 8);
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 2, .msg_control = control, .msg_controllen = sizeof control};
    CHECK(recvmsg(pair[1], &m, 0) == 8 && m.msg_controllen == 0);
    CHECK(send(pair[0], "one", 3, 0) == 3 && send(pair[0], "three", 5, 0) == 5);
    struct iovec one = {buffer + 200, 64}, two = {buffer + 300, 64};
    messages[0].msg_hdr = (struct msghdr){.msg_iov = &one, .msg_iovlen = 1};
    messages[1].msg_hdr = (struct msghdr){.msg_iov = &two, .msg_iovlen = 1};
    CHECK(recvmmsg(pair[1], messages, 2, 0, 0) == 2 && messages[1].msg_len == 5);
    struct sockaddr_un address;
    socklen_t size = sizeof address;
    CHECK(!getsockname(pair[0], (void *)&address, &size) && size == 2);
    int type;
    size = sizeof type;
    CHECK(!getsockopt(pair[0], SOL_SOCKET, SO_TYPE, &type, &size) && type == SOCK_DGRAM);
    CHECK(getcwd(buffer + 1000, 4096) && buffer[1000] == '/');
    CHECK(!uname(&name) && !fstat(0, &status));
    static struct timespec now;
    CHECK(!syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now));
    static unsigned long cpus[16];
    CHECK(syscall(SYS_sched_getaffinity, 0, sizeof cpus, cpus) > 0);
    sigset_t mask, old;
    sigfillset(&mask);
    CHECK(!sigprocmask(SIG_SETMASK, &mask, &old) && !sigprocmask(SIG_SETMASK, &old, &mask));
    // More memory than there is, and no length at all.
    void *page = (void *)((unsigned long)buffer & -4096UL);
    CHECK(syscall(SYS_mincore, page, 1UL << 50, buffer) == -1);
    CHECK(syscall(SYS_epoll_wait, e, 0x556563532, 1127032039, 0) == -1);
    struct msghdr odd = {.msg_name = buffer, .msg_namelen = -1, .msg_iov = v, .msg_iovlen = 2};
    CHECK(recvmsg(pair[1], &odd, MSG_DONTWAIT) == -1);
    pid_t child = fork();
    if (child == 0) _exit(3);
    int how;
    CHECK(wait4(child, &how, 0, (void *)(buffer + 6000)) == child && WEXITSTATUS(how) == 3);
    puts("ok");
}
