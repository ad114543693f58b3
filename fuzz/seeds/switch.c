// A program without a library: a jump table, calls through pointers, and data in the code's reach.
static int number(int c) {
    switch (c) {
    case 0: return 7;
    case 1: return 19;
    case 2: return 23;
    case 3: return 5;
    case 4: return 77;
    case 5: return 1;
    default: return -1;
    }
}
static int twice(int c) { return 2 * c; }
static int (*volatile pointers[])(int) = { number, twice };
volatile int sum;
void _start(void) {
    for (int i = 0; i < 8; i++) sum += pointers[i & 1](i);
    __asm__ volatile("syscall" : : "a"(60), "D"(sum & 1) : "rcx", "r11", "memory");
    for (;;) {}
}
