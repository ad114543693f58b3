// Branches whose one way is a call and nothing else: it returns, recurs, is left by longjmp, overflows the stack by the
// call itself, and calls what lies in another function or returns elsewhere.
//#except: bits: how often a function that records nothing has called itself when a fault ends that is not in the trace
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <sys/resource.h>
#include "check.h"

static sigjmp_buf env;
static char alt[65536];
static volatile long count;

static void handler(int s) { siglongjmp(env, s); }
__attribute__((noinline, used)) static void counts(void) { count++; }
__attribute__((noinline, used)) static void leaves(void) { siglongjmp(env, 3); }

// By the lowest bits of its argument: around all calls, or through one of them; then it calls itself with the others.
long down(long bits, long depth);
__asm__(
    ".globl down\n.type down, @function\n"
    "down: push %rbx\n mov %rdi, %rbx\n push %r12\n mov %rsi, %r12\n sub $8, %rsp\n"
    "test $1, %bl\n je 1f\n call counts\n"
    "1: test $2, %bl\n jne 2f\n test %r12, %r12\n jne 3f\n jmp 4f\n"
    "2: call leaves\n"
    "3: lea (%rbx, %rbx), %rdi\n lea -1(%r12), %rsi\n call down\n"
    "4: add $8, %rsp\n lea 1(%rax), %rax\n pop %r12\n pop %rbx\n ret\n"
    ".size down, .-down\n");

// Calls itself until the stack is used up: the call is the first instruction behind the branch, and faults.
void forever(long never);
__asm__(
    ".globl forever\n.type forever, @function\n"
    "forever: test %rdi, %rdi\n jne 1f\n call forever\n"
    "1: ret\n"
    ".size forever, .-forever\n");

// The return address is put away and taken again; the call is made from one of two ways to the same place.
long away(long which);
__asm__(
    ".globl away\n.type away, @function\n"
    "away: xor %eax, %eax\n test %rdi, %rdi\n je 1f\n call 2f\n jmp 3f\n"
    "1: call 2f\n add $16, %rax\n"
    "3: add $1, %rax\n ret\n"
    "2: pop %rcx\n lea 4f(%rip), %rdx\n test $2, %edi\n cmovne %rdx, %rcx\n push %rcx\n ret\n"
    "4: add $256, %rax\n ret\n"
    ".size away, .-away\n");

int main(void) {
    stack_t ss = {.ss_sp = alt, .ss_size = sizeof alt};
    struct rlimit r = {1 << 18, 1 << 18};
    setrlimit(RLIMIT_STACK, &r);
    sigaltstack(&ss, 0);
    struct sigaction a = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    sigaction(SIGSEGV, &a, 0);
    volatile long sum = 0;
    for (volatile long i = 0; i < 8; i++) {
        if (sigsetjmp(env, 1)) sum += 1000;
        else sum += down(i, 5);
    }
    printf("%ld %ld\n", sum, count);
    for (volatile int i = 0; i < 3; i++)
        if (!sigsetjmp(env, 1)) { forever(0); CHECK(0); }
    forever(1);
    for (long i = 0; i < 4; i++) printf("%ld\n", away(i));
    puts("ok");
}
