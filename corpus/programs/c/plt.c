//#library
int plt_counter;
int plt_add(int a, int b) { plt_counter++; return a + b; }
int plt_call(int (*f)(int), int x) { plt_counter++; return f(x); }
