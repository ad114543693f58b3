// An object is used after it was freed and its memory belongs to another one (as ghostscript 8.12,
// ttobjs.c).
#include "bug.h"
struct font { long size; long (*glyph)(long); long *points; };
static struct font *cached;
__attribute__((noinline, noclone)) static void release(struct font *font) {
    ROOT_CAUSE;
    free(font);
}
static void bug(void) {
    static long points[4];
    cached = malloc(sizeof *cached);
    cached->points = points;
    release(cached);
    char *text = malloc(sizeof *cached);
    fill(text, 'C', sizeof *cached);
    work(30000);
    worked += cached->points[2];
}
int main(void) { return run(bug); }
