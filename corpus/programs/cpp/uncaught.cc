// An uncaught exception: terminate, abort.
//#variants: pie static
//#expect-signal: 6
#include <stdexcept>
__attribute__((noinline)) static void f(int n) { if (n) throw std::runtime_error("nobody catches this"); }
int main(int argc, char **) { f(argc); }
