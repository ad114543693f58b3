// Switches as jump tables, computed goto, tables of functions, tail calls.
//#variants: pie no-pie O0 static noplt cet
#include "check.h"
__attribute__((noinline)) static int dense(int x) {
    switch (x) {
    case 0: return puts("zero");
    case 1: return 11;
    case 2: return x * 7;
    case 3: return 5;
    case 4: return getchar() == EOF;
    case 5: return 9;
    case 6: return 1;
    case 7: return 77;
    case 9: return -1;
    default: return 1000;
    }
}
__attribute__((noinline)) static int machine(const unsigned char *code) {
    static void *const ops[] = {&&inc, &&dbl, &&dec, &&jnz, &&end};
    int acc = 0, n = 5;
    goto *ops[*code++];
inc: acc++; goto *ops[*code++];
dbl: acc *= 2; goto *ops[*code++];
dec: n--; goto *ops[*code++];
jnz: if (n) code -= *code + 1; else code++; goto *ops[*code++];
end: return acc;
}
static int f0(int x) { return x + 1; }
static int f1(int x) { return x * 2; }
static int f2(int x) { return x - 3; }
static int (*volatile const table[])(int) = {f0, f1, f2};
__attribute__((noinline)) static int tail(int i, int x) { return table[i](x); }
int main(void) {
    int sum = 0;
    for (int i = -2; i < 12; i++) sum = sum * 3 + dense(i) % 1001;
    CHECK(machine((unsigned char[]){0, 1, 2, 3, 3, 4}) == 62);
    for (int i = 0; i < 30; i++) sum = tail(i % 3, sum) & 0xffff;
    printf("ok %d\n", sum);
}
