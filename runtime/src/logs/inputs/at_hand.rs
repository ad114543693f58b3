//! The program's memory, reached without a system call where it is most likely there and a fault of the runtime's does no harm:
//! while a thread carries out a call of the program's.

use crate::base::program::{bytes_of, bytes_of_mut, program_string, try_read_program_bytes, Plain};
use crate::base::{attempt, sys};
use crate::code::writing::write_program;
use crate::logs::inputs::foreign;
use crate::thread::Thread;

/// What has to be zero for the runtime to fault in `at..at + len`; `None`: it must not. (What is closed to the program would
/// be opened.)
pub fn pending(at: u64, len: u64) -> Option<*const u32> {
    // SAFETY: the runtime works for a thread, which is only read.
    let thread = unsafe { Thread::here() };
    // SAFETY: as above.
    let (may_fault, mailbox) = unsafe { ((*thread).at_hand, (*thread).mailbox) };
    let may_fault = may_fault && !foreign::may_be_closed(at, at.saturating_add(len));
    may_fault.then(|| mailbox.pending_word())
}

/// Reads bytes, as far as they are there; EFAULT if the first one is not.
pub fn read(at: u64, out: &mut [u8]) -> sys::Result {
    let len = out.len();
    let to = out.as_mut_ptr() as u64;
    // SAFETY: `out` is borrowed; the rest is the program's memory.
    let copied = |word| unsafe { attempt::copy_unless(word, to, at, len as u64) };
    match pending(at, len as u64).is_some_and(copied) {
        true => Ok(len),
        false => try_read_program_bytes(at, out),
    }
}

/// The same; false if they are not all there.
pub fn read_all(at: u64, out: &mut [u8]) -> bool {
    read(at, out) == Ok(out.len())
}

/// The same, of plain data.
pub fn read_value<T: Plain>(at: u64, out: &mut T) -> bool {
    read_all(at, bytes_of_mut(out))
}

/// As [`crate::base::program::read_program_string`].
pub fn read_string(at: u64, out: &mut [u8]) -> sys::Result {
    program_string(at, out, read_all)
}

/// As [`write_program`].
///
/// # Safety
/// As for that.
pub unsafe fn write(at: u64, bytes: &[u8]) -> bool {
    let (from, len) = (bytes.as_ptr() as u64, bytes.len() as u64);
    // SAFETY: the bytes are borrowed; the rest is as promised.
    let copied = |word| unsafe { attempt::copy_unless(word, at, from, len) };
    // SAFETY: as promised.
    pending(at, len).is_some_and(copied) || unsafe { write_program(at, bytes) }
}

/// The same, of plain data.
///
/// # Safety
/// As for [`write_program`].
pub unsafe fn write_value<T: Plain>(at: u64, value: &T) -> bool {
    // SAFETY: as promised.
    unsafe { write(at, bytes_of(value)) }
}
