//! What recovering the references of a trace costs: `recover TRACE OUTPUT`, on one processor.
//! All that is known of a reference goes into columns.

use trace::compile::CompiledUnit;
use trace::plain::Referred;
use trace::walk::{MemoryReference, Sink, Walker};
use trace::Trace;

#[derive(Default)]
struct Columns {
    pcs: Vec<u64>,
    addresses: Vec<u64>,
    kinds: Vec<u32>,
    count: u64,
    sum: u64,
}

impl Columns {
    fn flush(&mut self) {
        self.count += self.pcs.len() as u64;
        for (pc, (address, kind)) in self.pcs.iter().zip(self.addresses.iter().zip(&self.kinds)) {
            let value = pc ^ address.rotate_left(17) ^ u64::from(*kind).rotate_left(40);
            self.sum = self.sum.rotate_left(5).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ value;
        }
        self.forget();
    }
    fn forget(&mut self) {
        self.pcs.clear();
        self.addresses.clear();
        self.kinds.clear();
    }
}

impl Sink for Columns {
    const REFERENCES: bool = true;
    fn reference(&mut self, r: MemoryReference) {
        self.pcs.push(r.pc.0);
        self.addresses.push(r.address.0);
        self.kinds.push(r.size << 1 | u32::from(r.write));
    }
    fn plain(&mut self, _: u32, unit: &CompiledUnit, all: &[Referred], addresses: &[u64]) {
        self.addresses.extend_from_slice(addresses);
        self.pcs.extend(all.iter().map(|r| unit.address.0 + u64::from(r.offset)));
        self.kinds.extend(all.iter().map(|r| u32::from(r.size) << 1 | u32::from(r.write)));
    }
    fn go_on(&mut self) -> bool {
        if std::env::args().len() > 3 {
            self.flush();
        } else {
            self.count += self.pcs.len() as u64;
            self.forget();
        }
        true
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (trace, output) = (arguments.next().expect("TRACE"), arguments.next().expect("OUTPUT"));
    let trace = Trace::open_with(trace.as_ref(), Some(output.as_ref())).expect("a trace");
    let mut walker = Walker::new(&trace);
    let mut columns = Columns::default();
    for thread in &trace.threads {
        for chunk in 0..thread.chunks.len() {
            walker.walk(thread, chunk, &mut columns).expect("a valid chunk");
        }
    }
    columns.go_on();
    println!("{} references, {:x}", columns.count, columns.sum);
}
