//! Which references of a listing touch a range: found in the trace that a replay leaves.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Range;

use trace::pipeline::{self, BatchSink, Job, Outlet, Piece};
use trace::walk::{MemoryReference, Sink};
use trace::Trace;

use crate::Warnings;

/// The references that touch the range.
#[derive(Default)]
pub struct Found {
    /// The instructions that make them.
    pub pcs: BTreeSet<u64>,
    /// By the index of the thread, in its order.
    pub of: HashMap<u32, VecDeque<MemoryReference>>,
}

struct Finder {
    outlet: Outlet<Vec<MemoryReference>>,
    range: Range<u64>,
    batch: Vec<MemoryReference>,
}

/// A batch is sent when it has so many.
const BATCH: usize = 1 << 14;

impl Finder {
    fn send(&mut self) {
        if !self.batch.is_empty() {
            let batch = std::mem::take(&mut self.batch);
            self.outlet.send(batch);
        }
    }
}

impl Sink for Finder {
    const REFERENCES: bool = true;

    #[inline]
    fn reference(&mut self, reference: MemoryReference) {
        let start = reference.address.0;
        // What ends behind the address space does not come to its start.
        let end = start.saturating_add(u64::from(reference.size));
        if start < self.range.end && self.range.start < end {
            self.batch.push(reference);
            if self.batch.len() == BATCH {
                self.send();
            }
        }
    }

    fn go_on(&mut self) -> bool {
        self.outlet.is_open()
    }
}

impl BatchSink for Finder {
    type Batch = Vec<MemoryReference>;
    type Kept = ();

    fn finish(mut self) -> Outlet<Self::Batch> {
        self.send();
        self.outlet
    }
}

/// All references of the trace that touch the range.
pub fn find(trace: &Trace, range: &Range<u64>, warnings: &mut Warnings) -> Found {
    let make = |_: Job, outlet| Finder { outlet, range: range.clone(), batch: Vec::new() };
    let mut found = Found::default();
    pipeline::run(trace, pipeline::tasks(trace, |_| true), make, |job, piece| {
        match piece {
            Piece::Batch(batch) => {
                found.pcs.extend(batch.iter().map(|reference| reference.pc.0));
                let index = trace.threads[job.thread].index;
                found.of.entry(index).or_default().extend(batch);
            }
            Piece::End(end) => {
                if let Err(violation) = *end {
                    warnings.add(&violation);
                }
            }
        }
        true
    });
    found
}
