//! A replay that has gone past what comes next in its script, and would run on for ever: a timer looks now and
//! then. What is sought stops the thread at its turn; a system call comes by itself, or never.

use crate::base::control;
use crate::kernel::replay::outcome::{differs, exhausted, Expected};
use crate::kernel::replay::script::Next;
use crate::kernel::replay::{coming, damaged, replay, Coming};
use crate::thread::Thread;

/// Nanoseconds between two looks.
const EACH: u64 = 1_000_000_000;

/// The calling thread is the one of a process that replays.
pub fn begins() {
    // Without a timer the replay is as right; one that goes past its end is ended by its user.
    let _ = control::timer_of_kicks(EACH, EACH);
}

/// The timer has found the thread in translated code, in the unit of `pc`, with its turns in its block.
pub fn look(thread: &mut Thread, pc: u64) {
    let next = replay().script.peek();
    let entry = match next {
        Next::Entry(entry) => entry,
        Next::End => exhausted(thread, pc),
        Next::Damaged => damaged(thread, pc),
    };
    let made = thread.turns();
    // A turn is counted before it is made, and one that faults is not made.
    if entry.thread != thread.index || made.saturating_sub(entry.turns) <= 1 {
        return;
    }
    // Not what was written for a call, but the call.
    let Coming { entry, event, .. } = coming(thread, pc);
    let expected = Expected(&entry, &event);
    differs(thread, pc, format_args!("the thread comes to turn {made} at {pc:#x}; {expected}"))
}
