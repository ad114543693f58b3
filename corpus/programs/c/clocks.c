// The time, asked for in all ways: by the C library (the vdso, where there is one) and by system calls, with pointers that
// are null, unaligned and wrong, while timers interrupt, and by several threads.
//#flags: -pthread
//#oracle: no: the timer fires anywhere
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include "check.h"
static volatile long interrupted;
static volatile int went_back;
static long now(clockid_t clock) {
    struct timespec time;
    CHECK(!clock_gettime(clock, &time));
    return time.tv_sec * 1000000000L + time.tv_nsec;
}
static void on_alarm(int signal) {
    static long last;
    long time = now(CLOCK_MONOTONIC);
    went_back += time < last;
    last = time;
    interrupted += signal == SIGALRM;
}
static void *look(void *rounds) {
    long last = 0, back = 0;
    for (long n = (long)rounds; n; n--) {
        struct timeval day;
        long time = now(CLOCK_MONOTONIC);
        back += time < last || gettimeofday(&day, 0) || day.tv_usec >= 1000000;
        last = time;
    }
    return (void *)back;
}
static void says(const char *what, long result) {
    printf("%s %s\n", what, result ? (errno == EFAULT ? "EFAULT" : errno == EINVAL ? "EINVAL" : "?") : "0");
}
int main(void) {
    char room[64];
    struct timezone zone;
    struct timespec *odd = (struct timespec *)(room + 3), time;
    char *pages = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && !munmap(pages + 4096, 4096));
    says("odd", clock_gettime(CLOCK_REALTIME, odd));
    says("coarse", clock_gettime(CLOCK_MONOTONIC_COARSE, &time));
    says("cpu", clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time));
    says("no clock", clock_gettime(1234, &time));
    says("no clock and nowhere", syscall(SYS_clock_gettime, 1234L, 8L, 0L, 0L, 0L, 0L));
    says("null", syscall(SYS_clock_gettime, (long)CLOCK_MONOTONIC, 0L, 0L, 0L, 0L, 0L));
    says("nowhere", syscall(SYS_clock_gettime, (long)CLOCK_MONOTONIC, 8L, 0L, 0L, 0L, 0L));
    says("kernel", syscall(SYS_clock_gettime, (long)CLOCK_MONOTONIC, -8L, 0L, 0L, 0L, 0L));
    says("end of page", syscall(SYS_clock_gettime, (long)CLOCK_MONOTONIC, (long)pages + 4096 - 8, 0L, 0L, 0L, 0L));
    says("last of page", syscall(SYS_clock_gettime, (long)CLOCK_MONOTONIC, (long)pages + 4096 - 16, 0L, 0L, 0L, 0L));
    says("day, zone", syscall(SYS_gettimeofday, (long)room, (long)&zone, 0L, 0L, 0L, 0L));
    says("zone", syscall(SYS_gettimeofday, 0L, (long)&zone, 0L, 0L, 0L, 0L));
    says("neither", syscall(SYS_gettimeofday, 0L, 0L, 0L, 0L, 0L, 0L));
    says("day nowhere", syscall(SYS_gettimeofday, 8L, (long)&zone, 0L, 0L, 0L, 0L));
    says("zone nowhere", syscall(SYS_gettimeofday, (long)room, 8L, 0L, 0L, 0L, 0L));
    says("time nowhere", syscall(SYS_time, 8L, 0L, 0L, 0L, 0L, 0L) < 0);
    time_t seconds = 0;
    long told = syscall(SYS_time, (long)&seconds, 0L, 0L, 0L, 0L, 0L);
    printf("time %d %d\n", told == seconds, labs(seconds - now(CLOCK_REALTIME) / 1000000000) < 100);
    unsigned processor = -1, node = -1;
    says("getcpu", syscall(SYS_getcpu, (long)&processor, (long)&node, 0L, 0L, 0L, 0L));
    says("getcpu without", syscall(SYS_getcpu, 0L, 0L, 0L, 0L, 0L, 0L));
    says("getcpu nowhere", syscall(SYS_getcpu, 8L, 0L, 0L, 0L, 0L, 0L));
    printf("processor %d\n", processor < 4096);
    CHECK(!mprotect(pages, 4096, PROT_READ));
    says("read only", syscall(SYS_clock_gettime, (long)CLOCK_MONOTONIC, (long)pages, 0L, 0L, 0L, 0L));

    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval each = {{0, 1000}, {0, 1000}}, none = {{0, 0}, {0, 0}};
    CHECK(!sigaction(SIGALRM, &action, 0) && !setitimer(ITIMER_REAL, &each, 0));
    long back = 0;
    for (int round = 0; round < 3 || interrupted < 20; round++) back += (long)look((void *)2000L);
    CHECK(!setitimer(ITIMER_REAL, &none, 0));
    pthread_t threads[3];
    for (int n = 0; n < 3; n++) CHECK(!pthread_create(&threads[n], 0, look, (void *)3000L));
    for (int n = 0; n < 3; n++) {
        void *wrong;
        CHECK(!pthread_join(threads[n], &wrong));
        back += (long)wrong;
    }
    printf("went back %ld %d\n", back, went_back);
}
