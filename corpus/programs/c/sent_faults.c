// Signals of the kinds that faults raise, sent by another thread while generated code far away is
// called and calls back.
//#flags: -pthread
//#oracle: no: the signals come anywhere
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "check.h"
static volatile int stop, count;
static pthread_t first;
static void handler(int n) { (void)n, count++; }
static int callback(int x) { return x + 1; }
static void *sender(void *unused) {
    int signals[] = {SIGFPE, SIGSEGV, SIGILL, SIGBUS, SIGTRAP};
    for (int i = 0; i < 3000; i++) {
        CHECK(!pthread_kill(first, signals[i % 5]));
        if (i % 64 == 0) usleep(1);
    }
    stop = 1;
    return unused;
}
int main(void) {
    first = pthread_self();
    int signals[] = {SIGFPE, SIGSEGV, SIGILL, SIGBUS, SIGTRAP};
    struct sigaction action = {.sa_handler = handler};
    for (int i = 0; i < 5; i++) CHECK(!sigaction(signals[i], &action, 0));
    unsigned char *p = mmap((void *)0x200000000000, 4096, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(p == (void *)0x200000000000);
    // push rbx; mov rbx, rsi; call rbx; pop rbx; ret
    memcpy(p, (unsigned char[]){0x53, 0x48, 0x89, 0xf3, 0xff, 0xd3, 0x5b, 0xc3}, 8);
    CHECK(!mprotect(p, 4096, PROT_READ | PROT_EXEC));
    pthread_t thread;
    CHECK(!pthread_create(&thread, 0, sender, 0));
    for (int x = 0; !stop; x++) CHECK(((int (*)(int, int (*)(int)))p)(x, callback) == x + 1);
    CHECK(!pthread_join(thread, 0));
    CHECK(count > 0);
    puts("ok");
}
