// abort() with a SIGABRT handler that returns.
//#expect-signal: 6
#include <signal.h>
#include <unistd.h>
#include "check.h"
static void h(int s) { if (write(1, "handler\n", 8)) (void)s; }
int main(void) { signal(SIGABRT, h); abort(); }
