// Many forks. Between them parent and child go on to functions that were not called before, by
// pointer and by return, and to code that changes.
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
#define FUNCTION(n) \
    __attribute__((noinline)) static unsigned f##n(unsigned x) { \
        volatile unsigned y = x * (2 * n + 1); \
        return y ^ (y >> 7) ^ n; \
    }
#define SOME(m, n) m(n##0) m(n##1) m(n##2) m(n##3) m(n##4) m(n##5) m(n##6) m(n##7)
#define ALL(m) SOME(m, 1) SOME(m, 2) SOME(m, 3) SOME(m, 4) SOME(m, 5) SOME(m, 6) SOME(m, 7) SOME(m, 8)
#define NAME(n) f##n,
ALL(FUNCTION)
static unsigned (*const functions[])(unsigned) = {ALL(NAME)};
enum { COUNT = sizeof functions / sizeof *functions };
static unsigned char *code;
// mov $value, %eax; ret
static void make(unsigned value) {
    unsigned char bytes[] = {0xb8, value, value >> 8, 0, 0, 0xc3};
    CHECK(!mprotect(code, 4096, PROT_READ | PROT_WRITE));
    memcpy(code, bytes, sizeof bytes);
    CHECK(!mprotect(code, 4096, PROT_READ | PROT_EXEC));
}
static unsigned made(void) { return ((unsigned (*)(void))code)(); }
static unsigned ended(pid_t pid) {
    int st;
    CHECK(waitpid(pid, &st, 0) == pid && WIFEXITED(st));
    return WEXITSTATUS(st);
}
int main(void) {
    unsigned sum = 1;
    code = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(code != MAP_FAILED);
    make(1);
    for (unsigned i = 0; i < 140; i++) {
        // Something new in the parent now and then, in the child another time.
        if (i % 5 == 0) sum = functions[i / 5 % COUNT](sum);
        if (i % 16 == 9) make(i);
        unsigned before = made();
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (!pid) {
            unsigned x = functions[(i * 7 + 3) % COUNT](sum);
            CHECK(made() == before);
            if (i % 3 == 0) {
                make(i + 1000);
                CHECK(made() == i + 1000);
            }
            if (i % 20 == 19) {
                pid = fork();
                if (!pid) _exit(functions[(i * 11 + 5) % COUNT](x) & 63);
                x += ended(pid);
            }
            _exit(x & 63);
        }
        if (i % 2) make(i + 2000);
        sum = sum * 3 + ended(pid);
        CHECK(made() == (i % 2 ? i + 2000 : before));
    }
    printf("sum %u\n", sum);
}
