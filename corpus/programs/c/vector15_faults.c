// ymm15 in instructions that fault and go on, that are traced, that save parts of the state; in threads and children.
//#requires: avx avx2 fxsr xsave bmi2
//#flags: -O1 -mavx2 -mfxsr -mxsave -pthread
//#oracle: no: the timer fires anywhere
#define _GNU_SOURCE
#include <cpuid.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#include "check.h"
typedef uint64_t Four[4] __attribute__((aligned(32)));
static Four full = {0x1111, 0x2222, 0x3333, 0x4444}, seen;
static char *page;
static volatile int faults, traps, ticks;
static sigjmp_buf back;
static volatile int jumps;
static void take(ucontext_t *context) {
    uint8_t *area = (uint8_t *)context->uc_mcontext.fpregs;
    uint64_t present;
    memcpy(&present, area + 512, 8);
    memset(seen, 0, 32);
    if (present & 2) memcpy(seen, area + 160 + 240, 16);
    if (present & 4) memcpy(seen + 2, area + 576 + 240, 16);
}
#define DIRTY __asm__ volatile("vpcmpeqb %%ymm15, %%ymm15, %%ymm15" : : : "xmm15")
static void fault(int n, siginfo_t *info, void *data) {
    (void)n, (void)info;
    take(data);
    faults++;
    if (jumps) siglongjmp(back, 1);
    CHECK(page && !mprotect(page, 4096, PROT_READ | PROT_WRITE));
    DIRTY;
}
// A division: its exceptions are masked from here on.
static void divided(int n, siginfo_t *info, void *data) {
    (void)n, (void)info;
    ucontext_t *context = data;
    take(context);
    faults++;
    context->uc_mcontext.fpregs->mxcsr = 0x1f80;
    DIRTY;
}
static void illegal(int n, siginfo_t *info, void *data) {
    (void)n, (void)info;
    take(data);
    faults++;
    ((ucontext_t *)data)->uc_mcontext.gregs[REG_RIP] += 2;
    DIRTY;
}
static Four trace[64];
static void trap(int n, siginfo_t *info, void *data) {
    (void)n, (void)info;
    take(data);
    if (traps < 64) memcpy(trace[traps], seen, 32);
    traps++;
    DIRTY;
}
static void tick(int n) { (void)n, ticks++; DIRTY; }
static void on(int signal, void (*handler)(int, siginfo_t *, void *)) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_RESTART};
    CHECK(!sigaction(signal, &action, 0));
}
static void close_page(void) { CHECK(!mprotect(page, 4096, PROT_NONE)); }

// Loads `full`, runs the code, which faults once if `closes`, and stores what is in ymm15 then.
#define WITH(out, code, ...) \
    __asm__ volatile("vzeroall\n vmovdqu %[in], %%ymm15\n vpcmpeqd %%ymm1, %%ymm1, %%ymm1\n" code "vmovdqu %%ymm15, %[to]\n" \
                     : [to] "=m"(out) : [in] "m"(full), [m] "r"(page) __VA_OPT__(,) __VA_ARGS__ \
                     : "memory", "rax", "rcx", "rdi", "rsi", "rdx", "r11", "xmm1", "xmm2", "xmm3", "xmm15")
#define FAULTS(code, a, b, c, d) \
    do { \
        for (int closed = 0; closed < 2; closed++) { \
            CHECK(!mprotect(page, 4096, PROT_READ | PROT_WRITE)); \
            memset(page - 4096, 0, 4096); \
            for (int k = 0; k < 512; k++) ((uint64_t *)page)[k] = k + 1; \
            if (closed) close_page(); \
            int before = faults; \
            WITH(out, code); \
            CHECK(faults == before + closed); \
            if (closed) CHECK(!memcmp(seen, full, 32)); \
            CHECK(out[0] == (a) && out[1] == (b) && out[2] == (c) && out[3] == (d)); \
        } \
    } while (0)

static void *thread(void *data) {
    // It keeps what it loads.
    uint64_t salt = (uint64_t)data;
    Four in = {salt, salt + 1, salt + 2, salt + 3}, out;
    for (int i = 0; i < 300; i++) {
        long number = i & 1 ? SYS_sched_yield : SYS_gettid;
        __asm__ volatile("vmovdqu %2, %%ymm15\n syscall\n vpaddq %%ymm15, %%ymm15, %%ymm14\n"
                         "vpsubq %%ymm15, %%ymm14, %%ymm15\n vmovdqu %%ymm15, %1\n"
                         : "+a"(number), "=m"(out) : "m"(in) : "memory", "rcx", "r11", "xmm14", "xmm15");
        CHECK(!memcmp(in, out, 32));
    }
    return data;
}

static char child_stack[65536] __attribute__((aligned(64)));
static Four in_child;

int main(void) {
    Four out;
    char *pages = mmap(0, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    page = pages + 4096;
    on(SIGSEGV, fault), on(SIGFPE, divided), on(SIGILL, illegal), on(SIGTRAP, trap);
    signal(SIGALRM, tick);

    // Memory that is not there yet, in each way to name the register.
    FAULTS("vmovdqu (%[m]), %%ymm15\n", 1, 2, 3, 4);
    FAULTS("vmovdqu (%[m]), %%xmm15\n", 1, 2, 0, 0);
    FAULTS("movdqu (%[m]), %%xmm15\n", 1, 2, 0x3333, 0x4444);
    FAULTS("movlps (%[m]), %%xmm15\n", 1, 0x2222, 0x3333, 0x4444);
    FAULTS("movhps (%[m]), %%xmm15\n", 0x1111, 1, 0x3333, 0x4444);
    FAULTS("movss (%[m]), %%xmm15\n", 1, 0, 0x3333, 0x4444);
    FAULTS("vmovss (%[m]), %%xmm15\n", 1, 0, 0, 0);
    FAULTS("paddq (%[m]), %%xmm15\n", 0x1112, 0x2224, 0x3333, 0x4444);
    FAULTS("vpaddq (%[m]), %%ymm15, %%ymm15\n", 0x1112, 0x2224, 0x3336, 0x4448);
    FAULTS("vpinsrq $1, (%[m]), %%xmm15, %%xmm15\n", 0x1111, 1, 0, 0);
    FAULTS("vpbroadcastq (%[m]), %%ymm15\n", 1, 1, 1, 1);
    FAULTS("vinserti128 $1, (%[m]), %%ymm15, %%ymm15\n", 0x1111, 0x2222, 1, 2);
    FAULTS("vpmaskmovq (%[m]), %%ymm1, %%ymm15\n", 1, 2, 3, 4);
    FAULTS("vmovdqu %%ymm15, (%[m])\n", 0x1111, 0x2222, 0x3333, 0x4444);
    FAULTS("movdqu %%xmm15, (%[m])\n vmovdqu (%[m]), %%ymm15\n", 0x1111, 0x2222, 3, 4);
    FAULTS("vmovdqu %%ymm15, -16(%[m])\n vmovdqu -8(%[m]), %%ymm15\n", 0x2222, 0x3333, 0x4444, 3);
    FAULTS("vpmaskmovq %%ymm15, %%ymm1, (%[m])\n vmovdqu (%[m]), %%ymm15\n", 0x1111, 0x2222, 0x3333, 0x4444);
    FAULTS("mov %[m], %%rdi\n maskmovdqu %%xmm1, %%xmm15\n vmovdqu (%[m]), %%ymm15\n", 0x1111, 0x2222, 3, 4);
    FAULTS("mov %[m], %%rdi\n vmaskmovdqu %%xmm1, %%xmm15\n vmovdqu (%[m]), %%ymm15\n", 0x1111, 0x2222, 3, 4);
    FAULTS("movntdq %%xmm15, (%[m])\n vmovdqu (%[m]), %%ymm15\n", 0x1111, 0x2222, 3, 4);
    FAULTS("vpextrq $1, %%xmm15, (%[m])\n vmovdqu (%[m]), %%ymm15\n", 0x2222, 2, 3, 4);
    FAULTS("movmskps %%xmm15, %%eax\n movq %%rax, %%xmm2\n paddq (%[m]), %%xmm2\n movq %%xmm2, %%rax\n"
           "pinsrq $0, %%rax, %%xmm15\n", 1, 0x2222, 0x3333, 0x4444);
    // Others that fault while it is live.
    FAULTS("mov %[m], %%rdi\n mov $512, %%ecx\n xor %%eax, %%eax\n rep stosq\n", 0x1111, 0x2222, 0x3333, 0x4444);
    FAULTS("lea -512(%[m]), %%rsi\n mov %[m], %%rdi\n mov $1024, %%ecx\n rep movsb\n", 0x1111, 0x2222, 0x3333, 0x4444);
    FAULTS("fxsave64 -256(%[m])\n vzeroall\n fxrstor64 -256(%[m])\n", 0x1111, 0x2222, 0, 0);
    FAULTS("mov $7, %%eax\n xor %%edx, %%edx\n xsave64 -768(%[m])\n vzeroall\n mov $6, %%eax\n xrstor64 -768(%[m])\n",
           0x1111, 0x2222, 0x3333, 0x4444);

    // A handler that goes elsewhere, out of the middle of such an instruction.
    jumps = 1;
    for (volatile int i = 0; i < 20; i++) {
        close_page();
        int before = faults;
        if (!sigsetjmp(back, 1)) {
            WITH(out, "vpaddq (%[m]), %%ymm15, %%ymm15\n");
            CHECK(0);
        }
        CHECK(faults == before + 1 && !memcmp(seen, full, 32));
        WITH(out, "");
        CHECK(!memcmp(out, full, 32));
    }
    jumps = 0;
    CHECK(!mprotect(page, 4096, PROT_READ | PROT_WRITE));

    // An arithmetic fault, which is done again; an instruction that nobody has.
    uint32_t unmasked = 0x1d80, masked = 0x1f80;
    int before = faults;
    __asm__ volatile("vmovdqu %1, %%ymm15\n ldmxcsr %2\n vxorps %%xmm1, %%xmm1, %%xmm1\n divps %%xmm1, %%xmm15\n"
                     "ldmxcsr %3\n vmovdqu %%ymm15, %0\n"
                     : "=m"(out) : "m"(full), "m"(unmasked), "m"(masked) : "xmm1", "xmm15");
    CHECK(faults == before + 1 && !memcmp(seen, full, 32) && out[2] == 0x3333 && out[3] == 0x4444);
    before = faults;
    WITH(out, "ud2\n");
    CHECK(faults == before + 1 && !memcmp(seen, full, 32) && !memcmp(out, full, 32));

    // Step by step: the register as it is in front of each instruction.
    before = traps;
    WITH(out, "pushfq\n orq $0x100, (%%rsp)\n popfq\n"
              "nop\n paddq %%xmm15, %%xmm15\n nop\n vpaddq %%xmm15, %%xmm15, %%xmm15\n vpxor %%xmm15, %%xmm15, %%xmm15\n"
              "pushfq\n andq $~0x100, (%%rsp)\n popfq\n");
    CHECK(traps == before + 8);
    uint64_t firsts[8] = {0x1111, 0x2222, 0x2222, 0x4444, 0, 0, 0, 0};
    uint64_t lasts[8] = {0x4444, 0x4444, 0x4444, 0, 0, 0, 0, 0};
    for (int i = 0; i < 8; i++) CHECK(trace[i][0] == firsts[i] && trace[i][3] == lasts[i]);

    // Parts of the state: what is not asked for stays, what was never saved is zero.
    static uint8_t area[4096] __attribute__((aligned(64)));
    unsigned a, b, c, d;
    CHECK(__get_cpuid_count(13, 1, &a, &b, &c, &d));
    for (unsigned way = 0; way < 3; way++) {
        if (way == 1 && !(a & 1)) continue;
        if (way == 2 && !(a & 2)) continue;
        for (unsigned saved = 0; saved < 8; saved++) {
            for (unsigned loaded = 0; loaded < 8; loaded++) {
                memset(area, 0, sizeof area);
#define SAVE(x) \
    __asm__ volatile("vmovdqu %[in], %%ymm15\n mov %[saved], %%eax\n xor %%edx, %%edx\n " x " (%[area])\n" \
                     "vpaddq %%ymm15, %%ymm15, %%ymm15\n mov %[loaded], %%eax\n xor %%edx, %%edx\n xrstor64 (%[area])\n" \
                     "vmovdqu %%ymm15, %[to]\n" \
                     : [to] "=m"(out) : [in] "m"(full), [saved] "r"(saved), [loaded] "r"(loaded), [area] "r"(area) \
                     : "memory", "rax", "rdx", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", \
                       "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15")
                // Its control word is told even where no register is.
                *(uint32_t *)(area + 24) = 0x1f80;
                if (way == 0) SAVE("xsave64");
                else if (way == 1) SAVE("xsaveopt64");
                else SAVE("xsavec64");
                for (int i = 0; i < 4; i++) {
                    unsigned bit = i < 2 ? 2 : 4;
                    uint64_t value = !(loaded & bit) ? 2 * full[i] : saved & bit ? full[i] : 0;
                    CHECK(out[i] == value);
                }
            }
        }
    }

    // Where the instruction names memory in ways of its own: by rip, by fs, at an absolute address.
    static __thread Four local;
    static Four fixed;
    memcpy(local, full, 32), memcpy(fixed, full, 32);
    __asm__ volatile("vmovdqu %1, %%ymm15\n vpaddq %1, %%ymm15, %%ymm15\n vpaddq %2, %%ymm15, %%ymm15\n vmovdqu %%ymm15, %0\n"
                     : "=m"(out) : "m"(fixed), "m"(local) : "xmm15");
    for (int i = 0; i < 4; i++) CHECK(out[i] == 3 * full[i]);

    // Threads at once, while signals come in.
    struct itimerval timer = {{0, 1000}, {0, 1000}}, off = {0};
    setitimer(ITIMER_REAL, &timer, 0);
    pthread_t threads[4];
    for (uint64_t i = 0; i < 4; i++) CHECK(!pthread_create(&threads[i], 0, thread, (void *)(i * 1000 + 1)));
    for (int i = 0; i < 4; i++) CHECK(!pthread_join(threads[i], 0));
    // Without an end of their own: each instruction between two others that use it.
    for (int i = 0; i < 30; i++) {
        int from = ticks;
        Four sum = {0}, one = {1, 2, 3, 4};
        uint64_t rounds = 0;
        __asm__ volatile("vmovdqu %[one], %%ymm1\n vpxor %%ymm15, %%ymm15, %%ymm15\n"
                         "1: vpaddq %%ymm1, %%ymm15, %%ymm15\n movdqa %%xmm15, %%xmm2\n paddq %%xmm1, %%xmm15\n"
                         "psubq %%xmm1, %%xmm15\n inc %[rounds]\n cmpl %[from], %[ticks]\n je 1b\n vmovdqu %%ymm15, %[sum]\n"
                         : [sum] "=m"(sum), [rounds] "+r"(rounds) : [one] "m"(one), [from] "r"(from), [ticks] "m"(ticks)
                         : "memory", "xmm1", "xmm2", "xmm15");
        for (int k = 0; k < 4; k++) CHECK(sum[k] == rounds * (k + 1));
    }
    // A call that signals break off, and that the kernel starts again.
    int pipes[2];
    CHECK(!pipe(pipes));
    pid_t writer = fork();
    if (!writer) {
        setitimer(ITIMER_REAL, &off, 0);
        usleep(20000);
        _exit(write(pipes[1], "x", 1) != 1);
    }
    char byte;
    long number = SYS_read;
    __asm__ volatile("vmovdqu %[in], %%ymm15\n syscall\n vmovdqu %%ymm15, %[to]\n"
                     : "+a"(number), [to] "=m"(out) : [in] "m"(full), "D"((long)pipes[0]), "S"(&byte), "d"(1l)
                     : "memory", "rcx", "r11", "xmm15");
    CHECK(number == -EINTR || number == 1);
    CHECK(!memcmp(out, full, 32));
    setitimer(ITIMER_REAL, &off, 0);
    int status;
    CHECK(waitpid(writer, &status, 0) == writer && !status);

    // Children that share memory: what was in the register when they were made.
    for (int kind = 0; kind < 2; kind++) {
        memset(in_child, 0, 32);
        long flags = kind ? CLONE_VM | CLONE_VFORK | SIGCHLD : SIGCHLD | CLONE_VM | CLONE_VFORK | CLONE_FILES;
        long child = SYS_clone;
        __asm__ volatile("vmovdqu %[in], %%ymm15\n xor %%edx, %%edx\n xor %%r10d, %%r10d\n xor %%r8d, %%r8d\n syscall\n"
                         "test %%rax, %%rax\n jnz 1f\n vmovdqu %%ymm15, %[child]\n vpcmpeqb %%ymm15, %%ymm15, %%ymm15\n"
                         "mov $60, %%eax\n mov $3, %%edi\n syscall\n hlt\n 1: vmovdqu %%ymm15, %[to]\n"
                         : "+a"(child), [to] "=m"(out), [child] "=m"(in_child)
                         : [in] "m"(full), "D"(flags), "S"(child_stack + sizeof child_stack)
                         : "memory", "rcx", "r11", "rdx", "r8", "r10", "xmm15");
        CHECK(child > 0 && waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 3);
        CHECK(!memcmp(out, full, 32) && !memcmp(in_child, full, 32));
    }

    // Code that is made while the program runs: vmovdqu (%rdi), %ymm15; paddq %xmm15, %xmm15; vmovdqu %ymm15, (%rsi); ret
    static const uint8_t made[] = {0xc5, 0x7e, 0x6f, 0x3f, 0x66, 0x45, 0x0f, 0xd4, 0xff, 0xc5, 0x7e, 0x7f, 0x3e, 0xc3};
    uint8_t *code = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 5; i++) {
        memcpy(code + 64 * i, made, sizeof made);
        ((void (*)(const void *, void *))(code + 64 * i))(full, out);
        CHECK(out[0] == 0x2222 && out[1] == 0x4444 && out[2] == 0x3333 && out[3] == 0x4444);
        // Written over by itself: the instruction is not of the next one's page only.
        __asm__ volatile("vmovdqu %0, %%ymm15\n vmovdqu %%xmm15, 2048(%1)\n vmovdqu %%ymm15, %2"
                         : : "m"(full), "r"(code), "m"(*(Four *)out) : "memory", "xmm15");
        CHECK(!memcmp(out, full, 32));
    }
    puts("ok");
}
