//! Where memory of the program's lies once more that is closed to it for good, as others store there
//! ([`crate::logs::inputs::foreign`]).

use abi::thread::{ThreadBlock, PAGE_OF};
use core::ops::Range;

/// So far below the program's memory it is open.
pub const OPEN: u64 = 24 << 40;
/// So far below lies what the program has left there.
pub const LEFT: u64 = 32 << 40;
/// A byte for each page: where neither sanitizers nor the kernel place anything.
pub const PAGES: Range<u64> = 40 << 40..(40 << 40) + (1 << (64 - PAGE_OF[1]));

/// Tells generated code where all this is.
pub fn tell(block: &mut ThreadBlock) {
    block.shared_pages = PAGES.start;
    block.shared_open = OPEN.wrapping_neg();
    block.shared_left = OPEN.wrapping_sub(LEFT);
    block.shared_back = LEFT - OPEN;
}
