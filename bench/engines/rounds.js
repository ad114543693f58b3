// Rounds of recursion, objects, closures, strings, a hash table, exceptions and a sort. Their results go to
// stdout. The processor time of the second half, when all is compiled, goes to stderr.
const ROUNDS = 480;

function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

class Shape { constructor(side) { this.side = side; } }
class Square extends Shape { area() { return this.side * this.side; } }
class Strip extends Shape { area() { return this.side * 3; } }
class Ring extends Shape { area() { return this.side + 7; } }
function shapes(n) {
  let sum = 0;
  for (let i = 0; i < n; i++) {
    const shape = i % 3 === 0 ? new Square(i & 15) : i % 3 === 1 ? new Strip(i & 15) : new Ring(i & 15);
    sum += shape.area();
  }
  return sum;
}

function closures(n) {
  const adders = [];
  for (let i = 0; i < 16; i++) adders.push(x => (x + i) & 0xffff);
  let value = 0;
  for (let i = 0; i < n; i++) value = adders[i & 15](value);
  return value;
}

function strings(n) {
  const words = [];
  for (let i = 0; i < n; i++) words.push('w' + (i * 7919 % 1009));
  const text = words.join(' ').toUpperCase();
  let found = 0;
  for (const word of text.split(' ')) if (word.endsWith('7')) found += word.length;
  return found + text.replace(/W1(\d)/g, 'x$1').length;
}

function table(n) {
  const counts = new Map();
  for (let i = 0; i < n; i++) { const key = 'k' + i * 31 % 2003; counts.set(key, (counts.get(key) || 0) + i); }
  let sum = 0;
  for (const [key, count] of counts) sum = (sum + key.length * count) % 1000003;
  return sum;
}

class Odd extends Error { constructor(value) { super('odd'); this.value = value; } }
function check(i) { if (i % 5 === 0) throw new Odd(i); return i; }
function exceptions(n) {
  let sum = 0;
  for (let i = 0; i < n; i++) { try { sum += check(i); } catch (e) { sum -= e.value; } }
  return sum;
}

function sorted(n) {
  const values = [];
  let x = 12345;
  for (let i = 0; i < n; i++) { x = (x * 1103515 + 12345) % 2147483647; values.push(x); }
  values.sort((a, b) => a - b);
  return values[n >> 1] % 1000003;
}

function tree(depth) { return depth === 0 ? null : { left: tree(depth - 1), right: tree(depth - 1), depth }; }
function weigh(node) { return node === null ? 0 : node.depth + weigh(node.left) + weigh(node.right); }

function round(i) {
  return [fib(23 + i % 2), shapes(60000), closures(120000), strings(6000), table(12000), exceptions(800),
          sorted(8000), weigh(tree(13))].join(' ');
}

let half = 0;
for (let i = 0; i < ROUNDS; i++) {
  if (i === ROUNDS >> 1) { const used = process.cpuUsage(); half = used.user + used.system; }
  console.log(round(i));
}
const used = process.cpuUsage();
console.error('steady', ((used.user + used.system - half) / 1e6).toFixed(3));
