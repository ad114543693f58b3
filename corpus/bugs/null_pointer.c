// A name is not set, and is used (as gnuplot 3.7.1, pslatex.trm).
#include "bug.h"
struct terminal { char *name; int lines; };
static struct terminal terminal = {"latex", 0};
__attribute__((noinline, noclone)) static void forget(struct terminal *t) {
    ROOT_CAUSE;
    t->name = 0;
}
static void bug(void) {
    forget(&terminal);
    work(100);
    worked += terminal.name[0];
}
int main(void) { return run(bug); }
