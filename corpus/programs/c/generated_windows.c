// Generated code in more windows of 4 GiB than there are tables for: recursion there, calls from one to the next and
// to the program, returns across all of them, return addresses whose low half is one of the program's, in several
// threads, and while one of them is written.
//#flags: -pthread
//#oracle: no: threads interleave differently
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include "check.h"
enum { PAGE = 4096, WINDOWS = 7, HOPS = 40, THREADS = 3, TIMES = 300 };
typedef int (*function)(long, const void *);
static unsigned char *windows[WINDOWS];
static function ring[HOPS + 1];
static atomic_int stop;

// push %rbx; mov %edi,%ebx; xor %eax,%eax; test %edi,%edi; jz 1f; lea -1(%rdi),%edi; call here; add %ebx,%eax;
// 1: pop %rbx; ret
static const char SUM[] = "\x53\x89\xfb\x31\xc0\x85\xff\x74\x0a\x8d\x7f\xff\xe8\xef\xff\xff\xff\x01\xd8\x5b\xc3";
// test %edi,%edi; jz 1f; push %rsi; dec %edi; add $8,%rsi; call *(%rsi); pop %rsi; inc %eax; ret; 1: xor %eax,%eax; ret
static const char HOP[] = "\x85\xff\x74\x0d\x56\xff\xcf\x48\x83\xc6\x08\xff\x16\x5e\xff\xc0\xc3\x31\xc0\xc3";
// mov %rsi,%rcx; sub $8,%rsp; call *%rcx; add $8,%rsp; pop %r10; push %r10; ret
static const char BY_RCX[] = "\x48\x89\xf1\x48\x83\xec\x08\xff\xd1\x48\x83\xc4\x08\x41\x5a\x41\x52\xc3";
// mov %rsi,%rax; sub $8,%rsp; call *%rax; add $8,%rsp; ret
static const char BY_RAX[] = "\x48\x89\xf0\x48\x83\xec\x08\xff\xd0\x48\x83\xc4\x08\xc3";
// jmp *%rsi
static const char ON[] = "\xff\xe6";
enum { AT_SUM = 0, AT_HOP = 64, AT_RCX = 128, AT_ON = 192, BEFORE_RETURN = 9 };

int callback(long n) { return n + 3; }
// A call whose return address has a name.
int named_call(long n);
extern char named_return[];
__asm__(".text\nnamed_call: sub $8, %rsp\n call callback\n named_return: add $8, %rsp\n ret\n");

static unsigned char *map(uintptr_t at, int prot) {
    unsigned char *p = mmap((void *)at, PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(p == (void *)at);
    return p;
}

static function at(int window, int what) { return (function)(windows[window] + what); }

static void *run(void *unused) {
    for (int n = 0; n < TIMES; n++) {
        for (int w = 0; w < WINDOWS; w++) {
            CHECK(at(w, AT_SUM)(12, 0) == 78);
            CHECK(at(w, AT_RCX)(n, callback) == n + 3);
            CHECK(at(w, AT_RCX)(5, windows[(w + n) % WINDOWS] + AT_SUM) == 15);
            CHECK(at(w, AT_ON)(n, callback) == n + 3);
            CHECK(at(w, AT_ON)(4, windows[(w + 1) % WINDOWS] + AT_SUM) == 10);
        }
        CHECK(ring[0](HOPS, ring) == HOPS);
    }
    return unused;
}

static void *run_written(void *code) {
    while (!atomic_load(&stop)) {
        int got = ((function)code)(0, 0);
        CHECK(0 <= got && got < 128);
    }
    return 0;
}

int main(void) {
    for (int w = 0; w < WINDOWS; w++) {
        // Alike in their low bits, but for a few.
        windows[w] = map(0x2100000000 + w * 0x300000000 + w % 3 * 0x10000, PROT_READ | PROT_WRITE);
        memcpy(windows[w] + AT_SUM, SUM, sizeof SUM);
        memcpy(windows[w] + AT_HOP, HOP, sizeof HOP);
        memcpy(windows[w] + AT_RCX, BY_RCX, sizeof BY_RCX);
        memcpy(windows[w] + AT_ON, ON, sizeof ON);
        CHECK(!mprotect(windows[w], PAGE, PROT_READ | PROT_EXEC));
    }
    for (int i = 0; i <= HOPS; i++) ring[i] = at(i * 3 % WINDOWS, AT_HOP);
    run(0);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_create(&threads[i], 0, run, 0));
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_join(threads[i], 0));

    // The program's return address and that of the generated code have one low half.
    uintptr_t start = 0x4200000000 + (uint32_t)(uintptr_t)named_return - BEFORE_RETURN;
    for (uintptr_t page = start / PAGE * PAGE; page < start + sizeof BY_RAX; page += PAGE)
        map(page, PROT_READ | PROT_WRITE | PROT_EXEC);
    memcpy((void *)start, BY_RAX, sizeof BY_RAX);
    for (int n = 0; n < TIMES; n++) {
        CHECK(named_call(n) == n + 3);
        CHECK(((function)start)(n, callback) == n + 3);
    }

    // mov $n,%eax; ret, whose n is written while it runs.
    unsigned char *code = map(0x5500000000 - 4 * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC);
    memcpy(code, "\xb8\0\0\0\0\xc3", 6);
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_create(&threads[i], 0, run_written, code));
    for (int n = 1; n <= TIMES; n++) {
        atomic_store((atomic_uchar *)(code + 1), n & 0x7f);
        CHECK(((function)code)(0, 0) == (n & 0x7f));
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_join(threads[i], 0));
    puts("ok");
    return 0;
}
