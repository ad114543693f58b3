//! What recovering the references of a trace costs: `recover TRACE OUTPUT`, on one processor.
//! All that is known of a reference goes into columns. `recover TRACE OUTPUT sum` also looks at each.

use trace::columns::References;
use trace::walk::{MemoryReference, Passed, Sink, Walker};
use trace::Trace;

struct Counted {
    columns: References,
    count: u64,
    sum: u64,
    /// Each is looked at.
    summed: bool,
}

impl Counted {
    fn flush(&mut self) {
        let rows = self.columns.rows();
        self.count += rows as u64;
        if self.summed {
            let References { pcs, addresses, sizes, writes } = &self.columns;
            let numbers = pcs.values().iter().zip(addresses.values()).zip(sizes.values());
            for (row, ((pc, address), &size)) in numbers.enumerate() {
                let kind = u64::from(size) << 1 | u64::from(writes.has(row));
                let value = pc ^ address.rotate_left(17) ^ kind.rotate_left(40);
                self.sum = self.sum.rotate_left(5).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ value;
            }
        }
        self.columns.clear();
    }

    fn flush_if_full(&mut self) {
        if self.columns.pcs.is_full() {
            self.flush();
        }
    }
}

impl Sink for Counted {
    const REFERENCES: bool = true;

    fn reference(&mut self, reference: MemoryReference) {
        self.columns.push(reference);
        self.flush_if_full();
    }

    fn passage(&mut self, passed: &Passed<'_>) {
        self.columns.passage(passed);
        self.flush_if_full();
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (trace, output) = (arguments.next().expect("TRACE"), arguments.next().expect("OUTPUT"));
    let trace = Trace::open_with(trace.as_ref(), Some(output.as_ref())).expect("a trace");
    let mut walker = Walker::new(&trace);
    let summed = arguments.next().is_some();
    let mut columns = Counted { columns: References::default(), count: 0, sum: 0, summed };
    for thread in &trace.threads {
        for chunk in 0..thread.chunks.len() {
            walker.walk(thread, chunk, &mut columns).expect("a valid chunk");
        }
    }
    columns.flush();
    println!("{} references, {:x}", columns.count, columns.sum);
}
