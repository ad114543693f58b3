// A program that has used up its address space, or all that it may have, lives with ENOMEM.
//#variants: pie no-pie static
//#oracle: no: how much fits into the address space depends on where everything lies
//#flags: -pthread
//#except: replay: it leaves no room in the address space for a replay
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
static volatile int seen;
static void handler(int n) { seen += n; }
static void *thread(void *x) { return x; }
static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
// Code that has not run before.
#define STEP(n) static __attribute__((noinline)) int step##n(int x) { char text[64]; \
    snprintf(text, sizeof text, "%d %x %s %g", x + n, x * n, "text", n / 8.0); \
    int list[] = {n, 3, x, 1, 7}; qsort(list, 5, sizeof *list, compare); \
    seen = 0; signal(SIGUSR1 , handler); raise(SIGUSR1); return seen == SIGUSR1 && list[0] <= list[4] && text[0]; }
STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6)
static void child(int (*step)(int)) {
    pid_t pid = fork();
    if (!pid) _exit(step(9) ? 42 : 1);
    int status = 0;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 42);
}
int main(void) {
    struct rlimit old, none = {4096, 0};
    CHECK(!getrlimit(RLIMIT_DATA, &old));
    none.rlim_max = old.rlim_max;
    CHECK(!setrlimit(RLIMIT_DATA, &none));
    CHECK(mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == ENOMEM);
    CHECK(step1(5));
    child(step2);
    CHECK(!getrlimit(RLIMIT_DATA, &none) && none.rlim_cur == 4096);
    CHECK(!setrlimit(RLIMIT_DATA, &old));
    int pieces = 0;
    static void *some[64];
    for (unsigned long len = 1ul << 46; len >= 1 << 16; len /= 2) {
        for (;;) {
            void *at = mmap(0, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (at == MAP_FAILED) break;
            some[pieces % 64] = at;
            if (++pieces > 10000) return 1;
        }
        CHECK(errno == ENOMEM);
    }
    while (malloc(1 << 20)) ;
    CHECK(errno == ENOMEM);
    CHECK(step3(5));
    child(step4);
    pthread_t t;
    CHECK(pthread_create(&t, 0, thread, 0) == EAGAIN);
    CHECK(step5(6));
    munmap(some[(pieces - 1) % 64], 1 << 16);
    CHECK(malloc(1000) != 0);
    CHECK(step6(7));
    puts("ok");
}
