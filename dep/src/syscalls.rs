//! System calls: `dep syscalls`, and how many of each for `dep info`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;

use abi::syscalls::{described, find, OLD};
use serde::{Serialize, Serializer};
use trace::events::Event;
use trace::{Error, Thread, Trace};

use crate::args::CallSelection;
use crate::row::{Form, Hex, Row};
use crate::text::{decimal, hex};
use crate::Stop;

/// The call's name; those that the table does not have are named by their number.
pub fn name(number: u64) -> Cow<'static, str> {
    match find(number) {
        Some(call) => Cow::Borrowed(call.name),
        None if number & OLD != 0 => Cow::Owned(format!("int80_{}", number & !OLD)),
        None => Cow::Owned(format!("syscall_{number}")),
    }
}

/// Calls by name, and how many of each; most frequent first.
pub type Tally = Vec<(Cow<'static, str>, u64)>;

/// The calls of one thread.
#[derive(Default)]
pub struct Calls {
    pub all: Tally,
    /// Those whose effects on memory the table is not certain about.
    pub not_described: Tally,
}

impl Calls {
    pub fn of(thread: &Thread) -> Calls {
        let (mut all, mut not_described) = (BTreeMap::new(), BTreeMap::new());
        for event in &thread.events {
            let Some(Event::Syscall { number, arguments, result }) = &event.event else { continue };
            *all.entry(*number).or_insert(0) += 1;
            if !find(*number).is_some_and(|call| described(call, arguments, *result)) {
                *not_described.entry(*number).or_insert(0) += 1;
            }
        }
        Calls { all: tally(&all), not_described: tally(&not_described) }
    }
}

fn tally(counts: &BTreeMap<u64, u64>) -> Tally {
    let mut tally: Tally = counts.iter().map(|(&number, &count)| (name(number), count)).collect();
    // Stable: equal counts stay in the order of their numbers.
    tally.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    tally
}

/// `name (count), ...`: the first `most`, and how many kinds are left.
pub fn tally_text(tally: &Tally, most: usize) -> String {
    let named = tally.iter().take(most).map(|(name, count)| format!("{name} ({count})"));
    let mut parts: Vec<String> = named.collect();
    if tally.len() > most {
        parts.push(format!("{} more", tally.len() - most));
    }
    parts.join(", ")
}

/// A tally as an object, in its order.
pub fn tally_object<S: Serializer>(tally: &Tally, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(tally.iter().map(|(name, count)| (name, count)))
}

/// A system call.
#[derive(Serialize)]
pub struct CallRow {
    tid: u32,
    number: u64,
    name: Cow<'static, str>,
    arguments: [Hex; 6],
    result: i64,
}

impl CallRow {
    pub fn new(tid: u32, number: u64, arguments: &[u64; 6], result: i64) -> CallRow {
        CallRow { tid, number, name: name(number), arguments: arguments.map(Hex), result }
    }
}

impl Row for CallRow {
    fn text(&self, out: &mut Vec<u8>) {
        decimal(out, u64::from(self.tid));
        out.push(b' ');
        out.extend_from_slice(self.name.as_bytes());
        for (argument, before) in self.arguments.iter().zip(["(", ", ", ", ", ", ", ", ", ", "]) {
            out.extend_from_slice(before.as_bytes());
            hex(out, argument.0);
        }
        out.extend_from_slice(b") = ");
        // What does not fit into 32 bits is an address.
        match u64::try_from(self.result).ok().filter(|&result| result > u64::from(u32::MAX)) {
            Some(address) => hex(out, address),
            None => out.extend_from_slice(self.result.to_string().as_bytes()),
        }
    }
}

pub fn list(trace: &Trace, what: &CallSelection, out: &mut impl Write) -> Result<(), Stop> {
    if let Some(tid) = what.thread.filter(|&tid| trace.threads.iter().all(|t| t.name() != tid)) {
        return Err(Error(format!("the trace has no thread {tid}")).into());
    }
    let form = Form::new(what.common.json);
    let mut left = what.limit.unwrap_or(u64::MAX);
    for thread in trace.threads.iter().filter(|t| what.thread.is_none_or(|tid| tid == t.name())) {
        for event in &thread.events {
            let Some(Event::Syscall { number, arguments, result }) = &event.event else { continue };
            if left == 0 {
                return Ok(());
            }
            left -= 1;
            let row = CallRow::new(thread.name(), *number, arguments, *result);
            form.write(&row, out)?;
        }
    }
    Ok(())
}
