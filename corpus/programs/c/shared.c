//#library
#include <stdio.h>
static __thread int mine;
__attribute__((constructor)) static void hello(void) { puts("loaded"); }
__attribute__((destructor)) static void bye(void) { puts("unloaded"); }
int shared_twice(int x) { return x * 2; }
int shared_apply(int x, int (*f)(int)) { return f(shared_twice(x) + 1); }
int shared_tls(void) { return ++mine; }
