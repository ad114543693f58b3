//#library
struct Base { virtual ~Base() {} virtual int value(int) = 0; };
struct Theirs : Base { int value(int x) override { return x * 100; } };
Base *make_theirs() { return new Theirs; }
int call_it(Base &b, int x) { struct G { int *p; ~G() { ++*p; } } g; int n = 0; g.p = &n; int r = b.value(x) + 1; return r; }
int throw_it(int x) { throw x; }
