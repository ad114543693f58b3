// Two threads: one writes down who comes, the other one greets them.
#include <pthread.h>
#include <stdio.h>

struct visitor { char name[8]; void (*greet)(const char *); };
static struct visitor visitors[1000];
static pthread_barrier_t written;

static void hello(const char *name) { if (name[0] == 'z') puts(name); }

static void write_down(struct visitor *visitor, const char *name) {
    int i = 0;
    visitor->greet = hello;
    do visitor->name[i] = name[i]; while (name[i++]);
}

static void *write_all(void *unused) {
    for (int n = 0; n < 1000; n++) write_down(&visitors[n], n == 700 ? "annabelle" : "ada");
    pthread_barrier_wait(&written);
    return unused;
}

static void *greet_all(void *unused) {
    pthread_barrier_wait(&written);
    for (int n = 0; n < 1000; n++) visitors[n].greet(visitors[n].name);
    return unused;
}

int main(void) {
    pthread_t threads[2];
    pthread_barrier_init(&written, 0, 2);
    pthread_create(&threads[0], 0, write_all, 0);
    pthread_create(&threads[1], 0, greet_all, 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
}
