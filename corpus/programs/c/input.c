// Reads all of standard input, counts, and echoes it in reverse.
//#stdin: some lines of input\nand more\n
#include <string.h>
#include "check.h"
int main(void) {
    char buf[4096];
    size_t n = fread(buf, 1, sizeof buf, stdin);
    for (size_t i = 0; i < n; i++) putchar(buf[n - 1 - i]);
    fprintf(stderr, "%zu bytes\n", n);
    return n == 29 ? 0 : 1;
}
