//! The control page of a running program: how `dep on`, `dep off` and `dep mark` reach it.
//!
//! The runtime of a program that records maps a memory file named [`NAME`], whose descriptor it keeps.
//! `dep` finds it in `/proc/PID/fd`, opens it, and holds a lock on it (`flock`) while it uses it, so that
//! requests come one after another.
//!
//! `dep` writes what it wants, and then [`at::POSTED`], one byte. The program looks there whenever a thread
//! goes back to generated code; a thread that is in generated code is kicked ([`KICK`]). When the request
//! is carried out, `DONE` becomes what `POSTED` is.
//!
//! Each thread has a slot. `dep` kicks only threads that are in generated code, and announces it in the
//! slot before it looks once more, so that no system call of the program is ever interrupted.

/// Name of the memory file.
pub const NAME: &str = "deprewrite";
/// First bytes of the page.
pub const MAGIC: u64 = u64::from_le_bytes(*b"DEPCTRL2");
/// The signal (SIGSTKFLT, which nothing raises) that brings a thread out of generated code.
pub const KICK: i32 = 16;

/// Where the fields of the page are.
pub mod at {
    /// u64: [`super::MAGIC`].
    pub const MAGIC: u64 = 0;
    /// u32, of which the lowest byte changes: number of the last request, from 1; never 0 again.
    pub const POSTED: u64 = 8;
    /// u32: number of the last request that was carried out.
    pub const DONE: u64 = 12;
    /// u32: one of [`super::command`].
    pub const COMMAND: u64 = 16;
    /// u32: bytes of the text.
    pub const TEXT_LEN: u64 = 20;
    /// u64: when the request was made (CLOCK_MONOTONIC, nanoseconds).
    pub const REQUESTED: u64 = 24;
    /// u32: one of [`super::outcome`].
    pub const OUTCOME: u64 = 32;
    /// u32: threads of the program.
    pub const THREADS: u64 = 36;
    /// u32: those that were interrupted.
    pub const INTERRUPTED: u64 = 40;
    /// u32: 1 while the recording is switched off.
    pub const OFF: u64 = 44;
    /// u64: nanoseconds from the request until the last thread was ready.
    pub const TOOK: u64 = 48;
    /// u32: slots that were ever in use.
    pub const SLOTS: u64 = 56;
    /// u32 each: process ids of the last ones that have kicked a thread.
    pub const KICKERS: u64 = 64;
    /// Slots: those of the first threads in the first page, the only one that most processes ever use.
    pub const FIRST_SLOT: u64 = 512;
    /// Text of a mark.
    pub const TEXT: u64 = FIRST_SLOT + super::SLOT_SIZE * super::SLOTS_MOST;
}

/// Number of [`at::KICKERS`].
pub const KICKERS: u64 = 64;
/// Longest text of a mark.
pub const TEXT_MOST: usize = 4096 - at::FIRST_SLOT as usize;
/// Bytes of a slot.
pub const SLOT_SIZE: u64 = 16;
/// Most slots.
pub const SLOTS_MOST: u64 = 1 << 16;
/// Bytes of the file.
pub const LEN: u64 = at::TEXT + TEXT_MOST as u64;

/// Where the fields of a slot are. A slot in use stays with its thread.
pub mod slot {
    /// u32: kernel thread id.
    pub const TID: u64 = 0;
    /// u32: one of [`super::place`].
    pub const PLACE: u64 = 4;
    /// u32: not 0: a kick is on its way.
    pub const KICKED: u64 = 8;
    /// u32: process id.
    pub const PID: u64 = 12;
}

/// Where a thread is.
pub mod place {
    /// It does not exist (any more).
    pub const GONE: u32 = 0;
    /// In the runtime, most likely in a system call: it looks before it goes on.
    pub const RUNTIME: u32 = 1;
    /// It stands still: its process ends.
    pub const STANDS: u32 = 3;
    /// In generated code.
    pub const CODE: u32 = 2;
}

/// What is wanted.
pub mod command {
    /// Record from now on.
    pub const ON: u32 = 1;
    /// Do not record from now on.
    pub const OFF: u32 = 2;
    /// Note the text and the time.
    pub const MARK: u32 = 3;
    /// Write what the ring has to a new file; the text is its path.
    pub const DUMP: u32 = 4;
}

/// What became of it.
pub mod outcome {
    /// It was carried out.
    pub const DONE: u32 = 0;
    /// It was so already.
    pub const ALREADY: u32 = 1;
    /// There is no trace, or it takes no more.
    pub const NO_TRACE: u32 = 2;
    /// The program keeps an undo log, which has no gaps.
    pub const UNDO: u32 = 3;
    /// A command that this runtime does not know.
    pub const UNKNOWN: u32 = 4;
    /// More threads than slots.
    pub const TOO_MANY: u32 = 5;
    /// Control flow is recorded in the format `bits`, where the place of a gap cannot be told.
    pub const BITS: u32 = 6;
    /// The program's inputs are recorded, which has no gaps.
    pub const INPUTS: u32 = 7;
    /// There is no ring.
    pub const NO_RING: u32 = 8;
    /// It could not be written; the number of the error stands in place of that of interrupted threads.
    pub const FAILED: u32 = 9;
}
