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

use trace::events::Event;
use trace::{Error, Trace};

use crate::args::Races;
use crate::feed::{self, Listener, References, Wanted};
use crate::replay::Ready;
use crate::symbols::Symbols;
use crate::Stop;
use detect::{Detector, SyncBytes, Written};
use shadow::Shadow;

/// More threads than the memory of a byte can name.
const MOST_THREADS: usize = 1 << 16;

/// Functions that synchronise with plain loads and stores, by parts of their symbols: Rust's `std::sync`.
const SYNCHRONISING: [&str; 1] = ["3std4sync"];

/// Lists the races of a replay, which has left `trace`.
pub fn list(trace: &Trace, ready: &Ready, what: &Races, out: &mut impl Write) -> Result<(), Stop> {
    let file = what.common.file.display();
    if trace.threads.len() >= MOST_THREADS {
        return Err(Error(format!("{file}: it has too many threads")).into());
    }
    if trace.threads.len() < 2 {
        return Ok(());
    }
    let first = feed::first(trace, ready);
    let standing = feed::standing(trace, ready);
    let in_file = |e: Error| Error(format!("{file}: {e}"));
    let (written, at_ends) = written(trace, ready).map_err(in_file)?;

    let mut shadow = Shadow::default();
    let mut sync = SyncBytes::new(&mut shadow, &standing);
    at_ends.iter().for_each(|&(at, len)| sync.add(at, len));
    let names = |name: &str| {
        SYNCHRONISING.iter().any(|known| name.contains(known))
            || what.synchronising.iter().any(|known| name.contains(known.as_str()))
    };
    let synchronising = Symbols::new(trace).ranges(names);
    let wanted = |references| Wanted { references, synchronising: &synchronising, passing: None };
    feed::run(trace, first, wanted(References::Atomic), &mut sync).map_err(in_file)?;
    let in_calls = sync.in_calls;
    let mut detector = Detector::new(trace, shadow, written, what.strict);
    if !standing.is_empty() {
        detector.begins_within(&standing, &in_calls, ready.script.before);
    }
    detector.runs(first);
    feed::run(trace, first, wanted(References::All), &mut detector).map_err(in_file)?;

    let report = report::Report::new(trace, ready, &detector.found, what.strict);
    let found = report.write(what.common.json, out)?;
    out.flush()?;
    match found {
        0 => Ok(()),
        1 => Err(Error(format!("{file}: a race")).into()),
        n => Err(Error(format!("{file}: {n} races")).into()),
    }
}

type AllWritten = Vec<std::vec::IntoIter<Written>>;

/// What the kernel had written for the calls and the ends of threads, and the words that it wrote when
/// threads ended.
fn written(trace: &Trace, ready: &Ready) -> Result<(AllWritten, Vec<(u64, u32)>), Error> {
    let traces = ready.lineage.traces();
    let ordered = replay::order::order(&traces)?;
    let mut all: Vec<Vec<Written>> = vec![Vec::new(); trace.threads.len()];
    let mut collected: Vec<Written> = vec![Vec::new(); trace.threads.len()];
    let mut at_ends = Vec::new();
    for item in &ordered.items {
        let Some(at) = trace.threads.iter().position(|t| t.index == item.thread) else { continue };
        match &*item.event {
            Event::Written { address, bytes } => collected[at].push((address.0, bytes.to_vec())),
            Event::Syscall { .. } => all[at].push(std::mem::take(&mut collected[at])),
            Event::ThreadEnd { .. } => {
                let words = std::mem::take(&mut collected[at]);
                at_ends
                    .extend(words.iter().map(|(at, b)| (*at, u32::try_from(b.len()).unwrap_or(4))));
                all[at].push(words);
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
    // Of a forked child, the first ones are its parent's, and no longer in the trace.
    for (thread, all) in trace.threads.iter().zip(&mut all) {
        let is_one =
            |event: &Event| matches!(event, Event::Syscall { .. } | Event::ThreadEnd { .. });
        let made = thread.events.iter().filter_map(|e| e.event.as_ref()).filter(|e| is_one(e));
        let made = made.count();
        let surplus = all.len().checked_sub(made).filter(|&surplus| {
            surplus == 0 || ready.script.child.is_some_and(|child| child.thread == thread.index)
        });
        let Some(surplus) = surplus else {
            let name = thread.name();
            let (theirs, what) = (all.len(), "system calls in the replay, and in the recording");
            return Err(Error(format!("thread {name} made {made} {what} {theirs}")));
        };
        all.drain(..surplus);
    }
    Ok((all.into_iter().map(Vec::into_iter).collect(), at_ends))
}
