// Code in System V shared memory that is attached with SHM_EXEC, written through another attachment.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/shm.h>
#include <sys/mman.h>
#include "check.h"
static sigjmp_buf back;
static void handler(int n) { siglongjmp(back, n); }
static int call(void *p, int x) { return ((int (*)(int))p)(x); }
int main(void) {
    signal(SIGSEGV, handler);
    int id = shmget(IPC_PRIVATE, 10000, IPC_CREAT | 0700);
    CHECK(id >= 0);
    unsigned char *w = shmat(id, 0, 0), *x = shmat(id, 0, SHM_EXEC | SHM_RDONLY), *both = shmat(id, 0, SHM_EXEC);
    CHECK(!shmctl(id, IPC_RMID, 0));
    CHECK(w != (void *)-1 && x != (void *)-1 && both != (void *)-1);
    for (int i = 0; i < 20; i++) {
        memcpy((i & 1 ? w : both) + 9000, (unsigned char[]){0x8d, 0x47, i, 0xc3}, 4);     // lea i(%rdi), %eax; ret
        CHECK(call(x + 9000, 1) == 1 + i);
        CHECK(call(both + 9000, 2) == 2 + i);
    }
    int got = sigsetjmp(back, 1);
    if (!got) call(w + 9000, 1);
    CHECK(got == SIGSEGV);
    got = sigsetjmp(back, 1);
    if (!got) *(volatile char *)x = 1;
    CHECK(got == SIGSEGV);
    CHECK(!mprotect(w, 12288, PROT_READ | PROT_EXEC));
    CHECK(call(w + 9000, 3) == 22);
    CHECK(!shmdt(x));
    got = sigsetjmp(back, 1);
    if (!got) call(x + 9000, 1);
    CHECK(got == SIGSEGV);
    CHECK(call(both + 9000, 5) == 24);
    puts("ok");
}
