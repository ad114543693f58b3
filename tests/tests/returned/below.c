/* Looks at the word that a return leaves below the stack pointer, as code does that was compiled with
 * -mspeculative-load-hardening: it is the address that was returned to. */
#include <stdio.h>

#define LOOK(setup, transfer, place)                                                        \
    ({                                                                                      \
        unsigned long seen, here;                                                           \
        asm volatile("sub $128, %%rsp\n\t" setup transfer "\n"                              \
                     "77: mov " place "(%%rsp), %0\n\tadd $128, %%rsp\n\t"                  \
                     "lea 77b(%%rip), %1"                                                   \
                     : "=&r"(seen), "=&r"(here)                                             \
                     : "r"(leaf)                                                            \
                     : "memory", "cc", "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11"); \
        seen == here;                                                                       \
    })

__attribute__((noinline, used)) static void leaf(void) { asm volatile(""); }
__attribute__((noinline, used)) static void calls(void) { leaf(); asm volatile(""); }
asm("pops: ret $16");

int main(void) {
    int right = 0;
    for (int i = 0; i < 1000; i++) {
        right += LOOK("", "call leaf", "-8");
        right += LOOK("", "call calls", "-8");
        right += LOOK("", "call *%2", "-8");
        right += LOOK("push %%rax; push %%rax; ", "call pops", "-24");
    }
    printf("%d of 4000\n", right);
    return right != 4000;
}
