// The program sets the trap flag: a trap behind each instruction, with the flag where it can be read.
//#oracle: no: the oracle steps itself
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#include "check.h"
extern char first[], last[];
static struct { long rip; int code; unsigned flag, trap, error; } traps[400];
static int count, stop_at;
static void handler(int s, siginfo_t *info, void *context) {
    greg_t *g = ((ucontext_t *)context)->uc_mcontext.gregs;
    if (count < 400) {
        traps[count].rip = g[REG_RIP] - (long)first;
        traps[count].code = info->si_code;
        traps[count].flag = g[REG_EFL] >> 8 & 1;
        traps[count].trap = g[REG_TRAPNO];
        traps[count].error = g[REG_ERR];
        CHECK(info->si_code != TRAP_TRACE || info->si_addr == (void *)g[REG_RIP]);
        unsigned long own;
        __asm__ volatile("pushfq; pop %0" : "=r"(own));
        CHECK((own >> 8 & 1) == 0);
    }
    count++;
    if (stop_at && count == stop_at) g[REG_EFL] &= ~0x100;
}
char from[64] = "what is moved", to[64];
static unsigned long seen[4];
static sigjmp_buf out;
static void fault(int s, siginfo_t *info, void *context) {
    greg_t *g = ((ucontext_t *)context)->uc_mcontext.gregs;
    printf("fault at %ld, flag %d, trap %d\n", (long)(g[REG_RIP] - (long)first), (int)(g[REG_EFL] >> 8 & 1), (int)g[REG_TRAPNO]);
    siglongjmp(out, 1);
}
__attribute__((noinline)) static void stepped(int what) {
    static void *targets[1];
    targets[0] = (void *)&&there;
    goto *targets[0];
there:
    __asm__ volatile(
        ".globl first, last\n"
        "first: pushfq; orl $0x100, (%%rsp); popfq\n"
        "nop\n"
        "xor %%eax, %%eax\n"
        "pushfq; pop %0\n"
        "lea from(%%rip), %%rsi; lea to(%%rip), %%rdi; mov $5, %%ecx; rep movsb\n"
        "mov $39, %%eax; syscall\n"
        "mov $1, %%ecx\n"
        "call 1f\n"
        "jmp 2f\n"
        "1: add $1, %%ecx; ret\n"
        "2: dec %%ecx; jnz 2b\n"
        "cpuid\n"
        "lea 3f(%%rip), %%rax; jmp *%%rax\n"
        "3: cmp $1, %1; jne 4f; movl $0, 0\n"
        "4: cmp $2, %1; jne 5f; int3\n"
        "5: pushfq; andl $~0x100, (%%rsp); popfq\n"
        "nop\n"
        "last: nop\n"
        : "=&m"(seen[0]) : "r"(what) : "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "r11", "cc", "memory");
}
// Behind the load is a place that is jumped to, with a reference to memory: the flag comes, stays and goes there.
__attribute__((noinline)) static void loaded(void) {
    __asm__ volatile(
        "pushfq; pop %%rax; or $0x100, %%eax; mov $2, %%ecx\n"
        "1: push %%rax; popfq\n"
        "2: movb %%cl, to(%%rip)\n"
        "dec %%ecx; jz 3f; jmp 1b\n"
        "3: test %%eax, %%eax; jz 2b\n"
        "and $~0x100, %%eax; push %%rax; popfq\n"
        "4: movb $0, to(%%rip); test %%eax, %%eax; jz 4b\n" ::: "rax", "rcx", "cc", "memory");
}
static void show(void) {
    printf("%d traps\n", count);
    for (int i = 0; i < count && i < 400; i++)
        printf("  %ld code %d flag %u trap %u error %u\n", traps[i].rip, traps[i].code, traps[i].flag, traps[i].trap, traps[i].error);
    count = 0;
}
int main(void) {
    struct sigaction a = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGTRAP, &a, 0) == 0);
    a.sa_sigaction = fault;
    a.sa_flags = SA_SIGINFO | SA_NODEFER;
    CHECK(sigaction(SIGSEGV, &a, 0) == 0);
    stepped(0);
    show();
    CHECK(seen[0] & 0x100);
    if (sigsetjmp(out, 1) == 0) stepped(1);
    show();
    stepped(2);
    show();
    // The handler ends it, as its frame says.
    stop_at = 9;
    stepped(0);
    show();
    stop_at = 0;
    loaded();
    show();
    // Nothing to come back from.
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGTRAP, SIG_DFL);
        __asm__ volatile("pushfq; orl $0x100, (%%rsp); popfq; nop; nop" ::: "cc", "memory");
        _exit(1);
    }
    int status;
    while (waitpid(child, &status, 0) != child) {}
    printf("child %x\n", status & 0x7f);
}
