#include <pthread.h>
#include <unistd.h>
/// The process ends while a thread computes: nothing tells that it has unlocked.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; static long shared; static volatile long turns; static char far[3 << 12];
static void *other(void *unused) {
    pthread_mutex_lock(&lock); shared++; ((volatile char *)far)[2 << 12]++; pthread_mutex_unlock(&lock);
    for (;;) turns++;
}
int main(void) {
    pthread_t thread; far[2 << 12] = 1; pthread_create(&thread, 0, other, 0); usleep(50000);
    pthread_mutex_lock(&lock); shared++; pthread_mutex_unlock(&lock); return shared != 2;
}
