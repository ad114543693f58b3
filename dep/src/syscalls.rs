//! System calls: `dep syscalls`, and how many of each for `dep info`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;

use abi::syscalls::{described, find};
use trace::events::Event;
use trace::{Error, Thread, Trace};

use crate::args::CallSelection;
use crate::text::{hex, json_string};
use crate::Stop;

/// The call's name; those that the table does not have are named by their number.
fn name(number: u64) -> Cow<'static, str> {
    match find(number) {
        Some(call) => Cow::Borrowed(call.name),
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

    pub fn count(&self) -> u64 {
        self.all.iter().map(|(_, count)| count).sum()
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

pub fn tally_json(tally: &Tally) -> String {
    let entries = tally.iter().map(|(name, count)| format!("{}:{count}", json_string(name)));
    format!("{{{}}}", entries.collect::<Vec<_>>().join(","))
}

pub fn list(trace: &Trace, what: &CallSelection, out: &mut impl Write) -> Result<(), Stop> {
    if let Some(tid) = what.thread.filter(|&tid| trace.threads.iter().all(|t| t.name() != tid)) {
        return Err(Error(format!("the trace has no thread {tid}")).into());
    }
    let mut left = what.limit.unwrap_or(u64::MAX);
    for thread in trace.threads.iter().filter(|t| what.thread.is_none_or(|tid| tid == t.name())) {
        for event in &thread.events {
            let Some(Event::Syscall { number, arguments, result }) = &event.event else { continue };
            if left == 0 {
                return Ok(());
            }
            left -= 1;
            let line = line(thread.name(), *number, arguments, *result, what.common.json);
            out.write_all(&line)?;
        }
    }
    Ok(())
}

fn line(tid: u32, number: u64, arguments: &[u64; 6], result: i64, json: bool) -> Vec<u8> {
    let name = name(number);
    let quote = if json { "\"" } else { "" };
    let mut line = match json {
        true => format!("{{\"tid\":{tid},\"number\":{number},\"name\":\"{name}\",\"arguments\":["),
        false => format!("{tid} {name}("),
    }
    .into_bytes();
    for (i, &argument) in arguments.iter().enumerate() {
        if i > 0 {
            line.extend_from_slice(if json { b"," } else { b", " });
        }
        line.extend_from_slice(quote.as_bytes());
        hex(&mut line, argument);
        line.extend_from_slice(quote.as_bytes());
    }
    match json {
        true => line.extend_from_slice(format!("],\"result\":{result}}}\n").as_bytes()),
        false => {
            line.extend_from_slice(b") = ");
            // What does not fit into 32 bits is an address.
            match u64::try_from(result).ok().filter(|&result| result > u64::from(u32::MAX)) {
                Some(address) => hex(&mut line, address),
                None => line.extend_from_slice(result.to_string().as_bytes()),
            }
            line.push(b'\n');
        }
    }
    line
}
