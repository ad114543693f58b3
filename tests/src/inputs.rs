//! The events of a trace, read as `docs/format.md` describes the file. No code of the product is used.

use std::fs;
use std::io::Result;
use std::path::Path;

/// Puts another byte where the only trace of `recording` has the last one of what was `given` to the program: the
/// replay meets another input than the run did.
pub fn lie(recording: &Path, given: &[u8]) {
    let traces = fs::read_dir(recording.join("traces")).expect("a folder");
    let traces: Vec<_> = traces.map(|entry| entry.expect("an entry").path()).collect();
    let [trace] = &traces[..] else { panic!("{traces:?}") };
    let mut bytes = fs::read(trace).expect("a trace");
    let places: Vec<usize> =
        (0..bytes.len() - given.len()).filter(|&at| bytes[at..].starts_with(given)).collect();
    let [at] = places[..] else { panic!("{places:?}") };
    bytes[at + given.len() - 1] ^= 1;
    fs::write(trace, bytes).expect("written");
}

/// Kinds of events.
pub mod kind {
    pub const LAYOUT: u16 = 10;
    pub const THREAD_START: u16 = 32;
    pub const SYSCALL: u16 = 34;
    pub const SIGNAL: u16 = 35;
    pub const RESUME: u16 = 36;
    pub const PROCESS_END: u16 = 40;
    pub const WRITTEN: u16 = 50;
    pub const ANSWER: u16 = 51;
    pub const ARRIVED: u16 = 52;
    pub const CHECKED: u16 = 55;
    pub const MAPPED: u16 = 56;
    pub const UNFOLLOWED: u16 = 57;
}

/// Something that happened.
#[derive(Clone, Debug)]
pub struct Recorded {
    pub kind: u16,
    /// Index of the thread; `u32::MAX`: the process.
    pub thread: u32,
    pub turns: u64,
    pub payload: Vec<u8>,
}

impl Recorded {
    /// A word of the payload.
    pub fn word(&self, number: usize) -> u64 {
        word(&self.payload, 8 * number)
    }

    /// The bytes of WRITTEN.
    pub fn written(&self) -> &[u8] {
        &self.payload[16..16 + self.word(1) as usize]
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// All events of the trace at `path`, in the order of the file.
pub fn events(path: &Path) -> Result<Vec<Recorded>> {
    const PAGE: usize = 4096;
    const HEADER: usize = 64;
    const EVENT: usize = 24;
    const HAS_EVENTS: [u16; 2] = [1, 3];
    let file = fs::read(path)?;
    let (mut found, mut at) = (Vec::new(), 0);
    while at + HEADER <= file.len() {
        if &file[at..at + 4] != b"DEPF" {
            at += PAGE;
            continue;
        }
        let (thread, len) = (half(&file, at + 8), word(&file, at + 16) as usize);
        let frame = &file[at..file.len().min(at + len)];
        let kind = u16::from_le_bytes([frame[4], frame[5]]);
        let mut from = HEADER;
        while HAS_EVENTS.contains(&kind) && from + EVENT <= frame.len() {
            let kind = u16::from_le_bytes([frame[from], frame[from + 1]]);
            if kind == 0 {
                break;
            }
            let size = half(frame, from + 4) as usize;
            let turns = word(frame, from + 16);
            let payload = frame[from + EVENT..from + EVENT + size].to_vec();
            found.push(Recorded { kind, thread, turns, payload });
            from += EVENT + size;
        }
        at += len.max(PAGE);
    }
    Ok(found)
}
