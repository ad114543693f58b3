//#flags: -Os -Wl,-z,noseparate-code -Wl,-z,norelro -Wl,--build-id=none
// The ELF header as the program finds it in memory: at its start, and wherever else a segment begins
// in the file's first page. So that the data does, nothing here is large.
#include <elf.h>
#include <string.h>
#include <unistd.h>
#define CHECK(x) if (!(x)) _exit(__LINE__)
extern const Elf64_Ehdr __ehdr_start;
extern int _start();
static volatile int data = 7;
static int is_ours(const Elf64_Ehdr *header) {
    if (memcmp(header->e_ident, ELFMAG, SELFMAG)) return 0;
    const Elf64_Phdr *table = (const Elf64_Phdr *)((const char *)header + header->e_phoff);
    int loads = 0;
    for (int i = 0; i < header->e_phnum; i++) loads += table[i].p_type == PT_LOAD;
    // All that the linker has made.
    CHECK(loads == 2);
    unsigned long start = (unsigned long)_start;
    CHECK(header->e_entry == start || header->e_entry == start - (unsigned long)&__ehdr_start);
    return 1;
}
int main(void) {
    CHECK(is_ours(&__ehdr_start));
    // The data of a static program lies further back in the file.
    int again = is_ours((const Elf64_Ehdr *)((unsigned long)&data & -4096ul));
#ifdef __PIE__
    CHECK(again);
#endif
    data += again;
    CHECK(data == 7 + again);
    CHECK(write(1, "ok\n", 3) == 3);
}
