// Exceptions and virtual calls across a shared library, in both directions.
//#link: thrower.cc
#include <stdexcept>
#include "../c/check.h"
struct Base { virtual ~Base() {} virtual int value(int) = 0; };
struct Mine : Base { int value(int x) override { if (x > 3) throw std::range_error("mine"); return x; } };
Base *make_theirs();
int call_it(Base &b, int x);
int throw_it(int x);
int main() {
    Mine m;
    Base *t = make_theirs();
    CHECK(call_it(m, 2) == 3 && call_it(*t, 2) == 201);
    try { call_it(m, 9); CHECK(0); } catch (std::range_error &e) { puts(e.what()); }
    try { throw_it(5); CHECK(0); } catch (int n) { CHECK(n == 5); }
    CHECK(dynamic_cast<Mine *>(t) == nullptr && dynamic_cast<Base *>(&m));
    delete t;
    puts("ok");
}
