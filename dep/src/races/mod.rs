//! `dep races`: accesses of different threads to the same bytes, one of them a store, that nothing that was
//! recorded orders.
//!
//! In reading order: [`crate::feed`] tells what all threads did, in their order; `clocks` are what a thread knows
//! of the others' pasts, `order` where it leaves that for others, `calls` which system calls do;
//! `shadow` is what each byte remembers; `detect` puts them together; `report` says what was found.

mod calls;
mod clocks;
mod detect;
mod order;
mod report;
mod shadow;

use std::io::Write;
use std::ops::Range;
use std::path::Path;

use abi::ids::LiveAddr;
use replay::order::Ordered;
use trace::events::Event;
use trace::{Error, Thread, Trace};

use crate::args::Races;
use crate::feed::{stamps, stretches, Listener, References, Wanted};
use crate::replay::{Ready, Watched};
use crate::symbols::Symbols;
use crate::Stop;
use detect::{Detector, OfCall, SyncBytes, Turns};
use report::Report;
use shadow::Shadow;

/// More threads than the memory of a byte can name.
const MOST_THREADS: usize = 1 << 16;

/// Functions that synchronise with plain loads and stores, by parts of their symbols: Rust's `std::sync`.
const SYNCHRONISING: [&str; 1] = ["3std4sync"];

/// Lists the races of a replay, which has left `trace`.
pub fn list(trace: &Trace, ready: &Ready, what: &Races, out: &mut impl Write) -> Result<(), Stop> {
    if trace.threads.len() < 2 {
        return Ok(());
    }
    check_count(trace, what)?;
    let file = what.common.file.display();
    let first = stretches::first(trace, ready);
    let standing = stretches::standing(trace, ready);
    let in_file = |e: Error| Error(format!("{file}: {e}"));
    let ordered = replay::order::order(&ready.lineage.traces()).map_err(in_file)?;
    let mut written = Written::of(trace.threads.iter().map(|thread| thread.index));
    written.add(&ordered);
    for thread in &trace.threads {
        let child = ready.script.child;
        let may_have_more = child.is_some_and(|child| child.thread == thread.index);
        written.fit(thread, &[thread], may_have_more).map_err(in_file)?;
    }

    let mut symbols = Symbols::new(trace);
    let synchronising = synchronising(&mut symbols, what);
    let wanted = |references| Wanted {
        first_of_masked: true,
        references,
        synchronising: &synchronising,
        passing: None,
    };
    let mut shadow = Shadow::default();
    let mut sync = SyncBytes::new(&mut shadow, &standing);
    written.at_ends.iter().for_each(|&(at, len)| sync.add(at, len));
    stretches::run(trace, first, wanted(References::Atomic), &mut sync).map_err(in_file)?;
    let in_calls = sync.in_calls;
    let turns = if standing.is_empty() { 0 } else { ready.script.before };
    let written = written.of_threads();
    let mut detector = Detector::new(trace, shadow, written, Turns::All(turns), what.strict);
    if !standing.is_empty() {
        detector.begins_within(&standing, &in_calls);
    }
    detector.runs(first);
    stretches::run(trace, first, wanted(References::All), &mut detector).map_err(in_file)?;
    report(trace, symbols, detector, Some((&trace.output, &ready.original)), what, out)
}

/// Lists the races of threads that were watched, of which `recorded` has the recording and each part a replay.
pub fn list_watched(
    recorded: &Trace,
    parts: &[Part],
    what: &Races,
    out: &mut impl Write,
) -> Result<(), Stop> {
    let indexes = replay::alone::threads(recorded);
    if indexes.len() < 2 {
        return Ok(());
    }
    check_count(recorded, what)?;
    let file = what.common.file.display();
    let in_file = |e: Error| Error(format!("{file}: {e}"));
    let all = recorded.threads.iter();
    let mut written = Written::of(all.clone().map(|thread| thread.index));
    let mut threads: Vec<Vec<stamps::Part<'_>>> = Vec::new();
    for thread in all {
        let of_thread = parts.iter().filter(|part| part.index() == thread.index);
        let mut replayed = Vec::new();
        for Part { what, ready, trace } in of_thread {
            let stamps = match what {
                Watched::Beginning => Vec::new(),
                _ => stamps::of(thread).ok_or_else(|| {
                    in_file(Error("it was recorded by a version that did not note the order of watched threads: record it again".into()))
                })?,
            };
            let ordered = match what {
                Watched::Beginning => replay::order::beginning(&ready.lineage.traces()),
                _ => replay::alone::order(&ready.lineage, thread.index),
            };
            written.add(&ordered.map_err(in_file)?);
            let end = match what {
                Watched::Beginning => None,
                _ => end_of(thread),
            };
            let start = start_of(thread);
            let left = trace.threads.iter().find(|one| one.index == thread.index);
            replayed.extend(left.map(|thread| stamps::Part { trace, thread, stamps, start, end }));
        }
        let made: Vec<_> = replayed.iter().map(|part| part.thread).collect();
        written.fit(thread, &made, false).map_err(in_file)?;
        threads.push(replayed);
    }

    let Some(Part { ready, .. }) = parts.first() else { return Ok(()) };
    let mut symbols = Symbols::of_replay(ready);
    let synchronising = synchronising(&mut symbols, what);
    let wanted = |references| Wanted {
        first_of_masked: true,
        references,
        synchronising: &synchronising,
        passing: None,
    };
    let mut shadow = Shadow::default();
    let mut sync = SyncBytes::new(&mut shadow, &[]);
    written.at_ends.iter().for_each(|&(at, len)| sync.add(at, len));
    stamps::run(&threads, wanted(References::Atomic), &mut sync).map_err(in_file)?;
    let turns = Turns::Each(vec![0; threads.len()]);
    let written = written.of_threads();
    let mut detector = Detector::new(recorded, shadow, written, turns, what.strict);
    detector.does_more(recorded.threads.iter().map(|thread| !has_whole(thread)).collect());
    stamps::run(&threads, wanted(References::All), &mut detector).map_err(in_file)?;
    report(recorded, symbols, detector, None, what, out)
}

/// A replay of a watched thread, or of what it did before, and what it left.
pub struct Part {
    pub what: Watched,
    pub ready: Ready,
    pub trace: Trace,
}

impl Part {
    fn index(&self) -> u32 {
        match self.what {
            Watched::Thread(index) => index,
            Watched::Beginning | Watched::Named(_) => 0,
        }
    }
}

/// How the thread started.
fn start_of(thread: &Thread) -> Option<&Event> {
    let mut events = thread.events.iter().filter_map(|placed| placed.event.as_ref());
    events.find(|event| matches!(event, Event::ThreadStart { .. }))
}

/// How the thread ended, if not with its process.
fn end_of(thread: &Thread) -> Option<&Event> {
    let events = thread.events.iter().filter_map(|placed| placed.event.as_ref());
    events.rev().find(|event| matches!(event, Event::ThreadEnd { .. }))
}

/// Whether the recording has all that the thread did: up to its end, or that of the process, which it brought about.
fn has_whole(thread: &Thread) -> bool {
    let mut events = thread.events.iter().filter_map(|placed| placed.event.as_ref());
    events.any(|event| {
        matches!(event, Event::ThreadEnd { .. } | Event::ProcessEnd { .. } | Event::Exec(_))
    })
}

fn check_count(trace: &Trace, what: &Races) -> Result<(), Error> {
    match trace.threads.len() < MOST_THREADS {
        true => Ok(()),
        false => Err(Error(format!("{}: it has too many threads", what.common.file.display()))),
    }
}

/// Where the functions lie whose plain accesses synchronise.
fn synchronising(symbols: &mut Symbols, what: &Races) -> Vec<Range<LiveAddr>> {
    symbols.ranges(|name| {
        SYNCHRONISING.iter().any(|known| name.contains(known))
            || what.synchronising.iter().any(|known| name.contains(known.as_str()))
    })
}

/// Shows what was found. `instead`: the output that was replayed, and what it stands for.
fn report(
    trace: &Trace,
    symbols: Symbols,
    detector: Detector<'_>,
    instead: Option<(&Path, &Path)>,
    what: &Races,
    out: &mut impl Write,
) -> Result<(), Stop> {
    let file = what.common.file.display();
    let report = Report::new(trace, symbols, &detector.found, instead, what.strict);
    let found = report.write(what.common.json, out)?;
    out.flush()?;
    match found {
        0 => Ok(()),
        1 => Err(Error(format!("{file}: a race")).into()),
        n => Err(Error(format!("{file}: {n} races")).into()),
    }
}

/// What the kernel had written for the calls and the ends of threads.
struct Written {
    /// Of each thread, by its index: for each call, and its end.
    all: Vec<(u32, Vec<OfCall>)>,
    /// The words that were written when threads ended.
    at_ends: Vec<(u64, u32)>,
}

impl Written {
    fn of(indexes: impl Iterator<Item = u32>) -> Written {
        Written { all: indexes.map(|index| (index, Vec::new())).collect(), at_ends: Vec::new() }
    }

    /// Adds what happened.
    fn add(&mut self, ordered: &Ordered<'_>) {
        const SET_TID_ADDRESS: u64 = 218;
        let mut collected: Vec<OfCall> = vec![Vec::new(); self.all.len()];
        // The word that is cleared when it ends, of a watched thread, which leaves no trace of that.
        let mut cleared = vec![0; self.all.len()];
        for item in &ordered.items {
            let Some(at) = self.all.iter().position(|(index, _)| *index == item.thread) else {
                continue;
            };
            let all = &mut self.all[at].1;
            match &*item.event {
                Event::Written { address, bytes } => {
                    collected[at].push((address.0, bytes.to_vec()));
                }
                Event::State { clear_tid, .. } => cleared[at] = *clear_tid,
                Event::Syscall { number, arguments, .. } => {
                    if *number == SET_TID_ADDRESS {
                        cleared[at] = arguments[0];
                    }
                    all.push(std::mem::take(&mut collected[at]));
                }
                Event::ThreadEnd { .. } => {
                    let mut words = std::mem::take(&mut collected[at]);
                    if words.is_empty() && cleared[at] != 0 {
                        words.push((cleared[at], vec![0; 4]));
                    }
                    let len = |bytes: &Vec<u8>| u32::try_from(bytes.len()).unwrap_or(4);
                    self.at_ends.extend(words.iter().map(|(at, bytes)| (*at, len(bytes))));
                    all.push(words);
                }
                // The memory where a ring begins was not written by the next call of the thread that copied it.
                Event::Snapshot { .. } => collected.iter_mut().for_each(Vec::clear),
                // What was written is no business of other threads.
                Event::Signal { .. } | Event::Answer { .. } | Event::ThreadStart { .. } => {
                    collected[at].clear();
                }
                _ => {}
            }
        }
    }

    /// The thread has to have made as many calls in its replays. `may_have_more`: it is that of a forked child, whose
    /// first ones are its parent's, and no longer in the trace.
    fn fit(
        &mut self,
        thread: &Thread,
        replayed: &[&Thread],
        may_have_more: bool,
    ) -> Result<(), Error> {
        let Some((_, all)) = self.all.iter_mut().find(|(index, _)| *index == thread.index) else {
            return Ok(());
        };
        let ends = end_of(thread).is_some();
        let is_one = |event: &&Event| match event {
            Event::Syscall { .. } | Event::ThreadEnd { .. } => true,
            // A thread that was replayed alone.
            Event::ProcessEnd { .. } => ends,
            _ => false,
        };
        let events = replayed.iter().flat_map(|thread| &thread.events);
        let made = events.filter_map(|placed| placed.event.as_ref()).filter(is_one).count();
        let surplus = all.len().checked_sub(made).filter(|&more| more == 0 || may_have_more);
        let Some(surplus) = surplus else {
            let name = thread.name();
            let (theirs, what) = (all.len(), "system calls in the replay, and in the recording");
            return Err(Error(format!("thread {name} made {made} {what} {theirs}")));
        };
        all.drain(..surplus);
        Ok(())
    }

    fn of_threads(self) -> Vec<std::vec::IntoIter<OfCall>> {
        self.all.into_iter().map(|(_, all)| all.into_iter()).collect()
    }
}
