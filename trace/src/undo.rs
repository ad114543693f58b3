//! The undo log: what was overwritten, by whom, and in which order; and the way back.
//!
//! Within a thread the order is that of execution. Between threads it is that of their synchronising
//! instructions and system calls, which are numbered: a store lies between two numbers of its thread,
//! that of a synchronising instruction at a number. Two stores of different threads to one byte are
//! ordered if one's interval ends before the other's begins. Where they overlap, nobody knows, and
//! [`Log::unordered`] says so.

use std::collections::HashMap;
use std::ops::Range;

use abi::event::Loss;
use abi::ids::LiveAddr;

use crate::open::Trace;
use crate::pipeline::{self, BatchSink, Outlet, Piece};
use crate::walk::{Entered, Overwritten, Sink};
use crate::{Error, Thread};

/// Something that the log of a thread holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item {
    /// Something was overwritten.
    Store(Store),
    /// A procedure was entered with these registers.
    Enter(Box<Entered>),
    /// Contents were dropped (length 0: nobody knows where) by the system call or instruction `why`.
    Lost {
        /// Who did it.
        pc: LiveAddr,
        /// Where.
        start: LiveAddr,
        /// Bytes.
        len: u64,
        /// What did it.
        why: String,
    },
    /// Recording stopped, with the reason of the loss.
    Stopped(Loss),
    /// What the thread did before has given way in a ring: it may have written anything.
    Forgotten,
}

impl Item {
    /// Whether it concerns the byte at `address`, or may.
    #[must_use]
    pub fn is_about(&self, address: LiveAddr) -> bool {
        match self {
            Item::Store(store) => address.from_start(store.address) < store.size.into(),
            Item::Lost { start, len, .. } => *len == 0 || address.from_start(*start) < *len,
            Item::Enter(_) => false,
            Item::Stopped(_) | Item::Forgotten => true,
        }
    }
}

/// Something was overwritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Store {
    /// The instruction.
    pub pc: LiveAddr,
    /// Where.
    pub address: LiveAddr,
    /// Bytes.
    pub size: u32,
    /// Where the old bytes are in [`Items::bytes`].
    at: usize,
}

impl Store {
    /// Where the old bytes are, among those of all stores that its [`Items`] have.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.at..self.at + self.size as usize
    }
}

/// Behind this number of the order, or at it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Place {
    after: u64,
    exact: bool,
}

impl Place {
    /// What is at a number comes before what is behind it.
    fn key(self) -> (u64, bool) {
        (self.after, !self.exact)
    }
}

/// Items of one thread, in order.
#[derive(Debug, Default)]
pub struct Items {
    /// The items.
    pub items: Vec<Item>,
    /// Of each item.
    places: Vec<Place>,
    bytes: Vec<u8>,
    /// Numbers of the order that the thread passed.
    passed: Vec<u64>,
    /// Of the items that a walk adds next.
    place: Place,
}

impl Items {
    /// What the store overwrote.
    pub fn old(&self, store: &Store) -> &[u8] {
        &self.bytes[store.range()]
    }

    /// What they are behind stays.
    pub fn clear(&mut self) {
        let place = self.place;
        *self = Items { place, ..Items::default() };
    }

    /// Leaves the first `len` items, of which all others are stores. Returns how many old bytes are left.
    pub fn take_back(&mut self, len: usize) -> usize {
        if let Some(Item::Store(store)) = self.items.get(len) {
            self.bytes.truncate(store.at);
        }
        self.items.truncate(len);
        self.places.truncate(len);
        self.bytes.len()
    }

    fn push(&mut self, item: Item, place: Place) {
        self.items.push(item);
        self.places.push(place);
    }

    fn with_places(&self) -> impl Iterator<Item = (&Item, Place)> {
        self.items.iter().zip(self.places.iter().copied())
    }

    fn append(&mut self, more: Items) {
        let at = self.bytes.len();
        self.bytes.extend(more.bytes);
        self.items.extend(more.items.into_iter().map(|item| match item {
            Item::Store(store) => Item::Store(Store { at: store.at + at, ..store }),
            other => other,
        }));
        self.places.extend(more.places);
        self.passed.extend(more.passed);
    }
}

/// Items that are collected before they are handed on.
const BATCH: usize = 1 << 14;

/// A walk adds what it finds.
impl Sink for Items {
    const REFERENCES: bool = true;

    fn store(&mut self, store: Overwritten<'_>) {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(store.old);
        let store = Store {
            pc: store.pc,
            address: store.address,
            // At most that of one event.
            size: u32::try_from(store.old.len()).unwrap_or(u32::MAX),
            at,
        };
        self.push(Item::Store(store), self.place);
    }

    fn enter(&mut self, entered: Entered) {
        self.push(Item::Enter(Box::new(entered)), self.place);
    }

    fn order(&mut self, number: u64, exact: bool) {
        self.place = Place { after: number, exact };
        self.passed.push(number);
    }

    fn ordered(&mut self) {
        self.place.exact = false;
    }

    fn lost(&mut self, pc: LiveAddr, start: LiveAddr, len: u64, why: &[u8]) {
        let why = String::from_utf8_lossy(why).into_owned();
        self.push(Item::Lost { pc, start, len, why }, self.place);
    }

    fn stopped(&mut self, reason: Loss) {
        self.push(Item::Stopped(reason), self.place);
    }
}

struct Collector {
    outlet: Outlet<Items>,
    batch: Items,
}

impl Collector {
    /// Something was added.
    fn added(&mut self) {
        if self.batch.items.len() >= BATCH {
            self.send();
        }
    }

    fn send(&mut self) {
        let next = Items { place: self.batch.place, ..Items::default() };
        let batch = std::mem::replace(&mut self.batch, next);
        if self.outlet.is_open() {
            self.outlet.send(batch);
        }
    }
}

impl Sink for Collector {
    const REFERENCES: bool = true;

    fn store(&mut self, store: Overwritten<'_>) {
        self.batch.store(store);
        self.added();
    }

    fn enter(&mut self, entered: Entered) {
        self.batch.enter(entered);
        self.added();
    }

    fn order(&mut self, number: u64, exact: bool) {
        self.batch.order(number, exact);
    }

    fn ordered(&mut self) {
        self.batch.ordered();
    }

    fn lost(&mut self, pc: LiveAddr, start: LiveAddr, len: u64, why: &[u8]) {
        self.batch.lost(pc, start, len, why);
        self.added();
    }

    fn stopped(&mut self, reason: Loss) {
        self.batch.stopped(reason);
        self.added();
    }

    fn go_on(&mut self) -> bool {
        self.outlet.is_open()
    }
}

impl BatchSink for Collector {
    type Batch = Items;
    type Kept = ();

    fn finish(mut self) -> Outlet<Items> {
        self.send();
        self.outlet
    }
}

/// Hands the log of the threads that `wanted` names to `consume`, thread by thread and in order, with
/// the position of the thread in [`Trace::threads`]; `consume` returns false to stop.
pub fn read(
    trace: &Trace,
    wanted: impl Fn(&Thread) -> bool,
    mut consume: impl FnMut(usize, Items) -> bool,
) -> Result<(), Error> {
    if !trace.options.recording.undo() {
        return Err(Error("the trace was recorded without an undo log".into()));
    }
    let make = |_, outlet| Collector { outlet, batch: Items::default() };
    let mut result = Ok(());
    let forgotten = |thread: &Thread| {
        let first = thread.chunks.first().map(|chunk| chunk.frame.header.seq);
        trace.options.recording.ring && first != Some(0)
    };
    // When it ended is not known, either.
    for (i, thread) in trace.threads.iter().enumerate() {
        if thread.chunks.is_empty() && wanted(thread) && forgotten(thread) {
            let mut items = Items::default();
            items.push(Item::Forgotten, Place { after: u64::MAX, exact: true });
            if !consume(i, items) {
                return Ok(());
            }
        }
    }
    // Chunks are recovered alone: what a thread passed last in the one before.
    let (mut thread, mut passed) = (usize::MAX, 0);
    pipeline::run(trace, pipeline::tasks(trace, &wanted), make, |job, piece| {
        let begins = job.thread != thread;
        if job.thread != thread {
            (thread, passed) = (job.thread, 0);
        }
        match piece {
            Piece::Batch(mut items) => {
                for place in items.places.iter_mut().take_while(|place| place.after == 0) {
                    place.after = passed;
                }
                if begins && forgotten(&trace.threads[thread]) {
                    // A chunk begins with a number.
                    let first = items.passed.first().copied().unwrap_or(u64::MAX);
                    items.items.insert(0, Item::Forgotten);
                    items.places.insert(0, Place { after: first, exact: true });
                }
                passed = items.passed.last().copied().unwrap_or(passed);
                consume(job.thread, items)
            }
            Piece::End(end) => match *end {
                Ok(_) => true,
                Err(violation) => {
                    result = Err(Error(violation.to_string()));
                    false
                }
            },
        }
    });
    result
}

/// The whole log in memory.
#[derive(Debug, Default)]
pub struct Log {
    /// As [`Trace::threads`].
    pub threads: Vec<Items>,
}

/// Two threads' stores to the same byte, of which nobody knows which was first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unordered {
    /// Positions in [`Log::threads`], and the stores' pcs.
    pub threads: [usize; 2],
    /// The stores.
    pub pcs: [LiveAddr; 2],
    /// Where.
    pub address: LiveAddr,
}

impl Log {
    /// Reads the log of all threads.
    pub fn new(trace: &Trace) -> Result<Log, Error> {
        let mut log = Log::default();
        log.threads.resize_with(trace.threads.len(), Items::default);
        read(
            trace,
            |_| true,
            |thread, items| {
                log.threads[thread].append(items);
                true
            },
        )?;
        Ok(log)
    }

    /// Reads what concerns the byte at `address`: stores to it, losses that may include it.
    pub fn new_about(trace: &Trace, address: LiveAddr) -> Result<Log, Error> {
        let mut log = Log::default();
        log.threads.resize_with(trace.threads.len(), Items::default);
        read(
            trace,
            |_| true,
            |thread, items| {
                let mut about = Items::default();
                let all = items.with_places().filter(|(item, _)| item.is_about(address));
                for (item, place) in all {
                    let mut item = item.clone();
                    if let Item::Store(store) = &mut item {
                        let old = items.old(store);
                        store.at = about.bytes.len();
                        about.bytes.extend_from_slice(old);
                    }
                    about.push(item, place);
                }
                about.passed = items.passed;
                log.threads[thread].append(about);
                true
            },
        )?;
        Ok(log)
    }

    /// All items, the newest first: a thread's in their order, threads as far as theirs is known.
    pub fn newest_first(&self) -> impl Iterator<Item = (usize, &Item)> {
        let mut all: Vec<((u64, bool), usize, &Item)> = Vec::new();
        for (thread, items) in self.threads.iter().enumerate() {
            all.extend(items.with_places().map(|(item, place)| (place.key(), thread, item)));
        }
        all.sort_by_key(|&(key, ..)| key);
        all.into_iter().rev().map(|(_, thread, item)| (thread, item))
    }

    /// Ranges whose old contents are gone; empty ones: nobody knows where.
    pub fn lost(&self) -> impl Iterator<Item = (Range<LiveAddr>, &str)> {
        let items = self.threads.iter().flat_map(|t| &t.items);
        items.filter_map(|item| match item {
            Item::Lost { start, len, why, .. } => {
                Some((*start..LiveAddr(start.0.saturating_add(*len)), why.as_str()))
            }
            _ => None,
        })
    }

    /// All stores in an order that agrees with what is known: thread, place in it, interval.
    fn order(&self) -> Vec<(usize, Store, Range<u64>)> {
        let mut all = Vec::new();
        for (thread, items) in self.threads.iter().enumerate() {
            let mut passed = items.passed.iter().copied().peekable();
            for (item, place) in items.with_places() {
                let Item::Store(store) = item else { continue };
                while passed.next_if(|&n| n <= place.after).is_some() {}
                let end = match place.exact {
                    true => place.after,
                    false => passed.peek().copied().unwrap_or(u64::MAX),
                };
                all.push((place.key(), (thread, *store, place.after..end)));
            }
        }
        // Stable: what is in one thread stays in its order.
        all.sort_by_key(|&(key, _)| key);
        all.into_iter().map(|(_, entry)| entry).collect()
    }

    /// Tells `write` what to write where to bring memory back to the start of the log, newest first.
    pub fn backwards(&self, mut write: impl FnMut(LiveAddr, &[u8])) {
        for (thread, store, _) in self.order().iter().rev() {
            write(store.address, self.threads[*thread].old(store));
        }
    }

    /// Pairs of stores whose order is not known, at most one for each 8 bytes.
    pub fn unordered(&self) -> Vec<Unordered> {
        struct Last {
            thread: usize,
            pc: LiveAddr,
            mask: u8,
            end: u64,
        }
        let mut found = Vec::new();
        if self.threads.len() < 2 {
            return found;
        }
        let mut words: HashMap<u64, (bool, Vec<Last>)> = HashMap::new();
        for (thread, store, interval) in self.order() {
            let first = store.address.0;
            let last = first.saturating_add(u64::from(store.size).max(1) - 1);
            for word in first / 8..=last / 8 {
                let bytes = (0..8).filter(|i| (first..=last).contains(&(8 * word + i)));
                let mask = bytes.fold(0u8, |mask, i| mask | 1 << i);
                let (reported, lasts) = words.entry(word).or_default();
                let overlaps =
                    |l: &&Last| l.thread != thread && l.mask & mask != 0 && l.end > interval.start;
                if let Some(other) = lasts.iter().find(overlaps).filter(|_| !*reported) {
                    *reported = true;
                    found.push(Unordered {
                        threads: [other.thread, thread],
                        pcs: [other.pc, store.pc],
                        address: LiveAddr(8 * word),
                    });
                }
                match lasts.iter_mut().find(|l| l.thread == thread && l.mask == mask) {
                    Some(l) => (l.end, l.pc) = (l.end.max(interval.end), store.pc),
                    None => lasts.push(Last { thread, pc: store.pc, mask, end: interval.end }),
                }
            }
        }
        found
    }
}
