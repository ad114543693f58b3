//! What was executed, counted by where it is and where its code came from.

use std::ops::Range;

use abi::ids::LiveAddr;
use abi::unit::JitReason;
use trace::compile::CompiledUnit;
use trace::events::Event;
use trace::pipeline::{self, BatchSink, Outlet, Piece, Seam};
use trace::plain::Referred;
use trace::units::Origin;
use trace::walk::{MemoryReference, Sink};
use trace::Trace;

use crate::Warnings;

/// Reasons for the JIT, and what they are called.
pub const REASONS: [(&str, JitReason); 7] = [
    ("library", JitReason::Library),
    ("missed", JitReason::Missed),
    ("anonymous", JitReason::Anonymous),
    ("dynamic", JitReason::Dynamic),
    ("processor", JitReason::Processor),
    ("modified", JitReason::Modified),
    ("selection", JitReason::Selection),
];

/// Where executed code can lie: in the program, in a library that has a translation, elsewhere.
pub const PLACES: usize = 3;
/// Ahead of time, and each reason for the JIT.
pub const ORIGINS: usize = 1 + REASONS.len();

/// Live addresses of the program and of the libraries that have a translation.
#[derive(Clone)]
struct Images {
    program: Range<LiveAddr>,
    /// Ascending.
    libraries: Vec<Range<LiveAddr>>,
}

impl Images {
    /// Which of the [`PLACES`].
    fn place(&self, address: LiveAddr) -> usize {
        if self.program.contains(&address) {
            return 0;
        }
        let next = self.libraries.partition_point(|r| r.start <= address);
        match next.checked_sub(1) {
            Some(i) if self.libraries[i].contains(&address) => 1,
            _ => 2,
        }
    }
}

/// Executed blocks by where they are and where their code came from.
#[derive(Clone, Default)]
pub struct Shares {
    /// `[place][static, then by JIT reason]`; the places are the [`PLACES`].
    pub blocks: [[u64; ORIGINS]; PLACES],
}

impl Shares {
    pub fn add(&mut self, more: &Shares) {
        for (to, from) in self.blocks.iter_mut().zip(more.blocks) {
            to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        }
    }
}

#[derive(Clone, Default)]
struct Counts {
    shares: Shares,
    references: u64,
    /// The first block, which may continue the chunk before: address and its slot in the shares.
    uncertain: Option<(LiveAddr, (usize, usize))>,
}

struct Counter<const REFERENCES: bool> {
    outlet: Outlet<Counts>,
    images: Images,
    slot: (usize, usize),
    counts: Counts,
}

fn slot(origin: Origin) -> usize {
    match origin {
        Origin::Static => 0,
        Origin::Jit(reason) => reason as usize,
    }
}

impl<const REFERENCES: bool> Sink for Counter<REFERENCES> {
    const REFERENCES: bool = REFERENCES;
    const ADDRESSES: bool = false;

    fn unit(&mut self, unit: &CompiledUnit, _partial: bool) {
        self.slot = (self.images.place(unit.address), slot(unit.origin));
    }

    fn block(&mut self, pc: LiveAddr, uncertain: bool) {
        if uncertain {
            self.counts.uncertain = Some((pc, self.slot));
        }
        self.counts.shares.blocks[self.slot.0][self.slot.1] += 1;
    }

    fn reference(&mut self, _reference: MemoryReference) {
        self.counts.references += 1;
    }

    fn plain(
        &mut self,
        _number: u32,
        unit: &CompiledUnit,
        references: &[Referred],
        _addresses: &[u64],
    ) {
        self.counts.references += references.len() as u64;
        self.counts.shares.blocks[self.slot.0][self.slot.1] += unit.inner_blocks.len() as u64;
    }

    fn references(&mut self, _all: impl Iterator<Item = MemoryReference>, count: u64) {
        self.counts.references += count;
    }
}

impl<const REFERENCES: bool> BatchSink for Counter<REFERENCES> {
    type Batch = Counts;
    type Kept = ();

    fn finish(mut self) -> Outlet<Counts> {
        let counts = std::mem::take(&mut self.counts);
        self.outlet.send(counts);
        self.outlet
    }
}

#[derive(Clone, Default)]
/// Counts of a thread.
pub struct ThreadInfo {
    pub chunks: u64,
    counts: Counts,
    pub units: u64,
    pub instructions: u64,
    /// Bytes of the streams.
    pub control_flow: u64,
    pub memory: u64,
    /// Stays in code that is not recorded.
    pub stays: u64,
    ends_outside: bool,
}

/// The program's range from the output file, else from where its path is mapped.
fn images(trace: &Trace) -> Images {
    let own = trace.statics.filter(|s| s.count > 0).map(|s| s.first_window);
    let (mut program, mut libraries) = (None, Vec::new());
    for (window, range) in trace.units.images() {
        match own == Some(window) {
            true => program = Some(range),
            false => libraries.push(range),
        }
    }
    libraries.sort_by_key(|r| r.start);
    Images { program: program.unwrap_or_else(|| mapped_program(trace)), libraries }
}

fn mapped_program(trace: &Trace) -> Range<LiveAddr> {
    let program = trace.program.as_os_str().as_encoded_bytes();
    let (mut first, mut last) = (LiveAddr(u64::MAX), LiveAddr(0));
    for event in &trace.process_events {
        if let Some(Event::Map { start, len, path, .. }) = &event.event {
            if **path == *program {
                (first, last) =
                    (first.min(*start), last.max(LiveAddr(start.0.saturating_add(*len))));
            }
        }
    }
    first..last
}

/// Counts each thread; and what could not be recovered, if there is something.
pub fn count<const REFERENCES: bool>(
    trace: &Trace,
    warnings: &mut Warnings,
) -> (Vec<ThreadInfo>, Option<String>) {
    let mut threads = vec![ThreadInfo::default(); trace.threads.len()];
    let mut wrong = None;
    let images = images(trace);
    let make = |_, outlet| Counter::<REFERENCES> {
        outlet,
        images: images.clone(),
        slot: (0, 0),
        counts: Counts::default(),
    };
    let mut seam = Seam::default();
    pipeline::run(trace, pipeline::tasks(trace, |_| true), make, |job, piece| {
        let thread = &mut threads[job.thread];
        match piece {
            Piece::Batch(counts) => {
                let mine = &mut thread.counts;
                mine.shares.add(&counts.shares);
                mine.references += counts.references;
                if let Some((pc, (place, origin))) = counts.uncertain {
                    if !seam.begins_block(&job, pc) {
                        mine.shares.blocks[place][origin] -= 1;
                    }
                }
            }
            Piece::End(end) => {
                thread.chunks += 1;
                let falls = match *end {
                    Ok(end) => {
                        thread.units += end.units;
                        thread.instructions += end.instructions;
                        thread.control_flow += end.control_flow.0;
                        thread.memory += end.memory.0;
                        // The stay may go on from the chunk before.
                        let same = thread.ends_outside && end.starts_outside;
                        thread.stays += end.stays - u64::from(same);
                        let nothing = end.units == 0 && end.stays == 0;
                        thread.ends_outside = end.ends_outside || (nothing && thread.ends_outside);
                        Some(end.falls)
                    }
                    Err(violation) => {
                        warnings.add(&violation);
                        wrong.get_or_insert_with(|| violation.to_string());
                        None
                    }
                };
                seam.ended(&job, falls);
            }
        }
        true
    });
    (threads, wrong)
}

impl ThreadInfo {
    pub fn shares(&self) -> &Shares {
        &self.counts.shares
    }

    pub fn blocks(&self) -> u64 {
        self.counts.shares.blocks.iter().flatten().sum()
    }

    pub fn references(&self) -> u64 {
        self.counts.references
    }
}
