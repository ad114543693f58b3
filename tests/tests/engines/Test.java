import java.util.*;
import java.util.concurrent.*;

public class Test {
    interface Step { int next(int n); }
    static int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
    static int deep(int n) { return deep(n + 1) + 1; }

    public static void main(String[] args) throws Exception {
        System.out.println(fib(22));
        HashMap<Integer, Long> sums = new HashMap<>();
        for (int i = 0; i < 50000; i++) sums.merge(i % 500, (long) i, Long::sum);
        System.out.println(sums.values().stream().mapToLong(n -> n).sum());
        Object nothing = null;
        int caught = 0;
        for (int i = 0; i < 20000; i++) {
            try { nothing.hashCode(); } catch (NullPointerException e) { caught++; }
        }
        System.out.println(caught);
        ExecutorService threads = Executors.newFixedThreadPool(3);
        List<Future<Integer>> results = new ArrayList<>();
        for (int i = 0; i < 6; i++) {
            int n = 12 + i;
            results.add(threads.submit(() -> fib(n)));
        }
        for (Future<Integer> result : results) System.out.println(result.get());
        threads.shutdown();
        Step step = n -> n + 1;
        int n = 0;
        for (int i = 0; i < 50000; i++) n = step.next(n);
        System.out.println(n);
        try { deep(0); } catch (StackOverflowError e) { System.out.println("deep"); }
        byte[] garbage = null;
        for (int i = 0; i < 40; i++) garbage = new byte[1 << 20];
        System.gc();
        System.out.println(garbage.length);
        System.exit(5);
    }
}
