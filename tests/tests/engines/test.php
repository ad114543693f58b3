<?php
function fib($n) { return $n < 2 ? $n : fib($n - 1) + fib($n - 2); }
echo fib(18), "\n";
$sums = [];
for ($i = 0; $i < 50000; $i++) $sums[$i % 500] = ($sums[$i % 500] ?? 0) + $i;
echo array_sum($sums), "\n";
class Sum {
    public $value = 0;
    function add($n) { $this->value += $n; return $this; }
}
$sum = new Sum;
for ($i = 0; $i < 30000; $i++) $sum->add(1);
echo $sum->value, "\n";
function odd($i) { if ($i % 3 == 0) throw new Exception("e$i"); return $i; }
$caught = 0;
for ($i = 0; $i < 1000; $i++) {
    try { $caught += odd($i); } catch (Exception $e) { $caught--; }
}
echo $caught, "\n";
function count_to($n) { for ($i = 0; $i < $n; $i++) yield $i; }
$all = 0;
foreach (count_to(5000) as $i) $all += $i;
echo $all, "\n", preg_replace_callback('/\d+/', fn($m) => $m[0] * 2, 'a1b22'), "\n";
exit(5);
