//! What one thread did, in batches.

use std::sync::mpsc::SyncSender;

use trace::compile::CompiledUnit;
use trace::events::Event;
use trace::walk::{MemoryReference, Sink, Walker};
use trace::{Thread, Trace};

use super::stamps::{Passes, Stamps};
use super::{Batch, Did, References, Wanted};

/// Entries of a batch.
const BATCH: usize = 8192;
/// Instructions that are told at once.
const MANY: u32 = 1 << 10;

/// Collects batches.
struct Collector<'a> {
    stamps: Stamps<'a>,
    wanted: Wanted<'a>,
    /// The unit that is executed is code that synchronises.
    all_atomic: bool,
    sender: SyncSender<Batch>,
    batch: Batch,
    instructions: u32,
    turns: u32,
    /// Nothing was executed since the last call.
    behind_call: bool,
    /// Of the unit that is executed.
    unit: u64,
    atomic: Vec<u16>,
    masked: Vec<(u16, u8)>,
    last: u64,
    open: bool,
}

impl Collector<'_> {
    fn push(&mut self, did: Did) {
        self.ran();
        self.batch.all.push(did);
        if self.batch.all.len() >= BATCH {
            self.send();
        }
    }

    fn ran(&mut self) {
        let instructions = std::mem::take(&mut self.instructions);
        let turns = std::mem::take(&mut self.turns);
        if (instructions, turns) != (0, 0) {
            self.batch.all.push(Did::Ran { instructions, turns });
        }
    }

    fn send(&mut self) {
        self.ran();
        let all = Vec::with_capacity(BATCH + 2);
        let batch = std::mem::replace(&mut self.batch, Batch { all, events: Vec::new() });
        self.open = self.open && self.sender.send(batch).is_ok();
    }

    /// It is about to refer to memory, and behind these stamps. What an atomic instruction leaves does not wait for what
    /// it sees.
    fn comes_to(&mut self, r: &MemoryReference, atomic: bool) {
        self.behind(Some(r.pc.0));
        let mut leaves = atomic.then_some(Did::Left { address: r.address.0, size: r.size });
        while let Some((number, what)) = self.stamps.before(r.pc.0) {
            if what == Passes::Sees {
                leaves.take().into_iter().for_each(|did| self.push(did));
            }
            self.push(Did::Stamped(number));
            if what == Passes::Atomic {
                leaves.take().into_iter().for_each(|did| self.push(did));
            }
        }
    }

    /// The last atomic instruction is behind the thread, unless it is the one at `pc`.
    fn behind(&mut self, pc: Option<u64>) {
        if let Some((number, address, size)) = self.stamps.behind(pc) {
            self.push(Did::Stamped(number));
            self.push(Did::Took { address, size });
        }
    }
}

impl Sink for Collector<'_> {
    const REFERENCES: bool = true;

    fn unit(&mut self, unit: &CompiledUnit, _partial: bool) {
        self.unit = unit.address.0;
        let synchronising = self.wanted.synchronising;
        if !synchronising.is_empty() {
            let behind = synchronising.partition_point(|range| range.start <= unit.address);
            let function = behind.checked_sub(1).and_then(|at| synchronising.get(at));
            self.all_atomic = function.is_some_and(|range| range.contains(&unit.address));
        }
        self.atomic.clone_from(&unit.atomic);
        if self.wanted.first_of_masked {
            self.masked.clone_from(&unit.masked);
        }
        let last = unit.starts.len().saturating_sub(2);
        self.last = unit.address.0 + unit.starts.get(last).map_or(0, |s| u64::from(s.offset));
    }

    fn executed(&mut self, unit: &CompiledUnit, count: usize) {
        self.behind(None);
        self.behind_call = false;
        let whole = count + 1 == unit.starts.len();
        let done = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let mut counted = 0;
        if let Some(offset) = self.wanted.passing.and_then(|at| at.0.checked_sub(unit.address.0)) {
            let executed = &unit.starts[..count];
            if let Some(at) = executed.iter().position(|s| u64::from(s.offset) == offset) {
                self.instructions += done(at);
                counted = at;
                self.push(Did::Passed);
            }
        }
        self.instructions += done(count - counted);
        let turns = whole && unit.turns;
        self.turns += u32::from(turns);
        self.stamps.turns += u64::from(turns);
        if self.instructions >= MANY {
            self.ran();
        }
    }

    fn event(&mut self, event: &Event) {
        self.behind(None);
        let event = self.stamps.of_thread(event);
        let behind_call =
            std::mem::replace(&mut self.behind_call, matches!(event, Event::Syscall { .. }));
        match event {
            // `rt_sigreturn` is a turn; the way back from the vsyscall page stands behind its call, and is none.
            Event::Resume(_) => {
                self.turns += u32::from(!behind_call);
                self.stamps.turns += u64::from(!behind_call);
            }
            Event::Runs(number) => self.push(Did::Runs { number: *number, pc: self.last }),
            Event::ThreadStart { .. }
            | Event::ThreadEnd { .. }
            | Event::Syscall { .. }
            | Event::Signal { .. } => {
                while let Some(number) = self.stamps.in_front_of(event) {
                    self.push(Did::Stamped(number));
                }
                let number = u32::try_from(self.batch.events.len()).unwrap_or(u32::MAX);
                self.batch.events.push((event.clone(), self.last));
                if let Some(returns) = self.stamps.returns(event) {
                    // One batch has both, as one has the event.
                    self.ran();
                    self.batch.all.extend([Did::Calls(number), Did::Stamped(returns)]);
                }
                self.push(Did::Happened(number));
            }
            _ => {}
        }
    }

    #[inline]
    fn reference(&mut self, r: MemoryReference) {
        let offset = r.pc.0.wrapping_sub(self.unit);
        let is_word = || r.size <= 8 && r.address.0.is_multiple_of(u64::from(r.size.max(1)));
        let atomic =
            self.atomic.iter().any(|&at| u64::from(at) == offset) || self.all_atomic && is_word();
        if self.stamps.is_next() {
            self.comes_to(&r, atomic);
        }
        match self.wanted.references {
            References::All => {}
            References::Atomic if atomic => {}
            References::Atomic | References::Nothing => return,
        }
        let (pc, address) = (r.pc.0, r.address.0);
        let masked = self.masked.iter().find(|&&(at, _)| u64::from(at) == offset);
        let size = masked.map_or(r.size, |&(_, element)| r.size.min(element.into()));
        if atomic {
            self.stamps.atomic = Some((pc, address, r.size));
        }
        self.push(Did::Referred { pc, address, size, write: r.write, atomic });
    }

    fn go_on(&mut self) -> bool {
        self.open
    }
}

/// Walks all chunks of a thread, which has these stamps.
pub fn walk(
    trace: &Trace,
    thread: &Thread,
    sender: SyncSender<Batch>,
    wanted: Wanted<'_>,
    stamps: Stamps<'_>,
) -> Result<(), String> {
    let mut walker = Walker::new(trace);
    let batch = Batch { all: Vec::with_capacity(BATCH + 2), events: Vec::new() };
    let mut collector = Collector {
        stamps,
        wanted,
        all_atomic: false,
        sender,
        batch,
        instructions: 0,
        turns: 0,
        behind_call: false,
        unit: 0,
        atomic: Vec::new(),
        masked: Vec::new(),
        last: 0,
        open: true,
    };
    for number in 0..thread.chunks.len() {
        let ended = walker.walk(thread, number, &mut collector).map_err(|v| v.to_string());
        if !collector.open {
            return Ok(());
        }
        ended?;
    }
    collector.send();
    Ok(())
}
