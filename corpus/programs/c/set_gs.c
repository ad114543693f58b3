// The gs base is set, and nothing is reached by way of it.
#include <sys/syscall.h>
#include <unistd.h>
#include "check.h"
int main(void) {
    static long word;
    CHECK(!syscall(SYS_arch_prctl, 0x1001, &word));
    puts("ok");
}
