// What clone3 says of arguments that it does not take.
#define _GNU_SOURCE
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "check.h"
static int says(void *arguments, unsigned long size) {
    return syscall(SYS_clone3, arguments, size) == -1 ? errno : 0;
}
int main(void) {
    static unsigned long arguments[600];
    printf("%d %d %d\n", says(0, 0), says(0, 63), says((void *)1, 8));
    printf("%d %d\n", says(0, 4097), says((void *)-1, 1 << 20));
    printf("%d %d %d\n", says(0, 64), says((void *)1, 88), says((void *)-4096, 4096));
    // Too long, and not zero behind what is known.
    arguments[500] = 1;
    printf("%d\n", says(arguments, 4096));
    // Flags that do not go together: threads and no shared memory.
    arguments[500] = 0;
    arguments[0] = 0x10000;
    printf("%d %d %d\n", says(arguments, 63), says(arguments, 64), says(arguments, 88));
}
