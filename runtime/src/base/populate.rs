//! Pages that are got at once: a page fault each would cost several times as much.

use crate::base::sys::{self, nr};

/// What the pages are got for (madvise(2); Linux before 5.14 refuses, and leaves it to faults).
#[derive(Clone, Copy)]
pub enum Access {
    /// `MADV_POPULATE_READ`.
    Read = 22,
    /// `MADV_POPULATE_WRITE`: of a file that is mapped privately each page is copied.
    Write = 23,
}

/// Has the kernel map the whole pages from `start` on, `len` bytes that are mapped.
pub fn populate(start: u64, len: u64, access: Access) {
    // SAFETY: what is mapped stays as it is.
    let _ = unsafe { sys::call(nr::MADVISE, &[start as usize, len as usize, access as usize]) };
}
