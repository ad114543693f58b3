//! Writing the program's memory for the program: code of its that is write-protected included.

use crate::base::program::{self, Plain};
use crate::code::jit::{has_protected_pages, jit};
use core::mem::size_of;

/// The kernel or the runtime is about to write `start..end` for the program: it can.
pub fn before_writing(start: u64, end: u64) {
    if has_protected_pages() {
        jit().unprotect_range(start, end);
    }
}

/// Writes plain data to the program's memory; false if it cannot be written there.
///
/// # Safety
/// What is overwritten is the program's own, and is to be overwritten at its request.
pub unsafe fn write_program_value<T: Plain>(at: u64, value: &T) -> bool {
    before_writing(at, at.saturating_add(size_of::<T>() as u64));
    // SAFETY: as promised.
    unsafe { program::write_value(at, value) }
}

/// Writes bytes to the program's memory; false if they cannot be written there.
///
/// # Safety
/// As for [`write_program_value`].
pub unsafe fn write_program(at: u64, bytes: &[u8]) -> bool {
    before_writing(at, at.saturating_add(bytes.len() as u64));
    // SAFETY: as promised.
    unsafe { program::write_bytes(at, bytes) }
}
