// backtrace() and dladdr through frames; every address is that of the original code.
//#flags: -rdynamic -ldl -fno-omit-frame-pointer
//#variants: pie no-pie O0
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <string.h>
#include "check.h"
__attribute__((noinline)) int inner(int n) {
    void *a[16];
    int got = backtrace(a, 16), found = 0;
    for (int i = 0; i < got; i++) {
        Dl_info info;
        if (dladdr(a[i], &info) && info.dli_sname) {
            found += !strcmp(info.dli_sname, "inner") + 10 * !strcmp(info.dli_sname, "middle")
                + 100 * !strcmp(info.dli_sname, "main");
            if (info.dli_sname[0] != '_') printf("%s\n", info.dli_sname);
        }
    }
    // By frame pointers: the return address lies behind the call of inner in middle.
    void **frame = __builtin_frame_address(0);
    Dl_info info;
    CHECK(dladdr(frame[1], &info) && !strcmp(info.dli_sname, "middle"));
    CHECK(((unsigned char *)frame[1])[-5] == 0xe8);
    CHECK(__builtin_return_address(0) == frame[1]);
    return found + n;
}
__attribute__((noinline)) int middle(int n) { return inner(n) + 1; }
int main(void) { CHECK(middle(0) == 112); puts("ok"); }
