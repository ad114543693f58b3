// One thread gives memory back that another one still writes to (as napster 1.5.2, nap.c).
//#threads
#include "bug.h"
struct window { long width; long *cells; };
static struct window *window;
static pthread_barrier_t step;
__attribute__((noinline, noclone)) static void resize(void) {
    ROOT_CAUSE;
    free(window);
}
static void *resizer(void *unused) {
    resize();
    char *text = malloc(sizeof *window);
    fill(text, 'E', sizeof *window);
    pthread_barrier_wait(&step);
    work(100000);
    for (;;) pause();
    return unused;
}
static void *painter(void *unused) {
    pthread_barrier_wait(&step);
    work(20000);
    // What the other thread's memory holds now.
    window->cells[1] = 5;
    return unused;
}
int main(void) {
    pthread_t threads[2];
    static long cells[8];
    pthread_barrier_init(&step, 0, 2);
    window = malloc(sizeof *window);
    window->cells = cells;
    pthread_create(&threads[0], 0, resizer, 0);
    pthread_create(&threads[1], 0, painter, 0);
    pthread_join(threads[1], 0);
    return 0;
}
