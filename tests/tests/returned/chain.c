/* Threaded code: returns walk a row of addresses, again and again. With an argument it says, too, whether the row is
 * as it was. */
#include <stdio.h>

extern char adds[], triples[], ends[];
static unsigned long row[4];
unsigned long stack;
asm(".text\n"
    "adds: add $1, %rax\n ret\n"
    "triples: imul $3, %rax\n ret\n"
    "ends: mov stack(%rip), %rsp\n pop %rbx\n pop %rbp\n ret\n"
    "walk: push %rbp\n push %rbx\n mov %rsp, stack(%rip)\n mov %rdi, %rsp\n mov %rsi, %rax\n ret\n");
long walk(unsigned long *, long);

int main(int count, char **arguments) {
    (void)arguments;
    char *parts[] = {adds, triples, adds, ends};
    for (int i = 0; i < 4; i++) row[i] = (unsigned long)parts[i];
    for (int i = 0; i < 5; i++) printf("%ld\n", walk(row, i));
    int same = 0;
    for (int i = 0; i < 4; i++) same += row[i] == (unsigned long)parts[i];
    if (count > 1) printf("%d of 4\n", same);
}
