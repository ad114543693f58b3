//! The script of a replay: what the runtime of an output reads instead of asking the kernel.
//!
//! `replay` makes it of the traces of a recording, for one process: the inputs of all its threads, in
//! the one order in which they are to happen. The runtime maps it, read-only, and goes through it from
//! the front. It lives as long as the replay, between two programs of one version, so it has no
//! compatibility to keep.
//!
//! The processes of a tree that forks are replayed together: the script of a forked one stands beside that of
//! the first (`SCRIPT.MEMBER`, see [`member`]), and repeats what came before the fork, which may be a hole.
//!
//! A script is a [`Header`] and then entries: an [`EntryHeader`] and the payload of the event. Each
//! entry starts at a multiple of 8.

use crate::event::{EventHeader, EVENT_HEADER_SIZE};

/// First bytes of a script.
pub const MAGIC: [u8; 8] = *b"DEPSCRIP";
/// Version of this layout.
pub const VERSION: u32 = 3;

/// How a replay begins. All addresses are those of the recorded process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: u32,
    /// 1: one watched thread is replayed, in memory of its own; else 0.
    pub alone: u32,
    /// The code window.
    pub window: u64,
    /// Start of the heap (`brk`).
    pub brk: u64,
    /// Load address of the interpreter, or 0.
    pub interpreter: u64,
    /// rsp at the program's first instruction.
    pub stack: u64,
    /// First byte behind the stack.
    pub stack_end: u64,
    /// Soft limit of the stack's size, or 0 if the recording does not say it.
    pub stack_limit: u64,
    /// An address range in which the program never had anything: for the runtime's own memory.
    pub free: [u64; 2],
    /// Process id that the program saw, and that of its first thread.
    pub pid: u64,
    /// Bytes of all entries, which follow this header.
    pub len: u64,
    /// Bytes of entries behind those: calls that map memory in processes that this one forks.
    pub beside: u64,
}

/// Size of [`Header`].
pub const HEADER_SIZE: usize = 104;
const _: () = assert!(core::mem::size_of::<Header>() == HEADER_SIZE);

/// Header of an entry; `event.len` bytes of payload follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryHeader {
    /// Index of the thread that it happens to.
    pub thread: u32,
    /// The event as it was recorded: its position's `control_flow` are the turns of its thread, counted
    /// from the thread's first instruction.
    pub event: EventHeader,
}

/// Bytes of an [`EntryHeader`].
pub const ENTRY_HEADER_SIZE: usize = 8 + EVENT_HEADER_SIZE;

impl Header {
    /// The header in a file.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HEADER_SIZE] {
        let mut out = [0; HEADER_SIZE];
        out[..8].copy_from_slice(&self.magic);
        out[8..12].copy_from_slice(&self.version.to_le_bytes());
        out[12..16].copy_from_slice(&self.alone.to_le_bytes());
        for (slot, word) in out[16..].chunks_exact_mut(8).zip(self.words()) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Reads [`Header::to_bytes`]; `None` if it is no script of this version.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Header> {
        let bytes = bytes.get(..HEADER_SIZE)?;
        if bytes[..8] != MAGIC || bytes[8..12] != VERSION.to_le_bytes() {
            return None;
        }
        let alone = u32::from_le_bytes(bytes[12..16].try_into().ok()?);
        let mut words = [0; 11];
        for (word, from) in words.iter_mut().zip(bytes[16..].chunks_exact(8)) {
            *word = u64::from_le_bytes(from.try_into().ok()?);
        }
        let [window, brk, interpreter, stack, stack_end, rest @ ..] = words;
        let [stack_limit, free, free_end, pid, len, beside] = rest;
        Some(Header {
            magic: MAGIC,
            version: VERSION,
            alone,
            window,
            brk,
            interpreter,
            stack,
            stack_end,
            stack_limit,
            free: [free, free_end],
            pid,
            len,
            beside,
        })
    }

    fn words(&self) -> [u64; 11] {
        let [free, free_end] = self.free;
        [
            self.window,
            self.brk,
            self.interpreter,
            self.stack,
            self.stack_end,
            self.stack_limit,
            free,
            free_end,
            self.pid,
            self.len,
            self.beside,
        ]
    }
}

impl EntryHeader {
    /// The header in a file.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ENTRY_HEADER_SIZE] {
        let mut out = [0; ENTRY_HEADER_SIZE];
        out[..4].copy_from_slice(&self.thread.to_le_bytes());
        out[8..].copy_from_slice(&self.event.to_bytes());
        out
    }

    /// The header at the start of `bytes`; `None` if there are too few.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<EntryHeader> {
        let thread = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?);
        Some(EntryHeader { thread, event: EventHeader::from_bytes(bytes.get(8..)?)? })
    }
}

/// The process of a tree that `parent` has forked as `number`; the first one of a tree is 0. In different PID namespaces
/// different processes have one number, so its own does not tell which it is.
#[must_use]
pub fn member(parent: u64, number: u64) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    (parent.wrapping_mul(ODD) ^ number).max(1)
}

/// How a replay ended, as the runtime writes it to the descriptor in `DEP_REPLAY_RESULT`, at once:
/// [`Outcome::to_bytes`], and behind it a line of text that says more. Each process of a tree writes its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How.
    pub verdict: Verdict,
    /// Index of the thread that it happened to.
    pub thread: u32,
    /// Bytes of the entries in front of the one that was being replayed.
    pub entry: u64,
    /// Turns of that thread.
    pub turns: u64,
    /// Original address where it was.
    pub pc: u64,
    /// Which process of a tree: see [`member`].
    pub member: u64,
    /// Bytes of the text.
    pub text: u32,
}

/// How a replay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Verdict {
    /// As the recording did.
    Ended = 1,
    /// The recording has no end (it was killed, or goes on): it was replayed to its last entry.
    Exhausted = 2,
    /// The replay did something else than the recording. This is never passed over.
    Differs = 3,
    /// Something stands in the way of a replay: a file that is not there, an address that is taken.
    Impossible = 4,
}

/// With this ends what is said where a replay found something at addresses that the recorded program used. Where the kernel
/// places things differs from one replay to the next.
pub const TAKEN: &str = "are taken";

/// Bytes of an [`Outcome`].
pub const OUTCOME_SIZE: usize = 44;

impl Outcome {
    /// The outcome as it is written.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; OUTCOME_SIZE] {
        let mut out = [0; OUTCOME_SIZE];
        out[..4].copy_from_slice(&(self.verdict as u32).to_le_bytes());
        out[4..8].copy_from_slice(&self.thread.to_le_bytes());
        out[8..16].copy_from_slice(&self.entry.to_le_bytes());
        out[16..24].copy_from_slice(&self.turns.to_le_bytes());
        out[24..32].copy_from_slice(&self.pc.to_le_bytes());
        out[32..40].copy_from_slice(&self.member.to_le_bytes());
        out[40..].copy_from_slice(&self.text.to_le_bytes());
        out
    }

    /// Reads [`Outcome::to_bytes`].
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Outcome> {
        let bytes: &[u8; OUTCOME_SIZE] = bytes.get(..OUTCOME_SIZE)?.try_into().ok()?;
        let half = |at: usize| Some(u32::from_le_bytes(bytes[at..at + 4].try_into().ok()?));
        let word = |at: usize| Some(u64::from_le_bytes(bytes[at..at + 8].try_into().ok()?));
        let verdict = match half(0)? {
            1 => Verdict::Ended,
            2 => Verdict::Exhausted,
            3 => Verdict::Differs,
            4 => Verdict::Impossible,
            _ => return None,
        };
        Some(Outcome {
            verdict,
            thread: half(4)?,
            entry: word(8)?,
            turns: word(16)?,
            pc: word(24)?,
            member: word(32)?,
            text: half(40)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_their_bytes() {
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            alone: 1,
            window: 1,
            brk: 2,
            interpreter: 3,
            stack: 4,
            stack_end: 5,
            stack_limit: 6,
            free: [7, 8],
            pid: 9,
            len: 10,
            beside: 11,
        };
        assert_eq!(Header::from_bytes(&header.to_bytes()), Some(header));
        assert_eq!(Header::from_bytes(&[0; HEADER_SIZE]), None);
        let entry =
            EntryHeader { thread: 3, event: EventHeader { kind: 34, ..Default::default() } };
        assert_eq!(EntryHeader::from_bytes(&entry.to_bytes()), Some(entry));
    }

    #[test]
    fn outcomes_survive_their_bytes() {
        let outcome = Outcome {
            verdict: Verdict::Differs,
            thread: 1,
            entry: 2,
            turns: 3,
            pc: 4,
            member: 5,
            text: 6,
        };
        assert_eq!(Outcome::from_bytes(&outcome.to_bytes()), Some(outcome));
        assert_eq!(Outcome::from_bytes(&[9; OUTCOME_SIZE]), None);
    }
}
