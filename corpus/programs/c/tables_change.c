// Jump tables in read-only memory: they are changed all the same, by one thread and by others, in every way that the
// kernel has. Numbers behind their ends lead nowhere.
//#shared: shared.c
//#flags: -ldl -pthread -Wl,-z,now -Wl,-z,relro
//#variants: pie no-pie
//#oracle: no: threads wait for each other in loops
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include "check.h"

// What the three functions have in common: a bound, and what is behind it.
#define BOUNDED(name)                                             \
    ".globl " #name "\n" #name ": cmp $3, %edi\n ja tables_end\n" \
    "mov %edi, %eax\n"
__asm__(
    ".pushsection .rodata\n .balign 4096\n"
    "distances: .long t0 - distances, t1 - distances, t2 - distances, t3 - distances\n"
    ".balign 4096\n .popsection\n"
    ".pushsection .data.rel.ro, \"aw\"\n .balign 4096\n"
    "addresses: .quad t0, t1, t2, t3\n"
    ".balign 4096\n .popsection\n"
    // The number is gone when it jumps.
    BOUNDED(by_distance)
    "lea distances(%rip), %rdx\n movslq (%rdx,%rax,4), %rax\n add %rdx, %rax\n"
    "by_distance_jump: jmp *%rax\n"
    // It is still there.
    BOUNDED(by_distance_kept)
    "lea distances(%rip), %rdx\n movslq (%rdx,%rax,4), %rcx\n add %rdx, %rcx\n"
    "by_distance_kept_jump: jmp *%rcx\n"
    BOUNDED(by_address)
    "lea addresses(%rip), %rdx\n by_address_jump: jmp *(%rdx,%rax,8)\n"
    BOUNDED(by_loaded_address)
    "lea addresses(%rip), %rdx\n by_loaded_address_load: mov (%rdx,%rax,8), %rax\n"
    "mov %rax, %rcx\n mov %rcx, %rax\n by_loaded_address_jump: jmp *%rax\n"
    // A byte has 256 values, more than the table has entries.
    ".globl by_byte\n by_byte: movzbl %dil, %eax\n"
    "lea distances(%rip), %rdx\n movslq (%rdx,%rax,4), %rcx\n add %rdx, %rcx\n jmp *%rcx\n"
    // rcx counts, and is the target.
    ".globl by_rcx\n by_rcx: cmp $3, %rdi\n ja tables_end\n mov %rdi, %rcx\n"
    "lea distances(%rip), %r9\n movslq (%r9,%rcx,4), %rcx\n add %r9, %rcx\n jmp *%rcx\n"
    ".globl t0, t1, t2, t3, t4\n"
    "t0: mov $10, %eax\n ret\n t1: mov $11, %eax\n ret\n t2: mov $12, %eax\n ret\n"
    "t3: mov $13, %eax\n ret\n t4: mov $14, %eax\n ret\n"
    "tables_end: mov $-1, %eax\n ret\n");

int by_distance(unsigned long), by_distance_kept(unsigned long), by_address(unsigned long);
int by_loaded_address(unsigned long), by_byte(unsigned long), by_rcx(unsigned long);
extern char t0[], t1[], t2[], t3[], t4[];
extern char by_address_jump[], by_loaded_address_load[];
extern int distances[1024];
extern void *addresses[512];

typedef int Function(unsigned long);
static Function *const all[] = {by_distance, by_distance_kept, by_address, by_loaded_address,
                                by_byte,     by_rcx};
enum { FUNCTIONS = sizeof all / sizeof *all };

// Each function, often enough to have been seen to.
static void expect(unsigned long number, int value) {
    for (int round = 0; round < 5; round++)
        for (int i = 0; i < FUNCTIONS; i++) {
            int result = all[i](number);
            __asm__ volatile("" : "+r"(result));
            CHECK(result == value);
        }
}

static void expect_all(int a, int b, int c, int d) {
    expect(0, a);
    expect(1, b);
    expect(2, c);
    expect(3, d);
}

static void protect(int rights) {
    CHECK(!mprotect(distances, 4096, rights));
    CHECK(!mprotect(addresses, 4096, rights));
}

static void put(int number, char *target) {
    __atomic_store_n(&distances[number], (int)(target - (char *)distances), __ATOMIC_RELEASE);
    __atomic_store_n(&addresses[number], (void *)target, __ATOMIC_RELEASE);
}

static int round, ready, over;

static void *caller(void *arg) {
    (void)arg;
    while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) {
        int before = __atomic_load_n(&round, __ATOMIC_ACQUIRE);
        int results[FUNCTIONS];
        for (int i = 0; i < FUNCTIONS; i++) results[i] = all[i](2);
        int behind = __atomic_load_n(&round, __ATOMIC_ACQUIRE);
        for (int i = 0; i < FUNCTIONS && before == behind && before >= 0; i++)
            CHECK(results[i] == (before % 2 ? 14 : 10));
        if (before >= 0) __atomic_fetch_add(&ready, 1, __ATOMIC_ACQ_REL);
        usleep(20);
    }
    return 0;
}

static sigjmp_buf away;
static char *where, *rip;
static void handler(int signal, siginfo_t *info, void *context) {
    (void)signal;
    where = info->si_addr;
    rip = (char *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    siglongjmp(away, 1);
}

static int fails(Function *function, unsigned long number) {
    if (sigsetjmp(away, 1)) return 1;
    function(number);
    return 0;
}

int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    CHECK(!sigaction(SIGSEGV, &action, 0));
    expect_all(10, 11, 12, 13);
    // Behind the end.
    for (int i = 0; i < 4; i++) {
        CHECK(all[i](4) == -1);
        CHECK(all[i](0xffffffff) == -1);
        CHECK(all[i](0x100000001) == 11);
    }
    CHECK(by_rcx(0x100000001) == -1);
    CHECK(by_byte(0x302) == 12);

    // Writable, and written; then read-only again.
    protect(PROT_READ | PROT_WRITE);
    expect_all(10, 11, 12, 13);
    put(1, t4);
    expect_all(10, 14, 12, 13);
    put(3, t0);
    protect(PROT_READ);
    expect_all(10, 14, 12, 10);
    protect(PROT_READ | PROT_WRITE);
    put(1, t1);
    put(3, t3);
    protect(PROT_READ);
    expect_all(10, 11, 12, 13);

    // Other threads see it as soon as they can know of it.
    pthread_t threads[3];
    protect(PROT_READ | PROT_WRITE);
    put(2, t0);
    for (int i = 0; i < 3; i++) CHECK(!pthread_create(&threads[i], 0, caller, 0));
    for (int i = 1; i < 14; i++) {
        __atomic_store_n(&round, -1, __ATOMIC_RELEASE);
        protect(PROT_READ | PROT_WRITE);
        put(2, i % 2 ? t4 : t0);
        if (i % 3) protect(PROT_READ);
        __atomic_store_n(&ready, 0, __ATOMIC_RELEASE);
        __atomic_store_n(&round, i, __ATOMIC_RELEASE);
        while (__atomic_load_n(&ready, __ATOMIC_ACQUIRE) < 8) usleep(20);
    }
    __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < 3; i++) CHECK(!pthread_join(threads[i], 0));
    protect(PROT_READ | PROT_WRITE);
    put(2, t2);
    protect(PROT_READ);
    expect_all(10, 11, 12, 13);

    // Another page takes the place, by moving there, and by mapping.
    char *copy = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(copy != MAP_FAILED);
    memcpy(copy, addresses, 4096);
    ((void **)copy)[0] = t3;
    CHECK(mremap(copy, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, addresses) == addresses);
    for (int i = 0; i < 5; i++) CHECK(by_address(0) == 13 && by_loaded_address(0) == 13);
    addresses[0] = t1;
    for (int i = 0; i < 5; i++) CHECK(by_address(0) == 11 && by_loaded_address(0) == 11);
    addresses[0] = t0;
    protect(PROT_READ);
    expect_all(10, 11, 12, 13);
    static char saved[4096];
    memcpy(saved, distances, 4096);
    CHECK(mmap(distances, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
               -1, 0) == distances);
    memcpy(distances, saved, 4096);
    distances[0] = distances[3];
    for (int i = 0; i < 5; i++) CHECK(by_distance(0) == 13 && by_distance_kept(0) == 13);
    distances[0] = t0 - (char *)distances;
    protect(PROT_READ);
    expect_all(10, 11, 12, 13);

    // Targets that are none: the faults are where they belong.
    protect(PROT_READ | PROT_WRITE);
    addresses[1] = (void *)0x8000000000000000;
    protect(PROT_READ);
    for (int i = 0; i < 3; i++) {
        CHECK(fails(by_address, 1) && rip == by_address_jump && !where);
        CHECK(fails(by_loaded_address, 1) && !where);
    }
    protect(PROT_READ | PROT_WRITE);
    addresses[1] = addresses;
    protect(PROT_READ);
    for (int i = 0; i < 3; i++)
        CHECK(fails(by_address, 1) && rip == (char *)addresses && where == (char *)addresses);
    protect(PROT_READ | PROT_WRITE);
    addresses[1] = t1;
    protect(PROT_READ);
    expect_all(10, 11, 12, 13);

    // A target in a library that is gone.
    void *h = dlopen("libshared.so", RTLD_NOW | RTLD_LOCAL);
    CHECK(h);
    char *tls = dlsym(h, "shared_tls");
    CHECK(tls);
    protect(PROT_READ | PROT_WRITE);
    addresses[2] = tls;
    protect(PROT_READ);
    CHECK(by_address(2) == 1 && by_address(2) == 2 && by_loaded_address(2) == 3);
    CHECK(!dlclose(h));
    Dl_info info;
    if (!dladdr(tls, &info))
        for (int i = 0; i < 3; i++) CHECK(fails(by_address, 2) && where == tls && rip == tls);

    // No table.
    CHECK(!munmap(addresses, 4096));
    for (int i = 0; i < 3; i++) {
        CHECK(fails(by_address, 0) && rip == by_address_jump && where == (char *)addresses);
        CHECK(fails(by_loaded_address, 0) && rip == by_loaded_address_load);
        CHECK(where == (char *)addresses);
    }
    puts("ok");
}
