// Handlers nest until the alternate stack is full: the kernel refuses the frame that does not fit.
//#expect-signal: 11
#include <signal.h>
#include <string.h>
#include <unistd.h>
#include "check.h"
static char memory[65536];
static int depth;
static void handler(int signal) {
    // What lies in front of the alternate stack is as it was.
    for (int i = 0; i < 16384; i++) CHECK(memory[i] == 7);
    write(1, "h\n", 2);
    if (++depth == 20) _exit(1);
    *(volatile int *)0 = signal;
}
int main(void) {
    memset(memory, 7, sizeof memory);
    stack_t stack = {memory + 16384, 0, 16384};
    CHECK(!sigaltstack(&stack, 0));
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_NODEFER | SA_ONSTACK};
    CHECK(!sigaction(SIGSEGV, &action, 0));
    *(volatile int *)0 = 1;
}
