// A loop goes on too far and writes behind a table of pointers (as tar 1.13.25, prepargs.c).
#include "bug.h"
static char *table[8];
static char *behind = "fine";
static struct { char *arguments[8]; char *end; } made;
__attribute__((noinline, noclone)) static void prepare(int count) {
    for (int i = 0; i <= count; i++) {
        ROOT_CAUSE;
        made.arguments[i] = (char *)(long)0x4242424242424242;
    }
}
static void bug(void) {
    made.end = behind;
    prepare(8);
    work(800);
    worked += made.end[0];
}
int main(void) { return run(bug); }
