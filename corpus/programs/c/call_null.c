// Calls through a null pointer: the fault is at address 0, the return address on the stack.
//#expect-signal: 11
#include "check.h"
int main(int argc, char **argv) { puts("before"); fflush(stdout); ((void (*volatile)(void))(long)(argc - 1))(); }
