// One thread removes an entry of a list that another one is about to use (as gaim 0.82.1, gtkdialogs.c).
//#threads
#include "bug.h"
struct buddy { char *name; struct buddy *next; };
static struct buddy *list;
static pthread_barrier_t step;
__attribute__((noinline, noclone)) static void remove_first(void) {
    ROOT_CAUSE;
    list = 0;
}
static void *remover(void *unused) {
    remove_first();
    work(1000);
    pthread_barrier_wait(&step);
    for (;;) pause();
    return unused;
}
int main(void) {
    pthread_t thread;
    list = calloc(1, sizeof *list);
    list->name = "somebody";
    pthread_barrier_init(&step, 0, 2);
    pthread_create(&thread, 0, remover, 0);
    pthread_barrier_wait(&step);
    work(5000);
    worked += list->name[0];
    return 0;
}
