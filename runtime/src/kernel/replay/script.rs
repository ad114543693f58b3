//! The script: its entries, one after another.
// What is read was made by another program: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use abi::event::{Event, Kind};
use abi::script::{EntryHeader, ENTRY_HEADER_SIZE};
use abi::trace::RegisterState;

/// An event of the script: bytes lie in the mapped file.
pub type Input = Event<&'static [u8], RegisterState>;

/// What happens next.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Bytes of the entries in front of it.
    pub at: u64,
    /// Index of the thread that it happens to.
    pub thread: u32,
    /// Turns that the thread has made then.
    pub turns: u64,
    kind: Kind,
    payload: &'static [u8],
    /// Where the next one is.
    end: usize,
}

impl Entry {
    /// What it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Decodes it; `None`: it is damaged.
    pub fn event(&self) -> Option<Input> {
        Input::decode(self.kind, self.payload).ok()
    }
}

/// The entries, and how far the replay is.
pub struct Script {
    entries: &'static [u8],
    at: usize,
}

/// What there is to take.
pub enum Next {
    Entry(Entry),
    /// Nothing is left.
    End,
    /// The bytes are no entry.
    Damaged,
}

impl Script {
    /// At its first entry.
    pub fn new(entries: &'static [u8]) -> Script {
        Script { entries, at: 0 }
    }

    /// Bytes of the entries that have been taken.
    pub fn at(&self) -> u64 {
        self.at as u64
    }

    /// The next entry that means something for a replay; it stays the next one.
    pub fn peek(&mut self) -> Next {
        loop {
            let Some(rest) = self.entries.get(self.at..).filter(|rest| !rest.is_empty()) else {
                return Next::End;
            };
            let Some(header) = EntryHeader::from_bytes(rest) else { return Next::Damaged };
            let end = ENTRY_HEADER_SIZE + header.event.len as usize;
            let Some(payload) = rest.get(ENTRY_HEADER_SIZE..end) else { return Next::Damaged };
            let end = self.at + end.next_multiple_of(8);
            match Kind::from_u16(header.event.kind).filter(|&kind| is_input(kind)) {
                None => self.at = end,
                Some(kind) => {
                    return Next::Entry(Entry {
                        at: self.at as u64,
                        thread: header.thread,
                        turns: header.event.position.control_flow.0,
                        kind,
                        payload,
                        end,
                    })
                }
            }
        }
    }

    /// What comes next behind what was written for it.
    pub fn behind_written(&mut self) -> Option<Kind> {
        let begin = self.at;
        let kind = loop {
            match self.peek() {
                Next::Entry(entry) if entry.kind == Kind::Written => self.take(&entry),
                Next::Entry(entry) => break Some(entry.kind),
                _ => break None,
            }
        };
        self.at = begin;
        kind
    }

    /// `entry` has happened.
    pub fn take(&mut self, entry: &Entry) {
        self.at = entry.end;
    }
}

/// Whether a replay has to know of it. Other events follow from these, or describe.
fn is_input(kind: Kind) -> bool {
    use Kind::*;
    matches!(
        kind,
        ThreadStart
            | ThreadEnd
            | Syscall
            | Signal
            | ProcessEnd
            | Exec
            | Written
            | Answer
            | Arrived
            | Yields
            | Runs
            | Checked
            | Mapped
            | Unfollowed
            | Passed
            | Snapshot
            | Region
            | State
            | Actions
    )
}

#[cfg(test)]
#[allow(clippy::disallowed_macros, reason = "tests have a heap and may panic")]
mod tests {
    use super::*;
    use abi::event::{EventHeader, EventRef, Position};
    use abi::ids::StreamOff;
    use alloc::vec::Vec;

    fn put(out: &mut Vec<u8>, thread: u32, turns: u64, event: &EventRef<'_>) {
        let len = event.payload_len().next_multiple_of(8);
        let position = Position { control_flow: StreamOff(turns), ..Position::default() };
        let header = EventHeader { kind: event.kind() as u16, len: len as u32, position };
        out.extend_from_slice(&EntryHeader { thread, event: header }.to_bytes());
        event.encode(out);
        out.resize(out.len().next_multiple_of(8), 0);
    }

    fn entry(script: &mut Script) -> Entry {
        match script.peek() {
            Next::Entry(entry) => entry,
            _ => panic!("an entry"),
        }
    }

    #[test]
    fn entries_come_in_order_and_what_follows_from_others_is_passed_over() {
        let mut bytes = Vec::new();
        put(&mut bytes, 0, 3, &Event::Fork { pid: 7 });
        put(&mut bytes, 1, 4, &Event::Yields);
        put(&mut bytes, 0, 5, &Event::Exec(b"/bin/x"));
        let mut script = Script::new(bytes.leak());
        let first = entry(&mut script);
        assert_eq!((first.thread, first.turns, first.kind()), (1, 4, Kind::Yields));
        assert_eq!(entry(&mut script).at, first.at);
        script.take(&first);
        let second = entry(&mut script);
        assert_eq!(second.event(), Some(Event::Exec(&b"/bin/x"[..])));
        script.take(&second);
        assert!(matches!(script.peek(), Next::End));
    }

    #[test]
    fn an_entry_that_is_cut_off_is_damage() {
        let mut bytes = Vec::new();
        put(&mut bytes, 0, 3, &Event::Runs(7));
        bytes.truncate(bytes.len() - 1);
        assert!(matches!(Script::new(bytes.leak()).peek(), Next::Damaged));
        assert!(matches!(Script::new(&[1, 2, 3]).peek(), Next::Damaged));
    }
}
