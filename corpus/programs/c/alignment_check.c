// The test for a 486 that runtimes make: sets the alignment check flag, and calls and branches meanwhile.
//# flags: -mno-red-zone
//# oracle: no: a stepped popf shows the trap flag
#include <stdio.h>
static unsigned long toggle(unsigned long bits) { unsigned long a, b;
  __asm__ volatile("pushfq; pop %0; mov %0, %1; xor %2, %1; push %1; popfq; xor %%ecx,%%ecx; 1: inc %%ecx; push %%rcx; pop %%rdx; test $1,%%cl; jz 2f; lea (%%rcx),%%rdx; 2: cmp $1000,%%ecx; jb 1b; pushfq; pop %1; push %0; popfq" : "=&r"(a), "=&r"(b) : "r"(bits) : "rcx", "rdx", "cc", "memory"); return a ^ b; }
int main(void) { printf("%lx\n", toggle(0x40000) & 0x40000); return 0; }
