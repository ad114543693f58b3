//! Writing the program's memory for the program: code of its that is write-protected included.

use crate::base::program::{self, Plain};
use crate::code::guarded;
use crate::code::jit::{has_protected_pages, jit};
use core::mem::size_of;

/// The kernel or the runtime is about to write `start..end` for the program: it can.
pub fn before_writing(start: u64, end: u64) {
    if has_protected_pages() {
        jit().unprotect_range(start, end);
    }
}

/// Does what writes `start..end` for the program and says whether it could; again, where another thread may have
/// come to a page of it between, whose code is write-protected then.
pub fn written(start: u64, end: u64, mut write: impl FnMut() -> bool) -> bool {
    loop {
        let times = guarded::times();
        before_writing(start, end);
        if write() {
            return true;
        }
        if guarded::times() == times {
            return false;
        }
    }
}

/// Writes plain data to the program's memory; false if it cannot be written there.
///
/// # Safety
/// What is overwritten is the program's own, and is to be overwritten at its request.
pub unsafe fn write_program_value<T: Plain>(at: u64, value: &T) -> bool {
    let end = at.saturating_add(size_of::<T>() as u64);
    // SAFETY: as promised.
    written(at, end, || unsafe { program::write_value(at, value) })
}

/// Writes bytes to the program's memory; false if they cannot be written there.
///
/// # Safety
/// As for [`write_program_value`].
pub unsafe fn write_program(at: u64, bytes: &[u8]) -> bool {
    let end = at.saturating_add(bytes.len() as u64);
    // SAFETY: as promised.
    written(at, end, || unsafe { program::write_bytes(at, bytes) })
}
