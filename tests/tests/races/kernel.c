// The kernel writes for one thread, and reads for another, what a third one uses.
//#race: reads uses
//#race: writes changes
#include <pthread.h>
#include <stdio.h>
#include <fcntl.h>
#include <unistd.h>
#include <sys/syscall.h>
static volatile char in[32], out[32];
static int zeros, sink;
static pthread_barrier_t start;
#define CALL(number, a, b, c) ({ long r; __asm__ volatile("syscall" : "=a"(r) : "0"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory"); r; })
__attribute__((noinline)) static void reads(void) { CALL(SYS_read, zeros, in, 16); }
__attribute__((noinline)) static int uses(void) { return in[3]; }
__attribute__((noinline)) static void writes(void) { CALL(SYS_write, sink, out, 16); }
__attribute__((noinline)) static void changes(void) { out[5] = 1; }
static void *of_kernel(void *unused) {
    pthread_barrier_wait(&start);
    reads();
    writes();
    return unused;
}
static void *own(void *unused) {
    pthread_barrier_wait(&start);
    if (uses() > 100) return unused;
    changes();
    return unused;
}
int main(void) {
    pthread_t threads[2];
    zeros = open("/dev/zero", O_RDONLY);
    sink = open("/dev/null", O_WRONLY);
    pthread_barrier_init(&start, 0, 2);
    pthread_create(&threads[0], 0, of_kernel, 0);
    pthread_create(&threads[1], 0, own, 0);
    pthread_join(threads[0], 0);
    pthread_join(threads[1], 0);
    puts("done");
}
