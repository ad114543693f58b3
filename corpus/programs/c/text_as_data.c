// Checksums the program's own text and headers, compares functions byte by byte.
//#variants: pie no-pie static
#include <elf.h>
#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>
#include "check.h"
extern const char __ehdr_start[], etext[];
__attribute__((noinline)) int twin1(int x) { return x * 3 + 1; }
__attribute__((noinline)) int twin2(int x) { __asm__ volatile(""); return x * 3 + 1; }
int main(void) {
    uint32_t h = 0;
    const Elf64_Ehdr *e = (const void *)__ehdr_start;
    CHECK(!memcmp(e->e_ident, ELFMAG, 4));
    const Elf64_Phdr *ph = (const void *)getauxval(AT_PHDR);
    CHECK((const char *)ph == __ehdr_start + e->e_phoff && getauxval(AT_PHNUM) == e->e_phnum);
    for (int i = 0; i < e->e_phnum; i++) {
        if (ph[i].p_type != PT_LOAD || !(ph[i].p_flags & PF_X)) continue;
        const unsigned char *p = (const void *)((e->e_type == ET_DYN ? __ehdr_start : 0) + ph[i].p_vaddr);
        for (size_t k = 0; k < ph[i].p_filesz && k < 3000; k++) h = h * 31 + p[k];
    }
    CHECK(!memcmp((void *)twin1, (void *)twin2, 4) && twin1(4) == twin2(4));
    printf("ok %u\n", h);
}
