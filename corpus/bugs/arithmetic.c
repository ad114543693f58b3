// A product is too large for its type: the buffer is smaller than what is written to it (as python 2.1.1,
// audioop.c).
#include "bug.h"
__attribute__((noinline, noclone)) static unsigned short size_of(unsigned count, unsigned width) {
    ROOT_CAUSE;
    return count * width;
}
static void bug(void) {
    unsigned count = 16388, width = 4;
    unsigned short size = size_of(count, width);
    static struct { char buffer[64]; char *next; } sound;
    static char silence[4];
    sound.next = silence;
    char *to = size <= sizeof sound.buffer ? sound.buffer : silence;
    for (unsigned i = 0; i < 20; i++) memset(to + i * width, 'D', width);
    worked += sound.next[0];
}
int main(void) { return run(bug); }
