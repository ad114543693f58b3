// Returns, calls and pushes without a stack: what the handler is told about the address.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <ucontext.h>
#include "check.h"
static sigjmp_buf back;
static volatile uintptr_t address, stack_pointer;
static volatile unsigned char instruction;
static void handler(int s, siginfo_t *i, void *u) {
    const greg_t *registers = ((ucontext_t *)u)->uc_mcontext.gregs;
    address = (uintptr_t)i->si_addr;
    stack_pointer = (uintptr_t)registers[REG_RSP];
    instruction = *(unsigned char *)registers[REG_RIP];
    siglongjmp(back, 1);
}
#define AT(where, insn)                                                        \
    if (!sigsetjmp(back, 1)) {                                                 \
        __asm__ volatile("mov %0, %%rsp; " insn : : "r"(where) : "memory");    \
        __builtin_unreachable();                                               \
    }
static void nothing(void) {}
int main(void) {
    static char other[64 << 10];
    stack_t stack = {.ss_sp = other, .ss_size = sizeof other};
    sigaltstack(&stack, 0);
    struct sigaction a = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGSEGV, &a, 0);
    char *gone = mmap(0, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *middle = gone + 4096 + 64;
    mprotect(gone + 4096, 4096, PROT_NONE);
    void *volatile target = nothing;
    AT(middle, "ret");
    CHECK(address == (uintptr_t)middle);
    AT(middle, "ret $16");
    CHECK(address == (uintptr_t)middle);
    // The first bytes are there, the others are not.
    AT(gone + 4096 - 4, "ret");
    CHECK(address == (uintptr_t)gone + 4096);
    // What is popped is there, the return address is not.
    AT(gone + 4096 - 16, "pop %%rbx; pop %%rbp; ret");
    CHECK(address == (uintptr_t)gone + 4096);
    CHECK(stack_pointer == (uintptr_t)gone + 4096 && instruction == 0xc3);
    AT(gone + 4096 - 12, "pop %%r13; mov $1, %%eax; ret");
    CHECK(address == (uintptr_t)gone + 4096);
    CHECK(stack_pointer == (uintptr_t)gone + 4096 - 4 && instruction == 0xc3);
    AT(gone + 64, "add $4096, %%rsp; pop %%rbp; pop %%rbx; ret");
    CHECK(address == (uintptr_t)middle);
    CHECK(stack_pointer == (uintptr_t)middle && instruction == 0x5d);
    AT(gone + 4096 - 8, "pop %%rbp; mov $2, %%eax; ret $8");
    CHECK(address == (uintptr_t)gone + 4096);
    CHECK(stack_pointer == (uintptr_t)gone + 4096 && instruction == 0xc2);
    AT(middle, "push %%rax");
    CHECK(address == (uintptr_t)middle - 8);
    AT(middle, "pop %%rax");
    CHECK(address == (uintptr_t)middle);
    AT(middle, "call 1f; 1: ud2");
    CHECK(address == (uintptr_t)middle - 8);
    if (!sigsetjmp(back, 1)) {
        __asm__ volatile("mov %0, %%rsp; call *%1" : : "r"(middle), "r"(target) : "memory");
        __builtin_unreachable();
    }
    CHECK(address == (uintptr_t)middle - 8);
    puts("ok");
}
