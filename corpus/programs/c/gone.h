// A join that always finds the thread ended: whether it has to wait is a race, and the two ways run other code.
#pragma once
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "check.h"
static int goes[2];
// Before the thread is made; one at a time.
static void before_going(void) { CHECK(pipe(goes) == 0); }
// The last thing that the thread does: from here on it has the pipe's end to itself, which the kernel closes after it has
// said that the thread is gone.
static void going(void) {
    enum { FILES = 0x400 };
    CHECK(syscall(SYS_unshare, FILES) == 0 && write(goes[1], "", 1) == 1);
}
static int join_gone(pthread_t thread, void **result) {
    char byte;
    CHECK(read(goes[0], &byte, 1) == 1 && close(goes[1]) == 0);
    CHECK(read(goes[0], &byte, 1) == 0 && close(goes[0]) == 0);
    return pthread_join(thread, result);
}
