//#library
//#flags: -Wl,-z,noseparate-code -Wl,-z,max-page-size=0x200000
// Code lies in the first segment, with the headers: the loader maps all of the library so, and the data over it.
int one_segment_count = 1;
static int add(int x) { return x + one_segment_count; }
static int twice(int x) { return 2 * x; }
int (*const one_segment_functions[])(int) = {add, twice};
int *const one_segment_words[] = {&one_segment_count, &one_segment_count};
