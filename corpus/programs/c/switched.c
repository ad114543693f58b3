// Four threads that fill an array each, element by element, until standard input ends, while others
// wait in calls that a signal would end; with `signals` behind it, a thousand a second, which only the workers
// get. The first argument is the length of the arrays. Whoever switches the recording meanwhile finds each element at an address of its own.
// An element follows from the one in front by way of a table of distances, a table of addresses, and a function whose
// address ld.so has made read-only.
//#flags: -pthread -fno-builtin-llabs -Wl,-z,now -Wl,-z,relro
//#oracle: no: threads interleave differently
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>
#include "check.h"
enum { WORKERS = 4 };
static long most = 1 << 10;
static volatile uint64_t *elements[WORKERS];
static long done[WORKERS];
static atomic_int stop;
static _Atomic long signals;
__attribute__((noinline)) static uint64_t by_distances(uint64_t x) {
    switch (x & 7) {
    case 0: return x ^ x >> 33;
    case 1: return x * 0xff51afd7ed558ccdull;
    case 2: return x + 0x9e3779b97f4a7c15ull;
    case 3: return x - (x << 13);
    case 4: return ~x;
    case 5: return x << 23 | x >> 41;
    case 6: return x ^ x << 7;
    default: return x * 5 + 1;
    }
}
__attribute__((noinline)) static uint64_t by_addresses(uint64_t x) {
    static void *const places[] = {&&first, &&second, &&third, &&fourth};
    goto *places[x >> 9 & 3];
first: return x + 77;
second: return x ^ x >> 29;
third: return x * 0xc4ceb9fe1a85ec53ull;
fourth: return x - (x >> 5);
}
static uint64_t step(uint64_t x) {
    return llabs(by_addresses(by_distances(x))) + 3;
}
// The same without a jump.
static uint64_t expected(uint64_t x) {
    uint64_t a[] = {x ^ x >> 33, x * 0xff51afd7ed558ccdull, x + 0x9e3779b97f4a7c15ull, x - (x << 13),
                    ~x, x << 23 | x >> 41, x ^ x << 7, x * 5 + 1};
    x = a[x & 7];
    uint64_t b[] = {x + 77, x ^ x >> 29, x * 0xc4ceb9fe1a85ec53ull, x - (x >> 5)};
    x = b[x >> 9 & 3];
    uint64_t sign = -(x >> 63);
    return (x ^ sign) - sign + 3;
}
static void *work(void *arg) {
    long me = (long)arg, i = 0;
    volatile uint64_t *mine = elements[me];
    if (most > 1 << 10) {
        printf("thread %ld %p\n", (long)syscall(SYS_gettid), (void *)mine);
        fflush(stdout);
    }
    while (!stop) {
        if (i + 1 < most) {
            mine[i + 1] = step(mine[i] + me);
            i++;
        }
        for (int n = 0; n < 4; n++)
            __builtin_ia32_pause(), __builtin_ia32_pause(), __builtin_ia32_pause(), __builtin_ia32_pause(),
                __builtin_ia32_pause(), __builtin_ia32_pause(), __builtin_ia32_pause(), __builtin_ia32_pause();
    }
    done[me] = i;
    return 0;
}
// A call that ends with EINTR if a signal comes in, whatever the handler's flags.
static void *sleeper(void *arg) {
    while (!stop) {
        struct timespec time = {0, 3000000};
        CHECK(!clock_nanosleep(CLOCK_MONOTONIC, 0, &time, 0));
    }
    return arg;
}
static void count(int signal) { signals++; }
int main(int argc, char **argv) {
    pthread_t t[WORKERS + 1];
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    if (argc > 1) most = atol(argv[1]);
    for (int i = 0; i < WORKERS; i++) CHECK(elements[i] = calloc(most, 8));
    if (argc > 2 && !strcmp(argv[2], "signals")) {
        struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART};
        struct itimerval often = {{0, 1000}, {0, 1000}};
        CHECK(!sigaction(SIGALRM, &action, 0) && !setitimer(ITIMER_REAL, &often, 0));
    }
    for (long i = 0; i < WORKERS; i++) CHECK(!pthread_create(&t[i], 0, work, (void *)i));
    CHECK(!pthread_sigmask(SIG_BLOCK, &alarm, 0));
    CHECK(!pthread_create(&t[WORKERS], 0, sleeper, 0));
    struct pollfd in = {.fd = 0, .events = POLLIN};
    CHECK(poll(&in, 1, -1) == 1);
    stop = 1;
    for (int i = 0; i <= WORKERS; i++) CHECK(!pthread_join(t[i], 0));
    for (int me = 0; me < WORKERS; me++)
        for (long i = 0; i < done[me]; i++) CHECK(elements[me][i + 1] == expected(elements[me][i] + me));
    fprintf(stderr, "all as it should be\n");
    return 0;
}
