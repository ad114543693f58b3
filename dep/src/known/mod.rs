//! Which bytes a watched thread knows, at each moment of its replay.
//!
//! It is replayed alone, in memory that is empty at first: what it has neither loaded nor stored, and the kernel has not
//! written for it, reads as zero there, and is not known. So all that touches memory is noted with its moment, where it
//! tells of bytes that were not known before: the references of a listing replay, and what the script has. A call of the
//! thread that maps other memory makes bytes unknown again. What other threads do meanwhile is not seen here: a byte
//! is what the thread knew last.
//!
//! Where it is not sure that a byte was touched, it was not: what a mask may have left out, memory that is touched behind
//! a signal in the same turn.

mod along;
mod pace;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::iter::Peekable;
use std::ops::Range;

use abi::event::RegionKind;
use abi::ids::LiveAddr;
use abi::steer::Position;
use abi::syscalls::{effects, find, Access};
use object::read::elf::{ElfFile64, ProgramHeader};
use trace::compile::CompiledUnit;
use trace::events::Event;
use trace::walk::{MemoryReference, Sink, Walker};
use trace::{Error, Trace};

use crate::ask::kernel::{entries, mapped, Entry};
use crate::ask::whole::touches_whole;
use crate::replay::Ready;
use crate::Warnings;
use pace::Pace;

pub use along::Along;

const PAGE: u64 = 4096;
const WORDS: usize = PAGE as usize / 64;
/// Pages that are found at once.
const NEAR: usize = 256;

/// What made bytes known, or unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    /// The instruction at this place in the list of addresses; the time is the turn.
    Touch(u32),
    /// What others have stored was shown in front of the instruction at this place; the time is that of the entry.
    Shown(u32),
    /// The kernel has written it; as above.
    Kernel,
    /// The kernel has mapped other memory; as above.
    Forgotten,
}

/// Bytes of one page, and when.
#[derive(Clone, Copy, Debug)]
struct Item {
    time: u64,
    by: By,
    from: u16,
    len: u16,
}

impl Item {
    fn bytes(&self) -> Range<usize> {
        usize::from(self.from)..usize::from(self.from) + usize::from(self.len)
    }
}

struct Page {
    items: Vec<Item>,
    /// Which bytes are known behind all of the items.
    known: [u64; WORDS],
}

/// The bits of a word in a range of bits.
fn bits(word: usize, range: &Range<usize>) -> u64 {
    let from = range.start.max(64 * word) - 64 * word;
    let to = range.end.min(64 * word + 64) - 64 * word;
    match to - from {
        64 => u64::MAX,
        len => ((1 << len) - 1) << from,
    }
}

/// The words that have bits of a range.
fn words(range: &Range<usize>) -> Range<usize> {
    range.start / 64..range.end.div_ceil(64)
}

impl Page {
    fn has(&self, range: &Range<usize>) -> bool {
        words(range).all(|word| self.known[word] & bits(word, range) == bits(word, range))
    }

    fn has_any(&self, range: &Range<usize>) -> bool {
        words(range).any(|word| self.known[word] & bits(word, range) != 0)
    }

    fn set(&mut self, range: &Range<usize>, known: bool) {
        for word in words(range) {
            match known {
                true => self.known[word] |= bits(word, range),
                false => self.known[word] &= !bits(word, range),
            }
        }
    }
}

/// Which bytes are known when.
pub struct Known {
    pages: Pages,
    /// What files have, which nobody writes to: always known.
    files: Vec<Range<u64>>,
    /// The numbers of the calls for which the kernel has written, or may have.
    calls: BTreeSet<u64>,
    /// Where the thread begins anew, and knows nothing: the instruction, by the place of the entry.
    anew: BTreeMap<u64, u64>,
}

#[derive(Default)]
struct Pages {
    at: HashMap<u64, usize>,
    all: Vec<Page>,
    /// Addresses of instructions.
    pcs: Vec<u64>,
}

impl Pages {
    fn page(&mut self, number: u64) -> usize {
        *self.at.entry(number).or_insert_with(|| {
            self.all.push(Page { items: Vec::new(), known: [0; WORDS] });
            self.all.len() - 1
        })
    }

    /// Whether it has happened where a replay stands at `here`.
    fn has_happened(&self, item: &Item, here: &Position) -> bool {
        match item.by {
            By::Touch(place) => {
                let pc = self.pcs[place as usize];
                item.time < here.turns || item.time == here.turns && pc < here.pc
            }
            By::Shown(_) | By::Kernel | By::Forgotten => item.time < here.entry,
        }
    }

    /// These bytes are known from now on, or no longer.
    fn note(&mut self, range: Range<u64>, time: u64, by: By) {
        let pages = range.start / PAGE..range.end.div_ceil(PAGE);
        if by == By::Forgotten && pages.end.saturating_sub(pages.start) > self.at.len() as u64 {
            // More than there is to forget.
            let known: Vec<_> = self.at.iter().map(|(&number, &page)| (number, page)).collect();
            for (number, page) in known.into_iter().filter(|(number, _)| pages.contains(number)) {
                let base = number * PAGE;
                let from = range.start.saturating_sub(base) as usize;
                let to = (range.end - base).min(PAGE) as usize;
                self.note_in(page, from..to, time, by);
            }
            return;
        }
        let mut at = range.start;
        while at < range.end {
            let end = (at / PAGE + 1).saturating_mul(PAGE).min(range.end);
            let is_known = by != By::Forgotten;
            let known_page = self.at.get(&(at / PAGE)).copied();
            if let Some(page) = known_page.or_else(|| is_known.then(|| self.page(at / PAGE))) {
                self.note_in(page, (at % PAGE) as usize..((end - 1) % PAGE + 1) as usize, time, by);
            }
            at = end;
        }
    }

    fn note_in(&mut self, page: usize, range: Range<usize>, time: u64, by: By) {
        let page = &mut self.all[page];
        let is_known = by != By::Forgotten;
        let changes = match is_known {
            true => !page.has(&range),
            false => page.has_any(&range),
        };
        if !changes {
            return;
        }
        page.set(&range, is_known);
        if let Some(last) = page.items.last_mut() {
            // One more round of the same instruction.
            if (last.time, last.by) == (time, by) && last.bytes().end == range.start {
                last.len += range.len() as u16;
                return;
            }
        }
        page.items.push(Item { time, by, from: range.start as u16, len: range.len() as u16 });
    }
}

impl Known {
    /// Of the watched thread that is replayed. `code`: what is at an address of the code; how many bytes there are.
    pub fn of(
        ready: &Ready,
        warnings: &mut Warnings,
        code: impl Fn(u64, &mut [u8]) -> usize,
    ) -> Result<Known, Error> {
        crate::replay::listed(ready, warnings, |trace, _| Known::in_trace(ready, trace, code))?
    }

    fn in_trace(
        ready: &Ready,
        trace: &Trace,
        code: impl Fn(u64, &mut [u8]) -> usize,
    ) -> Result<Known, Error> {
        let (moments, anew) = moments_anew(entries(&ready.script_path)?)?;
        let mut finder = Finder {
            script: Script {
                entries: entries(&ready.script_path)?.peekable(),
                anew: moments,
                brk: ready.script.header.brk,
                files: files(ready)?,
                calls: BTreeSet::new(),
                turns: 0,
            },
            code,
            pages: Pages::default(),
            places: HashMap::new(),
            near: vec![(u64::MAX, 0); NEAR],
            pace: Pace::default(),
            failed: None,
        };
        // No instruction lies there: of what is behind a signal.
        finder.place(0);
        finder.script.begin(&mut finder.pages)?;
        finder.pace = Pace::new(finder.script.turns);
        let mut walker = Walker::new(trace);
        for thread in &trace.threads {
            for number in 0..thread.chunks.len() {
                walker.walk(thread, number, &mut finder).map_err(|v| Error(v.to_string()))?;
                if let Some(error) = finder.failed {
                    return Err(error);
                }
            }
        }
        let Finder { mut script, mut pages, .. } = finder;
        while script.up_to_call(&mut pages)?.is_some() {}
        let Script { files, calls, .. } = script;
        Ok(Known { pages, files, calls, anew })
    }

    /// How many of these bytes are known in front of the first one that is not, where the replay stands at `here`.
    pub fn count(&self, here: &Position, address: u64, len: usize) -> usize {
        let end = address.saturating_add(len as u64);
        let mut at = address;
        while at < end {
            if let Some(file) = self.files.iter().find(|file| file.contains(&at)) {
                at = file.end.min(end);
                continue;
            }
            let stop = (at / PAGE + 1).saturating_mul(PAGE).min(end);
            let known = self.in_page(here, at, stop);
            at += known;
            if known == 0 {
                break;
            }
        }
        (at - address) as usize
    }

    /// The same of bytes of one page.
    fn in_page(&self, here: &Position, at: u64, end: u64) -> u64 {
        let Some(&page) = self.pages.at.get(&(at / PAGE)) else { return 0 };
        let mut known = Page { items: Vec::new(), known: [0; WORDS] };
        for item in &self.pages.all[page].items {
            if self.pages.has_happened(item, here) {
                known.set(&item.bytes(), item.by != By::Forgotten);
            }
        }
        let all = (at % PAGE) as usize..((end - 1) % PAGE + 1) as usize;
        let is_known = |byte: &usize| known.known[byte / 64] >> (byte % 64) & 1 == 1;
        all.take_while(is_known).count() as u64
    }

    /// The instructions behind which, or in front of which, one of these bytes becomes known, and the calls that may do
    /// that.
    pub fn moments(&self, ranges: &BTreeSet<(u64, u64)>) -> (BTreeSet<u64>, BTreeSet<u64>) {
        let mut pcs = BTreeSet::new();
        for &(address, len) in ranges {
            let end = address.saturating_add(len);
            for number in address / PAGE..end.div_ceil(PAGE) {
                let Some(&page) = self.pages.at.get(&number) else { continue };
                let base = number * PAGE;
                for item in &self.pages.all[page].items {
                    let bytes = item.bytes();
                    let meets =
                        base + (bytes.start as u64) < end && address < base + bytes.end as u64;
                    if let (By::Touch(place) | By::Shown(place), true) = (item.by, meets) {
                        pcs.insert(self.pages.pcs[place as usize]);
                    }
                }
            }
        }
        (pcs, self.calls.clone())
    }
}

/// The script, in step with the trace.
struct Script<I: Iterator<Item = Result<Entry, Error>>> {
    entries: Peekable<I>,
    brk: u64,
    files: Vec<Range<u64>>,
    calls: BTreeSet<u64>,
    /// Of the thread, where it begins.
    turns: u64,
    /// Turns and instruction where it begins anew, further on.
    anew: VecDeque<(u64, u64)>,
}

/// Where the thread begins anew: turns and instructions, and the instructions by the places of the entries.
#[allow(clippy::type_complexity, reason = "two lists of pairs")]
fn moments_anew(
    entries: impl Iterator<Item = Result<Entry, Error>>,
) -> Result<(VecDeque<(u64, u64)>, BTreeMap<u64, u64>), Error> {
    let (mut moments, mut places, mut pc) = (VecDeque::new(), BTreeMap::new(), 0);
    for entry in entries {
        let entry = entry?;
        match entry.event {
            // It stands in front of it.
            Event::Checked(registers) => pc = registers.rip,
            Event::Anew => {
                moments.push_back((entry.turns.unwrap_or(0), pc));
                places.insert(entry.at, pc);
            }
            _ => {}
        }
    }
    Ok((moments, places))
}

impl<I: Iterator<Item = Result<Entry, Error>>> Script<I> {
    /// What is there before the thread runs.
    fn begin(&mut self, pages: &mut Pages) -> Result<(), Error> {
        let mut written = Vec::new();
        while let Some(entry) = self.entries.next_if(|e| !matches!(e, Ok(e) if e.turns.is_some())) {
            let Entry { at, event, .. } = entry?;
            match event {
                Event::State { turns, .. } => self.turns = turns,
                Event::Written { address, bytes } => written.push(range(address, bytes.len())),
                Event::Region { start, len, kind: RegionKind::File, .. } => {
                    self.files.push(start.0..start.0.saturating_add(len));
                }
                _ => {}
            }
            if !matches!(self.entries.peek(), Some(Ok(next)) if next.turns.is_none()) {
                written.drain(..).for_each(|range| pages.note(range, at, By::Kernel));
            }
        }
        Ok(())
    }

    /// What has happened up to the next call, and with it: its number, and the turn.
    fn up_to_call(&mut self, pages: &mut Pages) -> Result<Option<(u64, u64)>, Error> {
        self.up_to(pages, false)
    }

    /// The same, or up to where the thread begins anew if that comes first and is asked for (`None` then).
    fn up_to(&mut self, pages: &mut Pages, anew: bool) -> Result<Option<(u64, u64)>, Error> {
        let mut written = Vec::new();
        // What is shown for a call is there when it returns: never, if the recording ends in it.
        let mut shown = Vec::new();
        for entry in self.entries.by_ref() {
            let Entry { at, turns, event, .. } = entry?;
            match event {
                Event::Written { address, bytes } => {
                    written.push(range(address, bytes.len()));
                    continue;
                }
                Event::Seen { pc, address, bytes, .. } => {
                    shown.push((range(address, bytes.len()), at, pc.0));
                    continue;
                }
                // They stand in front of a call, too.
                Event::Mapped { .. } | Event::Passed { .. } | Event::Runs(_) => continue,
                _ => {}
            }
            for (range, at, pc) in shown.drain(..) {
                let place = place_of(pages, pc);
                pages.note(range, at, By::Shown(place));
            }
            match event {
                Event::Syscall { number, arguments, result } => {
                    for range in mapped(number, &arguments, result, &mut self.brk) {
                        pages.note(range, at, By::Forgotten);
                    }
                    written.extend(surely_written(number, &arguments, result));
                    if !written.is_empty() {
                        self.calls.insert(number);
                    }
                    written.drain(..).for_each(|range| pages.note(range, at, By::Kernel));
                    return Ok(Some((number, turns.unwrap_or(0))));
                }
                Event::Anew => {
                    written.clear();
                    pages.note(0..u64::MAX, at, By::Forgotten);
                    self.anew.pop_front();
                    if anew {
                        return Ok(None);
                    }
                }
                _ => written.drain(..).for_each(|range| pages.note(range, at, By::Kernel)),
            }
        }
        Ok(None)
    }
}

fn range(address: LiveAddr, len: usize) -> Range<u64> {
    address.0..address.0.saturating_add(len as u64)
}

/// Where the instruction is in the list from now on.
fn place_of(pages: &mut Pages, pc: u64) -> u32 {
    pages.pcs.push(pc);
    u32::try_from(pages.pcs.len() - 1).unwrap_or(0)
}

/// What the kernel has written for a call, if that is certain, whatever was there before.
fn surely_written(number: u64, arguments: &[u64; 6], result: i64) -> Vec<Range<u64>> {
    let Some(call) = find(number) else { return Vec::new() };
    let mut written = Vec::new();
    let mut add = |access, start: u64, len: u64| {
        if access == Access::Write {
            written.push(start..start.saturating_add(len));
        }
    };
    match effects(call, arguments, result, &mut |_, _| false, &mut add) {
        true => written,
        false => Vec::new(),
    }
}

/// Where what cannot be written of the program and its interpreter is.
fn files(ready: &Ready) -> Result<Vec<Range<u64>>, Error> {
    use std::os::unix::ffi::OsStrExt;
    let trace = ready.lineage.first();
    let interpreter = recording::originals::interpreter(trace).map(|(path, _)| path);
    let mut all = Vec::new();
    for event in trace.process_events.iter().filter_map(|placed| placed.event.as_ref()) {
        let Event::Map { start, offset: 0, path, .. } = event else { continue };
        let path = std::path::Path::new(std::ffi::OsStr::from_bytes(path));
        let file = match () {
            () if path == trace.program => ready.original.clone(),
            () if Some(path) == interpreter.as_deref() => ready.file(path),
            () => continue,
        };
        let bytes = std::fs::read(&file).map_err(|e| Error(format!("{}: {e}", file.display())))?;
        let Ok(elf) = ElfFile64::<object::Endianness>::parse(&*bytes) else { continue };
        let endian = elf.endian();
        let loaded = || {
            let headers = elf.elf_program_headers().iter();
            headers.filter(|header| header.p_type(endian) == object::elf::PT_LOAD)
        };
        let first = loaded().map(|header| header.p_vaddr(endian)).min().unwrap_or(0);
        let constant =
            loaded().filter(|header| header.p_flags(endian).0 & object::elf::PF_W.0 == 0);
        all.extend(constant.map(|header| {
            let from = header.p_vaddr(endian).wrapping_sub(first / PAGE * PAGE);
            let at = start.0.wrapping_add(from);
            at..at.saturating_add(header.p_filesz(endian))
        }));
    }
    // What any thread has made writable, or mapped something over, is memory like other memory.
    let calls = trace.threads.iter().flat_map(|thread| &thread.events);
    for event in calls.filter_map(|placed| placed.event.as_ref()) {
        if let Some(changed) = changed_mapping(event) {
            all.retain(|file| changed.end <= file.start || file.end <= changed.start);
        }
    }
    Ok(all)
}

/// Memory that a call has made writable, or has given another meaning.
fn changed_mapping(event: &Event) -> Option<Range<u64>> {
    const WRITE: u64 = 2;
    const FIXED: u64 = 0x10;
    let Event::Syscall { number, arguments, result: 0.. } = event else { return None };
    let [first, len, third, fourth, ..] = *arguments;
    let is_changed = match find(*number)?.name {
        "mprotect" | "pkey_mprotect" => third & WRITE != 0,
        "munmap" | "mremap" => true,
        "mmap" => fourth & FIXED != 0,
        _ => false,
    };
    is_changed.then(|| first..first.saturating_add(len))
}

/// Goes through the trace.
struct Finder<I: Iterator<Item = Result<Entry, Error>>, C> {
    script: Script<I>,
    code: C,
    pages: Pages,
    /// Of instructions that have touched something first: where they are in the list, if they touch all that they
    /// reference.
    places: HashMap<u64, Option<u32>>,
    /// Pages by the low bits of their numbers.
    near: Vec<(u64, usize)>,
    pace: Pace,
    failed: Option<Error>,
}

impl<I: Iterator<Item = Result<Entry, Error>>, C: Fn(u64, &mut [u8]) -> usize> Finder<I, C> {
    /// Where the instruction is in the list; `None`: nobody knows what it touches of what it references.
    fn place(&mut self, pc: u64) -> Option<u32> {
        if let Some(&place) = self.places.get(&pc) {
            return place;
        }
        let mut code = [0; 15];
        let len = if pc == 0 { 0 } else { (self.code)(pc, &mut code) };
        let place =
            (pc == 0 || touches_whole(&code[..len.min(15)])).then(|| place_of(&mut self.pages, pc));
        self.places.insert(pc, place);
        place
    }

    fn touch(&mut self, pc: u64, address: u64, size: u64) {
        while self.script.anew.front().is_some_and(|&moment| moment <= (self.pace.turns, pc)) {
            if let Err(error) = self.script.up_to(&mut self.pages, true) {
                self.failed = Some(error);
                return;
            }
        }
        let end = address.saturating_add(size);
        let number = address / PAGE;
        if size > 0 && end <= (number + 1).saturating_mul(PAGE) {
            let near = &mut self.near[number as usize % NEAR];
            if near.0 != number {
                *near = (number, self.pages.page(number));
            }
            let from = (address % PAGE) as usize;
            if self.pages.all[near.1].has(&(from..from + size as usize)) {
                return;
            }
        }
        let Some(place) = self.place(pc) else { return };
        // Within a turn addresses grow, but for what a signal interrupts.
        let (time, place) = match self.pace.is_interrupted() {
            true => (self.pace.turns + 1, 0),
            false => (self.pace.turns, place),
        };
        self.pages.note(address..end, time, By::Touch(place));
    }

    /// A call of the trace has to be the next one of the script.
    fn called(&mut self, number: u64) -> Result<(), Error> {
        let next = self.script.up_to_call(&mut self.pages)?;
        self.pace.agrees(number, next)
    }
}

impl<I: Iterator<Item = Result<Entry, Error>>, C: Fn(u64, &mut [u8]) -> usize> Sink
    for Finder<I, C>
{
    const REFERENCES: bool = true;

    fn executed(&mut self, unit: &CompiledUnit, count: usize) {
        self.pace.executed(unit, count);
    }

    fn event(&mut self, event: &Event) {
        if let Some(number) = self.pace.event(event).filter(|_| self.failed.is_none()) {
            self.failed = self.called(number).err();
        }
    }

    #[inline]
    fn reference(&mut self, r: MemoryReference) {
        self.touch(r.pc.0, r.address.0, u64::from(r.size));
    }

    fn go_on(&mut self) -> bool {
        self.failed.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(notes: &[(Range<u64>, u64, By)]) -> Known {
        let mut pages = Pages { pcs: vec![0, 0x100, 0x200], ..Pages::default() };
        for (range, time, by) in notes {
            pages.note(range.clone(), *time, *by);
        }
        let files = std::iter::once(0x9000..0x9010).collect();
        Known { pages, files, calls: BTreeSet::new(), anew: BTreeMap::new() }
    }

    fn at(turns: u64, entry: u64, pc: u64) -> Position {
        Position { turns, entry, pc, rcx: 0 }
    }

    #[test]
    fn bytes_are_known_behind_what_touches_them() {
        let known = known(&[
            (0x1ffc..0x2004, 5, By::Touch(1)),
            (0x2004..0x2008, 7, By::Touch(2)),
            (0x1ff0..0x2010, 9, By::Touch(1)),
        ]);
        for (position, address, len, count) in [
            (at(5, 0, 0x100), 0x1ffc, 8, 0),
            (at(5, 0, 0x101), 0x1ffc, 8, 8),
            (at(6, 0, 0), 0x1ffc, 12, 8),
            (at(7, 0, 0x200), 0x1ffc, 12, 8),
            (at(7, 0, 0x201), 0x1ffc, 12, 12),
            (at(8, 0, 0), 0x1ff0, 8, 0),
            (at(10, 0, 0), 0x1ff0, 64, 32),
            (at(0, 0, 0), 0x9000, 32, 16),
        ] {
            assert_eq!(known.count(&position, address, len), count, "{position:?} {address:#x}");
        }
    }

    #[test]
    fn what_is_mapped_anew_is_not_known() {
        let known = known(&[
            (0x1000..0x1010, 5, By::Touch(1)),
            (0x1000..0x3000, 48, By::Forgotten),
            (0x1008..0x1010, 64, By::Kernel),
            (0x1000..0x1008, 9, By::Touch(1)),
        ]);
        for (position, count) in
            [(at(6, 48, 0), 16), (at(6, 49, 0), 0), (at(6, 65, 0), 0), (at(10, 65, 0), 16)]
        {
            assert_eq!(known.count(&position, 0x1000, 16), count, "{position:?}");
        }
        assert_eq!(known.count(&at(6, 65, 0), 0x1008, 16), 8);
    }

    #[test]
    fn a_repeated_instruction_is_one_item() {
        let notes: Vec<_> = (0..100).map(|n| (0x1000 + n..0x1001 + n, 5, By::Touch(1))).collect();
        let known = known(&notes);
        assert_eq!(known.pages.all[0].items.len(), 1);
        assert_eq!(known.count(&at(6, 0, 0), 0x1000, 200), 100);
    }
}
