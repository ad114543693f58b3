//! Where things lie in the address space of a running output.
//!
//! All original code that is looked up by table lies in one *window*: 4 GiB, aligned to 4 GiB. The
//! high half of every original code address in it is the same, and so is the high half of every
//! translated address, which is why a translated call only overwrites the low half of the return
//! address that the hardware pushed, with a constant known when the file was rewritten, although
//! the window itself is placed at random at run time (non-PIE programs: at 0).

/// Size and alignment of the code window.
pub const WINDOW_SIZE: u64 = 1 << 32;

/// The look-up table **T**: the 8-byte entry at `TABLE_BASE + 8 * (low half of an original code
/// address)` holds the live address of its translation, or of the miss stub. Only the pieces that
/// belong to executable original memory are mapped. Below 2 GiB, so that `[rcx*8 + disp32]` works.
pub const TABLE_BASE: u64 = 0x7fff_f000;

/// Undo log: one page in front of the table, reached without a base register. Threads take the
/// lock (zero: free) around each synchronising instruction, and count them.
pub const SYNC_PAGE: u64 = TABLE_BASE - PAGE;
pub const SYNC_LOCK: u64 = SYNC_PAGE;
pub const SYNC_COUNT: u64 = SYNC_PAGE + 64;

/// First address behind the table.
pub const TABLE_END: u64 = TABLE_BASE + 8 * WINDOW_SIZE;

/// The segments that the rewriter adds to a position-independent program start here at the
/// earliest (relative to the window); the heap of the program has the room below it.
pub const ADDED_PIE: u64 = 0x6000_0000;
/// The same for a program at fixed addresses, whose window also holds the table from 2 GiB on.
pub const ADDED_FIXED: u64 = 0x3800_0000;

/// Size of the JIT's code cache. It lies first in the area that the runtime reserves in the window,
/// and ends within 2 GiB of the window's start, so that pc-relative operands reach everywhere.
pub const ARENA_LEN: u64 = 128 << 20;
pub const ARENA_END: u64 = 0x8000_0000;

/// The area for code cache and libraries ends here at the latest, relative to the window.
pub const AREA_END_PIE: u64 = 0xf000_0000;
/// The same for programs at fixed addresses, whose window also holds the table from 2 GiB on.
pub const AREA_END_FIXED: u64 = 0x7ff0_0000;

pub const PAGE: u64 = 4096;

/// Rounds up to a multiple of the page size.
pub const fn page_up(x: u64) -> u64 {
    (x + PAGE - 1) & !(PAGE - 1)
}

/// Rounds down to a multiple of the page size.
pub const fn page_down(x: u64) -> u64 {
    x & !(PAGE - 1)
}
