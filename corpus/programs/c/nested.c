// Functions inside of functions: the code that reaches the outer one's variables is on the stack.
//#flags: -pthread
#include <pthread.h>
#include "check.h"
#include "gone.h"
static int __attribute__((noinline)) sum(int (*f)(int), int n) {
    int s = 0;
    for (int i = 0; i < n; i++) s += f(i);
    return s;
}
static long deep(int depth) {
    volatile char pad[3000];
    pad[depth] = depth;
    int k = depth;
    int add(int x) { return x + k + pad[depth]; }
    long r = sum(add, 3);
    k++;
    r += sum(add, 3);
    return depth ? r + deep(depth - 1) : r;
}
// Now one of them is at an address, now the other.
static int __attribute__((noinline)) plus(int k) {
    int add(int x) { return x + k; }
    return sum(add, 2);
}
static int __attribute__((noinline)) minus(int k) {
    int subtract(int x) { return x - k; }
    return sum(subtract, 2);
}
static void *other(void *depth) {
    long sum = deep((long)depth);
    going();
    return (void *)sum;
}
int main(void) {
    CHECK(deep(60) == 22509);
    pthread_t thread;
    void *result;
    before_going();
    CHECK(!pthread_create(&thread, 0, other, (void *)10L) && !join_gone(thread, &result));
    for (int i = 0; i < 2000; i++) CHECK(plus(i) + minus(i) == 2);
    CHECK((long)result == 759);
    puts("ok");
}
