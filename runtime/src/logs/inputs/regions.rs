//! What any thread of a process with watched threads has mapped so far, kept for a ring: the calls that mapped it may
//! have gone out of the recording when a replay needs to know where memory was.
//!
//! It is told as it grows: most programs map the same places again and again.

use crate::base::facts::facts;
use crate::base::lock::{Forked, Lock};
use crate::base::sys::{self, nr};
use crate::logs::inputs::mappings::is_file_code;
use crate::logs::inputs::view;
use crate::logs::moment::Call;
use crate::recording::trace_file::trace;
use abi::event::{Event, EventRef, RegionKind};
use abi::ids::LiveAddr;
use abi::layout::page_up;
use alloc::vec::Vec;

static KNOWN: Lock<Known> =
    Lock::new(Known { ranges: Vec::new(), made: Vec::new(), code: Vec::new(), brk: 0 });

/// A part of a file that is mapped where it may be executed.
#[derive(Clone, Copy)]
pub struct Region {
    /// Where.
    pub start: u64,
    /// Bytes, whole pages.
    pub len: u64,
    /// As the program asked for it.
    pub prot: usize,
}

struct Code {
    region: Region,
    offset: u64,
    file: [u64; 2],
    size: u64,
    changed_ns: u64,
    contents: Vec<u8>,
    path: Vec<u8>,
    /// Parts of it that something else lies over, first bytes and first bytes behind.
    holes: Vec<(u64, u64)>,
}

impl Code {
    fn mapped(&self) -> EventRef<'_> {
        Event::Mapped {
            file: self.file,
            size: self.size,
            changed_ns: self.changed_ns,
            contents: &self.contents,
            path: &self.path,
        }
    }

    /// It is told while nobody else tells of a file.
    fn tell(&self) {
        let Region { start, len, prot } = self.region;
        trace().process_event(&self.mapped());
        tell(start, len, self.offset, prot, RegionKind::File);
        self.holes.iter().for_each(|&(start, end)| tell_memory(start, end));
    }
}

struct Known {
    /// First bytes, and first bytes behind, in their order; none touches another.
    ranges: Vec<(u64, u64)>,
    /// The same of what was made executable at any time, and may have been changed.
    made: Vec<(u64, u64)>,
    code: Vec<Code>,
    /// The largest end of the heap.
    brk: u64,
}

impl Known {
    /// Whether that was not known.
    fn add(&mut self, start: u64, end: u64) -> bool {
        add(&mut self.ranges, start, end)
    }

    /// Something else lies over a part of code now, if that is so.
    fn cover(&mut self, start: u64, end: u64) -> bool {
        let has_it = |code: &&mut Code| {
            let Region { start: at, len, .. } = code.region;
            at <= start && end <= at.saturating_add(len) && end - start < len
        };
        let Some(code) = self.code.iter_mut().find(has_it) else { return false };
        if !code.holes.contains(&(start, end)) {
            code.holes.push((start, end));
        }
        true
    }
}

/// Adds to ranges, none of which touches another; whether that was not among them.
fn add(ranges: &mut Vec<(u64, u64)>, start: u64, end: u64) -> bool {
    let first = ranges.partition_point(|range| range.1 < start);
    let behind = ranges.partition_point(|range| range.0 <= end);
    let touched = ranges.get(first..behind).unwrap_or_default();
    if touched.iter().any(|range| range.0 <= start && end <= range.1) {
        return false;
    }
    let start = touched.first().map_or(start, |range| range.0.min(start));
    let end = touched.last().map_or(end, |range| range.1.max(end));
    ranges.splice(first..behind, [(start, end)]);
    true
}

fn is_wanted() -> bool {
    facts().options.recording.ring && view::may_be_watched()
}

fn tell(start: u64, len: u64, offset: u64, prot: usize, kind: RegionKind) {
    let protection = prot as u32;
    trace().process_event(&Event::Region { start: LiveAddr(start), len, offset, protection, kind });
}

fn tell_memory(start: u64, end: u64) {
    let prot = sys::PROT_READ | sys::PROT_WRITE;
    tell(start, end - start, 0, prot, RegionKind::Anonymous);
}

fn tell_made(start: u64, end: u64) {
    let prot = sys::PROT_READ | sys::PROT_WRITE | sys::PROT_EXEC;
    tell(start, end - start, 0, prot, RegionKind::Anonymous);
}

fn tell_heap(brk: u64) {
    trace().process_event(&Event::Snapshot { stretch: 0, brk: LiveAddr(brk) });
}

/// The call has returned `result`.
pub fn note(call: &Call, result: usize) {
    let (true, Ok(at)) = (is_wanted(), sys::check(result)) else { return };
    let (at, [first, second, third, fourth, ..]) = (at as u64, call.args);
    let is_code = third & sys::PROT_EXEC != 0;
    let len = match call.number {
        nr::MPROTECT | nr::PKEY_MPROTECT if is_code => return note_made(first, second),
        nr::MMAP => second,
        nr::MREMAP => third,
        nr::BRK => {
            let mut known = KNOWN.lock();
            if at > known.brk {
                known.brk = at;
                tell_heap(at);
            }
            return;
        }
        _ => return,
    };
    if call.number == nr::MMAP && is_code && !is_file_code(third, fourth) {
        note_made(at as usize, len);
    }
    let end = at.saturating_add(page_up(len as u64));
    let mut known = KNOWN.lock();
    let covers = at < end && replaces(call) && known.cover(at, end);
    if at < end && (known.add(at, end) || covers) {
        tell_memory(at, end);
    }
}

/// Memory of no file can be executed, or other memory has been given the right to that.
fn note_made(start: usize, len: usize) {
    let (start, end) = (start as u64, (start as u64).saturating_add(page_up(len as u64)));
    if start < end && add(&mut KNOWN.lock().made, start, end) {
        tell_made(start, end);
    }
}

/// The call has mapped something that is no code over whatever was there, as the program's loader does with the segments of
/// a library.
fn replaces(call: &Call) -> bool {
    let [_, _, prot, flags, ..] = call.args;
    call.number == nr::MMAP && prot & sys::PROT_EXEC == 0 && flags & sys::MAP_FIXED != 0
}

/// Memory is attached at `start..end`. How long it is no call says, so that is told without a ring, too.
pub fn attached(start: u64, end: u64) {
    let is_new = !is_wanted() || KNOWN.lock().add(start, end);
    if view::may_be_watched() && start < end && is_new {
        tell_memory(start, end);
    }
}

/// Code of a file is mapped in `region`; `mapped` says which file that is.
pub fn code(region: &Region, offset: u64, mapped: &EventRef<'_>) {
    let Event::Mapped { file, size, changed_ns, contents, path } = *mapped else { return };
    if !is_wanted() {
        return;
    }
    let mut known = KNOWN.lock();
    let is_it = |code: &Code| {
        (code.region.start, code.region.len, code.offset) == (region.start, region.len, offset)
            && (code.file, code.size, code.changed_ns) == (file, size, changed_ns)
    };
    if known.code.iter().any(is_it) {
        return;
    }
    let (contents, path) = (contents.to_vec(), path.to_vec());
    let holes = Vec::new();
    let code = Code { region: *region, offset, file, size, changed_ns, contents, path, holes };
    code.tell();
    known.code.push(code);
}

/// Nobody is in the midst of a look at what is known.
pub fn hold() -> impl Sized {
    KNOWN.lock()
}

/// In the only thread of a forked child.
pub fn forked(forked: &Forked) {
    KNOWN.force_unlock(forked);
}

/// The trace of a forked child has begun: it has what its parent had mapped.
pub fn tell_all() {
    if !is_wanted() {
        return;
    }
    let known = KNOWN.lock();
    known.ranges.iter().for_each(|&(start, end)| tell_memory(start, end));
    known.made.iter().for_each(|&(start, end)| tell_made(start, end));
    known.code.iter().for_each(Code::tell);
    tell_heap(known.brk);
}

#[cfg(test)]
#[allow(clippy::disallowed_macros, reason = "tests have a heap and may panic")]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_one() {
        let mut known = Known { ranges: Vec::new(), made: Vec::new(), code: Vec::new(), brk: 0 };
        assert!(known.add(10, 20));
        assert!(known.add(40, 50));
        assert!(!known.add(12, 20));
        assert!(known.add(20, 30));
        assert_eq!(known.ranges, [(10, 30), (40, 50)]);
        assert!(known.add(25, 45));
        assert_eq!(known.ranges, [(10, 50)]);
        assert!(known.add(0, 5));
        assert!(known.add(60, 70));
        assert_eq!(known.ranges, [(0, 5), (10, 50), (60, 70)]);
        assert!(known.add(1, 100));
        assert_eq!(known.ranges, [(0, 100)]);
    }
}
