// Returns from a stack that can only be read: a return reads its address, and writes nothing.
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include "check.h"
int returned;
// Returns to where `at` points, from a stack there, and comes back.
void from(void *at);
void from_and_pop(void *at);
__asm__(
    "from: push %rbx\n"
    "mov %rsp, %rbx\n"
    "mov %rdi, %rsp\n"
    "ret\n"
    "from_and_pop: push %rbx\n"
    "mov %rsp, %rbx\n"
    "mov %rdi, %rsp\n"
    "ret $16\n"
    "first: lea 8(%rdi), %rax\n"
    "cmp %rax, %rsp\n"
    "jne 1f\n"
    "incl returned(%rip)\n"
    "1: mov %rbx, %rsp\n"
    "pop %rbx\n"
    "ret\n"
    "second: lea 24(%rdi), %rax\n"
    "cmp %rax, %rsp\n"
    "jne 1f\n"
    "incl returned(%rip)\n"
    "1: mov %rbx, %rsp\n"
    "pop %rbx\n"
    "ret\n");
extern char first[], second[];
int main(void) {
    void **stack = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED);
    for (int i = 0; i < 20; i++) {
        int writable = i % 4 == 0 ? PROT_WRITE : 0;
        CHECK(!mprotect(stack, 8192, PROT_READ | PROT_WRITE));
        stack[512] = first;
        stack[600] = second;
        CHECK(!mprotect(stack, 8192, PROT_READ | writable));
        from(stack + 512);
        from_and_pop(stack + 600);
        CHECK(returned == 2 * i + 2);
        CHECK(writable || (stack[512] == first && stack[600] == second));
    }
    puts("ok");
    return 0;
}
