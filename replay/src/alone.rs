//! The events of one watched thread, which is replayed alone, in memory that holds nothing but what the thread
//! itself stored and saw.

use abi::event::Position;
use abi::ids::LiveAddr;
use trace::events::{Event, Placed};
use trace::{Error, Thread, Trace};

use crate::end::End;
use crate::lineage::Lineage;
use crate::order::{is_input, Item, Ordered, Said};

/// The watched threads of a trace, by their indexes.
#[must_use]
pub fn threads(trace: &Trace) -> Vec<u32> {
    trace.threads.iter().filter(|thread| begins(thread)).map(|thread| thread.index).collect()
}

/// Whether threads of the process were watched. Else it is replayed as with serial threads.
#[must_use]
pub fn is_watched(trace: &Trace) -> bool {
    // A process with serial threads goes over to that if others may write to its memory.
    let may_be = trace.options.recording.watches() || trace.threads.iter().any(is_later);
    may_be && trace.threads.iter().any(begins)
}

/// Whether the thread was made by one that was watched, and is not part of the order in front of that: it was watched
/// from its beginning, or there was no room for it.
pub(crate) fn follows_watched(trace: &Trace, thread: &Thread) -> bool {
    let has_part = is_later(thread) || has_run(thread) || thread.own_process().is_some();
    thread.index != 0
        && (begins(thread) && !is_later(thread) || !has_part)
        && trace.threads.iter().any(is_later)
}

/// Threads of a process whose threads were watched that were not, or not any more when they began: they cannot be
/// replayed.
#[must_use]
pub fn unwatched(trace: &Trace) -> Vec<&Thread> {
    let is_one = |thread: &&Thread| {
        let has_part = has_run(thread) || thread.own_process().is_some();
        let did_something = thread.events.iter().filter_map(|e| e.event.as_ref()).any(is_input);
        !begins(thread) && (is_later(thread) || !has_part && did_something)
    };
    match is_watched(trace) {
        true => trace.threads.iter().filter(is_one).collect(),
        false => Vec::new(),
    }
}

/// The threads that had a part in what came before threads were watched.
pub fn of_beginning(trace: &Trace) -> impl Iterator<Item = &Thread> {
    // Looked for once: there may be many.
    let all = if has_beginning(trace) { trace.threads.as_slice() } else { &[] };
    all.iter().filter(|thread| thread.index == 0 || is_later(thread) || has_run(thread))
}

/// Whether there were several threads when they were watched.
#[must_use]
pub fn had_several(trace: &Trace) -> bool {
    trace.threads.iter().any(|thread| thread.index != 0 && is_later(thread))
}

fn has_run(thread: &Thread) -> bool {
    thread.events.iter().any(|placed| matches!(placed.event, Some(Event::Runs(_))))
}

/// Whether there is something in front of where threads were watched.
#[must_use]
pub fn has_beginning(trace: &Trace) -> bool {
    trace.threads.iter().any(is_later)
}

/// Whether the thread had no view at first.
fn is_later(thread: &Thread) -> bool {
    thread.events.iter().any(|placed| matches!(placed.event, Some(Event::Watched)))
}

/// How far the replays of watched threads go, one by one.
#[must_use]
pub fn ends(trace: &Trace) -> Vec<End> {
    // What the threads did that this ended is known to its end.
    let has_ended = has_ended(trace);
    let of = |thread: &Thread| {
        let start = thread.events.iter().position(|placed| placed.event == Some(Event::Watched));
        let events = thread.events.iter().skip(start.unwrap_or(0));
        let events = events.filter_map(|placed| placed.event.as_ref());
        let mut cut = events.filter_map(|event| match event {
            Event::Unfollowed { pc, why } => {
                Some(End::Unfollowed { pc: *pc, why: String::from_utf8_lossy(why).into_owned() })
            }
            Event::Loss { reason, .. } => Some(End::Lost(*reason)),
            _ => None,
        });
        let is_whole = has_ended || thread.events.iter().any(is_end);
        cut.next().unwrap_or(if is_whole { End::Whole } else { End::None })
    };
    trace.threads.iter().filter(|thread| begins(thread)).map(of).collect()
}

/// Whether a thread ended the process, or executed another program.
fn has_ended(trace: &Trace) -> bool {
    let ends_process =
        |placed: &Placed| matches!(placed.event, Some(Event::ProcessEnd { .. } | Event::Exec(_)));
    trace.threads.iter().any(|thread| thread.events.iter().any(ends_process))
}

fn is_end(placed: &Placed) -> bool {
    matches!(placed.event, Some(Event::ThreadEnd { .. } | Event::ProcessEnd { .. }))
}

fn begins(thread: &Thread) -> bool {
    thread.events.iter().any(|placed| matches!(placed.event, Some(Event::State { .. })))
}

/// What happened to the thread with this index of the last trace, in memory that is empty where it begins.
pub fn order<'a>(lineage: &'a Lineage, index: u32) -> Result<Ordered<'a>, Error> {
    let thread =
        lineage.last().threads.iter().find(|thread| thread.index == index && begins(thread));
    let thread = thread.ok_or_else(|| Error(format!("it has no watched thread {index}")))?;
    let (mapped, stack) = lineage.mapped()?;
    let first = |event: Said<'a>| Item { thread: index, position: Position::NONE, event };
    let mut items = Vec::new();
    let mut events = thread.events.iter().peekable();
    let later = is_later(thread);
    // What came before is not kept.
    let is_cut = matches!(
        thread.events.first().and_then(|placed| placed.event.as_ref()),
        Some(Event::Actions(_))
    );
    if later && !is_cut {
        events.by_ref().find(|placed| matches!(placed.event, Some(Event::Watched)));
    }
    // What the kernel has written by then: of a program's first thread the stack, of a forked process what it alone
    // was given. It comes behind the memory that it lies in.
    let mut written = Vec::new();
    let is_programs_first =
        index == 0 && !later && !is_cut && crate::lineage::has_start(lineage.last());
    let mut has_state = false;
    let is_start = |event: &Option<Event>, has_state: bool| match event {
        Some(Event::ThreadStart { .. } | Event::OwnProcess { .. }) => true,
        Some(Event::Actions(_) | Event::State { .. }) => true,
        Some(Event::Written { .. }) => is_programs_first || !has_state,
        _ => false,
    };
    while let Some(placed) = events.next_if(|placed| is_start(&placed.event, has_state)) {
        match &placed.event {
            Some(event @ (Event::Actions(_) | Event::State { .. })) => {
                has_state |= matches!(event, Event::State { .. });
                items.push(first(event.into()));
            }
            Some(event @ Event::Written { .. }) => written.push(first(event.into())),
            _ => {}
        }
    }
    items.extend(mapped.events(stack).into_iter().map(|event| first(event.into())));
    items.extend(written);
    let start = Event::Snapshot { stretch: 0, brk: LiveAddr(mapped.brk) };
    items.push(first(start.into()));
    for placed in events {
        let Some(event) = &placed.event else { continue };
        // Whoever begins before knows it.
        if matches!(event, Event::Actions(_) | Event::State { .. }) {
            continue;
        }
        let (thread, position) = (index, placed.position);
        items.push(Item { thread, position, event: event.into() });
    }
    let end = match thread.events.iter().any(is_end) {
        true => End::Whole,
        false => End::None,
    };
    let mut ordered = Ordered { items, end, child: None };
    ordered.cut();
    if ordered.end == End::None && has_ended(lineage.last()) {
        ordered.end = End::Stopped;
    }
    Ok(ordered)
}
