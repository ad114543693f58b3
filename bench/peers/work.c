// work ROUNDS: fills a hash table, sorts what it has, and walks a list, ROUNDS times. Its memory stays the same and it
// makes no system call meanwhile, so that a round costs what its instructions cost.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 1024, ITEMS = 200 };

struct item {
    struct item *next;
    unsigned key, value;
};

static struct item items[ITEMS], *slots[SLOTS];
static unsigned order[ITEMS];

static unsigned mix(unsigned x) {
    x ^= x >> 16;
    x *= 0x7feb352dU;
    return x ^ x >> 15;
}

static int by_value(const void *a, const void *b) {
    unsigned x = items[*(const unsigned *)a].value, y = items[*(const unsigned *)b].value;
    return (x > y) - (x < y);
}

static unsigned one(unsigned seed) {
    for (int i = 0; i < SLOTS; i++)
        slots[i] = NULL;
    for (unsigned i = 0; i < ITEMS; i++) {
        struct item *item = &items[i];
        item->key = mix(seed + i);
        item->value = mix(item->key);
        item->next = slots[item->key % SLOTS];
        slots[item->key % SLOTS] = item;
        order[i] = i;
    }
    qsort(order, ITEMS, sizeof order[0], by_value);
    unsigned sum = 0;
    for (int i = 0; i < SLOTS; i++)
        for (struct item *item = slots[i]; item; item = item->next)
            sum = sum * 31 + item->value;
    for (int i = 0; i < ITEMS; i++)
        sum ^= order[i] * (unsigned)i;
    return sum;
}

int main(int argc, char **argv) {
    unsigned rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 1, sum = 0;
    for (unsigned i = 0; i < rounds; i++)
        sum += one(sum + i);
    printf("%u\n", sum);
    return 0;
}
