// A SIGSEGV handler that makes the page accessible and returns; reads, writes, and string writes.
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include "check.h"
static volatile int faults;
static void handler(int s, siginfo_t *i, void *u) {
    faults++;
    CHECK(!mprotect((void *)((unsigned long)i->si_addr & ~4095UL), 4096, PROT_READ | PROT_WRITE));
}
int main(void) {
    struct sigaction a = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &a, 0);
    volatile char *p = mmap(0, 16 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 4; i++) { p[i * 4096]++; CHECK(p[i * 4096] == 1); }
    CHECK(faults == 4);
    void *d = (void *)(p + 5 * 4096 - 100);
    unsigned long n = 9000;
    __asm__ volatile("rep stosb" : "+D"(d), "+c"(n) : "a"(7) : "memory");
    CHECK(faults == 8 && p[5 * 4096 + 8899] == 7 && p[5 * 4096 + 8900] == 0 && n == 0);
    long out;
    __asm__ volatile("push %1; pop %0" : "=r"(out) : "m"(*(long *)(p + 10 * 4096)));
    CHECK(faults == 9 && out == 0);
    puts("ok");
}
