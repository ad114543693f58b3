// Words that ld.so has made read-only, and through which a procedure linkage table jumps: what they name is
// changed all the same, by one thread and by others, in every way that the kernel has.
//#shared: shared.c
//#link: plt.c
//#flags: -ldl -pthread -Wl,-z,now -Wl,-z,relro -fplt
//#variants: pie no-pie
//#oracle: no: threads wait for each other in loops
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "check.h"

int plt_add(int a, int b);
static int subtract(int a, int b) { return a - b; }
static int multiply(int a, int b) { return a * b; }

static char *start;
static size_t len;

static int relro(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    (void)data;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_GNU_RELRO) continue;
        long page = sysconf(_SC_PAGESIZE);
        unsigned long from = (info->dlpi_addr + p->p_vaddr) & -page;
        unsigned long to = (info->dlpi_addr + p->p_vaddr + p->p_memsz) & -page;
        start = (char *)from;
        len = to - from;
    }
    return 1; // The first is the program.
}

static void **words[8];
static int count;

static void put(void *function) {
    for (int i = 0; i < count; i++) __atomic_store_n(words[i], function, __ATOMIC_RELEASE);
}

static void set(void *function, int and_protect) {
    CHECK(!mprotect(start, len, PROT_READ | PROT_WRITE));
    put(function);
    if (and_protect) CHECK(!mprotect(start, len, PROT_READ));
}

__attribute__((noinline)) static int call(int a, int b) {
    int result = plt_add(a, b);
    __asm__ volatile("" : "+r"(result));
    return result;
}

static int calls(int a, int b) {
    int result = call(a, b);
    for (int i = 0; i < 20; i++) CHECK(call(a, b) == result);
    return result;
}

static int round, ready, over;

static void *caller(void *arg) {
    (void)arg;
    while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) {
        int before = __atomic_load_n(&round, __ATOMIC_ACQUIRE);
        int result = call(9, 4);
        int behind = __atomic_load_n(&round, __ATOMIC_ACQUIRE);
        // In an even round it is a difference, in an odd one a product.
        if (before == behind && before >= 0) CHECK(result == (before % 2 ? 36 : 5));
        if (before >= 0) __atomic_fetch_add(&ready, 1, __ATOMIC_ACQ_REL);
        usleep(20);
    }
    return 0;
}

static sigjmp_buf away;
static void *where;
static void handler(int signal, siginfo_t *info, void *context) {
    (void)signal;
    (void)context;
    where = info->si_addr;
    siglongjmp(away, 1);
}

static int fails(void) {
    if (sigsetjmp(away, 1)) return 1;
    call(9, 4);
    return 0;
}

int main(void) {
    void *original = dlsym(RTLD_DEFAULT, "plt_add");
    CHECK(original);
    dl_iterate_phdr(relro, 0);
    CHECK(start && len);
    for (void **w = (void **)start; (char *)w < start + len; w++)
        if (*w == original && count < 8) words[count++] = w;
    CHECK(count > 0);
    CHECK(calls(9, 4) == 13);

    // Writable, and written; then read-only again.
    set(subtract, 0);
    CHECK(calls(9, 4) == 5);
    put(multiply);
    CHECK(calls(9, 4) == 36);
    set(subtract, 1);
    CHECK(calls(9, 4) == 5);
    set(original, 1);
    CHECK(calls(9, 4) == 13);

    // Other threads see it as soon as they can know of it. No thread is between its two looks at the round
    // while it changes (-1).
    pthread_t threads[3];
    set(subtract, 1);
    for (int i = 0; i < 3; i++) CHECK(!pthread_create(&threads[i], 0, caller, 0));
    for (int i = 1; i < 14; i++) {
        __atomic_store_n(&round, -1, __ATOMIC_RELEASE);
        set(i % 2 ? (void *)multiply : (void *)subtract, i % 3 != 0);
        __atomic_store_n(&ready, 0, __ATOMIC_RELEASE);
        __atomic_store_n(&round, i, __ATOMIC_RELEASE);
        while (__atomic_load_n(&ready, __ATOMIC_ACQUIRE) < 8) usleep(20);
    }
    __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < 3; i++) CHECK(!pthread_join(threads[i], 0));

    // Another page takes the place.
    set(original, 1);
    CHECK(calls(9, 4) == 13);
    char *copy = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(copy != MAP_FAILED);
    memcpy(copy, start, len);
    for (int i = 0; i < count; i++) *(void **)(copy + ((char *)words[i] - start)) = subtract;
    CHECK(!mprotect(copy, len, PROT_READ));
    CHECK(mremap(copy, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, start) == start);
    CHECK(calls(9, 4) == 5);
    CHECK(!mprotect(start, len, PROT_READ));
    CHECK(calls(9, 4) == 5);

    // A target that is gone, and other code in its place.
    void *h = dlopen("libshared.so", RTLD_NOW | RTLD_LOCAL);
    CHECK(h);
    void *tls = dlsym(h, "shared_tls");
    CHECK(tls);
    set(tls, 1);
    CHECK(call(9, 4) == 1 && call(9, 4) == 2 && call(9, 4) == 3);
    CHECK(!dlclose(h));
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    CHECK(!sigaction(SIGSEGV, &action, 0));
    unsigned long page = (unsigned long)tls & -4096ul;
    Dl_info info;
    if (!dladdr(tls, &info)) {
        // lea eax, [rdi + rsi + 100]; ret
        static const unsigned char code[] = {0x8d, 0x44, 0x37, 100, 0xc3};
        CHECK(fails());
        CHECK(where == tls);
        CHECK(mmap((void *)page, 8192, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == (void *)page);
        memcpy(tls, code, sizeof code);
        CHECK(!mprotect((void *)page, 8192, PROT_READ | PROT_EXEC));
        CHECK(calls(9, 4) == 113);
    }

    // Nothing is there.
    set(0, 1);
    CHECK(fails() && !where);
    CHECK(fails() && !where);
    set((void *)start, 1);
    CHECK(fails() && where == start);

    // As it was.
    set(original, 1);
    CHECK(calls(9, 4) == 13);
    puts("ok");
}
