//! What a trace says first: the program, and what of its memory is mapped from files.
//!
//! It is kept as it stands in a file: a forked child says it again in a trace of its own. What is
//! said of memory that has been mapped anew, or is not mapped any more, is forgotten.

use crate::base::sys;
use crate::recording::appender::put_event;
use abi::event::{Event, EventRef};
use abi::options::Options;
use abi::trace::VERSION;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// The process, and the time: what a trace that begins now says first.
pub fn process_now(options: Options) -> EventRef<'static> {
    Event::Process {
        version: VERSION,
        options: options.to_word(),
        pid: u64::from(sys::getpid()),
        start_ns: sys::now_ns(),
    }
}

/// PROT_EXEC.
const EXECUTABLE: u32 = 4;

/// What is known so far.
#[derive(Default)]
pub struct Description {
    /// There may be another trace that says it.
    kept: bool,
    /// Events of the File frame: what holds for children, too.
    program: Vec<u8>,
    /// How many events of the process there were.
    count: u32,
    /// What was said of memory, by its start, and which event it was.
    mapped: BTreeMap<(u64, u32), Said>,
    /// What was said of the translations of libraries, by the place of each and the window of its units; 0: there is none.
    libraries: BTreeMap<(u64, u64), Vec<u8>>,
    /// Which part of memory is recorded, by its start.
    selected: BTreeMap<u64, Said>,
}

/// An event that speaks of memory up to `end`.
struct Said {
    end: u64,
    event: Vec<u8>,
}

impl Description {
    pub const fn new() -> Description {
        Description {
            kept: false,
            program: Vec::new(),
            count: 0,
            mapped: BTreeMap::new(),
            libraries: BTreeMap::new(),
            selected: BTreeMap::new(),
        }
    }

    /// There may be another trace that says it.
    pub fn keep(&mut self) {
        self.kept = true;
    }

    /// The events that every File frame has.
    pub fn introduce(&mut self, program: Vec<u8>) {
        self.program = program;
    }

    pub fn program(&self) -> &[u8] {
        &self.program
    }

    /// Something has happened to the process.
    pub fn note(&mut self, event: &EventRef<'_>) {
        if !self.kept {
            return;
        }
        match *event {
            Event::Map { start, len, protection, .. } => {
                let (start, end) = (start.0, start.0.saturating_add(len));
                if protection & EXECUTABLE == 0 {
                    self.forget_selected(start, end);
                }
                self.say(start, end, event);
            }
            Event::Unmap { start, len } => {
                let (start, end) = (start.0, start.0.saturating_add(len));
                self.unmapped(start, end);
                let in_part = self.mapped.iter().any(|(at, said)| at.0 < end && start < said.end);
                if in_part {
                    self.say(start, end, event);
                }
            }
            // A library may have several, whose units are different ones.
            Event::Library { load, first_window, .. } => {
                self.libraries.remove(&(load.0, 0));
                self.library((load.0, first_window), event);
            }
            Event::LibraryLeft { load, .. } => self.library((load.0, 0), event),
            Event::Selected { start, len, .. } => {
                let mut bytes = Vec::new();
                put_event(&mut bytes, event);
                let end = start.0.saturating_add(len);
                self.selected.insert(start.0, Said { end, event: bytes });
            }
            _ => {}
        }
    }

    fn library(&mut self, place: (u64, u64), event: &EventRef<'_>) {
        let mut bytes = Vec::new();
        put_event(&mut bytes, event);
        self.libraries.insert(place, bytes);
    }

    fn say(&mut self, start: u64, end: u64, event: &EventRef<'_>) {
        self.forget(start, end);
        let mut bytes = Vec::new();
        put_event(&mut bytes, event);
        self.mapped.insert((start, self.count), Said { end, event: bytes });
        self.count += 1;
    }

    /// What lies in `start..end` is of no importance any more.
    fn forget(&mut self, start: u64, end: u64) {
        while let Some((&at, _)) =
            self.mapped.range((start, 0)..(end, 0)).find(|(_, said)| said.end <= end)
        {
            self.mapped.remove(&at);
        }
    }

    /// Nothing is at `start..end` any more.
    pub fn unmapped(&mut self, start: u64, end: u64) {
        self.forget(start, end);
        self.forget_selected(start, end);
    }

    /// (What is recorded of a mapping is said ahead of the mapping.)
    fn forget_selected(&mut self, start: u64, end: u64) {
        self.selected.retain(|&at, said| at < start || end < said.end);
    }

    /// Appends the events of the process that still say something, in their order.
    pub fn put_mapped(&self, out: &mut Vec<u8>) {
        let mut order: Vec<_> = self.mapped.iter().collect();
        order.sort_unstable_by_key(|(at, _)| at.1);
        for (_, said) in order {
            out.extend_from_slice(&said.event);
        }
        for library in self.libraries.values() {
            out.extend_from_slice(library);
        }
        for said in self.selected.values() {
            out.extend_from_slice(&said.event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::event::{EventHeader, Kind, EVENT_HEADER_SIZE};
    use abi::ids::{LiveAddr, OrigAddr};

    fn map(start: u64, len: u64) -> EventRef<'static> {
        let (start, path) = (LiveAddr(start), b"/lib".as_slice());
        Event::Map { start, len, offset: 0, protection: 1, build_id: &[], path }
    }

    fn unmap(start: u64, len: u64) -> EventRef<'static> {
        Event::Unmap { start: LiveAddr(start), len }
    }

    /// Kind, first word and second word of each event.
    fn said(description: &Description) -> Vec<(u16, u64, u64)> {
        let mut bytes = Vec::new();
        description.put_mapped(&mut bytes);
        let (mut rest, mut found) = (bytes.as_slice(), Vec::new());
        while let Some(header) = EventHeader::from_bytes(rest) {
            let payload = &rest[EVENT_HEADER_SIZE..];
            let word = |i: usize| u64::from_le_bytes(payload[8 * i..][..8].try_into().unwrap());
            found.push((header.kind, word(0), word(1)));
            rest = &payload[header.len as usize..];
        }
        found
    }

    fn after(events: &[EventRef<'_>]) -> Vec<(u16, u64, u64)> {
        let mut description = Description::new();
        description.keep();
        events.iter().for_each(|event| description.note(event));
        said(&description)
    }

    const MAP: u16 = Kind::Map as u16;
    const UNMAP: u16 = Kind::Unmap as u16;

    #[test]
    fn what_is_mapped_is_said_in_its_order() {
        let all = after(&[map(0x9000, 0x4000), map(0xa000, 0x1000), map(0x1000, 0x1000)]);
        assert_eq!(all, [(MAP, 0x9000, 0x4000), (MAP, 0xa000, 0x1000), (MAP, 0x1000, 0x1000)]);
    }

    #[test]
    fn what_is_gone_as_a_whole_is_not_said() {
        let two = [map(0x1000, 0x1000), map(0x2000, 0x2000)];
        let and = |event| after(&[two[0].clone(), two[1].clone(), event]);
        assert_eq!(and(unmap(0x1000, 0x3000)), []);
        assert_eq!(and(map(0, 0x8000)), [(MAP, 0, 0x8000)]);
        let in_part = [(MAP, 0x2000, 0x2000), (UNMAP, 0x1000, 0x2000)];
        assert_eq!(and(unmap(0x1000, 0x2000)), in_part);
        assert_eq!(and(unmap(0x5000, 0x1000)).len(), 2, "nothing was there");
    }

    #[test]
    fn the_same_again_and_again_takes_no_more_room() {
        let again: Vec<_> = (0..50).flat_map(|_| [map(0x1000, 0x1000), unmap(0, 0x9000)]).collect();
        assert_eq!(after(&again), []);
        let library = |load| Event::Library {
            load: LiveAddr(load),
            identity: [1, 2],
            first_window: 3,
            count: 4,
            address: OrigAddr(5),
            path: b"".as_slice(),
        };
        let libraries: Vec<_> = (0..50).map(|i| library(0x1000 * (i % 2))).collect();
        assert_eq!(after(&libraries).len(), 2);
    }

    #[test]
    fn nothing_is_kept_for_nobody() {
        let mut description = Description::new();
        description.note(&map(0x1000, 0x1000));
        assert_eq!(said(&description), []);
    }

    #[test]
    fn what_is_recorded_of_a_mapping_is_said_until_it_is_gone() {
        let mut description = Description { kept: true, ..Description::new() };
        let selected = |start| {
            let (start, base) = (LiveAddr(start), LiveAddr(start));
            Event::Selected { start, len: 0x1000, base, pieces: &[0u8; 16][..] }
        };
        let executable = |start| match map(start, 0x1000) {
            Event::Map { start, len, offset, build_id, path, .. } => {
                Event::Map { start, len, offset, protection: 5, build_id, path }
            }
            other => other,
        };
        let kinds = |description: &Description| -> Vec<u16> {
            said(description).into_iter().map(|(kind, _, _)| kind).collect()
        };
        let [map_kind, selected_kind] = [Kind::Map, Kind::Selected].map(|kind| kind as u16);
        description.note(&selected(0x1000));
        description.note(&executable(0x1000));
        assert_eq!(kinds(&description), [map_kind, selected_kind]);
        // Data in its place.
        description.note(&map(0x1000, 0x1000));
        assert_eq!(kinds(&description), [map_kind]);
        description.note(&selected(0x1000));
        description.note(&unmap(0x1000, 0x1000));
        assert_eq!(kinds(&description), []);
    }
}
