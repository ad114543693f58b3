// Calls a shared library through the PLT, lazily and at once, and data through a copy relocation.
//#link: plt.c
//#variants: pie no-pie noplt
#include "check.h"
extern int plt_add(int, int), plt_counter;
extern int plt_call(int (*)(int), int);
static int triple(int x) { return x * 3; }
int main(void) {
    int (*volatile p)(int, int) = plt_add;
    for (int i = 0; i < 5; i++) CHECK(plt_add(i, 2) == i + 2);
    CHECK(p(1, 2) == 3 && plt_counter == 6);
    plt_counter = 40;
    CHECK(plt_call(triple, 5) == 15 && plt_counter == 41);
    puts("ok");
}
