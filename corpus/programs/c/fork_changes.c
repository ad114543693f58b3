// Code that changes while the process forks and forks, first alone and then beside another thread, and that
// is not called in between.
//#flags: -pthread
//#oracle: no: threads run as they please
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
enum { PAGES = 8 };
static unsigned char *code[PAGES];
// Every other page can be written to and executed at once.
static void make(int page, unsigned value) {
    // mov $value, %eax; ret
    unsigned char bytes[] = {0xb8, value, value >> 8, 0, 0, 0xc3};
    if (page % 2) CHECK(!mprotect(code[page], 4096, PROT_READ | PROT_WRITE));
    memcpy(code[page], bytes, sizeof bytes);
    if (page % 2) CHECK(!mprotect(code[page], 4096, PROT_READ | PROT_EXEC));
}
static unsigned call(int page) { return ((unsigned (*)(void))code[page])(); }
static void forks(int count) {
    for (int i = 0; i < count; i++) {
        int st;
        pid_t pid = fork();
        if (!pid) _exit(i & 63);
        CHECK(waitpid(pid, &st, 0) == pid && WIFEXITED(st) && WEXITSTATUS(st) == (i & 63));
    }
}
static void *waits(void *pipe) {
    char byte;
    return (void *)read(*(int *)pipe, &byte, 1);
}
int main(void) {
    const int all = PROT_READ | PROT_WRITE | PROT_EXEC, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    int ends[2];
    for (int i = 0; i < PAGES; i++) {
        code[i] = mmap(0, 1 << 16, all, flags, -1, 0);
        CHECK(code[i] != MAP_FAILED);
        make(i, i);
        CHECK(call(i) == i);
    }
    forks(70);
    for (int i = 0; i < PAGES; i += 3) make(i, 100 + i);
    forks(70);
    for (int i = 0; i < PAGES; i++) CHECK(call(i) == (i % 3 ? i : 100 + i));
    forks(120);
    for (int i = 0; i < PAGES; i++) make(i, 200 + i);
    // (Beside another thread the tables stay where they are.)
    CHECK(!pipe(ends));
    pthread_t t;
    CHECK(!pthread_create(&t, 0, waits, &ends[0]));
    forks(260);
    for (int i = 0; i < PAGES; i++) CHECK(call(i) == 200 + i);
    CHECK(write(ends[1], "", 1) == 1 && !pthread_join(t, 0));
    puts("ok");
}
