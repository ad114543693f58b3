// The wrong variable bounds a loop over one heap object, which overwrites the next one (as bc 1.06,
// storage.c).
#include "bug.h"
struct array { long count; long *values; };
static struct array *numbers, *names;
__attribute__((noinline, noclone)) static void grow(long old_count, long new_count) {
    long *room = malloc(old_count * sizeof(long));
    struct array *next = malloc(sizeof *next);
    next->count = 2;
    next->values = calloc(2, sizeof(long));
    names = next;
    for (long i = 0; i < new_count; i++) {
        ROOT_CAUSE;
        room[i] = 0x4141414141414141;
    }
    numbers->values = room;
}
static void bug(void) {
    numbers = calloc(1, sizeof *numbers);
    grow(8, 14);
    work(50);
    worked += names->values[0];
}
int main(void) { return run(bug); }
