//! Memory that the program would like near its own code, where a displacement reaches: for code that it generates.
//! Below the program lies another window of 4 GiB, and a return from the program to there is one that the processor
//! does not predict. So the program gets memory as near above its code as it has wished for below.

use crate::base::sys::{self, nr};
use crate::kernel::brk::brk;
use abi::layout::{page_down, WINDOW_SIZE};

/// More is no code.
const LONGEST: u64 = 512 << 20;
/// What a displacement reaches.
const REACH: u64 = WINDOW_SIZE / 2;

/// The place for `len` bytes (whole pages) in the program's window, no farther from any code of the program than
/// the place `at` below the window. `None`: that is not below the window, or not near.
fn above(window: u64, at: u64, len: u64) -> Option<u64> {
    let near = window.saturating_sub(REACH)..window;
    let fits = (1..=LONGEST).contains(&len) && at.checked_add(len)? <= window;
    let below = window.checked_sub(page_down(at))?;
    (fits && near.contains(&at)).then(|| window + below - len)
}

/// Maps `len` anonymous bytes that are the process's own near the program, which has wished for them at `at`.
/// `None`: they have to go where they may.
pub fn map(window: u64, at: u64, len: u64, prot: usize, flags: usize) -> Option<u64> {
    let place = above(window, at, len)?;
    brk().uncover(place, place + len);
    // SAFETY: replaces nothing.
    let got =
        unsafe { sys::mmap(place, len, prot, flags | sys::MAP_FIXED_NOREPLACE, -1, 0) }.ok()?;
    if got != place {
        // SAFETY: mapped just now, elsewhere, by a kernel that takes the address for a wish.
        let _ = unsafe { sys::call(nr::MUNMAP, &[got as usize, len as usize]) };
        return None;
    }
    Some(got)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 0x7f12 << 32;
    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_wished_for_below_lies_above_and_no_farther() {
        for below in [1, 2, 512, 1024, 2047] {
            let at = WINDOW - below * MIB;
            let place = above(WINDOW, at, MIB).unwrap();
            assert_eq!(place, WINDOW + (below - 1) * MIB);
            for code in [WINDOW, WINDOW + MIB] {
                let farthest = (place + MIB).abs_diff(code).max(place.abs_diff(code));
                assert!(farthest <= code - at);
            }
        }
        assert_eq!(above(WINDOW, WINDOW - MIB + 1, 4096), Some(WINDOW + MIB - 4096));
    }

    #[test]
    fn all_else_is_left_alone() {
        for (window, at, len) in [
            (WINDOW, WINDOW, MIB),
            (WINDOW, WINDOW + MIB, MIB),
            (WINDOW, WINDOW - 2 * REACH, MIB),
            (WINDOW, WINDOW - MIB, 2 * MIB),
            (WINDOW, WINDOW - 1024 * MIB, LONGEST + 4096),
            (WINDOW, WINDOW - MIB, 0),
            (WINDOW, u64::MAX, MIB),
            (WINDOW, 0, MIB),
            (0, 0, MIB),
            (0, MIB, MIB),
        ] {
            assert_eq!(above(window, at, len), None, "{window:x} {at:x} {len:x}");
        }
    }
}
