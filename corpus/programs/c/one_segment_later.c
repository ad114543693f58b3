//#library
//#flags: -Wl,-z,noseparate-code -Wl,-z,max-page-size=0x200000
// Code lies in the first segment, with the headers: the loader maps all of the library so, and the data over it.
int later_count = 1;
static int add(int x) { return x + later_count; }
static int twice(int x) { return 2 * x; }
int (*const later_functions[])(int) = {add, twice};
int *const later_words[] = {&later_count, &later_count};
