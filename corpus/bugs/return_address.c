// A long file name overwrites a return address on the stack (as ncompress 4.2.4, compress42.c).
#include "bug.h"
__attribute__((noinline, noclone)) static void compress(const char *name) {
    char copy[64];
    const char *from = name;
    ROOT_CAUSE;
    for (char *to = copy; (*to = *from); to++, from++) {}
    work(2000);
    worked += copy[3];
}
static void bug(void) {
    static char name[1025];
    memset(name, 'A', 200);
    compress(name);
}
int main(void) { return run(bug); }
