// Three processes share a page and a half, and access it in all ways at once; a hash of all that each has seen decides over its
// exit status.
//#flags: -mcx16 -mno-red-zone
//#oracle: no: processes run as they please
#include <emmintrin.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
typedef uint64_t (*apply)(uint64_t);
struct shared {
    _Atomic uint64_t count, lock;
    _Atomic uint32_t down;
    _Atomic int begun;
    volatile uint64_t words[16], zero;
    volatile uint8_t byte;
    volatile uint16_t half;
    apply table[4];
    char text[6000];
    struct iovec pieces[2];
    volatile __m128 vectors[3];
    __int128 wide __attribute__((aligned(16)));
};
enum { ROUNDS = 320, CHILDREN = 2 };
static struct shared *s;
static uint64_t seen = 1;
static uint64_t odd(uint64_t x) { return x * 3 + 1; }
static uint64_t even(uint64_t x) { return x ^ 0x1234567; }
static void mix(uint64_t value) { seen = seen * 1099511628211u + value; }

static void moves_strings(int round) {
    char own[64] = {0}, *to = own;
    const char *from = s->text + round % 4000;
    uint64_t left = 20;
    __asm__ volatile("rep movsb" : "+c"(left), "+S"(from), "+D"(to)::"memory");
    mix((unsigned char)own[5]);
    own[3] = (char)seen;
    // Over the end of a page.
    from = own, to = s->text + 3600 + round % 600, left = 24;
    __asm__ volatile("rep movsb" : "+c"(left), "+S"(from), "+D"(to)::"memory");
    to = s->text + round, left = 5;
    __asm__ volatile("rep stosq" : "+c"(left), "+D"(to) : "a"(seen) : "memory");
}

static void exchanges(int round) {
    uint64_t old = s->count, low = 0, high = 0, bit = seen & 63;
    unsigned char flag;
    __atomic_compare_exchange_n((uint64_t *)&s->count, &old, old + 2, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    mix(old);
    mix(__atomic_exchange_n((uint64_t *)&s->words[7], seen, __ATOMIC_SEQ_CST));
    mix(__atomic_fetch_or((uint64_t *)&s->words[8], 1ull << (round & 63), __ATOMIC_SEQ_CST));
    for (int i = 0; i < 2; i++) {
        __asm__ volatile("lock cmpxchg16b %1\n\tsetz %0"
                         : "=q"(flag), "+m"(s->wide), "+a"(low), "+d"(high)
                         : "b"(seen), "c"(seen ^ (uint64_t)round)
                         : "memory");
        mix(low + flag), mix(high);
    }
    __asm__ volatile("lock btsq %1, %0\n\tsetc %2" : "+m"(s->words[9]), "+r"(bit), "=q"(flag)::"memory");
    mix(flag);
    __asm__ volatile("lock decl %0\n\tsetz %1" : "+m"(s->down), "=q"(flag)::"memory");
    mix(flag);
}

static void calls_kernel(void) {
    int ends[2];
    s->pieces[0] = (struct iovec){s->text + 100, 64};
    s->pieces[1] = (struct iovec){s->text + 4090, 20};
    CHECK(pipe(ends) == 0 && writev(ends[1], s->pieces, 2) == 84 && readv(ends[0], s->pieces, 2) == 84);
    close(ends[0]), close(ends[1]);
    mix((unsigned char)s->text[103]);
}

static sigjmp_buf back;
static void divided(int signal) { siglongjmp(back, signal); }
static void divides(void) {
    if (!sigsetjmp(back, 1)) {
        uint64_t low = seen, high = 0;
        __asm__ volatile("divq %2" : "+a"(low), "+d"(high) : "m"(s->zero));
    }
    mix(s->count);
}

static void access_all(int me, int round) {
    switch (round % 8) {
    case 0:
        mix(s->count++), mix(s->byte), mix(s->half);
        s->byte = (uint8_t)round, s->half += (uint16_t)me, s->byte++;
        break;
    case 1:
        mix(s->words[round & 15] + s->words[3]);
        s->words[(round + me) & 15] = seen, s->words[3] ^= seen, s->words[4] += seen;
        if (s->words[1] > seen) mix(1);
        break;
    case 2: {
        s->table[round & 3] = round & 8 ? odd : even;
        apply found = *(apply volatile *)&s->table[(round + 1) & 3];
        mix(found ? found(seen) : 7);
        break;
    }
    case 3: {
        char own[64];
        memcpy(own, s->text + round * 37 % 5900, sizeof own);
        for (int i = 0; i < 64; i += 8) mix(*(uint64_t *)(own + i));
        memset(s->text + round * 61 % 5900, me + round, 50);
        break;
    }
    case 4: moves_strings(round); break;
    case 5: {
        uint64_t value;
        __asm__ volatile("pushq (%1)\n\tpopq %0" : "=r"(value) : "r"(&s->words[2]) : "memory");
        mix(value);
        __asm__ volatile("pushq %0\n\tpopq (%1)" ::"r"(seen), "r"(&s->words[2]) : "memory");
        __m128 sum = _mm_add_ps(s->vectors[0], s->vectors[1]);
        s->vectors[round % 3] = _mm_add_ps(sum, _mm_set1_ps((float)me));
        mix((uint64_t)_mm_cvtsi128_si64(_mm_castps_si128(s->vectors[2])));
        break;
    }
    case 6: exchanges(round); break;
    default:
        while (__atomic_exchange_n((uint64_t *)&s->lock, 1, __ATOMIC_SEQ_CST)) sched_yield();
        mix(++s->words[0]);
        s->lock = 0;
        if (round % 32 == 7) calls_kernel();
        if (round % 32 == 15) divides();
    }
}

int main(void) {
    s = mmap(0, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(s != MAP_FAILED);
    CHECK(signal(SIGFPE, divided) != SIG_ERR);
    pid_t children[CHILDREN];
    int me = CHILDREN;
    for (int i = 0; i < CHILDREN && me == CHILDREN; i++)
        if ((children[i] = fork()) == 0) me = i;
    s->begun++;
    while (s->begun <= CHILDREN) sched_yield();
    for (int round = 0; round < ROUNDS; round++) access_all(me, round);
    if (me < CHILDREN) _exit((int)(seen & 1));
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        CHECK(waitpid(children[i], &status, 0) == children[i] && WIFEXITED(status));
        mix((uint64_t)status);
    }
    puts(seen ? "done" : "nothing seen");
    return 0;
}
