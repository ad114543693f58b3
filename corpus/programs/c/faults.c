// SIGFPE, SIGILL, SIGTRAP, SIGBUS handlers that look at the pc and step over the instruction.
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include "check.h"
static volatile int count[65], code[65];
static volatile unsigned long pc;
static volatile int skip;
static void handler(int s, siginfo_t *i, void *u) {
    greg_t *g = ((ucontext_t *)u)->uc_mcontext.gregs;
    count[s]++;
    code[s] = i->si_code;
    pc = g[REG_RIP];
    g[REG_RIP] += skip;
}
int main(void) {
    struct sigaction a = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    int all[] = {SIGFPE, SIGILL, SIGTRAP, SIGBUS};
    for (int i = 0; i < 4; i++) sigaction(all[i], &a, 0);
    unsigned long at;
    for (int i = 0; i < 3; i++) {
        skip = 2;
        __asm__ volatile("lea 1f(%%rip), %0; xor %%ecx, %%ecx; 1: div %%ecx" : "=&r"(at) : : "rax", "rdx", "rcx");
        CHECK(count[SIGFPE] == i + 1 && pc == at && code[SIGFPE] == FPE_INTDIV);
        __asm__ volatile("lea 1f(%%rip), %0; 1: ud2" : "=&r"(at));
        CHECK(count[SIGILL] == i + 1 && pc == at);
        skip = 0;
        __asm__ volatile("lea 1f(%%rip), %0; int3; 1:" : "=&r"(at));
        CHECK(count[SIGTRAP] == i + 1 && pc == at);
    }
    int fd = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    if (fd >= 0) {
        volatile char *p = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        skip = 2;
        __asm__ volatile("lea 1f(%%rip), %0; 1: mov (%1), %%al" : "=&r"(at) : "d"(p) : "rax");
        CHECK(count[SIGBUS] == 1 && pc == at);
    }
    puts("ok");
}
