// Two processes that were not forked from each other with a copy of their memory share a file: each stores there, waits for
// the other with system calls and without, and hands the memory to the kernel. One of them is killed with a lock.
//#flags: -pthread
//#oracle: no: processes run as they please
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct page { _Atomic uint64_t turn, spins, counter, looks, line; char text[2048]; };
struct file { struct page one, other; pthread_mutex_t lock; };

static struct file *map(const char *path) {
    int fd = open(path, O_RDWR);
    struct file *file = mmap(0, sizeof *file, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || file == MAP_FAILED) { perror(path); exit(1); }
    close(fd);
    return file;
}

// What was seen meanwhile goes into what is compared in the end.
static uint64_t seen;

static void wait_for(_Atomic uint64_t *word, uint64_t value, int calls) {
    for (uint64_t now; (now = *word) != value; seen = seen * 31 + now) if (calls) sched_yield();
}

static void play(struct page *page, int me, int calls, int rounds) {
    for (int i = 0; i < rounds; i++) {
        wait_for(&page->turn, 2 * i + me, calls);
        page->line += i * (me + 1);
        page->turn = 2 * i + me + 1;
    }
}

static void count(struct page *page) {
    for (int i = 0; i < 3000; i++) {
        seen = seen * 31 + page->counter++;
        if (i % 100 == 0) usleep(50);
    }
}

static uint64_t push(_Atomic uint64_t *word) {
    uint64_t value;
    __asm__ volatile("pushq (%1)\n\tpopq %0" : "=r"(value) : "r"(word) : "memory");
    return value;
}

int main(int argc, char **argv) {
    if (argc > 1) {
        // It would wait for ever.
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        struct file *file = map(argv[1]);
        play(&file->one, 1, 1, 100);
        play(&file->other, 1, 0, 20);
        count(&file->one);
        strcpy(file->other.text, "what the other one has written");
        file->other.looks = 1;
        wait_for(&file->other.looks, 2, 1);
        pthread_mutex_lock(&file->lock);
        file->one.looks = 1;
        for (;;) pause();
    }
    char path[] = "/tmp/shared_file.XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0 || ftruncate(fd, sizeof(struct file))) return perror(path), 1;
    struct file *file = map(path);
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&file->lock, &attr);
    pid_t child = vfork();
    if (child == 0) {
        execl("/proc/self/exe", "shared_file", path, (char *)0);
        _exit(1);
    }
    play(&file->one, 0, 1, 100);
    wait_for(&file->one.turn, 200, 1);
    play(&file->other, 0, 0, 20);
    wait_for(&file->other.turn, 40, 0);
    count(&file->one);
    wait_for(&file->other.looks, 1, 1);
    int ends[2];
    char text[2048];
    if (pipe(ends) || write(ends[1], file->other.text, 64) != 64) return 1;
    if (read(ends[0], file->one.text, 64) != 64) return 1;
    memcpy(text, file->other.text, sizeof text);
    printf("%s, %s\n", file->one.text, text);
    printf("%lu %lu\n", push(&file->one.line), push(&file->other.line));
    file->other.looks = 2;
    wait_for(&file->one.looks, 1, 1);
    kill(child, SIGKILL);
    int status;
    waitpid(child, &status, 0);
    int locked = pthread_mutex_lock(&file->lock);
    printf("%d, %s, counted %lu\n", WTERMSIG(status), locked == EOWNERDEAD ? "its owner is dead" : "?",
           file->one.counter >= 3000);
    unlink(path);
    return seen == 0;
}
