//! Replays: all that the program could not compute comes from a script, and nothing goes out.
//!
//! The script ([`abi::script`]) has what happened in the recording, in its order. A thread goes on by
//! itself until it needs the next entry:
//!
//! * at a system call ([`calls`]), an instruction that asks the machine ([`answers`]) or a fault
//!   ([`arrive`]), which come by themselves: what comes has to be what the script says;
//! * at a moment that something arrived at from outside ([`arrive`]): its last turn stops the thread, and
//!   from there it is stepped to the instruction.
//!
//! The first difference ends the replay, and so does the end of the script ([`outcome`]).
//!
//! Recorded threads are contexts on the one thread that the replay has.

pub mod accesses;
pub mod alone;
pub mod answers;
pub mod arrive;
pub mod calls;
pub mod contexts;
pub mod memory;
pub mod outcome;
pub mod output;
pub mod overrun;
pub mod restore;
pub mod script;
pub mod steer;
pub mod stepping;
pub mod strings;
pub mod tree;

use crate::base::digest::Digest;
use crate::base::lock::{Forked, Guard, Lock};
use crate::base::once::Once;
use crate::code::writing::write_program;
use crate::thread::Thread;
use abi::event::Event;
use abi::script::Header;
use alloc::vec::Vec;
use core::ops::Range;
use output::Output;
use script::{Entry, Input, Next, Script};

pub use crate::base::replaying::is_replay;

/// What the process replays.
pub struct Replay {
    pub script: Script,
    /// How it began.
    pub header: Header,
    /// What the program's own output goes to.
    pub output: Output,
    /// Addresses that are reserved for what the recorded runtime placed itself.
    pub area: Range<u64>,
}

static REPLAY: Once<Lock<Replay>> = Once::new();

/// Puts it in place.
pub fn install(replay: Replay) {
    REPLAY.install(Lock::new(replay));
}

/// What the process replays.
pub fn replay() -> Guard<'static, Replay> {
    REPLAY.get().lock()
}

/// In the only thread of a forked child.
pub fn forked(forked: &Forked) {
    if is_replay() {
        REPLAY.get().force_unlock(forked);
        contexts::forked(forked);
    }
}

/// What comes next in the script, with what the kernel had done for it.
struct Coming {
    /// What was written, and where.
    written: Vec<(u64, &'static [u8])>,
    /// The file that a call maps.
    mapped: Option<Mapped>,
    /// What the program passed to the kernel for a call.
    passed: Option<Digest>,
    entry: Entry,
    event: Input,
    /// Bytes of the script up to what was taken before all that.
    begins: u64,
}

/// A file that was mapped.
struct Mapped {
    size: u64,
    /// What was mapped of it, if it was copied.
    contents: &'static [u8],
    path: &'static [u8],
}

/// The next entry of the script, whichever thread it is about; it stays the next one. Where there is none
/// the replay ends. `pc`: where the thread is.
fn next_entry(thread: &mut Thread, pc: u64) -> Entry {
    let next = replay().script.peek();
    match next {
        Next::Entry(entry) => entry,
        Next::End => outcome::exhausted(thread, pc),
        Next::Damaged => damaged(thread, pc),
    }
}

fn damaged(thread: &mut Thread, pc: u64) -> ! {
    outcome::impossible(thread, pc, format_args!("the script is damaged"))
}

/// What the entry says.
fn event_of(thread: &mut Thread, pc: u64, entry: &Entry) -> Input {
    match entry.event() {
        Some(event) => event,
        None => damaged(thread, pc),
    }
}

/// The entry has happened.
fn take(entry: &Entry) {
    replay().script.take(entry);
}

/// What comes next, which is left, with what the kernel had written and mapped for it, which is taken.
fn coming(thread: &mut Thread, pc: u64) -> Coming {
    let (mut written, mut mapped, mut passed) = (Vec::new(), None, None);
    let begins = replay().script.taken();
    loop {
        let entry = next_entry(thread, pc);
        let event = event_of(thread, pc, &entry);
        match event {
            Event::Written { address, bytes } | Event::Seen { address, bytes, .. } => {
                written.push((address.0, bytes));
            }
            Event::Mapped { size, contents, path, .. } => {
                mapped = Some(Mapped { size, contents, path });
            }
            Event::Passed { bytes, digest: value } => passed = Some(Digest { bytes, value }),
            Event::Runs(_) if entry.thread == thread.index => {}
            Event::Unfollowed { pc: there, why } => {
                let why = core::str::from_utf8(why).unwrap_or("?");
                outcome::impossible(
                    thread,
                    pc,
                    format_args!(
                        "the recording could not follow the program from {:#x} on: {why}",
                        there.0
                    ),
                )
            }
            _ => return Coming { written, mapped, passed, entry, event, begins },
        }
        take(&entry);
    }
}

/// Puts in place what the kernel had written.
fn write(thread: &mut Thread, pc: u64, written: &[(u64, &[u8])]) {
    for &(at, bytes) in written {
        // SAFETY: what the kernel wrote into the program's memory at its request.
        if !unsafe { write_program(at, bytes) } && !memory::force(at, bytes) {
            let len = bytes.len();
            let what = "the recording has been written to there";
            outcome::differs(
                thread,
                pc,
                format_args!("{len} bytes at {at:#x} cannot be written, and {what}"),
            );
        }
    }
}
