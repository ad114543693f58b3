// Virtual, multiple and virtual inheritance, pointers to members, std::function, sort, maps, streams.
//#variants: pie O0 static no-pie
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>
struct A { int a = 1; virtual ~A() {} virtual int f(int x) { return x + a; } };
struct B : virtual A { int b = 2; int f(int x) override { return x * b; } virtual int g() { return b; } };
struct C : virtual A { int c = 3; virtual int h() { return c; } };
struct D : B, C { int f(int x) override { return B::f(x) + h(); } int g() override { return 9; } };
int main() {
    std::vector<A *> all{new A, new B, new D, new C};
    int sum = 0;
    for (int i = 0; i < 100; i++) sum += all[i % 4]->f(i);
    int (A::*pm)(int) = &A::f;
    sum += (all[2]->*pm)(5);
    std::function<int(int)> fn = [&](int x) { return x + sum; };
    std::vector<std::string> words;
    for (int i = 0; i < 200; i++) words.push_back(std::to_string((i * 7919) % 211));
    std::sort(words.begin(), words.end());
    std::map<std::string, int> m;
    std::unordered_map<int, int> u;
    for (auto &w : words) m[w]++, u[w.size()]++;
    std::ostringstream os;
    os << fn(1) << ' ' << m.size() << ' ' << u[2] << ' ' << std::accumulate(words.begin(), words.end(), std::string()).size();
    std::cout << os.str() << " ok" << std::endl;
    for (auto p : all) delete p;
}
