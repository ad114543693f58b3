// Ways to end, chosen by the argument of its siblings: this one by _exit without flushing.
//#expect-status: 9
#include <unistd.h>
#include "check.h"
int main(void) { printf("never flushed"); if (write(1, "ok\n", 3) != 3) return 1; _exit(9); }
