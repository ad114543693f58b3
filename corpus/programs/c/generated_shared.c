// Code in shared memory: an object that is mapped twice, written through the one mapping and executed in the
// other, by other code and by itself; anonymous shared memory whose rights go back and forth; a child that
// changes the code of its parent, and one that only ends; a descriptor that is written.
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
enum { PAGE = 4096, PAGES = 8 };
typedef long (*function)(void *, long);
static unsigned char *run, *edit;
static function code(unsigned at) { return (function)(run + at); }
// mov $value,%eax; ret
static void put(unsigned char *to, int value) {
    to[0] = 0xb8;
    memcpy(to + 1, &value, 4);
    to[5] = 0xc3;
}
static void ended(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}
static void often(unsigned at, long value) {
    for (int i = 0; i < 400; i++) CHECK(code(at)(0, 0) == value);
}
int main(void) {
    int fd = syscall(SYS_memfd_create, "code", 0);
    CHECK(fd >= 0 && !ftruncate(fd, PAGES * PAGE));
    run = mmap(0, PAGES * PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0);
    edit = mmap(0, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(run != MAP_FAILED && edit != MAP_FAILED);
    for (int i = 0; i < 100; i++) {
        put(edit, i);
        CHECK(code(0)(0, 0) == i);
    }
    often(0, 99);
    // Code that changes what lies behind it on its page, through the other mapping:
    // mov %esi,6(%rdi); jmp over nothing; mov $0,%eax, whose immediate it is; ret
    memcpy(edit + PAGE, "\x89\x77\x06\xeb\x00\xb8\x00\x00\x00\x00\xc3", 11);
    for (int i = 1; i < 100; i++) CHECK(code(PAGE)(edit + PAGE, i) == i);
    // An instruction on two pages, of which the second one changes.
    put(edit + 3 * PAGE - 3, 0);
    for (int i = 0; i < 100; i++) {
        edit[3 * PAGE] = i;
        CHECK(code(3 * PAGE - 3)(0, 0) == i << 16);
    }
    // A third mapping, of one page and without the right to write at first.
    unsigned char *third = mmap(0, PAGE, PROT_READ, MAP_SHARED, fd, PAGE);
    CHECK(third != MAP_FAILED);
    put(edit + PAGE, 1);
    CHECK(code(PAGE)(0, 0) == 1);
    CHECK(!mprotect(third, PAGE, PROT_READ | PROT_WRITE));
    put(third, 2);
    CHECK(code(PAGE)(0, 0) == 2);
    put(edit + PAGE, 3);
    CHECK(code(PAGE)(0, 0) == 3);
    CHECK(!munmap(third, PAGE));
    // The kernel writes there.
    int ends[2];
    CHECK(!pipe(ends));
    for (int i = 0; i < 20; i++) {
        unsigned char bytes[6];
        put(bytes, i);
        CHECK(write(ends[1], bytes, 6) == 6 && read(ends[0], edit, 6) == 6);
        CHECK(code(0)(0, 0) == i);
    }
    // Pages are given back.
    put(edit + 4 * PAGE, 7);
    CHECK(code(4 * PAGE)(0, 0) == 7);
    CHECK(!madvise(edit + 4 * PAGE, PAGE, MADV_REMOVE));
    put(edit + 4 * PAGE, 8);
    CHECK(code(4 * PAGE)(0, 0) == 8);
    // A child that ends: its parent's code is as fast as before.
    pid_t child = fork();
    if (!child) _exit(code(4 * PAGE)(0, 0) - 8);
    ended(child);
    often(4 * PAGE, 8);
    put(edit + 4 * PAGE, 9);
    often(4 * PAGE, 9);
    // A child that changes the code.
    for (int i = 0; i < 5; i++) {
        CHECK(code(4 * PAGE)(0, 0) == 9 + i);
        if (!(child = fork())) {
            put(edit + 4 * PAGE, 10 + i);
            _exit(code(4 * PAGE)(0, 0) - 10 - i);
        }
        ended(child);
    }
    CHECK(code(4 * PAGE)(0, 0) == 14);
    // Anonymous memory whose rights go back and forth.
    unsigned char *both = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(both != MAP_FAILED);
    for (int i = 0; i < 20; i++) {
        CHECK(!mprotect(both, PAGE, PROT_READ | PROT_WRITE));
        put(both, i);
        CHECK(!mprotect(both, PAGE, PROT_READ | PROT_EXEC));
        CHECK(((function)both)(0, 0) == i);
    }
    CHECK(!mprotect(both, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC));
    for (int i = 0; i < 20; i++) {
        put(both, i);
        CHECK(((function)both)(0, 0) == i);
    }
    // The same memory at another place, too.
    unsigned char *moved = mremap(both, 0, PAGE, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED);
    for (int i = 0; i < 20; i++) {
        put(moved, i);
        CHECK(((function)both)(0, 0) == i);
        put(edit, i);
        CHECK(code(0)(0, 0) == i);
    }
    // Written by way of the descriptor.
    for (int i = 0; i < 20; i++) {
        unsigned char bytes[6];
        put(bytes, i);
        CHECK(pwrite(fd, bytes, 6, 5 * PAGE) == 6);
        CHECK(code(5 * PAGE)(0, 0) == i);
    }
    return 0;
}
