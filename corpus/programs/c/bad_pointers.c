// Calls that are given memory that is not there, or not all of it, while a timer interrupts them all the time.
//#oracle: no: the timer fires anywhere
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include "check.h"
enum { PAGE = 4096, ROUNDS = 400, CALLS = 16 };
static volatile long interrupted;
static void on_alarm(int signal) {
    interrupted += signal == SIGALRM;
}
static long call(int which, char *end, int *fds) {
    struct iovec pieces[2] = {{end - 8, 8}, {end, 8}};
    struct msghdr message = {.msg_iov = (struct iovec *)end, .msg_iovlen = 1};
    switch (which) {
    case 0: return syscall(SYS_clock_gettime, (long)CLOCK_MONOTONIC, (long)end, 0L, 0L, 0L, 0L);
    case 1: return syscall(SYS_clock_gettime, (long)CLOCK_MONOTONIC, (long)end - 8, 0L, 0L, 0L, 0L);
    case 2: return syscall(SYS_fstat, (long)fds[2], (long)end - 40, 0L, 0L, 0L, 0L);
    case 3: return syscall(SYS_rt_sigprocmask, (long)SIG_BLOCK, (long)end, 0L, 8L, 0L, 0L);
    case 4: return syscall(SYS_rt_sigprocmask, (long)SIG_BLOCK, 0L, (long)end, 8L, 0L, 0L);
    case 5: return syscall(SYS_rt_sigaction, (long)SIGUSR1, (long)end, 0L, 8L, 0L, 0L);
    case 6: return syscall(SYS_openat, (long)AT_FDCWD, (long)end, 0L, 0L, 0L, 0L);
    case 7: return syscall(SYS_openat, (long)AT_FDCWD, (long)end - 3, 0L, 0L, 0L, 0L);
    case 8: return pread(fds[2], end - 16, 64, 0);
    case 9: return pwrite(fds[2], end - 16, 64, 0);
    case 10: return write(fds[1], end, 4);
    case 11: return preadv(fds[2], pieces, 2, 0);
    case 12: return sendmsg(fds[1], &message, 0);
    case 13: return syscall(SYS_gettimeofday, (long)end - 8, 0L, 0L, 0L, 0L, 0L);
    case 14: return ioctl(fds[0], FIONREAD, end);
    default: return syscall(SYS_getcwd, (long)end - 1, 4096L, 0L, 0L, 0L, 0L);
    }
}
int main(void) {
    int fds[3];
    char *page = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED && !munmap(page + PAGE, PAGE));
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
    fds[2] = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    CHECK(fds[2] >= 0 && !ftruncate(fds[2], 1000));
    for (int n = 1; n <= 8; n++) page[PAGE - n] = 'x';
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval each = {{0, 200}, {0, 200}}, none = {{0, 0}, {0, 0}};
    CHECK(!sigaction(SIGALRM, &action, 0) && !setitimer(ITIMER_REAL, &each, 0));
    static long results[CALLS][2];
    long differ = 0;
    for (int round = 0; round < ROUNDS; round++) {
        for (int which = 0; which < CALLS; which++) {
            errno = 0;
            long result = call(which, page + PAGE, fds), error = errno;
            if (!round) results[which][0] = result, results[which][1] = error;
            differ += result != results[which][0] || error != results[which][1];
        }
    }
    CHECK(!setitimer(ITIMER_REAL, &none, 0));
    for (int which = 0; which < CALLS; which++) printf("%ld %ld\n", results[which][0], results[which][1]);
    printf("%ld differ\n", differ);
}
