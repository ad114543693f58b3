// Reads through a null pointer.
//#expect-signal: 11
#include "check.h"
int main(int argc, char **argv) { puts("before"); fflush(stdout); return *(volatile int *)(long)(argc - 1); }
