// Memory protection keys: what a thread may do to pages depends on a register of its own (PKRU). Code runs on pages
// whose key denies every access; handlers begin with the kernel's value, and what was interrupted gets its own
// again.
//#oracle: no: the timer fires anywhere
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

static unsigned pkru(void) {
  unsigned value;
  __asm__ volatile("rdpkru" : "=a"(value) : "c"(0) : "rdx");
  return value;
}

static void set_pkru(unsigned value) { __asm__ volatile("wrpkru" ::"a"(value), "c"(0), "d"(0) : "memory"); }

static volatile sig_atomic_t ticks;
static unsigned seen;

static void tick(int number) {
  (void)number;
  seen = pkru();
  ticks++;
}

static sigjmp_buf back;
static int code_of_fault, key_of_fault;

static void fault(int number, siginfo_t *info, void *context) {
  (void)number, (void)context;
  code_of_fault = info->si_code;
  key_of_fault = info->si_pkey;
  siglongjmp(back, 1);
}

int main(void) {
  int key = pkey_alloc(0, 0);
  if (key < 0) {
    puts("no protection keys");
    return 0;
  }
  unsigned first = pkru();
  // Sums what rdi counts down, for as long as the word at rsi is below edx.
  static const unsigned char sum[] = {0x31, 0xc0,              // xor eax, eax
                                      0x48, 0x01, 0xf8,        // add rax, rdi
                                      0x48, 0x83, 0xef, 0x01,  // sub rdi, 1
                                      0x75, 0xf7,              // jnz
                                      0xc3};
  unsigned char *code = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memcpy(code, sum, sizeof sum);
  pkey_mprotect(code, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, key);
  long (*run)(long) = (long (*)(long))code;
  struct sigaction action = {.sa_handler = tick};
  sigaction(SIGALRM, &action, 0);
  sigaction(SIGUSR1, &action, 0);
  // Nothing, writes, all accesses denied.
  for (unsigned rights = 0; rights < 4; rights++) {
    unsigned own = (first & ~(3u << 2 * key)) | rights << 2 * key;
    set_pkru(own);
    long sum = run(1000);
    kill(getpid(), SIGUSR1);
    printf("%u: %ld, handler %d, own %d\n", rights, sum, seen == first, pkru() == own);
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    ticks = 0;
    setitimer(ITIMER_REAL, &often, 0);
    long all = 0;
    while (ticks < 20) all = run(100000);
    setitimer(ITIMER_REAL, &never, 0);
    printf("%u: %ld, handler %d, own %d\n", rights, all, seen == first, pkru() == own);
  }
  // Accesses that are denied.
  struct sigaction faults = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO};
  sigaction(SIGSEGV, &faults, 0);
  unsigned char byte = 0;
  for (unsigned rights = 1; rights < 3; rights++) {
    unsigned own = (first & ~(3u << 2 * key)) | rights << 2 * key;
    set_pkru(own);
    volatile unsigned char *at = code + 100;
    if (sigsetjmp(back, 1) == 0) {
      if (rights == 1) {
        byte += *at;
      } else {
        byte += *at;
        *at = 1;
      }
      puts("not denied");
    }
    printf("%u: code %d, key %d, behind it %d\n", rights, code_of_fault, key_of_fault == key, pkru() == first);
  }
  // Code that changes while it is open: the old translation is of no use.
  set_pkru(first & ~(3u << 2 * key));
  code[3] = 0x29;  // sub
  set_pkru((first & ~(3u << 2 * key)) | 1u << 2 * key);
  printf("changed: %ld\n", run(10));
  set_pkru(first & ~(3u << 2 * key));
  printf("ends %d %d\n", byte, pkey_free(key));
  return 0;
}
