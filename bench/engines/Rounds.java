import java.lang.management.ManagementFactory;
import java.util.*;
import java.util.function.IntUnaryOperator;

/// Rounds of recursion, objects, closures, strings, a hash table, exceptions and a sort. Their results go to
/// stdout. The processor time of the second half, when all is compiled, goes to stderr.
public class Rounds {
    static final int ROUNDS = 150;

    static int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

    interface Shape { int area(); }
    record Square(int side) implements Shape { public int area() { return side * side; } }
    record Strip(int side) implements Shape { public int area() { return side * 3; } }
    record Ring(int side) implements Shape { public int area() { return side + 7; } }
    static long shapes(int n) {
        Shape[] all = new Shape[1024];
        long sum = 0;
        for (int i = 0; i < n; i++) {
            all[i & 1023] = i % 3 == 0 ? new Square(i & 15) : i % 3 == 1 ? new Strip(i & 15) : new Ring(i & 15);
            sum += all[(i * 7) & 1023] == null ? 0 : all[(i * 7) & 1023].area();
        }
        return sum;
    }

    static int closures(int n) {
        IntUnaryOperator[] adders = new IntUnaryOperator[16];
        for (int i = 0; i < 16; i++) { int k = i; adders[i] = x -> (x + k) & 0xffff; }
        int value = 0;
        for (int i = 0; i < n; i++) value = adders[i & 15].applyAsInt(value);
        return value;
    }

    static int strings(int n) {
        StringBuilder words = new StringBuilder();
        for (int i = 0; i < n; i++) words.append('w').append(i * 7919 % 1009).append(' ');
        String text = words.toString().toUpperCase();
        int found = 0;
        for (String word : text.split(" ")) if (word.endsWith("7")) found += word.length();
        return found + text.replace("W1", "x").length();
    }

    static long table(int n) {
        HashMap<String, Long> counts = new HashMap<>();
        for (int i = 0; i < n; i++) counts.merge("k" + i * 31 % 2003, (long) i, Long::sum);
        long sum = 0;
        for (var entry : counts.entrySet()) sum = (sum + entry.getKey().length() * entry.getValue()) % 1000003;
        return sum;
    }

    static class Odd extends Exception {
        final int value;
        Odd(int value) { this.value = value; }
    }
    static int check(int i) throws Odd { if (i % 5 == 0) throw new Odd(i); return i; }
    static int exceptions(int n) {
        int sum = 0;
        for (int i = 0; i < n; i++) { try { sum += check(i); } catch (Odd e) { sum -= e.value; } }
        return sum;
    }

    static long sorted(int n) {
        Integer[] values = new Integer[n];
        int x = 12345;
        for (int i = 0; i < n; i++) { x = x * 1103515245 + 12345; values[i] = x >>> 4; }
        Arrays.sort(values, (a, b) -> a - b);
        return values[n / 2] % 1000003;
    }

    static class Node {
        final Node left, right;
        final int depth;
        Node(int depth) {
            this.depth = depth;
            left = depth == 1 ? null : new Node(depth - 1);
            right = depth == 1 ? null : new Node(depth - 1);
        }
        int weigh() { return depth + (left == null ? 0 : left.weigh()) + (right == null ? 0 : right.weigh()); }
    }

    static String round(int i) {
        return fib(25 + i % 2) + " " + shapes(200000) + " " + closures(200000) + " " + strings(8000) + " "
            + table(20000) + " " + exceptions(3000) + " " + sorted(15000) + " " + new Node(14).weigh();
    }

    static long used() {
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime();
    }

    public static void main(String[] args) {
        long half = 0;
        for (int i = 0; i < ROUNDS; i++) {
            if (i == ROUNDS / 2) half = used();
            System.out.println(round(i));
        }
        System.err.printf("steady %.3f%n", (used() - half) / 1e9);
    }
}
