// Returns that lead far away: into generated code that called back, with a high half that is wrong,
// to an address that is not canonical, where the stack's end cuts through the address.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include "check.h"

static sigjmp_buf back;
static volatile uint64_t fault_pc, fault_address, fault_sp;
static void handler(int n, siginfo_t *info, void *context) {
    (void)n;
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    fault_pc = r[REG_RIP];
    fault_sp = r[REG_RSP];
    fault_address = (uint64_t)info->si_addr;
    siglongjmp(back, 1);
}

// Each is left by a fault, or by its caller's return.
void high_half_changed(uint32_t high), popped(uint32_t high), return_on(void *sp);
extern char popped_ret[], on_ret[];
__asm__(".text\n"
        "high_half_changed: movl %edi, 4(%rsp)\n ret\n"
        "popped: movl %edi, 4(%rsp)\n popped_ret: ret $24\n"
        "return_on: mov %rdi, %rsp\n on_ret: ret\n");

static int calls;
static int callback(int x) { calls++; return x + 1; }

static void expect_fault(void (*f)(uint32_t), uint32_t high) {
    if (!sigsetjmp(back, 1)) {
        f(high);
        CHECK(!"reached");
    }
}

int main(void) {
    stack_t alt = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    CHECK(!sigaltstack(&alt, 0));
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    CHECK(!sigaction(SIGSEGV, &action, 0));

    // Generated code at several distances calls back, many times each.
    uintptr_t places[] = {0x1000000000, 0x200000000000, 0x7e0000000000};
    for (int i = 0; i < 3; i++) {
        unsigned char *p = mmap((void *)places[i], 4096, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        CHECK(p == (void *)places[i]);
        // push rbx; mov rbx, rsi; sub rsp, 0; call rbx; pop rbx; ret
        memcpy(p, (unsigned char[]){0x53, 0x48, 0x89, 0xf3, 0xff, 0xd3, 0x5b, 0xc3}, 8);
        CHECK(!mprotect(p, 4096, PROT_READ | PROT_EXEC));
        int x = 0;
        for (int n = 0; n < 2000; n++) x = ((int (*)(int, int (*)(int)))p)(x, callback);
        CHECK(x == 2000);
    }
    CHECK(calls == 6000);

    // The low half is that of a return address, the high half is nobody's, or was generated code's.
    uint32_t highs[] = {0, 0x10, 0x1234, 0x2000, 0x7e00, 0x7fff};
    for (int i = 0; i < 6; i++) {
        if (highs[i] == (uintptr_t)main >> 32) continue;
        expect_fault(high_half_changed, highs[i]);
        CHECK(fault_pc >> 32 == highs[i] && fault_address == fault_pc);
        CHECK((uint32_t)fault_pc - (uint32_t)(uintptr_t)expect_fault < 4096);
    }
    // Not canonical: the return itself faults, with its stack as it was.
    expect_fault(popped, 0x8000);
    CHECK(fault_pc == (uintptr_t)popped_ret && !fault_address);
    uint64_t sp = fault_sp;
    expect_fault(popped, 0xdeadbeef);
    CHECK(fault_pc == (uintptr_t)popped_ret && fault_sp == sp);

    // The eight bytes end behind the end of memory: that is where the processor looks.
    char *end = (char *)mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + 4096;
    CHECK(!mprotect(end, 4096, PROT_NONE));
    for (int inside = 0; inside < 8; inside++) {
        if (!sigsetjmp(back, 1)) {
            return_on(end - inside);
            CHECK(!"reached");
        }
        CHECK(fault_pc == (uintptr_t)on_ret && fault_address == (uintptr_t)end);
        CHECK(fault_sp == (uintptr_t)end - inside);
    }
    puts("ok");
}
