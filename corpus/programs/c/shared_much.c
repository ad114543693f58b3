// Processes share a megabyte, and use it in many ways from few places: by the processor, and by way of the kernel.
//#oracle: no: processes run as they please
#define _GNU_SOURCE
#include <immintrin.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "check.h"
enum { CHILDREN = 2, ROUNDS = 1500, PIECE = 600 };
struct record {
    uint8_t byte;
    uint16_t half;
    uint32_t word;
    uint64_t large, other;
    float real;
    double long_real;
    long double longest;
    __m128i vector;
    char text[PIECE];
};
static struct all {
    uint64_t count, pair[2] __attribute__((aligned(16)));
    int lock, turn;
    // Those of the processes lie in different pages, and side by side.
    struct record own[CHILDREN + 1], apart[CHILDREN + 1][16];
    char left[(1 << 20) - (1 << 16)];
} *s;
static volatile sig_atomic_t alarms;
static uint64_t seen;

static void on_alarm(int signal) {
    alarms++;
    // It comes in between.
    if (s && signal == SIGALRM) s->left[100]++;
}
static void mix(uint64_t value) { seen = (seen ^ value) * 0x9e3779b97f4a7c15; }
static void take(void) {
    while (__atomic_exchange_n(&s->lock, 1, __ATOMIC_ACQUIRE)) sched_yield();
}
static void give(void) { __atomic_store_n(&s->lock, 0, __ATOMIC_RELEASE); }

// The same code comes to memory that is shared, and to memory that is not.
__attribute__((noinline)) static uint64_t use(struct record *r, int round) {
    r->byte += 3;
    r->half ^= r->byte + round;
    r->word = (r->word << 3 | r->word >> 29) + r->half;
    r->large -= r->word;
    if (r->large > (uint64_t)round << 32) r->other++;
    r->other = r->other * 5 + (int32_t)r->word + (int16_t)r->half + (int8_t)r->byte;
    r->real = r->real * 0.5f + round % 10;
    r->long_real += r->real;
    r->longest = r->longest * 0.75L + (long double)r->long_real;
    r->vector = _mm_add_epi32(r->vector, _mm_set1_epi32((int)r->longest));
    __asm__ volatile("btsl %2, %0\n\tsbbq $0, %1" : "+m"(r->word), "+m"(r->other) : "r"(round % 32) : "cc");
    __asm__ volatile("pushq %0\n\tpopq %0" : "+m"(r->large) : : "memory");
    __asm__ volatile("lock xaddq %1, %0" : "+m"(r->other), "+r"(r->large) : : "cc");
    int length = snprintf(r->text, PIECE, "%d %u %llu", r->byte, r->word, (unsigned long long)r->large);
    memmove(r->text + length + 1, r->text, (size_t)length);
    char *from = r->text, *to = r->text + 300;
    long count = 250;
    __asm__ volatile("rep movsb" : "+S"(from), "+D"(to), "+c"(count) : : "memory");
    to = r->text + 580, count = 3;
    __asm__ volatile("rep stosl" : "+D"(to), "+c"(count) : "a"(round) : "memory");
    return strlen(r->text) + (memcmp(r->text, r->text + 300, 20) != 0) + (uint8_t)r->text[299 + round % 200];
}

static void by_kernel(int me, const int *ends) {
    struct record *mine = &s->own[me], *other = &s->apart[me][7];
    // (Both ends are this process's, so there is room.)
    struct iovec *pieces = (struct iovec *)(s->left + 200 + 64 * me);
    pieces[0] = (struct iovec){mine->text, 100};
    pieces[1] = (struct iovec){&mine->large, 8};
    CHECK(writev(ends[1], pieces, 2) == 108);
    CHECK(read(ends[0], other->text, 108) == 108);
    CHECK(memcmp(other->text, mine->text, 100) == 0);
    struct timespec *time = (struct timespec *)(s->left + 400 + 16 * me);
    CHECK(clock_gettime(CLOCK_MONOTONIC, time) == 0 && time->tv_sec >= 0);
    CHECK(read(-1, other->text, 10) == -1);
}

static void run(int me) {
    int ends[2];
    struct record alone;
    memset(&alone, 0, sizeof alone);
    CHECK(pipe(ends) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t mine = use(&s->own[me], round);
        CHECK(mine == use(&alone, round) && mine == use(&s->apart[me][3], round));
        mix(mine);
        take();
        s->count++;
        s->left[1000 + s->count % 5000] += (char)s->count;
        give();
        uint64_t low = s->pair[0], high = s->pair[1];
        unsigned char done;
        do
            __asm__ volatile("lock cmpxchg16b %1\n\tsete %0" : "=q"(done), "+m"(s->pair), "+a"(low), "+d"(high) : "b"(low + 1), "c"(high + 2) : "cc", "memory");
        while (!done);
        mix((uint64_t)s->left[1000 + round]);
        if (round % 100 == me) by_kernel(me, ends);
        if (round % 500 == 499) {
            // One after another.
            int turn;
            while ((turn = __atomic_load_n(&s->turn, __ATOMIC_SEQ_CST)) % (CHILDREN + 1) != me)
                syscall(SYS_futex, &s->turn, FUTEX_WAIT, turn, NULL, NULL, 0);
            __atomic_fetch_add(&s->turn, 1, __ATOMIC_SEQ_CST);
            syscall(SYS_futex, &s->turn, FUTEX_WAKE, 100, NULL, NULL, 0);
        }
    }
    CHECK(memcmp(&alone.large, &s->own[me].large, 16) == 0 && alone.longest == s->own[me].longest);
}

int main(void) {
    s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(s != MAP_FAILED);
    s->pair[0] = 1;
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval often = {{0, 3000}, {0, 3000}};
    pid_t children[CHILDREN];
    int me = CHILDREN;
    for (int i = 0; i < CHILDREN && me == CHILDREN; i++)
        if ((children[i] = fork()) == 0) me = i;
    if (me == 0) CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    run(me);
    if (me < CHILDREN) _exit(seen == 0);
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        CHECK(waitpid(children[i], &status, 0) == children[i] && status == 0);
    }
    printf("%llu %llu %llu %d\n", (unsigned long long)s->count, (unsigned long long)s->pair[0],
           (unsigned long long)s->pair[1], s->turn);
    CHECK(munmap(s, sizeof *s) == 0);
    return 0;
}
