function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
console.log(fib(21));
const sums = new Map();
for (let i = 0; i < 30000; i++) sums.set(i % 500, (sums.get(i % 500) || 0) + i);
console.log([...sums.values()].reduce((a, b) => a + b));
class Point {
  constructor(x) { this.x = x; }
  add(other) { return new Point(this.x + other.x); }
}
let point = new Point(0);
for (let i = 0; i < 50000; i++) point = point.add(new Point(1));
console.log(point.x);
let caught = 0;
for (let i = 0; i < 1000; i++) {
  try { if (i % 3 == 0) throw new Error('e'); caught += i; } catch (e) { caught--; }
}
console.log(caught, 'a1b22'.replace(/\d+/g, d => d * 2));
function* count(n) { for (let i = 0; i < n; i++) yield i; }
let all = 0;
for (const i of count(5000)) all += i;
console.log(all);
// (func (export "fib") (param i32) (result i32) ...)
const fibonacci = new Uint8Array([
  0, 97, 115, 109, 1, 0, 0, 0, 1, 6, 1, 96, 1, 127, 1, 127, 3, 2, 1, 0, 7, 7, 1, 3, 102, 105, 98, 0, 0, 10, 30, 1, 28, 0,
  32, 0, 65, 2, 72, 4, 127, 32, 0, 5, 32, 0, 65, 1, 107, 16, 0, 32, 0, 65, 2, 107, 16, 0, 106, 11, 11,
]);
WebAssembly.instantiate(fibonacci).then(({ instance }) => {
  console.log(instance.exports.fib(16));
  const { Worker } = require('worker_threads');
  const source = "require('worker_threads').parentPort.postMessage([...Array(100).keys()].reduce((a, b) => a + b))";
  const worker = new Worker(source, { eval: true });
  worker.on('message', sum => console.log(sum));
  worker.on('exit', () => process.exit(5));
});
