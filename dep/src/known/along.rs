//! Which bytes a watched thread knows, while another trace of its replay is read from front to back.
//!
//! Of such a trace the turns and the calls are counted. The script says what has happened in between; where it is not
//! sure that it has, it has not. Only in one direction it would be wrong to be late: what a call has mapped anew. Calls
//! are not late.

use std::collections::HashMap;
use std::iter::Peekable;

use abi::steer::Position;
use trace::compile::CompiledUnit;
use trace::events::Event;
use trace::Error;

use super::pace::Pace;
use super::{By, Known, Page, PAGE, WORDS};
use crate::ask::kernel::{entries, Entry};
use crate::replay::Ready;

/// How far a page has come.
struct Passed {
    /// Items that have happened, and all in front of them.
    items: usize,
    /// Which bytes are known behind these.
    known: [u64; WORDS],
}

/// Goes along a trace.
pub struct Along<'a> {
    known: &'a Known,
    pace: Pace,
    script: Peekable<Box<dyn Iterator<Item = Result<Entry, Error>>>>,
    /// Where in the script, as of a [`Position`]; `None`: behind its end.
    entry: Option<u64>,
    /// By their places among the known ones.
    pages: HashMap<usize, Passed>,
    failed: Option<Error>,
}

impl<'a> Along<'a> {
    /// From where the thread begins.
    pub fn new(known: &'a Known, ready: &Ready) -> Result<Along<'a>, Error> {
        Along::over(known, entries(&ready.script_path)?)
    }

    /// The same, over these entries of a script.
    fn over(
        known: &'a Known,
        all: impl Iterator<Item = Result<Entry, Error>> + 'static,
    ) -> Result<Along<'a>, Error> {
        // These belong to what follows them.
        let parts = |entry: &Entry| {
            matches!(
                entry.event,
                Event::Written { .. }
                    | Event::Mapped { .. }
                    | Event::Passed { .. }
                    | Event::Runs(_)
                    | Event::Checked(_)
            )
        };
        let script: Box<dyn Iterator<Item = _>> =
            Box::new(all.filter(move |entry| !entry.as_ref().is_ok_and(parts)));
        let mut along = Along {
            known,
            pace: Pace::default(),
            script: script.peekable(),
            entry: None,
            pages: HashMap::new(),
            failed: None,
        };
        let is_of_start = |entry: &Result<Entry, Error>| {
            matches!(entry, Ok(Entry { turns: None, .. }))
                || matches!(entry, Ok(Entry { event: Event::ThreadStart { .. }, .. }))
        };
        while let Some(entry) = along.script.next_if(is_of_start) {
            if let Event::State { turns, .. } = entry?.event {
                along.pace = Pace::new(turns);
            }
        }
        along.look();
        Ok(along)
    }

    /// So many of the unit's instructions were executed.
    pub fn executed(&mut self, unit: &CompiledUnit, count: usize) {
        self.pace.executed(unit, count);
    }

    /// Something happened in the trace.
    pub fn event(&mut self, event: &Event) {
        let Some(number) = self.pace.event(event).filter(|_| self.failed.is_none()) else { return };
        let mut next = None;
        for entry in self.script.by_ref() {
            match entry {
                Ok(Entry { event: Event::Syscall { number, .. }, turns, .. }) => {
                    next = Some((number, turns.unwrap_or(0)));
                    break;
                }
                Ok(_) => {}
                Err(error) => {
                    self.failed = Some(error);
                    return;
                }
            }
        }
        self.failed = self.pace.agrees(number, next).err();
        self.look();
    }

    /// What was wrong, if anything was.
    pub fn failed(&mut self) -> Option<Error> {
        self.failed.take()
    }

    pub fn is_right(&self) -> bool {
        self.failed.is_none()
    }

    /// Where the script is now.
    fn look(&mut self) {
        self.entry = match self.script.peek() {
            Some(Ok(entry)) => Some(entry.at),
            Some(Err(_)) | None => None,
        };
    }

    /// Goes on in the script over what has surely happened in front of the instruction at `pc` of this turn, or, if
    /// `begun`, in front of or in it.
    fn up_to(&mut self, pc: u64, begun: bool) {
        let Pace { turns, .. } = self.pace;
        let is_straight = !self.pace.is_interrupted();
        let anew = &self.known.anew;
        let has_happened = |entry: &Result<Entry, Error>| {
            let Ok(entry) = entry else { return false };
            let of = entry.turns.unwrap_or(0);
            match entry.event {
                Event::Syscall { .. } => false,
                // Where that is not sure, less is known.
                Event::Anew if of == turns => {
                    !is_straight || anew.get(&entry.at).is_none_or(|&at| at <= pc)
                }
                Event::Seen { pc: at, .. } if of == turns => {
                    is_straight && (at.0 < pc || begun && at.0 == pc)
                }
                _ => of < turns,
            }
        };
        let mut has_moved = false;
        while self.script.next_if(has_happened).is_some() {
            has_moved = true;
        }
        if has_moved {
            self.look();
        }
        if let Some(Err(_)) = self.script.peek() {
            self.failed = self.script.next().and_then(Result::err);
        }
    }

    /// Adds to `out`, for each of these bytes, whether it is known in front of the instruction at `pc`, where the trace
    /// is. `begun`: what is shown for this instruction has been shown.
    pub fn which(&mut self, pc: u64, address: u64, len: usize, begun: bool, out: &mut Vec<bool>) {
        self.up_to(pc, begun);
        let entry = self.entry.unwrap_or(u64::MAX);
        let here = Position { turns: self.pace.turns, entry, pc, rcx: 0 };
        let first = out.len();
        out.resize(first + len, false);
        let out = &mut out[first..];
        let end = address.saturating_add(len as u64);
        let mut at = address;
        while at < end {
            let stop = (at / PAGE + 1).saturating_mul(PAGE).min(end);
            let part = &mut out[(at - address) as usize..(stop - address) as usize];
            if let Some(&page) = self.known.pages.at.get(&(at / PAGE)) {
                let known = self.page(page, &here);
                for (byte, slot) in ((at % PAGE) as usize..).zip(part) {
                    *slot = known[byte / 64] >> (byte % 64) & 1 == 1;
                }
            }
            at = stop;
        }
        for file in &self.known.files {
            let (from, to) = (file.start.max(address), file.end.min(end));
            if from < to {
                out[(from - address) as usize..(to - address) as usize].fill(true);
            }
        }
    }

    /// Which bytes of the page are known.
    fn page(&mut self, page: usize, here: &Position) -> [u64; WORDS] {
        let pages = &self.known.pages;
        let items = &pages.all[page].items;
        let passed = self.pages.entry(page).or_insert(Passed { items: 0, known: [0; WORDS] });
        let mut known = Page { items: Vec::new(), known: passed.known };
        let mut at = passed.items;
        while let Some(item) = items.get(at).filter(|item| pages.has_happened(item, here)) {
            known.set(&item.bytes(), item.by != By::Forgotten);
            at += 1;
        }
        // What has happened stays so.
        *passed = Passed { items: at, known: known.known };
        for item in items.get(at..).unwrap_or_default() {
            if pages.has_happened(item, here) {
                known.set(&item.bytes(), item.by != By::Forgotten);
            } else if item.by == By::Forgotten {
                // The rest is behind that call.
                break;
            }
        }
        known.known
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::ops::Range;

    use abi::ids::LiveAddr;

    use super::super::Pages;
    use super::*;

    const MUNMAP: u64 = 11;

    fn known(notes: &[(Range<u64>, u64, By)]) -> Known {
        let mut pages = Pages { pcs: vec![0, 0x100, 0x200], ..Pages::default() };
        for (range, time, by) in notes {
            pages.note(range.clone(), *time, *by);
        }
        let files = std::iter::once(0x9000..0x9010).collect();
        Known { pages, files, calls: BTreeSet::new(), anew: BTreeMap::new() }
    }

    fn entry(at: u64, turns: u64, event: Event) -> Result<Entry, Error> {
        Ok(Entry { at, thread: 0, turns: Some(turns), event })
    }

    fn seen(at: u64, turns: u64, pc: u64) -> Result<Entry, Error> {
        let (pc, address) = (LiveAddr(pc), LiveAddr(0x1000));
        entry(at, turns, Event::Seen { pc, rcx: 0, address, bytes: vec![0; 8].into() })
    }

    fn munmap() -> Event {
        let arguments = [0x1000, 0x1000, 0, 0, 0, 0];
        Event::Syscall { number: MUNMAP, arguments, result: 0 }
    }

    /// As digits: 1, if the byte is known.
    fn digits(along: &mut Along<'_>, pc: u64, address: u64, len: usize, begun: bool) -> String {
        let mut out = Vec::new();
        along.which(pc, address, len, begun, &mut out);
        assert!(along.is_right());
        out.iter().map(|&known| if known { '1' } else { '0' }).collect()
    }

    #[test]
    fn what_is_shown_is_known_in_front_of_its_instruction() {
        let known = known(&[(0x1000..0x1004, 8, By::Shown(1)), (0x1004..0x1006, 5, By::Touch(2))]);
        let script = [seen(8, 5, 0x100)];
        let mut along = Along::over(&known, script.into_iter()).expect("entries");
        along.pace = Pace::new(5);
        assert_eq!(digits(&mut along, 0xff, 0x1000, 8, true), "00000000");
        assert_eq!(digits(&mut along, 0x100, 0x1000, 8, false), "00000000");
        assert_eq!(digits(&mut along, 0x100, 0x1000, 8, true), "11110000");
        assert_eq!(digits(&mut along, 0x200, 0x1000, 8, false), "11110000");
        assert_eq!(digits(&mut along, 0x201, 0x1000, 8, false), "11111100");
        assert_eq!(digits(&mut along, 0x201, 0x8ffe, 4, false), "0011");
    }

    #[test]
    fn behind_a_signal_the_next_turn_counts() {
        let known = known(&[(0x1000..0x1004, 8, By::Shown(1))]);
        let mut along = Along::over(&known, [seen(8, 5, 0x100)].into_iter()).expect("entries");
        // A handler returns, which is a turn.
        along.pace = Pace::new(4);
        along.event(&Event::Resume(Default::default()));
        assert_eq!(along.pace.turns, 5);
        assert_eq!(digits(&mut along, 0x100, 0x1000, 4, true), "0000");
        along.pace = Pace::new(6);
        assert_eq!(digits(&mut along, 0x50, 0x1000, 4, true), "1111");
    }

    #[test]
    fn what_a_call_maps_anew_is_forgotten_with_it() {
        let known = known(&[
            (0x1000..0x1008, 5, By::Touch(1)),
            (0x1000..0x2000, 8, By::Forgotten),
            (0x1002..0x1004, 7, By::Touch(1)),
        ]);
        let script = [entry(8, 6, munmap()), entry(16, 9, munmap())];
        let mut along = Along::over(&known, script.into_iter()).expect("entries");
        along.pace = Pace::new(6);
        assert_eq!(digits(&mut along, 0x300, 0x1000, 8, false), "11111111");
        along.event(&munmap());
        assert_eq!(digits(&mut along, 0x300, 0x1000, 8, false), "00000000");
        along.pace = Pace::new(8);
        assert_eq!(digits(&mut along, 0x300, 0x1000, 8, false), "00110000");
        // The next one is made at another turn than the script says.
        along.event(&munmap());
        let why = along.failed().expect("another turn").0;
        assert!(
            why.contains("makes call 11 at turn 8, where the script has 11 at turn 9"),
            "{why}"
        );
    }
}
