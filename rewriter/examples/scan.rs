use std::time::Instant;
fn main() {
    for path in std::env::args().skip(1) {
        let t = Instant::now();
        let input = match rewriter::input::Input::parse(std::fs::read(&path).unwrap()) { Ok(i) => i, Err(e) => { println!("{path}: {e}"); continue } };
        let image = rewriter::roots::image(&input);
        let a = t.elapsed();
        let p = lifter::discover::discover(&image, &mut |_, _| {});
        println!("{path} pie {} funcs {} blocks {} tables {} unresolved {} text {} lifted {} roots {:?} all {:?} declared {} pointers {}", input.pie, p.functions.len(), p.block_count(), p.jump_tables, p.unresolved_indirect, p.text_bytes, p.lifted_bytes, a, t.elapsed(), image.functions.len(), image.code_pointers.len());
    }
}
