//! What recovering the references of a trace costs: `recover TRACE OUTPUT`, on one processor.
//! All that is known of a reference goes into columns. `recover TRACE OUTPUT sum` also looks at each.

use trace::walk::{unit_by_unit, Kind, MemoryReference, Passed, Sink, Walker, LANES};
use trace::Trace;

/// Rows that whoever wants columns gets at once.
const BATCH: usize = 1 << 12;
/// Further ones for what came last.
const MORE: usize = 1 << 12;

struct Columns {
    pcs: Box<[u64]>,
    addresses: Box<[u64]>,
    kinds: Box<[Kind]>,
    rows: usize,
    count: u64,
    sum: u64,
    /// Each is looked at.
    summed: bool,
}

/// Copies lanes to where `column` has room.
#[inline(always)]
fn copy<T: Copy>(column: &mut [T], lanes: &[[T; LANES]]) {
    for (to, from) in column.as_chunks_mut::<LANES>().0.iter_mut().zip(lanes) {
        *to = *from;
    }
}

impl Columns {
    fn new(summed: bool) -> Columns {
        Columns {
            pcs: vec![0; BATCH + MORE].into(),
            addresses: vec![0; BATCH + MORE].into(),
            kinds: vec![Kind::default(); BATCH + MORE].into(),
            rows: 0,
            count: 0,
            sum: 0,
            summed,
        }
    }

    fn flush(&mut self) {
        self.count += self.rows as u64;
        if self.summed {
            let rows = self.pcs.iter().zip(&self.addresses).zip(&self.kinds);
            for ((pc, address), kind) in rows.take(self.rows) {
                let kind = u64::from(kind.size) << 1 | u64::from(kind.write);
                let value = pc ^ address.rotate_left(17) ^ kind.rotate_left(40);
                self.sum = self.sum.rotate_left(5).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ value;
            }
        }
        self.rows = 0;
    }
}

impl Sink for Columns {
    const REFERENCES: bool = true;

    fn reference(&mut self, r: MemoryReference) {
        self.pcs[self.rows] = r.pc.0;
        self.addresses[self.rows] = r.address.0;
        let size = u16::try_from(r.size).unwrap_or(u16::MAX);
        self.kinds[self.rows] = Kind { size, write: r.write };
        self.rows += 1;
        if self.rows >= BATCH {
            self.flush();
        }
    }

    fn passage(&mut self, passed: &Passed<'_>) {
        if passed.references() + LANES > MORE {
            return unit_by_unit(passed, self);
        }
        let (pcs, kinds) = passed.columns();
        copy(&mut self.pcs[self.rows..], pcs);
        copy(&mut self.kinds[self.rows..], kinds);
        copy(&mut self.addresses[self.rows..], &passed.address_column()[..pcs.len()]);
        self.rows += passed.references();
        if self.rows >= BATCH {
            self.flush();
        }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (trace, output) = (arguments.next().expect("TRACE"), arguments.next().expect("OUTPUT"));
    let trace = Trace::open_with(trace.as_ref(), Some(output.as_ref())).expect("a trace");
    let mut walker = Walker::new(&trace);
    let mut columns = Columns::new(arguments.next().is_some());
    for thread in &trace.threads {
        for chunk in 0..thread.chunks.len() {
            walker.walk(thread, chunk, &mut columns).expect("a valid chunk");
        }
    }
    columns.flush();
    println!("{} references, {:x}", columns.count, columns.sum);
}
