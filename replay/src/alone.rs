//! The events of one watched thread, which is replayed alone, in memory that holds nothing but what the thread
//! itself stored and saw.

use std::borrow::Cow;
use std::ops::Range;

use abi::event::{Position, RegionKind};
use abi::ids::LiveAddr;
use trace::events::{Event, Placed};
use trace::{Error, Thread, Trace};

use crate::end::End;
use crate::lineage::Lineage;
use crate::order::{is_input, Item, Ordered};
use crate::space::Used;

const MMAP: u64 = 9;
const MPROTECT: u64 = 10;
const BRK: u64 = 12;
const MREMAP: u64 = 25;
const PKEY_MPROTECT: u64 = 329;
const READ_WRITE: u32 = 3;
const WRITE: u64 = 2;
const EXECUTE: u64 = 4;
const SHARED: u64 = 1;
const ALL_RIGHTS: u32 = 7;
const FIXED: u64 = 0x10;
const ANONYMOUS: u64 = 0x20;
const PAGE: u64 = 4096;
const ERRORS: u64 = 4095u64.wrapping_neg();

/// Memory that any thread has mapped at any time.
#[derive(Default)]
struct Mapped<'a> {
    /// Ends by starts; none touches another.
    ranges: Used,
    /// What was made executable at any time, of no file, or of a file, whose code may have been changed: what is executed
    /// there the thread has stored or seen, or it is as in the file.
    made: Used,
    code: Vec<Code<'a>>,
    /// The largest end of the heap.
    brk: u64,
}

/// Code of a file.
struct Code<'a> {
    start: u64,
    len: u64,
    /// In the file.
    offset: u64,
    protection: u32,
    file: &'a Event,
    /// Parts of it, first bytes and first bytes behind, that something else was mapped over. A library whose first segment
    /// has code is mapped as long as all its segments are, which then come to lie over it.
    holes: Vec<(u64, u64)>,
}

impl<'a> Code<'a> {
    fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// What is left of it, each part with the file that is mapped there and its offset in that.
    fn parts(&self) -> Vec<(u64, u64, u64, Cow<'a, Event>)> {
        let mut holes = self.holes.clone();
        holes.sort_unstable();
        let (mut at, mut parts) = (self.start, Vec::new());
        for (from, to) in holes.into_iter().chain([(self.end(), self.end())]) {
            if at < from {
                let skipped = at - self.start;
                parts.push((at, from - at, self.offset + skipped, self.file_behind(skipped)));
            }
            at = at.max(to);
        }
        parts
    }

    /// The file; if what is mapped of it was copied, the copy without its first bytes.
    fn file_behind(&self, skipped: u64) -> Cow<'a, Event> {
        let mut file = Cow::Borrowed(self.file);
        if skipped == 0 {
            return file;
        }
        if let Event::Mapped { contents, .. } = file.to_mut() {
            let skipped = usize::try_from(skipped).unwrap_or(usize::MAX).min(contents.len());
            *contents = contents[skipped..].into();
        }
        file
    }
}

impl<'a> Mapped<'a> {
    fn of(lineage: &'a Lineage, brk: u64) -> Result<Mapped<'a>, Error> {
        let mut mapped = Mapped { brk, ..Mapped::default() };
        for trace in lineage.traces() {
            mapped.told(trace)?;
        }
        for thread in lineage.traces().into_iter().flat_map(|trace| &trace.threads) {
            let mut file = None;
            for event in thread.events.iter().filter_map(|placed| placed.event.as_ref()) {
                match event {
                    Event::Mapped { .. } => file = Some(event),
                    Event::Syscall { number, arguments, result } => {
                        let result = result.cast_unsigned();
                        if result < ERRORS {
                            mapped.call(*number, arguments, result, file)?;
                        }
                        file = None;
                    }
                    _ => {}
                }
            }
        }
        Ok(mapped)
    }

    /// What the trace says of calls that are not kept.
    fn told(&mut self, trace: &'a Trace) -> Result<(), Error> {
        let mut file = None;
        for event in trace.process_events.iter().filter_map(|placed| placed.event.as_ref()) {
            match event {
                Event::Mapped { .. } => file = Some(event),
                Event::Snapshot { brk, .. } => self.brk = self.brk.max(brk.0),
                Event::Region { start, len, offset, protection, kind } => {
                    match kind {
                        RegionKind::File => {
                            self.code(start.0, *len, *offset, *protection, file.take())?;
                        }
                        _ => {
                            self.covers(start.0, *len);
                            self.may_be_made(start.0, *len, (*protection).into());
                        }
                    }
                    self.ranges.add(start.0, *len);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn call(
        &mut self,
        number: u64,
        arguments: &[u64; 6],
        result: u64,
        file: Option<&'a Event>,
    ) -> Result<(), Error> {
        let len = match number {
            MMAP => arguments[1],
            MREMAP => arguments[2],
            MPROTECT | PKEY_MPROTECT => {
                self.may_be_made(arguments[0], arguments[1], arguments[2]);
                return Ok(());
            }
            BRK => {
                self.brk = self.brk.max(result);
                return Ok(());
            }
            _ => return Ok(()),
        };
        let len = len.next_multiple_of(PAGE);
        let was_made = self.made.iter().any(|range| (range.0..range.1).contains(&arguments[0]));
        let [_, _, rights, flags, ..] = *arguments;
        // Of a file nobody changes.
        let is_code = flags & (SHARED | ANONYMOUS) == 0 && rights & (EXECUTE | WRITE) == EXECUTE;
        match number {
            MREMAP if was_made => self.made.add(result, len),
            MMAP if !is_code => self.may_be_made(result, len, rights),
            _ => {}
        }
        if number == MMAP && is_code {
            let protection = u32::try_from(arguments[2]).unwrap_or(READ_WRITE);
            self.code(result, len, arguments[5], protection, file)?;
        } else if number == MMAP && arguments[3] & FIXED != 0 {
            self.covers(result, len);
        }
        self.ranges.add(result, len);
        Ok(())
    }

    /// Memory that is not just mapped from a file has these rights.
    fn may_be_made(&mut self, start: u64, len: u64, protection: u64) {
        if protection & EXECUTE != 0 {
            self.made.add(start, len.next_multiple_of(PAGE));
        }
    }

    fn code(
        &mut self,
        start: u64,
        len: u64,
        offset: u64,
        protection: u32,
        file: Option<&'a Event>,
    ) -> Result<(), Error> {
        let Some(file) = file else {
            return Err(Error("damaged: it does not say which code is mapped".into()));
        };
        let end = start.saturating_add(len);
        let meets = |code: &&Code<'_>| code.start < end && start < code.end();
        match self.code.iter().find(meets) {
            Some(known) => {
                let where_from = (known.start, known.len, known.offset);
                if where_from != (start, len, offset) || known.file != file {
                    return Err(Error(format!(
                        "different code was mapped at {start:#x} at different times: threads cannot be replayed alone (record with --threads serial)"
                    )));
                }
            }
            None => {
                let holes = Vec::new();
                self.code.push(Code { start, len, offset, protection, file, holes });
            }
        }
        Ok(())
    }

    /// Something else is mapped over a part of code. (What covers all of it came when the code was of no use any more.)
    fn covers(&mut self, start: u64, len: u64) {
        let end = start.saturating_add(len);
        let has_it = |code: &&mut Code<'_>| {
            code.start <= start && end <= code.end() && len < code.len && start < end
        };
        if let Some(code) = self.code.iter_mut().find(has_it) {
            code.holes.push((start, end));
        }
    }

    /// The memory that a replay has, but for the program's own, and for `stack`, which the program begins with.
    fn events(&self, stack: &Range<u64>) -> Vec<Cow<'a, Event>> {
        let mut events = Vec::new();
        let region = |start: u64, len, offset, protection, kind| Event::Region {
            start: LiveAddr(start),
            len,
            offset,
            protection,
            kind,
        };
        for (start, end) in self.ranges.iter() {
            let event = region(start, end - start, 0, READ_WRITE, RegionKind::Anonymous);
            events.push(Cow::Owned(event));
        }
        let is_of_stack = |start, end| start < stack.end && stack.start < end;
        for (start, end) in self.made.iter().filter(|&(start, end)| !is_of_stack(start, end)) {
            let mut at = start;
            for (from, to) in self.ranges.iter().chain([(end, end)]) {
                let (from, to) = (from.clamp(at, end), to.clamp(at, end));
                // The program's own, or its interpreter's, or the heap, which are there already.
                if at < from {
                    let event = region(at, from - at, 0, ALL_RIGHTS, RegionKind::Program);
                    events.push(Cow::Owned(event));
                }
                if from < to {
                    let event = region(from, to - from, 0, ALL_RIGHTS, RegionKind::Anonymous);
                    events.push(Cow::Owned(event));
                }
                at = at.max(to);
            }
        }
        for code in &self.code {
            for (start, len, offset, file) in code.parts() {
                events.push(file);
                let is_made = self.made.iter().any(|made| made.0 < start + len && start < made.1);
                let protection = if is_made { ALL_RIGHTS } else { code.protection };
                let region = region(start, len, offset, protection, RegionKind::File);
                events.push(Cow::Owned(region));
            }
        }
        events
    }
}

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

/// Whether the thread had a part in what came before threads were watched.
#[must_use]
pub fn is_of_beginning(trace: &Trace, thread: &Thread) -> bool {
    has_beginning(trace) && (is_later(thread) || thread.index == 0 || has_run(thread))
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
pub fn order(lineage: &Lineage, index: u32) -> Result<Ordered<'_>, Error> {
    let thread =
        lineage.last().threads.iter().find(|thread| thread.index == index && begins(thread));
    let thread = thread.ok_or_else(|| Error(format!("it has no watched thread {index}")))?;
    let layout = lineage.first().process_events.iter().find_map(|placed| match placed.event {
        Some(Event::Layout { brk, stack, stack_end, .. }) => Some((brk.0, stack.0..stack_end.0)),
        _ => None,
    });
    let (brk, stack) =
        layout.ok_or_else(|| Error("where its parts lay is missing: damaged".into()))?;
    let mapped = Mapped::of(lineage, brk)?;
    let first = |event| Item { thread: index, position: Position::NONE, event };
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
                items.push(first(Cow::Borrowed(event)));
            }
            Some(event @ Event::Written { .. }) => written.push(first(Cow::Borrowed(event))),
            _ => {}
        }
    }
    items.extend(mapped.events(&stack).into_iter().map(first));
    items.extend(written);
    let start = Event::Snapshot { stretch: 0, brk: LiveAddr(mapped.brk) };
    items.push(first(Cow::Owned(start)));
    for placed in events {
        let Some(event) = &placed.event else { continue };
        // Whoever begins before knows it.
        if matches!(event, Event::Actions(_) | Event::State { .. }) {
            continue;
        }
        let (thread, position) = (index, placed.position);
        items.push(Item { thread, position, event: Cow::Borrowed(event) });
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

#[cfg(test)]
mod tests {
    use super::*;

    fn file(contents: &[u8]) -> Event {
        let path = b"/lib/x.so".as_slice().into();
        Event::Mapped { file: [1, 2], size: 9, changed_ns: 3, contents: contents.into(), path }
    }

    #[test]
    fn segments_lie_over_the_code_of_their_library() {
        const START: u64 = 0x7000_0000;
        let file = file(&[]);
        let mut mapped = Mapped::default();
        mapped.call(MMAP, &[0, 0x6000, 5, 2, 3, 0], START, Some(&file)).unwrap();
        // The data, and the same library once more; what covers all of it is no part of it.
        for _ in 0..2 {
            mapped.call(MMAP, &[0, 0x1000, 3, 0x12, 3, 0x4000], START + 0x4000, None).unwrap();
            mapped.call(MMAP, &[0, 0x6000, 5, 2, 3, 0], START, Some(&file)).unwrap();
            mapped.call(MMAP, &[0, 0x6000, 3, 0x12, 3, 0], START, None).unwrap();
        }
        let parts = mapped.code[0].parts();
        let places: Vec<_> =
            parts.iter().map(|(at, len, from, _)| (at - START, *len, *from)).collect();
        assert_eq!(places, [(0, 0x4000, 0), (0x5000, 0x1000, 0x5000)]);
        assert_eq!(mapped.ranges.iter().collect::<Vec<_>>(), [(START, START + 0x6000)]);
    }

    #[test]
    fn parts_of_what_was_copied_have_their_own_bytes() {
        let contents: Vec<u8> = (0..0x3000u32).map(|at| u8::try_from(at >> 12).unwrap()).collect();
        let file = file(&contents);
        let mut mapped = Mapped::default();
        mapped.call(MMAP, &[0, 0x3000, 5, 2, 3, 0x8000], 0x10000, Some(&file)).unwrap();
        mapped.call(MMAP, &[0, 0x1000, 3, 0x12, 3, 0], 0x11000, None).unwrap();
        let parts = mapped.code[0].parts();
        let firsts: Vec<_> = parts
            .iter()
            .map(|(at, len, from, file)| {
                let Event::Mapped { contents, .. } = &**file else { panic!() };
                (*at, *len, *from, contents.len(), contents[0])
            })
            .collect();
        assert_eq!(
            firsts,
            [(0x10000, 0x1000, 0x8000, 0x3000, 0), (0x12000, 0x1000, 0xa000, 0x1000, 2)]
        );
    }
}
