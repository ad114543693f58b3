//! `dep syscalls` of a recording of inputs: all threads' calls in their order, and what the kernel wrote.

use std::collections::BTreeMap;
use std::io::Write;

use abi::event::Position;
use recording::{Recording, TraceName};
use replay::order::{order, Item};
use replay::Lineage;
use serde::Serialize;
use trace::events::Event;
use trace::{Error, Trace};

use crate::args::{CallSelection, Which};
use crate::row::{Form, Hex, HexBytes, Row};
use crate::syscalls::CallRow;
use crate::text::hex;
use crate::Stop;

/// Bytes that are shown of a range.
const SHOWN: usize = 16;

/// What the kernel wrote for a call.
#[derive(Serialize)]
struct Written<'a> {
    address: Hex,
    size: usize,
    /// The first bytes.
    bytes: HexBytes<'a>,
}

/// A call in its place.
#[derive(Serialize)]
struct InputRow<'a> {
    #[serde(flatten)]
    call: CallRow,
    /// Turns of all threads, as `dep debug` counts them.
    turn: u64,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    wrote: &'a [Written<'a>],
}

impl Row for InputRow<'_> {
    fn text(&self, out: &mut Vec<u8>) {
        self.call.text(out);
        out.extend_from_slice(format!(" turn {}", self.turn).as_bytes());
        for Written { address, size, bytes } in self.wrote {
            out.push(b' ');
            hex(out, address.0);
            out.extend_from_slice(format!(":{size}=").as_bytes());
            bytes.append(out);
            if bytes.0.len() < *size {
                out.extend_from_slice(b"...");
            }
        }
    }
}

fn lineage(what: &CallSelection, process: Option<Which>) -> Result<Lineage, Error> {
    let file = &what.common.file;
    match process {
        Some(Which { pid, image: Some(image) }) => {
            let recording = Recording::open(file)?;
            let _guard = recording.temporary().map(crate::cleanup::Guard::new);
            Lineage::of_recording(&recording, TraceName { pid, image })
        }
        _ => Lineage::of_file(file),
    }
}

/// The list. `None`: the order of the calls is not known, or not of all; a warning says so.
pub fn list(
    trace: &Trace,
    what: &CallSelection,
    process: Option<Which>,
    out: &mut impl Write,
) -> Option<Result<(), Stop>> {
    let is_call = |event: &Event| matches!(event, Event::Syscall { .. });
    let all = trace.threads.iter().flat_map(|thread| &thread.events);
    let own = all.filter(|placed| placed.event.as_ref().is_some_and(is_call)).count();
    let unordered = |why: &str| {
        eprintln!("dep: warning: the calls are listed one thread after another: {why}");
        None
    };
    if !trace.damage.is_empty() {
        // What is damaged is said elsewhere.
        return None;
    }
    let lineage = match lineage(what, process) {
        Ok(lineage) => lineage,
        Err(error) => return unordered(&error.0),
    };
    let ordered = match order(&lineage.traces()) {
        Ok(ordered) => ordered,
        Err(error) => return unordered(&error.0),
    };
    let items = &ordered.items;
    let ordered_calls = items.iter().filter(|item| is_call(&item.event)).count();
    let Some(before) = ordered_calls.checked_sub(own) else {
        return unordered(&format!("they can be replayed {}", ordered.end));
    };
    let mut names = BTreeMap::new();
    for item in items {
        match *item.event {
            Event::ThreadStart { tid, .. } => drop(names.insert(item.thread, tid)),
            Event::State { index, tid, .. } => drop(names.insert(index, tid)),
            _ => {}
        }
    }
    if let Some(child) = ordered.child {
        child.tid.map(|tid| names.insert(child.thread, tid));
    }
    let tid = |index: u32| names.get(&index).copied().unwrap_or(index);
    if let Some(wanted) = what.thread.filter(|wanted| !names.values().any(|tid| tid == wanted)) {
        return Some(Err(Error(format!("the trace has no thread {wanted}")).into()));
    }
    Some(write(items, before, what, &tid, out))
}

/// Writes the calls behind the first `before`.
fn write(
    items: &[Item<'_>],
    mut before: usize,
    what: &CallSelection,
    tid: &dyn Fn(u32) -> u32,
    out: &mut impl Write,
) -> Result<(), Stop> {
    let form = Form::new(what.common.json);
    let mut left = what.limit.unwrap_or(u64::MAX);
    let mut turns: BTreeMap<u32, u64> = BTreeMap::new();
    let mut written: BTreeMap<u32, Vec<Written>> = BTreeMap::new();
    let mut starts = None;
    for item in items {
        // What a recording begins with in the middle of a program has no place.
        let placed = item.position != Position::NONE;
        if let Event::State { index, turns: made, .. } = *item.event {
            turns.insert(index, made);
        } else if placed {
            turns.insert(item.thread, item.position.control_flow.0);
        }
        let of_start = starts == Some(item.thread);
        match &*item.event {
            Event::ThreadStart { .. } => starts = Some(item.thread),
            // What is there when a thread starts belongs to no call.
            Event::Written { .. } | Event::Mapped { .. } if of_start || !placed => {}
            Event::Written { address, bytes } => {
                let shown = &bytes[..bytes.len().min(SHOWN)];
                let (address, size) = (Hex(address.0), bytes.len());
                let one = Written { address, size, bytes: HexBytes(shown) };
                written.entry(item.thread).or_default().push(one);
                starts = None;
            }
            Event::Syscall { number, arguments, result } => {
                starts = None;
                let wrote = written.remove(&item.thread).unwrap_or_default();
                if before > 0 {
                    before -= 1;
                    continue;
                }
                let tid = tid(item.thread);
                if what.thread.is_some_and(|wanted| wanted != tid) {
                    continue;
                }
                if left == 0 {
                    return Ok(());
                }
                left -= 1;
                let turn = turns.values().fold(0, |sum: u64, turns| sum.wrapping_add(*turns));
                let call = CallRow::new(tid, *number, arguments, *result);
                form.write(&InputRow { call, turn, wrote: &wrote }, out)?;
            }
            Event::Mapped { .. } | Event::Runs(_) => {}
            _ => {
                starts = None;
                written.remove(&item.thread);
            }
        }
    }
    Ok(())
}
