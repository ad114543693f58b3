// Closures, trait objects, iterators, strings, maps, formatting, arithmetic in all widths.
//#oracle: no: reads /proc/self/maps, whose text differs
use std::collections::{BTreeMap, VecDeque};
trait Shape {
    fn area(&self) -> f64;
}
struct Square(f64);
struct Circle(f64);
impl Shape for Square {
    fn area(&self) -> f64 {
        self.0 * self.0
    }
}
impl Shape for Circle {
    fn area(&self) -> f64 {
        self.0 * self.0 * std::f64::consts::PI
    }
}
fn main() {
    let shapes: Vec<Box<dyn Shape>> =
        (0..20).map(|i| if i % 3 == 0 { Box::new(Square(i as f64)) as Box<dyn Shape> } else { Box::new(Circle(i as f64)) }).collect();
    let total: f64 = shapes.iter().map(|s| s.area()).sum();
    let mut words = BTreeMap::new();
    for w in "the quick brown fox jumps over the lazy dog the end".split(' ') {
        *words.entry(w.to_uppercase()).or_insert(0u8) += 1;
    }
    let mut queue: VecDeque<u128> = (1..40).collect();
    while queue.len() > 1 {
        let (a, b) = (queue.pop_front().unwrap(), queue.pop_back().unwrap());
        queue.push_back(a.wrapping_mul(b) ^ (a << 64) | b % 1_000_003);
    }
    let fs: Vec<Box<dyn Fn(i64) -> i64>> = vec![Box::new(|x| x + 1), Box::new(move |x| x * total as i64)];
    println!("{total:.3} {words:?} {:x} {}", queue[0], fs.iter().fold(3, |x, f| f(x)));
    println!("ok");
}
