// Stores that fault: what the handler is told about each, and that they go on where it makes room.
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include "check.h"
static volatile unsigned long address, pc, error, registers[2];
static volatile int count, code;
static volatile unsigned long used; // so that no register is dead at the stores
static char *room;
static void handler(int s, siginfo_t *i, void *u) {
    greg_t *g = ((ucontext_t *)u)->uc_mcontext.gregs;
    count++;
    code = i->si_code;
    address = (unsigned long)i->si_addr;
    error = g[REG_ERR];
    pc = g[REG_RIP];
    registers[0] = g[REG_RAX];
    registers[1] = g[REG_RDX];
    mprotect(room, 4096, PROT_READ | PROT_WRITE);
}
// Runs `insn`, which stores to the page at `room` that cannot be written.
#define STORE(protection, insn, at) \
    do { \
        unsigned long where, a = 0x1111, d = 0x2222, c = 64, to = (unsigned long)room + (at); \
        int before = count; \
        CHECK(!mprotect(room, 4096, protection)); \
        __asm__ volatile("lea 1f(%%rip), %0; movq %%rax, %%xmm0; 1: " insn \
                         : "=&r"(where), "+a"(a), "+d"(d), "+D"(to), "+c"(c) : : "memory", "cc", "xmm0"); \
        CHECK(count == before + 1 && pc == where && code == SEGV_ACCERR); \
        CHECK((error & 2) && address >= (unsigned long)room && address < (unsigned long)room + 4096); \
        CHECK(registers[0] == 0x1111 && registers[1] == 0x2222); \
        used += a + d; \
    } while (0)
int main(void) {
    struct sigaction a = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &a, 0);
    char *pages = mmap(0, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    room = pages + 4096;
    int all[] = {PROT_NONE, PROT_READ};
    for (int i = 0; i < 2; i++) {
        int p = all[i];
        STORE(p, "mov %%rax, (%%rdi)", 0);
        STORE(p, "mov %%dl, (%%rdi)", 4095);
        STORE(p, "movups %%xmm0, (%%rdi)", 16);
        STORE(p, "mov %%rax, (%%rdi)", -4); // half of it in the page before
        STORE(p, "add %%edx, (%%rdi)", 64);
        STORE(p, "lock add %%edx, (%%rdi)", 64);
        STORE(p, "lock cmpxchg %%rdx, (%%rdi)", 128);
        STORE(p, "stosl", 8);
        STORE(p, "rep stosb", -32); // from the page before
        STORE(p, "rep stosb", 4080);
        for (int k = 0; k < 64; k++) CHECK(pages[4096 + 4080 + k] == 0x11);
        memset(pages, 0, 3 * 4096);
    }
    puts("ok");
}
