//! The script: its entries, one after another.
// What is read was made by another program: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::own::own;
use crate::base::sys::{self, nr};
use abi::event::{Event, Kind};
use abi::script::{EntryHeader, Header, ENTRY_HEADER_SIZE, HEADER_SIZE};
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
    /// Where the last one ended that was taken.
    taken: usize,
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
        Script { entries, at: 0, taken: 0 }
    }

    /// The script of a child that the process has forked: the first `at` bytes are those of its parent's, and
    /// have been taken. `None` if there are fewer.
    pub fn of_child(entries: &'static [u8], at: u64) -> Option<Script> {
        let at = usize::try_from(at).ok().filter(|&at| at <= entries.len())?;
        Some(Script { entries, at, taken: at })
    }

    /// The same entries, at their first one.
    pub fn from_start(&self) -> Script {
        Script::new(self.entries)
    }

    /// Bytes of the entries that have been taken.
    pub fn at(&self) -> u64 {
        self.at as u64
    }

    /// Bytes of the entries up to the last that was taken: others may have been passed over.
    pub fn taken(&self) -> u64 {
        self.taken as u64
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
        let begin = (self.at, self.taken);
        let kind = loop {
            match self.peek() {
                Next::Entry(entry) if entry.kind == Kind::Written => self.take(&entry),
                Next::Entry(entry) => break Some(entry.kind),
                _ => break None,
            }
        };
        (self.at, self.taken) = begin;
        kind
    }

    /// `entry` has happened.
    pub fn take(&mut self, entry: &Entry) {
        (self.at, self.taken) = (entry.end, entry.end);
    }
}

/// Maps what follows the header in the script that is open as `fd`, for good: `len` bytes; `Err`: why not.
pub fn map(fd: i32, len: u64) -> Result<&'static [u8], &'static str> {
    const LSEEK: usize = 8;
    const SEEK_END: usize = 2;
    let end = (HEADER_SIZE as u64).saturating_add(len);
    // SAFETY: no memory involved.
    let size = unsafe { sys::call(LSEEK, &[fd as usize, 0, SEEK_END]) };
    if size.map_or(0, |size| size as u64) < end {
        return Err("the script is shorter than it says");
    }
    let Ok(at) = own(end, sys::PROT_READ, sys::MAP_PRIVATE, fd, 0) else {
        return Err("no memory for the script");
    };
    // SAFETY: mapped just now, for good, and as large; nobody changes the file meanwhile: it is made for
    // this replay.
    Ok(unsafe {
        core::slice::from_raw_parts((at as usize + HEADER_SIZE) as *const u8, len as usize)
    })
}

/// The header of the script that is open as `fd`, if it is one of this version.
pub fn header(fd: i32) -> Option<Header> {
    let mut bytes = [0u8; HEADER_SIZE];
    let args = [fd as usize, bytes.as_mut_ptr() as usize, bytes.len(), 0];
    // SAFETY: the kernel writes at most that many bytes.
    let got = unsafe { sys::call(nr::PREAD64, &args) };
    Header::from_bytes(&bytes).filter(|_| got == Ok(HEADER_SIZE))
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
            | Seen
            | Snapshot
            | Region
            | State
            | Actions
            | Untouched
            | StackLimit
            | Anew
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
