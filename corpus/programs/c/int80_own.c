// 32-bit system calls that have structures of their own, and one that waits and is interrupted.
//#variants: static
//#except: inputs: what these calls write is not described
//#except: replay: what these calls write is not described
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include "check.h"
static long old(long n, long a, long b, long c) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(n), "b"(a), "c"(b), "d"(c), "S"(0), "D"(0) : "memory");
    return result;
}
static volatile int signals;
static void on_alarm(int signal) { signals++; }
int main(void) {
    int *low = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    CHECK(low != MAP_FAILED);
    // gettimeofday, time: words of 32 bits.
    memset(low, -1, 64);
    CHECK(old(78, (long)low, 0, 0) == 0);
    struct timeval now;
    gettimeofday(&now, 0);
    CHECK(now.tv_sec - low[0] >= 0 && now.tv_sec - low[0] < 1000 && low[1] < 1000000 && low[2] == -1);
    CHECK(old(13, (long)low, 0, 0) - low[0] == 0);
    // writev: a list of small entries.
    memcpy((char *)low + 64, "one two\n", 8);
    low[0] = (int)(long)low + 64, low[1] = 4, low[2] = (int)(long)low + 68, low[3] = 4;
    fflush(stdout);
    CHECK(old(146, 1, (long)low, 2) == 8);
    // nanosleep, interrupted (EINTR) and not.
    struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &action, 0);
    struct itimerval soon = {.it_value = {0, 20000}};
    setitimer(ITIMER_REAL, &soon, 0);
    low[0] = 100, low[1] = 0, low[2] = low[3] = -1;
    CHECK(old(162, (long)low, (long)(low + 2), 0) == -4);
    CHECK(signals == 1 && low[2] == 99 && low[3] >= 0);
    low[0] = 0, low[1] = 1000000;
    CHECK(old(162, (long)low, 0, 0) == 0);
    // stat64 of what is not there.
    strcpy((char *)low, "/nowhere");
    CHECK(old(195, (long)low, (long)low + 128, 0) == -2);
    puts("ok");
}
