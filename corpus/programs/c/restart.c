// A read that a signal interrupts: restarted with SA_RESTART, EINTR without.
//#oracle: no: when the alarm comes is not fixed
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
static volatile int hits;
static int p[2];
static void handler(int s) { if (++hits == 3 && write(p[1], "x", 1) != 1) _exit(9); }
int main(void) {
    CHECK(!pipe(p));
    struct sigaction a = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &a, 0);
    struct itimerval it = {{0, 20000}, {0, 20000}}, off = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &it, 0);
    char c;
    CHECK(read(p[0], &c, 1) == 1 && hits >= 3);
    setitimer(ITIMER_REAL, &off, 0);
    a.sa_flags = 0;
    sigaction(SIGALRM, &a, 0);
    hits = 10;
    setitimer(ITIMER_REAL, &it, 0);
    CHECK(read(p[0], &c, 1) == -1 && errno == EINTR);
    setitimer(ITIMER_REAL, &off, 0);
    struct timespec t = {0, 1000000};
    CHECK(!nanosleep(&t, 0));
    puts("ok");
}
