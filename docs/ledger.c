#include <stdio.h>

struct { char owner[8]; long balance; } account = { "mara", 100 };

void deposit(long n) { account.balance += n; }

void rename_to(const char *name) {
    int i = 0;
    do account.owner[i] = name[i]; while (name[i++]);
}

int main(void) {
    deposit(50);
    rename_to("annabelle");
    deposit(7);
    printf("balance: %ld\n", account.balance);
}
