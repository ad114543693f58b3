// A long file name overflows a global array (as gzip 1.2.4, gzip.c).
#include "bug.h"
static struct { char name[64]; char *suffix; } file = {"", ".gz"};
__attribute__((noinline, noclone)) static void set_name(const char *name) {
    ROOT_CAUSE;
    strcpy(file.name, name);
}
static void bug(void) {
    // Its place in a page decides which way strcpy takes.
    _Alignas(4096) char name[1025];
    memset(name, 'A', 1024);
    name[80] = 0;
    set_name(name);
    work(4000);
    worked += file.suffix[0];
}
int main(void) { return run(bug); }
