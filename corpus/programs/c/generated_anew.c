// Code behind a branch that is written anew time and again, with other instructions each time: of other
// lengths, with other references, with branches. What was there before has run.
#include <string.h>
#include <sys/mman.h>
#include "check.h"
typedef long (*function)(long *);
enum { BEHIND = 2 };
static unsigned char *page;
static const struct {
    const char *code;
    int len;
    long result;
} bodies[] = {
    // mov (%rdi),%rax; add 8(%rdi),%rax; ret
    {"\x48\x8b\x07\x48\x03\x47\x08\xc3", 8, 30},
    // xor %eax,%eax; ret
    {"\x31\xc0\xc3", 3, 0},
    // mov 16(%rdi),%rax; ret
    {"\x48\x8b\x47\x10\xc3", 5, 30},
    // mov (%rdi),%rax; test %rax,%rax; jne to the ret; xor %eax,%eax; ret
    {"\x48\x8b\x07\x48\x85\xc0\x75\x02\x31\xc0\xc3", 11, 10},
    // push %rdi; pop %rax; mov 8(%rax),%eax; ret
    {"\x57\x58\x8b\x40\x08\xc3", 6, 20},
};
int main(void) {
    long values[] = {10, 20, 30};
    page = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    // jmp to what follows.
    memcpy(page, "\xeb\x00", BEHIND);
    enum { COUNT = sizeof bodies / sizeof *bodies };
    for (int round = 0; round < 40; round++) {
        int i = (round * 7 + round / 3) % COUNT;
        memcpy(page + BEHIND, bodies[i].code, bodies[i].len);
        for (int again = 0; again < 3; again++) CHECK(((function)page)(values) == bodies[i].result);
    }
    return 0;
}
