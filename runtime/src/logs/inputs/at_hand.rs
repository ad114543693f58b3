//! The program's memory, read without a system call where it is most likely there and a fault of the runtime's does no harm.

use crate::base::program::{program_string, try_read_program_bytes};
use crate::base::{attempt, sys};
use crate::logs::inputs::foreign;
use crate::thread::Thread;

/// Whether the runtime may fault there: it is not in the handler of signals, and opens nothing that is closed to the program.
pub fn may_fault(at: u64, len: u64) -> bool {
    !Thread::is_in_handler() && !foreign::may_lie_in(at, at.saturating_add(len))
}

/// Reads bytes, as far as they are there; EFAULT if the first one is not.
pub fn read(at: u64, out: &mut [u8]) -> sys::Result {
    let len = out.len();
    // SAFETY: `out` is borrowed; the rest is the program's memory.
    let mut copied = || unsafe { attempt::copy(out.as_mut_ptr() as u64, at, len as u64) };
    match may_fault(at, len as u64) && copied() {
        true => Ok(len),
        false => try_read_program_bytes(at, out),
    }
}

/// The same; false if they are not all there.
pub fn read_all(at: u64, out: &mut [u8]) -> bool {
    read(at, out) == Ok(out.len())
}

/// As [`crate::base::program::read_program_string`].
pub fn read_string(at: u64, out: &mut [u8]) -> sys::Result {
    program_string(at, out, read_all)
}
