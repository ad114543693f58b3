// The first thread ends; another one goes on, with signals and system calls that read and write memory.
//#flags: -pthread
//#oracle: no: whether the first thread has ended already is a race
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
#include "check.h"
static volatile int count;
static void handler(int s) { count += s; }
static void *run(void *arg) {
    pthread_join((pthread_t)arg, 0);
    struct sigaction a = {.sa_handler = handler}, old = {.sa_handler = handler};
    CHECK(!sigaction(SIGUSR1, &a, &old) && old.sa_handler == SIG_DFL);
    for (int i = 0; i < 3; i++) raise(SIGUSR1);
    CHECK(count == 3 * SIGUSR1);
    int p[2];
    char text[8] = "";
    CHECK(!pipe(p) && write(p[1], "text", 5) == 5 && read(p[0], text, 8) == 5 && text[3] == 't');
    puts("ok");
    return 0;
}
int main(void) {
    pthread_t t;
    CHECK(!pthread_create(&t, 0, run, (void *)pthread_self()));
    pthread_exit(0);
}
