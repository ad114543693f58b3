//! What all threads did, in the order in which they did it.
//!
//! A thread's chunks are walked by a thread of ours, a few batches ahead. Whoever listens takes the batches
//! of the thread that ran, stretch by stretch: `RUNS` numbers them.

use std::ops::Range;
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};

use abi::ids::LiveAddr;
use trace::compile::CompiledUnit;
use trace::events::Event;
use trace::walk::{MemoryReference, Sink, Walker};
use trace::{Error, Thread, Trace};

use crate::args::Common;
use crate::replay::Ready;
use crate::Stop;

/// Entries of a batch.
const BATCH: usize = 8192;
/// Instructions that are told at once.
const MANY: u32 = 1 << 10;
/// Batches that may wait.
const QUEUE: usize = 2;

/// What a thread did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Did {
    /// It executed so many instructions, and made so many turns.
    Ran {
        instructions: u32,
        turns: u32,
    },
    /// It executed the instruction that is looked for.
    Passed,
    Referred {
        pc: u64,
        address: u64,
        size: u32,
        write: bool,
        atomic: bool,
    },
    /// An event; its number among those of the thread that are told.
    Happened(u32),
    /// From here on it is in this stretch, behind the instruction at `pc`.
    Runs {
        number: u64,
        pc: u64,
    },
}

/// The events that a thread's listener is told of, with the pc of the instruction in front.
#[derive(Default)]
struct Batch {
    all: Vec<Did>,
    events: Vec<(Event, u64)>,
}

/// Which references are told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum References {
    All,
    /// Those of locked instructions.
    Atomic,
    Nothing,
}

/// What is told.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    pub references: References,
    /// Code whose plain accesses to words synchronise: where its functions lie, ascending.
    pub synchronising: &'a [Range<LiveAddr>],
    /// The instruction that is looked for.
    pub passing: Option<LiveAddr>,
}

/// Collects batches.
struct Collector<'a> {
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
        let last = unit.starts.len().saturating_sub(2);
        self.last = unit.address.0 + unit.starts.get(last).map_or(0, |s| u64::from(s.offset));
    }

    fn executed(&mut self, unit: &CompiledUnit, count: usize) {
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
        self.turns += u32::from(whole && unit.turns);
        if self.instructions >= MANY {
            self.ran();
        }
    }

    fn event(&mut self, event: &Event) {
        let behind_call =
            std::mem::replace(&mut self.behind_call, matches!(event, Event::Syscall { .. }));
        match event {
            // `rt_sigreturn` is a turn; the way back from the vsyscall page stands behind its call, and is none.
            Event::Resume(_) => self.turns += u32::from(!behind_call),
            Event::Runs(number) => self.push(Did::Runs { number: *number, pc: self.last }),
            Event::ThreadStart { .. }
            | Event::ThreadEnd { .. }
            | Event::Syscall { .. }
            | Event::Signal { .. } => {
                let number = self.batch.events.len();
                self.batch.events.push((event.clone(), self.last));
                self.push(Did::Happened(u32::try_from(number).unwrap_or(u32::MAX)));
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
        match self.wanted.references {
            References::All => {}
            References::Atomic if atomic => {}
            References::Atomic | References::Nothing => return,
        }
        let (pc, address) = (r.pc.0, r.address.0);
        self.push(Did::Referred { pc, address, size: r.size, write: r.write, atomic });
    }

    fn go_on(&mut self) -> bool {
        self.open
    }
}

/// Walks all chunks of a thread.
fn walk(
    trace: &Trace,
    thread: &Thread,
    sender: SyncSender<Batch>,
    wanted: Wanted<'_>,
) -> Result<(), String> {
    let mut walker = Walker::new(trace);
    let batch = Batch { all: Vec::with_capacity(BATCH + 2), events: Vec::new() };
    let mut collector = Collector {
        wanted,
        all_atomic: false,
        sender,
        batch,
        instructions: 0,
        turns: 0,
        behind_call: false,
        unit: 0,
        atomic: Vec::new(),
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

/// Who is told what happened, in the order of all threads.
pub trait Listener {
    /// The thread at this place (in [`Trace::threads`]) goes on.
    fn runs(&mut self, _thread: usize) {}
    /// It executed so many instructions, and made so many turns.
    fn ran(&mut self, _instructions: u32, _turns: u32) {}
    /// It is about to execute the instruction that is looked for.
    fn passed(&mut self) {}
    /// It referred to memory.
    fn referred(&mut self, _pc: u64, _address: u64, _size: u32, _write: bool, _atomic: bool) {}
    /// Something happened, at or behind the instruction at `pc`.
    fn happened(&mut self, _event: &Event, _pc: u64) {}
    /// It stands still from here on, behind the instruction at `pc`, until it goes on in this stretch.
    fn stands(&mut self, _until: u64, _pc: u64) {}
}

/// The walk of one thread.
struct Source {
    receiver: Receiver<Batch>,
    batch: Batch,
    at: usize,
    /// The stretch that it is about to go on in.
    next: Option<u64>,
}

impl Source {
    fn next(&mut self) -> Option<Did> {
        loop {
            if let Some(&did) = self.batch.all.get(self.at) {
                self.at += 1;
                return Some(did);
            }
            self.batch = self.receiver.recv().ok()?;
            self.at = 0;
        }
    }

    /// Tells what the thread did in stretch `number` (0: before its first).
    fn stretch(&mut self, number: u64, listener: &mut impl Listener) {
        if self.next.is_some_and(|next| next != number) {
            return;
        }
        self.next = None;
        loop {
            match self.next() {
                None => {
                    self.batch = Batch::default();
                    self.at = 0;
                    return;
                }
                // It has begun.
                Some(Did::Runs { number: runs, .. }) if runs == number => {}
                Some(Did::Runs { number: runs, pc }) => {
                    self.next = Some(runs);
                    return listener.stands(runs, pc);
                }
                Some(Did::Ran { instructions, turns }) => listener.ran(instructions, turns),
                Some(Did::Passed) => listener.passed(),
                Some(Did::Referred { pc, address, size, write, atomic }) => {
                    listener.referred(pc, address, size, write, atomic);
                }
                Some(Did::Happened(at)) => {
                    if let Some((event, pc)) = self.batch.events.get(at as usize) {
                        listener.happened(event, *pc);
                    }
                }
            }
        }
    }
}

/// Who runs in which stretch: `(number, thread)`, in their order.
pub fn stretches(trace: &Trace) -> Vec<(u64, usize)> {
    let mut all: Vec<(u64, usize)> = Vec::new();
    for (at, thread) in trace.threads.iter().enumerate() {
        all.extend(thread.events.iter().filter_map(|placed| match placed.event {
            Some(Event::Runs(number)) => Some((number, at)),
            _ => None,
        }));
    }
    all.sort_unstable();
    all
}

/// The trace does not say in which order its threads ran.
pub fn needs_inputs(common: &Common) -> Stop {
    let file = common.file.display();
    let why = "the order of its threads was not recorded; it takes a recording of inputs";
    Error(format!("{file}: {why} (dep record --replayable)")).into()
}

/// The thread that runs before anybody is numbered, by its place.
pub fn first(trace: &Trace, ready: &Ready) -> usize {
    match ready.script.child {
        Some(child) => place_of(trace, child.thread).unwrap_or(0),
        None => standing(trace, ready).first().copied().unwrap_or(0),
    }
}

fn place_of(trace: &Trace, index: u32) -> Option<usize> {
    trace.threads.iter().position(|thread| thread.index == index)
}

/// The threads that were there where the part begins that was kept, by their places; the first one had
/// the baton. Empty if it begins where the program does.
pub fn standing(trace: &Trace, ready: &Ready) -> Vec<usize> {
    // A forked process begins with one thread, wherever its parent's recording did.
    if ready.script.child.is_some() {
        return Vec::new();
    }
    let snapshot = ready.lineage.first().snapshot.iter();
    let indexes = snapshot.filter_map(|placed| match placed.event {
        Some(Event::State { index, .. }) => Some(index),
        _ => None,
    });
    indexes.filter_map(|index| place_of(trace, index)).collect()
}

/// Tells the listener all that the threads did. `first`: the thread that runs before anybody is numbered.
pub fn run(
    trace: &Trace,
    first: usize,
    wanted: Wanted<'_>,
    listener: &mut impl Listener,
) -> Result<(), Error> {
    let order = stretches(trace);
    std::thread::scope(|scope| {
        let mut walks = Vec::new();
        let mut sources: Vec<Option<Source>> = Vec::new();
        sources.resize_with(trace.threads.len(), || None);
        for (number, at) in std::iter::once((0, first)).chain(order) {
            let (Some(source), Some(thread)) = (sources.get_mut(at), trace.threads.get(at)) else {
                break;
            };
            let source = source.get_or_insert_with(|| {
                let (sender, receiver) = sync_channel(QUEUE);
                walks.push(scope.spawn(move || walk(trace, thread, sender, wanted)));
                Source { receiver, batch: Batch::default(), at: 0, next: None }
            });
            listener.runs(at);
            source.stretch(number, listener);
        }
        drop(sources);
        for walk in walks {
            match walk.join() {
                Ok(Ok(())) => {}
                Ok(Err(what)) => return Err(Error(what)),
                Err(_) => return Err(Error("a walk through the replay's trace has failed".into())),
            }
        }
        Ok(())
    })
}
