// A thread goes on with what its maker changes behind pthread_create, and with what was copied for it.
//#race: main copies
//#race: main later
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
static char *volatile block;
static volatile int later_on;
__attribute__((noinline)) static int later(void) { return later_on; }
__attribute__((noinline)) static int copies(void) {
    int sum = 0;
    for (int i = 0; i < 40; i++) sum += ((volatile char *)block)[i];
    return sum;
}
static void *work(void *unused) { return (void *)(long)(copies() + later()); }
int main(void) {
    pthread_t thread;
    block = malloc(64);
    memset(block, 1, 64);
    pthread_create(&thread, 0, work, 0);
    for (int i = 0; i < 40; i++) ((volatile char *)block)[i] = 2;
    later_on = 5;
    pthread_join(thread, 0);
    free(block);
    puts("done");
}
