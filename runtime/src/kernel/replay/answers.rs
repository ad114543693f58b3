//! Instructions that ask the machine: the answers that the recorded program had.

use crate::kernel::replay::outcome::{differs, Expected};
use crate::kernel::replay::{coming, replay, take, write};
use crate::thread::Thread;
use abi::event::{Event, Kind};

/// What the instruction at `pc`, an original address, was told in the recording: the values of
/// [`Event::Answer`]. What it wrote to memory is written. `None`: it faulted.
pub fn recorded(thread: &mut Thread, pc: u64) -> Option<[u64; 4]> {
    let what = replay().script.behind_written();
    if matches!(what, Some(Kind::Signal | Kind::ProcessEnd)) {
        return None;
    }
    let next = coming(thread, pc);
    let turns = thread.turns();
    match next.event {
        Event::Answer { pc: there, values }
            if there.0 == pc && (next.entry.thread, next.entry.turns) == (thread.index, turns) =>
        {
            write(thread, pc, &next.written);
            take(&next.entry);
            Some(values)
        }
        _ => differs(
            thread,
            pc,
            format_args!(
                "an instruction asks the machine at {pc:#x}, turn {turns}; {}",
                Expected(&next.entry, &next.event)
            ),
        ),
    }
}
