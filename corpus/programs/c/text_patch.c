// The program changes its own text segment: patched while it is writable and executable, patched
// while it is not executable, and patched in a function that was never called before. What is
// patched has pages of its own.
#include <string.h>
#include <sys/mman.h>
#include "check.h"
// mov eax, imm32; ret: the imm32 is the second byte on.
#define NUMBER(name, value) \
    __asm__(".text\n.p2align 12\n.globl " #name "\n.type " #name ",@function\n" #name \
            ": mov $" #value ", %eax\n ret\n.size " #name ", .-" #name "\n.p2align 12"); \
    extern int name(void)
NUMBER(one, 1);
NUMBER(two, 2);
NUMBER(never_called, 3);
static int through(int (*f)(void)) { return f() + one(); }
static void set(int (*f)(void), int value) { memcpy((char *)f + 1, &value, 4); }
static void protect(int (*f)(void), int prot) { CHECK(!mprotect((void *)f, 4096, prot)); }
int main(void) {
    CHECK(one() == 1 && two() == 2 && through(two) == 3);
    protect(one, PROT_READ | PROT_WRITE | PROT_EXEC);
    set(one, 10);
    CHECK(one() == 10 && through(two) == 12);
    set(one, 11);
    CHECK(one() == 11 && through(two) == 13);
    protect(one, PROT_READ | PROT_EXEC);
    CHECK(one() == 11 && through(one) == 22);
    protect(two, PROT_READ | PROT_WRITE);
    set(two, 20);
    protect(two, PROT_READ | PROT_EXEC);
    protect(never_called, PROT_READ | PROT_WRITE);
    set(never_called, 30);
    protect(never_called, PROT_READ | PROT_EXEC);
    CHECK(two() == 20 && never_called() == 30 && through(never_called) == 41);
    puts("ok");
}
