// Code that changes the instruction after the next.
#include <string.h>
#include <sys/mman.h>
#include "check.h"
int main(void) {
    unsigned char *p = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    // incb 6+1(%rip): the immediate of the instruction after next is bumped on every call.
    unsigned char self[] = {0xfe, 0x05, 0x02, 0, 0, 0, 0x90, 0xb8, 0, 0, 0, 0, 0xc3};
    memcpy(p, self, sizeof self);
    for (int i = 1; i < 50; i++) CHECK(((int (*)(void))p)() == i);
    puts("ok");
}
