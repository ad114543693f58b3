// What the kernel hands over: argv[0], AT_EXECFN, AT_ENTRY, AT_PHDR, AT_PAGESZ, stack order, /proc/self/exe.
//#variants: pie no-pie static static-pie
//#args: --flag value
#define _GNU_SOURCE
#include <link.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>
#include "check.h"
extern char **environ;
extern void _start(void);
static int each(struct dl_phdr_info *i, size_t s, void *n) { ++*(int *)n; return 0; }
int main(int argc, char **argv) {
    char exe[4096] = {0};
    CHECK(readlink("/proc/self/exe", exe, sizeof exe - 1) > 0);
    const char *fn = (const char *)getauxval(AT_EXECFN);
    CHECK(!strcmp(strrchr(fn, '/'), strrchr(exe, '/')));
    CHECK(getauxval(AT_ENTRY) == (unsigned long)_start);
    CHECK(getauxval(AT_PAGESZ) == 4096 && getauxval(AT_SECURE) == 0 && getauxval(AT_UID) == getuid());
    CHECK(argv[argc] == 0 && environ == argv + argc + 1);
    CHECK(fn > *argv && strlen(fn) > 3);
    int n = 0;
    dl_iterate_phdr(each, &n);
    int env = 0;
    for (char **e = environ; *e; e++) env++;
    printf("ok %d %s %s %d %d\n", argc, argv[1], argv[2], n, env > 0);
}
