// Going on where nothing may be executed: what the processor says of it, in every way to get there.
//#oracle: no: it makes mappings
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include "check.h"
static sigjmp_buf out;
static unsigned char *base;
static const char *volatile what;
static void handler(int s, siginfo_t *info, void *context) {
    greg_t *g = ((ucontext_t *)context)->uc_mcontext.gregs;
    char *at = (char *)g[REG_RIP], *cr2 = (char *)g[REG_CR2], *address = info->si_addr;
    char *low = (char *)base, *high = low + 0x10000;
    // Relative, where a place is chosen by the kernel.
    if (at >= low && at < high) at = (char *)(at - low);
    if (cr2 >= low && cr2 < high) cr2 = (char *)(cr2 - low);
    if (address >= low && address < high) address = (char *)(address - low);
    int inside = at > (char *)0x10000000;
    if (address == at && inside) address = (char *)-1;
    printf("%s: signal %d code %d at %p, address %p, trap %d error %#x cr2 %p flags %#x\n", what, s, info->si_code,
           inside ? (void *)-1 : at, address, (int)g[REG_TRAPNO], (unsigned)g[REG_ERR], cr2, (unsigned)g[REG_EFL] & 0x10500);
    siglongjmp(out, 1);
}
static void go(const char *name, unsigned long target) {
    what = name;
    if (sigsetjmp(out, 1) == 0) ((void (*)(void))target)();
}
static void jump(const char *name, unsigned long target) {
    what = name;
    if (sigsetjmp(out, 1) == 0) __asm__ volatile("jmp *%0" : : "r"(target));
}
static void ret(const char *name, unsigned long target) {
    what = name;
    if (sigsetjmp(out, 1) == 0) __asm__ volatile("push %0; ret" : : "r"(target));
}
static void all(const char *name, unsigned long target) {
    go(name, target);
    jump(name, target);
    ret(name, target);
}
static void tell(int s, siginfo_t *info, void *context) {
    greg_t *g = ((ucontext_t *)context)->uc_mcontext.gregs;
    printf("sent: trap %d error %#x\n", (int)g[REG_TRAPNO], (unsigned)g[REG_ERR]);
}
int main(void) {
    static char stack[1 << 16];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&alternate, 0);
    struct sigaction a = {.sa_sigaction = tell, .sa_flags = SA_SIGINFO};
    sigaction(SIGUSR1, &a, 0);
    raise(SIGUSR1);
    a.sa_sigaction = handler;
    a.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int s = 1; s < 32; s++)
        if (s == SIGSEGV || s == SIGBUS || s == SIGILL) sigaction(s, &a, 0);
    base = mmap(0, 0x10000, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(base != MAP_FAILED);
    unsigned long b = (unsigned long)base;
    all("null", 0);
    all("low", 0x1234);
    base[0x100] = 0xc3;
    all("written", b + 0x100);
    all("never touched", b + 0x1000);
    (void)*(volatile char *)(base + 0x2000);
    all("only read", b + 0x2000);
    CHECK(mprotect(base + 0x3000, 0x1000, PROT_NONE) == 0);
    all("no rights", b + 0x3000);
    base[0x4000] = 1;
    CHECK(mprotect(base + 0x4000, 0x1000, PROT_NONE) == 0);
    all("no rights any more", b + 0x4000);
    CHECK(munmap(base + 0x5000, 0x1000) == 0);
    all("not mapped", b + 0x5008);
    all("not canonical", 0x800000000000);
    all("the kernel's", 0xffffffff81000000);
    all("in the page of old calls", 0xffffffffff600008);
    all("the last byte", 0xffffffffffffffff);
    all("not canonical, high", 0xdeadbeef12345678);
    raise(SIGUSR1);
    // Off the end of a page that is executable, and an instruction that is cut in two by the end.
    memset(base + 0x6000, 0x90, 0x1000);
    memset(base + 0x7000, 0x90, 0x1000);
    CHECK(mprotect(base + 0x6000, 0x1000, PROT_READ | PROT_EXEC) == 0);
    go("off the end", b + 0x6ff8);
    CHECK(mprotect(base + 0x6000, 0x1000, PROT_READ | PROT_WRITE) == 0);
    base[0x6fff] = 0x48;
    CHECK(mprotect(base + 0x6000, 0x1000, PROT_READ | PROT_EXEC) == 0);
    go("cut in two", b + 0x6fff);
    go("nops and cut in two", b + 0x6ff0);
    CHECK(munmap(base + 0x7000, 0x1000) == 0);
    go("cut in two, nothing behind", b + 0x6fff);
    // Behind the end of a file.
    char name[] = "/tmp/fetchXXXXXX";
    int fd = mkstemp(name);
    unlink(name);
    CHECK(fd >= 0 && write(fd, "\xc3", 1) == 1);
    unsigned char *file = mmap(base + 0x8000, 0x2000, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd, 0);
    CHECK(file == base + 0x8000);
    go("returns", b + 0x8000);
    all("behind the file", b + 0x9000);
    // Data of the program.
    static char data[16] = {1};
    base = (unsigned char *)((unsigned long)data & ~0xfffUL);
    go("data", (unsigned long)base + 0x10);
    raise(SIGUSR1);
    what = "store";
    if (sigsetjmp(out, 1) == 0) *(volatile int *)0x18 = 1;
    what = "load";
    if (sigsetjmp(out, 1) == 0) (void)*(volatile int *)0x2010;
    what = "ud2";
    if (sigsetjmp(out, 1) == 0) __asm__ volatile("ud2");
}
