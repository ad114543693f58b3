// Pieces of System V shared memory with code, attached side by side with the same rights: each goes alone.
//#except: undo: what was stored through an attachment that is gone is seen through another one
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
    int got, id = shmget(IPC_PRIVATE, 10000, IPC_CREAT | 0700);
    CHECK(id >= 0);
    unsigned char *place = mmap(0, 3 * 12288, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *at[3];
    for (int i = 0; i < 3; i++) {
        at[i] = shmat(id, place + i * 12288, SHM_EXEC | SHM_REMAP);
        CHECK(at[i] == place + i * 12288);
        memcpy(at[i] + 9000, (unsigned char[]){0x8d, 0x47, i, 0xc3}, 4);
        for (int k = 0; k <= i; k++) CHECK(call(at[k] + 9000, 1) == 1 + i);
    }
    CHECK(!mprotect(at[0], 4096, PROT_READ));
    for (int gone = 0; gone < 2; gone++) {
        CHECK(!shmdt(at[gone]));
        got = sigsetjmp(back, 1);
        if (!got) call(at[gone] + 9000, 1);
        CHECK(got == SIGSEGV && call(at[2] + 9000, 1) == 3);
    }
    CHECK(!shmctl(id, IPC_RMID, 0));
    puts("ok");
}
