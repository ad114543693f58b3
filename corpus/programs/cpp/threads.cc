// std::thread, futures, exceptions across threads, thread_local destructors, call_once.
//#flags: -pthread
//#oracle: no: threads interleave differently
#include <atomic>
#include <future>
#include <mutex>
#include <thread>
#include <vector>
#include "../c/check.h"
static std::atomic<int> destroyed;
struct T { int n = 0; ~T() { destroyed++; } };
static thread_local T t;
static std::once_flag once;
int main() {
    std::vector<std::thread> v;
    std::atomic<long> sum{0};
    int calls = 0;
    for (int i = 0; i < 6; i++)
        v.emplace_back([&, i] { t.n = i; for (int k = 0; k < 1000; k++) sum += k; std::call_once(once, [&] { calls++; }); });
    for (auto &x : v) x.join();
    CHECK(sum == 6 * 499500 && destroyed == 6 && calls == 1);
    auto f = std::async(std::launch::async, [] { throw 42; return 1; });
    try { f.get(); CHECK(0); } catch (int n) { CHECK(n == 42); }
    puts("ok");
}
