// A function that is obsolete is no longer there, and is called (as w3m 0.3.2.2, istream.c).
#include "bug.h"
struct stream { int (*read)(void); int (*close)(void); };
static int nothing(void) { return 0; }
static struct stream stream = {nothing, nothing};
__attribute__((noinline, noclone)) static void reset(struct stream *s) {
    ROOT_CAUSE;
    s->close = 0;
}
static void bug(void) {
    reset(&stream);
    for (int i = 0; i < 20; i++) { worked += stream.read(); work(300); }
    worked += stream.close();
}
int main(void) { return run(bug); }
