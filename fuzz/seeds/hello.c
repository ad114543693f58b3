#include <stdio.h>
#include <stdlib.h>
static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
int main(int c, char **v) {
    int list[] = { 5, 3, 9, c };
    qsort(list, 4, sizeof *list, compare);
    printf("%d %s\n", list[0], v[0]);
    return 0;
}
