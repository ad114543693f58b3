// Exceptions through many frames, with destructors, rethrown, nested, from constructors.
//#variants: pie O0 static cet
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>
#include "../c/check.h"
static int alive, destroyed;
struct Guard { Guard() { alive++; } ~Guard() { alive--; destroyed++; } };
struct Half { Guard g; Half(int n) { if (n % 2) throw n; } };
__attribute__((noinline)) static int down(int n) {
    Guard g;
    if (n == 0) throw std::runtime_error("bottom");
    try { return down(n - 1) + 1; }
    catch (const std::logic_error &) { return -1; }
    catch (std::runtime_error &e) { if (n % 3 == 0) throw; throw std::runtime_error(e.what() + std::to_string(n)); }
}
int main() {
    try { down(9); CHECK(0); }
    catch (const std::exception &e) { puts(e.what()); }
    CHECK(alive == 0 && destroyed == 10);
    int caught = 0;
    for (int i = 0; i < 10; i++) try { Half h(i); } catch (int n) { caught += n; }
    CHECK(caught == 25 && alive == 0);
    try { (void)std::vector<int>().at(3); } catch (std::out_of_range &) { caught = 0; }
    try { try { throw 1; } catch (int) { throw "two"; } } catch (const char *s) { puts(s); }
    auto f = [](int x) noexcept(false) { std::unique_ptr<int> p(new int(x)); throw *p; };
    try { f(3); } catch (...) { puts("ok"); }
    return caught;
}
