// Panics caught with catch_unwind, with drops on the way; an error by `?`; a slice out of bounds.
//#oracle: no: reads /proc/self/maps, whose text differs
use std::panic::{catch_unwind, set_hook};
struct Loud(u32);
impl Drop for Loud {
    fn drop(&mut self) {
        println!("drop {}", self.0);
    }
}
#[inline(never)]
fn down(n: u32, v: &[u32]) -> u32 {
    let _loud = Loud(n);
    if n == 0 { v[v.len() + 1] } else { down(n - 1, v) + 1 }
}
fn parse(s: &str) -> Result<i32, std::num::ParseIntError> {
    Ok(s.parse::<i32>()? * 2)
}
fn main() {
    set_hook(Box::new(|_| println!("panicked")));
    assert!(catch_unwind(|| down(4, &[1, 2])).is_err());
    assert_eq!(parse("21"), Ok(42));
    assert!(parse("x").is_err());
    println!("ok");
}
