// A stack that lies across an address whose low half is zero.
//#variants: pie static
//#flags: -pthread
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#include "check.h"
#include "gone.h"
static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
static volatile int seen;
static void handler(int n) { seen += n; }
static long deep(int n) {
    volatile char room[200];
    memset((char *)room, n, sizeof room);
    if (!n) return room[7];
    int list[] = {n, 3, 9, 1, 7};
    qsort(list, 5, sizeof *list, compare);
    char text[64];
    snprintf(text, sizeof text, "%d %g", n, n / 8.0);
    if (n % 16 == 0) raise(SIGUSR1);
    return deep(n - 1) + list[0] + room[n % 200] + text[0];
}
static void *work(void *p) {
    (void)p;
    long sum = deep(120);
    going();
    return (void *)sum;
}
int main(void) {
    signal(SIGUSR1, handler);
    long sum = 0;
    for (unsigned long border = 0x500000000; border < 0x900000000; border += 0x100000000)
        for (long above = 0; above <= 0x10000; above += 0x8000) {
            char *at = (char *)border - 0x40000;
            CHECK(mmap(at, 0x80000, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == at);
            pthread_attr_t attr;
            CHECK(!pthread_attr_init(&attr) && !pthread_attr_setstack(&attr, at, 0x40000 + above + 0x2000));
            before_going();
            pthread_t t;
            void *result;
            CHECK(!pthread_create(&t, &attr, work, 0) && !join_gone(t, &result));
            sum += (long)result;
            munmap(at, 0x80000);
        }
    printf("%ld %d\n", sum, seen);
}
