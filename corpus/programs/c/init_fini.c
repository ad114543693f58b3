// Constructors, init and fini arrays with priorities, atexit; main returns a status.
//#expect-status: 3
//#variants: pie no-pie static static-pie
#include "check.h"
__attribute__((constructor(101))) static void c1(void) { puts("c1"); }
__attribute__((constructor(102))) static void c2(void) { puts("c2"); }
__attribute__((destructor(101))) static void d1(void) { puts("d1"); }
__attribute__((destructor(102))) static void d2(void) { puts("d2"); fflush(stdout); }
static void init(int argc, char **argv, char **envp) { printf("init %d %d\n", argc, envp == argv + argc + 1); }
__attribute__((section(".init_array"), used)) static void *entry = init;
static void bye(void) { puts("bye"); }
int main(void) { atexit(bye); puts("main"); return 3; }
