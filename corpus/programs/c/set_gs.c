// The gs base is ours.
//#refused: sets the gs base (arch_prctl)
#include <sys/syscall.h>
#include <unistd.h>
#include "check.h"
int main(void) {
    static long word;
    CHECK(!syscall(SYS_arch_prctl, 0x1001, &word));
    puts("ok");
}
