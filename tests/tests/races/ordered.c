#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <signal.h>
#include <sys/eventfd.h>
#define N 4
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER, rec;
static pthread_rwlock_t rw = PTHREAD_RWLOCK_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t barrier;
static pthread_spinlock_t spin;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static sem_t sem;
static long by_mutex, by_rw, by_spin, by_sem, by_flag, by_pipe, by_event, by_cond, per[N], by_rec, by_once;
static _Atomic int flag; static _Atomic long count;
static int pipes[2], event;
static int turn;
static void init(void) { by_once = 7; }
static void *work(void *arg) {
    long id = (long)arg, sum = 0;
    char *blocks[16];
    pthread_once(&once, init);
    sum += by_once;
    for (int round = 0; round < 30; round++) {
        pthread_mutex_lock(&m); by_mutex++; pthread_mutex_unlock(&m);
        if (pthread_mutex_trylock(&m) == 0) { by_mutex++; pthread_mutex_unlock(&m); }
        pthread_mutex_lock(&rec); pthread_mutex_lock(&rec); by_rec++; pthread_mutex_unlock(&rec); pthread_mutex_unlock(&rec);
        if (round % 5 == 0) { pthread_rwlock_wrlock(&rw); by_rw++; pthread_rwlock_unlock(&rw); }
        else { pthread_rwlock_rdlock(&rw); sum += by_rw; pthread_rwlock_unlock(&rw); }
        pthread_spin_lock(&spin); by_spin++; pthread_spin_unlock(&spin);
        sem_wait(&sem); by_sem++; sem_post(&sem);
        int zero = 0;
        while (!atomic_compare_exchange_strong(&flag, &zero, 1)) { zero = 0; usleep(1); }
        by_flag++; atomic_store(&flag, 0);
        atomic_fetch_add(&count, 1);
        for (int i = 0; i < 16; i++) { blocks[i] = malloc(16 + i * 40 + (round % 3) * 2000); memset(blocks[i], id, 16 + i * 40); }
        for (int i = 0; i < 16; i++) { sum += blocks[i][3]; free(blocks[i]); }
        per[id]++;
        pthread_barrier_wait(&barrier);
        sum += per[(id + 1) % N];
        pthread_barrier_wait(&barrier);
        pthread_mutex_lock(&m);
        while (turn != id) pthread_cond_wait(&cond, &m);
        by_cond++; turn = (turn + 1) % N; pthread_cond_broadcast(&cond);
        pthread_mutex_unlock(&m);
        char c;
        if (id == 0) { by_pipe++; write(pipes[1], "x", 1); }
        if (id == 1) { read(pipes[0], &c, 1); sum += by_pipe; }
        pthread_barrier_wait(&barrier);
        unsigned long long one = 1;
        if (id == 2) { by_event++; write(event, &one, 8); }
        if (id == 3) { read(event, &one, 8); sum += by_event; }
        if (round % 10 == 0) printf("thread %ld round %d\n", id, round);
        pthread_barrier_wait(&barrier);
    }
    return (void *)sum;
}
struct node { struct node *next; char text[40]; };
static struct node *list;
static void *producer(void *unused) {
    for (int i = 0; i < 300; i++) { struct node *n = malloc(sizeof *n); snprintf(n->text, 40, "node %d", i); pthread_mutex_lock(&m); n->next = list; list = n; pthread_mutex_unlock(&m); }
    return unused;
}
static void *consumer(void *unused) {
    for (int got = 0; got < 300;) { pthread_mutex_lock(&m); struct node *n = list; if (n) list = n->next; pthread_mutex_unlock(&m); if (n) { got++; n->text[0]++; free(n); } else usleep(10); }
    return unused;
}
static volatile sig_atomic_t got; static long by_signal;
static void handler(int s) { (void)s; by_signal++; got = 1; }
static void *waits(void *unused) { while (!got) pause(); return unused; }
int main(void) {
    pthread_t t[N];
    pthread_mutexattr_t a; pthread_mutexattr_init(&a); pthread_mutexattr_settype(&a, PTHREAD_MUTEX_RECURSIVE); pthread_mutex_init(&rec, &a);
    pthread_barrier_init(&barrier, 0, N); pthread_spin_init(&spin, 0); sem_init(&sem, 0, 1);
    pipe(pipes); event = eventfd(0, 0);
    for (long i = 0; i < N; i++) pthread_create(&t[i], 0, work, (void *)i);
    long sum = 0; void *r;
    for (int i = 0; i < N; i++) { pthread_join(t[i], &r); sum += (long)r; }
    for (int round = 0; round < 5; round++) { pthread_create(&t[0], 0, producer, 0); pthread_create(&t[1], 0, consumer, 0); pthread_join(t[0], 0); pthread_join(t[1], 0); }
    signal(SIGUSR1, handler);
    pthread_create(&t[0], 0, waits, 0); by_signal = 5; 
    pthread_kill(t[0], SIGUSR1);
    pthread_join(t[0], 0);
    printf("%ld %ld %ld %ld %ld %ld %ld %ld %ld\n", by_mutex, by_rw, by_spin, by_sem, by_flag, by_rec, by_cond, (long)count, by_signal);
    return sum == 0;
}
