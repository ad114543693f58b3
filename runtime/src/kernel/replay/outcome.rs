//! How a replay ends, and what is said of it.

use crate::base::guards;
use crate::base::last_words::Line;
use crate::base::sys;
use crate::kernel::replay::script::{Entry, Input};
use crate::kernel::replay::{replay, steer, tree};
use crate::logs::inputs::mappings;
use crate::thread::Thread;
use abi::event::Event;
use abi::script::{Outcome, Verdict, OUTCOME_SIZE};
use abi::syscalls::find;
use core::fmt::{Arguments, Display, Formatter, Write};
use core::sync::atomic::{AtomicI32, Ordering::*};

/// Status of a replay that did not come to its end.
const STATUS_NOT_REPLAYED: i32 = 125;

/// The descriptor that the outcome goes to, or -1.
static RESULT: AtomicI32 = AtomicI32::new(-1);

/// The outcome goes to `fd`.
pub fn goes_to(fd: i32) {
    RESULT.store(fd, Relaxed);
}

/// The thread is at `pc` in the end: says how the replay ended, with `why` behind it, and ends it.
pub fn conclude(thread: &mut Thread, verdict: Verdict, pc: u64, why: Arguments<'_>) -> ! {
    let outcome = Outcome {
        verdict,
        thread: thread.index,
        entry: replay().script.at(),
        turns: thread.turns(),
        pc,
        member: tree::member(),
        text: 0,
    };
    steer::at_end(thread, &outcome);
    report(&outcome, why)
}

/// The script has come to its end, and the recording had none.
pub fn exhausted(thread: &mut Thread, pc: u64) -> ! {
    conclude(thread, Verdict::Exhausted, pc, format_args!("the recording goes no further"))
}

/// The replay does not do what the recording did: `why`.
pub fn differs(thread: &mut Thread, pc: u64, why: Arguments<'_>) -> ! {
    if mappings::written_through(0, u64::MAX).next().is_some() {
        let hint = "(a file is mapped with MAP_SHARED: somebody else may have changed it)";
        conclude(thread, Verdict::Differs, pc, format_args!("{why} {hint}"))
    }
    conclude(thread, Verdict::Differs, pc, why)
}

/// Something stands in the way.
pub fn impossible(thread: &mut Thread, pc: u64, why: Arguments<'_>) -> ! {
    conclude(thread, Verdict::Impossible, pc, why)
}

/// The same before there is a thread.
pub fn impossible_at_start(why: Arguments<'_>) -> ! {
    let (verdict, member, text) = (Verdict::Impossible, tree::member(), 0);
    let outcome = Outcome { verdict, thread: 0, entry: 0, turns: 0, pc: 0, member, text };
    report(&outcome, why)
}

/// Says it to whoever has started the replay, and ends the process.
pub fn report(outcome: &Outcome, why: Arguments<'_>) -> ! {
    let mut line = Line::new();
    let _ = write!(line, "{why}");
    guards::tell();
    let fd = RESULT.load(Relaxed);
    if fd >= 0 {
        // At once: others may write to the same pipe.
        let mut bytes = [0; OUTCOME_SIZE + Line::ROOM + 1];
        let text = line.text();
        let outcome = Outcome { text: text.len() as u32 + 1, ..*outcome };
        let parts = [&outcome.to_bytes()[..], text, b"\n"];
        let mut len = 0;
        for byte in parts.into_iter().flatten() {
            bytes[len] = *byte;
            len += 1;
        }
        let _ = sys::write(fd, &bytes[..len]);
    } else if !matches!(outcome.verdict, Verdict::Ended) {
        crate::say!("replay: {why}");
    }
    tree::ends();
    match outcome.verdict {
        Verdict::Ended | Verdict::Exhausted => sys::exit_group(0),
        Verdict::Differs | Verdict::Impossible => sys::exit_group(STATUS_NOT_REPLAYED),
    }
}

/// What the recording has, where the replay does something else.
pub struct Expected<'a>(pub &'a Entry, pub &'a Input);

impl Display for Expected<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> core::fmt::Result {
        let Expected(entry, event) = self;
        write!(f, "the recording has ")?;
        match event {
            Event::Syscall { number, arguments, .. } => {
                write!(f, "{}", Call { number: *number, arguments })?;
            }
            Event::Answer { pc, .. } => write!(f, "an instruction that asks at {:#x}", pc.0)?,
            Event::Signal { signal, pc, .. } => write!(f, "signal {signal} at {:#x}", pc.0)?,
            Event::Arrived(at) | Event::Checked(at) => {
                write!(f, "an interruption at {:#x}", at.rip)?;
            }
            Event::ProcessEnd { status, .. } => write!(f, "the end of the process ({status})")?,
            Event::ThreadEnd { status, .. } => write!(f, "the end of the thread ({status})")?,
            Event::Exec(path) => {
                let path = core::str::from_utf8(path).unwrap_or("?");
                write!(f, "the start of the program {path}")?;
            }
            other => write!(f, "{}", other.kind().name())?,
        }
        write!(f, " at turn {} of thread {}", entry.turns, entry.thread)
    }
}

/// A system call, as a line shows it.
pub struct Call<'a> {
    pub number: u64,
    pub arguments: &'a [u64; 6],
}

impl Display for Call<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> core::fmt::Result {
        let Call { number, arguments } = self;
        let name = find(*number).map_or("system call", |call| call.name);
        let [a, b, c, d, g, h] = arguments;
        write!(f, "{name} ({number}) with {a:#x}, {b:#x}, {c:#x}, {d:#x}, {g:#x}, {h:#x}")
    }
}
