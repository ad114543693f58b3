//! Instructions that ask the machine: the answers that the recorded program had.

use crate::kernel::replay::outcome::{differs, Expected};
use crate::kernel::replay::{coming, take, write};
use crate::thread::Thread;
use abi::event::Event;

/// What the instruction at `pc`, an original address, was told in the recording: the values of
/// [`Event::Answer`]. What it wrote to memory is written.
pub fn answer(thread: &mut Thread, pc: u64) -> [u64; 4] {
    let next = coming(thread, pc);
    let turns = thread.turns_made();
    match next.event {
        Event::Answer { pc: there, values }
            if there.0 == pc && (next.entry.thread, next.entry.turns) == (thread.index, turns) =>
        {
            write(thread, pc, &next.written);
            take(&next.entry);
            values
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
