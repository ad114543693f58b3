// Calls, jumps and returns to addresses that the processor refuses to load, or that lead out of what is mapped: which
// instruction faults, where rsp is then, and what the return address says.
//#variants: pie no-pie static O0
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>
#include "check.h"
static sigjmp_buf back;
static volatile unsigned long faulted, stack, top;
static volatile int code;
static void handler(int number, siginfo_t *info, void *context) {
    ucontext_t *at = context;
    CHECK(number == SIGSEGV);
    faulted = at->uc_mcontext.gregs[REG_RIP];
    stack = at->uc_mcontext.gregs[REG_RSP];
    top = *(unsigned long *)stack;
    code = info->si_code;
    siglongjmp(back, 1);
}
// Each has its instruction at `NAME_at` and goes on at `NAME_next`; rax has the target, rdi where to write rsp.
#define WAY(name, insn) \
    extern char name##_at[], name##_next[]; \
    __attribute__((noinline, noclone)) static void name(unsigned long target, volatile unsigned long *sp) { \
        __asm__ volatile("sub $128, %%rsp\n mov %%rsp, (%1)\n" insn "\n" #name "_next: add $128, %%rsp" \
                         ::"a"(target), "D"(sp) : "rcx", "r11", "r12", "memory"); \
    }
WAY(call_register, "call_register_at: call *%%rax")
WAY(call_r12, "mov %%rax, %%r12\n call_r12_at: call *%%r12")
WAY(call_memory, "mov %%rax, 8(%%rsp)\n call_memory_at: call *8(%%rsp)")
WAY(call_rcx, "mov %%rax, %%rcx\n call_rcx_at: call *%%rcx")
WAY(jump_register, "jump_register_at: jmp *%%rax")
WAY(jump_memory, "mov %%rax, 8(%%rsp)\n jump_memory_at: jmp *8(%%rsp)")
WAY(ret, "mov %%rax, (%%rsp)\n ret_at: ret")
static unsigned long word;
int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_NODEFER};
    CHECK(!sigaction(SIGSEGV, &action, 0));
    // The last three are canonical: the transfer is made, and nothing can be executed there.
    const unsigned long targets[] = {0x4141414141414141, 0x800000000000, 0x8000000000000000, 0x00ff000000000000,
                                     0xffff7fffffffffff, (unsigned long)&word, 0x41414141, 0x123400000000};
    const struct { void (*go)(unsigned long, volatile unsigned long *); char *at, *next; int pushes, pops; } ways[] = {
        {call_register, call_register_at, call_register_next, 8, 0}, {call_r12, call_r12_at, call_r12_next, 8, 0},
        {call_memory, call_memory_at, call_memory_next, 8, 0}, {call_rcx, call_rcx_at, call_rcx_next, 8, 0},
        {jump_register, jump_register_at, jump_register_next, 0, 0},
        {jump_memory, jump_memory_at, jump_memory_next, 0, 0}, {ret, ret_at, ret_next, 0, 8},
    };
    for (int round = 0; round < 3; round++)
        for (unsigned w = 0; w < sizeof ways / sizeof *ways; w++)
            for (unsigned t = 0; t < sizeof targets / sizeof *targets; t++) {
                volatile unsigned long sp = 0;
                unsigned long target = targets[t];
                if (!sigsetjmp(back, 1)) {
                    ways[w].go(target, &sp);
                    CHECK(!"it came back");
                }
                if (t < 5) {
                    CHECK(faulted == (unsigned long)ways[w].at && stack == sp && code == SI_KERNEL);
                } else {
                    CHECK(faulted == target && stack == sp - ways[w].pushes + ways[w].pops && code != SI_KERNEL);
                    CHECK(!ways[w].pushes || top == (unsigned long)ways[w].next);
                }
            }
    puts("ok");
}
