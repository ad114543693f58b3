using System; using System.Collections.Generic; using System.Threading;
class Node { public Node Left, Right; public int V; }
class T {
  static Node Make(int d) { return d == 0 ? new Node{V=1} : new Node{Left=Make(d-1),Right=Make(d-1),V=d}; }
  static int Sum(Node n) { return n == null ? 0 : n.V + Sum(n.Left) + Sum(n.Right); }
  static int Fib(int n) { return n < 2 ? n : Fib(n-1) + Fib(n-2); }
  interface IShape { int Area(); }
  class Sq : IShape { public int S; public int Area() { return S*S; } }
  class Re : IShape { public int A,B; public int Area() { return A*B; } }
  static void Main() {
    Console.WriteLine(Fib(24));
    var d = new Dictionary<string,int>();
    for (int i = 0; i < 20000; i++) d["k" + i % 1000] = i;
    Console.WriteLine(d.Count + " " + d["k7"]);
    int total = 0;
    for (int i = 0; i < 30; i++) total += Sum(Make(10));
    Console.WriteLine(total);
    int caught = 0;
    for (int i = 0; i < 50; i++) { try { Node n = null; if (i % 2 == 0) total += n.V; else throw new Exception("x"); } catch (NullReferenceException) { caught += 2; } catch (Exception) { caught++; } }
    Console.WriteLine(caught);
    try { int z = 0; Console.WriteLine(5 / z); } catch (DivideByZeroException) { Console.WriteLine("div"); }
    long sum = 0; object o = new object();
    var ts = new List<Thread>();
    for (int t = 0; t < 3; t++) { int k = t; var th = new Thread(() => { for (int i = 0; i < 1000; i++) lock (o) sum += i * k; }); th.Start(); ts.Add(th); }
    foreach (var th in ts) th.Join();
    Console.WriteLine(sum);
    int area = 0; IShape[] s = { new Sq{S=3}, new Re{A=2,B=5} };
    for (int i = 0; i < 10000; i++) area += s[i % 2].Area();
    Console.WriteLine(area);
    GC.Collect();
    Environment.Exit(7);
  }
}
