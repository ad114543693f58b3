// Memory by way of gs: all forms of operands, the base in threads, children and handlers, faults.
//#flags: -pthread -mcx16
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
#include "gone.h"
enum { SET_GS = 0x1001, GET_GS = 0x1004, FSGSBASE = 2 };
static long main_block[64] __attribute__((aligned(64)));
static void set_gs(void *base) { CHECK(syscall(SYS_arch_prctl, SET_GS, base) == 0); }
static void *get_gs(void) {
    void *base;
    CHECK(syscall(SYS_arch_prctl, GET_GS, &base) == 0);
    return base;
}
__attribute__((noinline)) static long at(long n) {
    long value;
    __asm__ volatile("mov %%gs:(,%1,8), %0" : "=r"(value) : "r"(n));
    return value;
}
__attribute__((noinline)) static long twice(long n) { return 2 * n; }
__attribute__((noinline)) static void operands(long *block) {
    long a, b, c, d;
    for (int i = 0; i < 64; i++) block[i] = 1000 + i;
    // Loads: absolute, a base, base and index, the stack pointer, rbp and r13 (which have no form without displacement).
    __asm__ volatile("mov %%gs:0x18, %0" : "=r"(a));
    __asm__ volatile("mov %%gs:(%1), %0" : "=r"(b) : "r"(40L));
    __asm__ volatile("mov %%gs:-8(%1,%2,4), %0" : "=r"(c) : "r"(16L), "r"(10L));
    __asm__ volatile("push %%rbp\n mov $56, %%ebp\n mov %%gs:(%%rbp), %0\n pop %%rbp" : "=r"(d));
    CHECK(a == 1003 && b == 1005 && c == 1006 && d == 1007);
    __asm__ volatile("mov $64, %%r13d\n mov %%gs:(%%r13), %0" : "=r"(a) : : "r13");
    __asm__ volatile("mov %%rsp, %%r12\n mov $72, %%esp\n mov %%gs:(%%rsp), %0\n mov %%r12, %%rsp"
                     : "=r"(b) : : "r12");
    __asm__ volatile("movabs %%gs:0x50, %%rax" : "=a"(c));
    __asm__ volatile("movzbl %%gs:(%1), %k0" : "=r"(d) : "r"(88L));
    CHECK(a == 1008 && b == 1009 && c == 1010 && d == (1011 & 0xff));
    // Stores of all sizes, and what reads and writes.
    __asm__ volatile("movb $7, %%gs:(%0)\n movw $0x1234, %%gs:8(%0)\n movl $-1, %%gs:16(%0)\n movq $-2, %%gs:24(%0)"
                     : : "r"(128L) : "memory");
    CHECK((block[16] & 0xff) == 7 && (block[17] & 0xffff) == 0x1234);
    CHECK((unsigned)block[18] == 0xffffffff && block[19] == -2);
    __asm__ volatile("movabs %%rax, %%gs:0xa0" : : "a"(77L) : "memory");
    __asm__ volatile("add %1, %%gs:(,%0,8)\n incq %%gs:8(,%0,8)\n lock xadd %1, %%gs:16(,%0,8)"
                     : : "r"(20L), "r"(5L) : "memory");
    CHECK(block[20] == 82 && block[21] == 1022 && block[22] == 1027);
    a = 1023, b = 4;
    __asm__ volatile("lock cmpxchg %2, %%gs:(%1)" : "+a"(a) : "r"(23 * 8L), "r"(b) : "memory");
    CHECK(block[23] == 4 && a == 1023);
    a = 9;
    __asm__ volatile("xchg %0, %%gs:0xc0" : "+r"(a) : : "memory");
    CHECK(a == 1024 && block[24] == 9);
    long low = block[26], high = block[27];
    __asm__ volatile("lock cmpxchg16b %%gs:(%0)" : : "r"(26 * 8L), "a"(low), "d"(high), "b"(1L), "c"(2L) : "memory");
    CHECK(block[26] == 1 && block[27] == 2);
    __asm__ volatile("bts %1, %%gs:(%0)" : : "r"(0L), "r"(28 * 64L + 63) : "memory", "cc");
    CHECK(block[28] < 0);
    // The stack, vectors, the floating-point unit.
    __asm__ volatile("push %%gs:0x18\n pop %0" : "=r"(a));
    __asm__ volatile("push %0\n pop %%gs:0xf8" : : "r"(a) : "memory");
    CHECK(a == 1003 && block[31] == 1003);
    __asm__ volatile("movups %%gs:(%0), %%xmm3\n movaps %%xmm3, %%gs:16(%0)\n paddq %%gs:(%0), %%xmm3\n"
                     "movq %%xmm3, %%gs:32(%0)"
                     : : "r"(32 * 8L) : "xmm3", "memory");
    CHECK(block[34] == 1032 && block[35] == 1033 && block[36] == 2064);
    __asm__ volatile("fildll %%gs:(%0)\n fistpll %%gs:8(%0)" : : "r"(37 * 8L) : "memory");
    CHECK(block[38] == 1037);
    // Calls and jumps.
    block[40] = (long)twice;
    __asm__ volatile("sub $128, %%rsp\n call *%%gs:0x140\n add $128, %%rsp" : "=a"(a), "=D"(b) : "D"(21L)
                     : "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory", "cc");
    CHECK(a == 42);
    __asm__ volatile("lea 1f(%%rip), %0\n mov %0, %%gs:0x148\n mov $0x100, %0\n jmp *%%gs:0x48(%0)\n ud2\n 1:" : "=&r"(a) : : "memory");
    // What only names memory.
    __asm__ volatile("lea %%gs:0x10(%1), %0\n prefetcht0 %%gs:(%1)" : "=r"(a) : "r"(8L));
    CHECK(a == 0x18);
}
static sigjmp_buf back;
static void *fault;
static void on_fault(int signal, siginfo_t *info, void *context) {
    fault = info->si_addr;
    siglongjmp(back, 1);
}
static volatile long in_handler;
static void on_signal(int signal) { in_handler = at(2); }
static long other_block[64];
static void *other(void *given) {
    // The base of the thread that has made this one.
    CHECK(get_gs() == given && at(3) == 1003);
    set_gs(other_block);
    for (int i = 0; i < 1000; i++) __asm__ volatile("incq %%gs:8" : : : "memory");
    CHECK(get_gs() == other_block);
    going();
    return (void *)at(1);
}
__attribute__((noinline)) static void by_instruction(void) {
    void *base;
    __asm__ volatile("rdgsbase %0" : "=r"(base));
    CHECK(base == main_block);
    long sum = 0;
    for (int i = 0; i < 4; i++) {
        other_block[5] = 50 + i;
        __asm__ volatile("wrgsbase %0" : : "r"(other_block) : "memory");
        sum += at(5);
        __asm__ volatile("wrgsbase %0" : : "r"(main_block) : "memory");
        sum += at(5);
    }
    CHECK(sum == 206 + 4 * 1005);
    unsigned low;
    __asm__ volatile("mov $-1, %q0\n rdgsbase %k0" : "=r"(low));
    CHECK(low == (unsigned)(unsigned long)main_block);
}
int main(void) {
    CHECK(get_gs() == 0);
    CHECK(syscall(SYS_arch_prctl, SET_GS, -1L) == -1);
    set_gs(main_block);
    for (int i = 0; i < 3; i++) operands(main_block);
    for (int i = 0; i < 64; i++) main_block[i] = 1000 + i;
    CHECK(get_gs() == main_block);
    pthread_t thread;
    void *result;
    before_going();
    CHECK(pthread_create(&thread, 0, other, main_block) == 0);
    CHECK(join_gone(thread, &result) == 0 && (long)result == 1000);
    CHECK(get_gs() == main_block && at(1) == 1001);
    pid_t child = fork();
    if (child == 0) _exit(get_gs() == main_block && at(4) == 1004 ? 3 : 4);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 3);
    signal(SIGUSR1, on_signal);
    raise(SIGUSR1);
    CHECK(in_handler == 1002);
    // A fault names the address with the base.
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, 0);
    if (sigsetjmp(back, 1) == 0) at((0x1000 - (long)main_block) / 8);
    CHECK(((long)fault & ~7L) == (0x1000 & ~7L) || (long)fault - 0x1000 < 8);
    if (getauxval(AT_HWCAP2) & FSGSBASE) by_instruction();
    puts("ok");
}
