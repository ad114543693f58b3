// Mappings of /dev/zero, more than there are addresses, and all memory locked while a file is shared.
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include "check.h"
enum { PAGE = 4096 };
int main(void) {
    int zeros = open("/dev/zero", O_RDWR);
    char *own = mmap(0, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, zeros, 0);
    void *none = mmap(0, PAGE, PROT_NONE, MAP_PRIVATE, zeros, 0);
    CHECK(own != MAP_FAILED && none != MAP_FAILED);
    CHECK(own[PAGE] == 0);
    own[PAGE] = 7;
    CHECK(munmap(none, PAGE) == 0 && munmap(none, PAGE) == 0);
    CHECK(mmap(own, -(size_t)PAGE, PROT_READ, MAP_FIXED | MAP_PRIVATE, zeros, 0) == MAP_FAILED);
    CHECK(errno == ENOMEM);
    CHECK(own[PAGE] == 7 && own[2 * PAGE] == 0);

    int file = shm_open("/odd_mappings", O_RDWR | O_CREAT, 0600);
    CHECK(file >= 0 && shm_unlink("/odd_mappings") == 0 && ftruncate(file, PAGE) == 0);
    char *both = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(both != MAP_FAILED);
    both[0] = own[PAGE];
    if (mlockall(MCL_CURRENT) == 0) {
        CHECK(msync(both, PAGE, MS_SYNC | MS_INVALIDATE) == -1 && errno == EBUSY);
        CHECK(munlockall() == 0);
    } else {
        // Not everybody may.
        CHECK(errno == EPERM || errno == ENOMEM);
    }
    CHECK(msync(both, PAGE, MS_SYNC | MS_INVALIDATE) == 0);
    printf("%d\n", both[0]);
    return 0;
}
