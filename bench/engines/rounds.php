<?php
// Rounds of recursion, objects, closures, strings, a hash table, exceptions and a sort. Their results go to
// stdout. The processor time of the second half, when all is compiled, goes to stderr.
$rounds = 300;

function fib(int $n): int { return $n < 2 ? $n : fib($n - 1) + fib($n - 2); }

abstract class Shape { function __construct(public int $side) {} abstract function area(): int; }
class Square extends Shape { function area(): int { return $this->side * $this->side; } }
class Strip extends Shape { function area(): int { return $this->side * 3; } }
class Ring extends Shape { function area(): int { return $this->side + 7; } }
function shapes(int $n): int {
    $sum = 0;
    for ($i = 0; $i < $n; $i++) {
        $shape = $i % 3 == 0 ? new Square($i & 15) : ($i % 3 == 1 ? new Strip($i & 15) : new Ring($i & 15));
        $sum += $shape->area();
    }
    return $sum;
}

function closures(int $n): int {
    $adders = [];
    for ($i = 0; $i < 16; $i++) $adders[] = fn($x) => ($x + $i) & 0xffff;
    $value = 0;
    for ($i = 0; $i < $n; $i++) $value = $adders[$i & 15]($value);
    return $value;
}

function strings(int $n): int {
    $words = [];
    for ($i = 0; $i < $n; $i++) $words[] = 'w' . ($i * 7919 % 1009);
    $text = strtoupper(implode(' ', $words));
    $found = 0;
    foreach (explode(' ', $text) as $word) if (substr($word, -1) === '7') $found += strlen($word);
    return $found + strlen(preg_replace('/W1(\d)/', 'x$1', $text));
}

function table(int $n): int {
    $counts = [];
    for ($i = 0; $i < $n; $i++) { $key = 'k' . $i * 31 % 2003; $counts[$key] = ($counts[$key] ?? 0) + $i; }
    $sum = 0;
    foreach ($counts as $key => $count) $sum = ($sum + strlen($key) * $count) % 1000003;
    return $sum;
}

class Odd extends Exception { function __construct(public int $value) { parent::__construct('odd'); } }
function check(int $i): int { if ($i % 5 == 0) throw new Odd($i); return $i; }
function exceptions(int $n): int {
    $sum = 0;
    for ($i = 0; $i < $n; $i++) { try { $sum += check($i); } catch (Odd $e) { $sum -= $e->value; } }
    return $sum;
}

function sorted(int $n): int {
    $values = [];
    $x = 12345;
    for ($i = 0; $i < $n; $i++) { $x = ($x * 1103515 + 12345) % 2147483647; $values[] = $x; }
    usort($values, fn($a, $b) => $a <=> $b);
    return $values[$n >> 1] % 1000003;
}

class Node {
    public ?Node $left = null, $right = null;
    function __construct(public int $depth) {
        if ($depth > 1) { $this->left = new Node($depth - 1); $this->right = new Node($depth - 1); }
    }
    function weigh(): int { return $this->depth + ($this->left?->weigh() ?? 0) + ($this->right?->weigh() ?? 0); }
}

function used(): float {
    $used = getrusage();
    return $used['ru_utime.tv_sec'] + $used['ru_stime.tv_sec'] + ($used['ru_utime.tv_usec'] + $used['ru_stime.tv_usec']) / 1e6;
}

$half = 0;
for ($i = 0; $i < $rounds; $i++) {
    if ($i == intdiv($rounds, 2)) $half = used();
    echo implode(' ', [fib(22 + $i % 2), shapes(60000), closures(100000), strings(6000), table(20000), exceptions(3000),
        sorted(4000), (new Node(12))->weigh()]), "\n";
}
fprintf(STDERR, "steady %.3f\n", used() - $half);
