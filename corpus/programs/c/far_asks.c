// An instruction that asks the machine, with a pc-relative operand, in generated code at several distances: what
// stands behind it goes on with all registers as they were, and a fault in it is its own.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include "check.h"

static sigjmp_buf back;
static volatile uint64_t fault_pc, fault_address;
static void handler(int n, siginfo_t *info, void *context) {
    (void)n;
    fault_pc = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    fault_address = (uint64_t)info->si_addr;
    siglongjmp(back, 1);
}

// Registers 0 to 14 without rsp are filled, `verr` asks of the selector behind the code, and the registers are summed.
static uint64_t expected(int readable) {
    uint64_t sum = 0;
    for (int r = 0; r < 15; r++)
        if (r != 4) sum += 0x1111 * (r + 1);
    return sum + readable;
}

static unsigned char *emit(unsigned char *p) {
    const unsigned char pushes[] = {0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57};
    memcpy(p, pushes, sizeof pushes);
    p += sizeof pushes;
    for (int r = 0; r < 15; r++) {
        if (r == 4) continue;
        *p++ = r < 8 ? 0x48 : 0x49, *p++ = 0xc7, *p++ = 0xc0 | (r & 7);
        uint32_t value = 0x1111 * (r + 1);
        memcpy(p, &value, 4), p += 4;
    }
    return p;
}

int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    CHECK(!sigaction(SIGSEGV, &action, 0));
    uint16_t cs;
    __asm__("mov %%cs, %0" : "=r"(cs));
    uintptr_t places[] = {0x1000000000, 0x200000000000, 0x7e0000000000};
    for (int i = 0; i < 3; i++) {
        unsigned char *page = mmap((void *)places[i], 3 * 4096, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        CHECK(page == (void *)places[i]);
        unsigned char *p = emit(page);
        // verr [rip + distance]
        unsigned char *ask = p;
        uint32_t distance = (uint32_t)(page + 4096 - (ask + 7));
        *p++ = 0x0f, *p++ = 0x00, *p++ = 0x25;
        memcpy(p, &distance, 4), p += 4;
        // setz r15b; movzx r15, r15b
        const unsigned char flag[] = {0x41, 0x0f, 0x94, 0xc7, 0x4d, 0x0f, 0xb6, 0xff};
        memcpy(p, flag, sizeof flag), p += sizeof flag;
        for (int r = 1; r < 16; r++) {
            if (r == 4) continue;
            // add rax, r
            *p++ = r < 8 ? 0x48 : 0x4c, *p++ = 0x01, *p++ = 0xc0 | (r & 7) << 3;
        }
        const unsigned char pops[] = {0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5d, 0x5b, 0xc3};
        memcpy(p, pops, sizeof pops);
        CHECK(!mprotect(page, 4096, PROT_READ | PROT_EXEC));
        uint64_t (*f)(void) = (uint64_t (*)(void))page;
        uint16_t *selector = (uint16_t *)(page + 4096);
        for (int n = 0; n < 100; n++) {
            *selector = n & 1 ? cs : 0;
            CHECK(f() == expected(n & 1));
        }
        CHECK(!mprotect(selector, 4096, PROT_NONE));
        if (!sigsetjmp(back, 1)) {
            f();
            CHECK(!"reached");
        }
        CHECK(fault_pc == (uint64_t)ask && fault_address == (uint64_t)selector);
    }
    puts("ok");
    return 0;
}
