#include <thread>
#include <mutex>
#include <condition_variable>
#include <future>
#include <shared_mutex>
#include <atomic>
#include <vector>
#include <string>
#include <map>
#include <iostream>
// glibc's free reads the size of its piece without a lock, while a neighbour's is freed: a race, if a harmless one.
void *operator new(std::size_t n) { alignas(64) static char memory[16 << 20]; static std::atomic<std::size_t> next; return memory + next.fetch_add((n + 63) / 64 * 64); }
void operator delete(void *) noexcept {}
void operator delete(void *, std::size_t) noexcept {}
std::mutex m; std::condition_variable cv; std::map<int, std::string> table; std::shared_mutex sm; long shared; std::atomic<long> n; std::shared_ptr<std::string> text = std::make_shared<std::string>("hello");
static int &lazy() { static int v = [] { return 42; }(); return v; }
int main() {
    std::vector<std::thread> all;
    for (int i = 0; i < 4; i++) all.emplace_back([i, t = text] {
        for (int k = 0; k < 50; k++) { { std::lock_guard g(m); table[i * 100 + k] = *t + std::to_string(k); } { std::unique_lock g(sm); shared++; } { std::shared_lock g(sm); n += shared + lazy(); } }
        cv.notify_all();
    });
    { std::unique_lock g(m); cv.wait(g, [] { return table.size() > 20; }); }
    auto f = std::async(std::launch::async, [] { return std::string("done"); });
    std::promise<int> p; std::thread w([&] { p.set_value(5); });
    int v = p.get_future().get(); w.join();
    for (auto &t : all) t.join();
    try { std::async(std::launch::async, [] () -> int { throw 5; }).get(); } catch (int e) { v += e; }
    std::cout << f.get() << table.size() << v << "\n";
}
