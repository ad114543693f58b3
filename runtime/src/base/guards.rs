//! Pages whose first use is noticed: a replay finds out which pages of its snapshot the program needs.
//!
//! They cannot be accessed until then. An access of the program's, or of the runtime's own code, faults and the
//! handler opens the page; what asks the kernel to read or write for the program opens it before.
// On the way of faults: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::once::Once;
use crate::base::sys::{self, nr};
use abi::layout::{page_down, page_up, PAGE};
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};

/// After so many faults more pages are opened at each: every one that stands alone is a mapping of its own, of
/// which the kernel allows 65,530.
const MANY: u32 = 8000;
/// The pages of one word of a [`Guard`].
const WORD: u64 = 64;

/// The descriptor that is told of what was never used, or -1.
static TOLD: AtomicI32 = AtomicI32::new(-1);
static ACTIVE: AtomicBool = AtomicBool::new(false);
static FAULTS: AtomicU32 = AtomicU32::new(0);
static GUARDS: Once<Vec<Guard>> = Once::new();

/// Pages in a row with the same rights.
pub struct Guard {
    range: Range<u64>,
    protection: usize,
    /// A bit for each page that was not used yet.
    closed: Vec<AtomicU64>,
}

impl Guard {
    /// Whole pages, which have this protection once they are used.
    pub fn new(range: Range<u64>, protection: usize) -> Guard {
        let pages = (range.end - range.start) / PAGE;
        let word = |first: u64| AtomicU64::new(u64::MAX >> (WORD - (pages - first).min(WORD)));
        let closed = (0..pages).step_by(WORD as usize).map(word).collect();
        Guard { range, protection, closed }
    }

    fn protect(&self, range: &Range<u64>, protection: usize) -> bool {
        let args = [range.start as usize, (range.end - range.start) as usize, protection];
        // SAFETY: memory of the program's, which loses no right that it has used.
        unsafe { sys::call(nr::MPROTECT, &args) }.is_ok()
    }

    fn bit(&self, at: u64) -> Option<(&AtomicU64, u64)> {
        let page = (at - self.range.start) / PAGE;
        Some((self.closed.get((page / WORD) as usize)?, 1 << (page % WORD)))
    }

    fn is_closed(&self, at: u64) -> bool {
        self.bit(at).is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0)
    }

    /// Pages in a row that are closed, the first ones from `at` on and before `end`.
    fn next(&self, at: u64, end: u64) -> Option<Range<u64>> {
        let end = end.min(self.range.end);
        let mut start = at.max(self.range.start);
        while start < end && !self.is_closed(start) {
            start += PAGE;
        }
        let mut stop = start;
        while stop < end && self.is_closed(stop) {
            stop += PAGE;
        }
        (start < stop).then_some(start..stop)
    }

    /// Opens what is closed of these pages. False if nothing was.
    fn open(&self, pages: &Range<u64>) -> bool {
        let mut any = false;
        while let Some(run) = self.next(pages.start, pages.end) {
            any = true;
            let run = match self.protect(&run, self.protection) {
                true => run,
                // No room for another mapping: without the guard there is one fewer.
                false if self.protect(&self.range, self.protection) => self.range.clone(),
                false => crate::die!("no memory for the mappings of a replay"),
            };
            for page in run.step_by(PAGE as usize) {
                if let Some((word, bit)) = self.bit(page) {
                    word.fetch_and(!bit, Relaxed);
                }
            }
        }
        any
    }
}

/// What was never used is to be told to `fd`, when the replay ends.
pub fn goes_to(fd: i32) {
    TOLD.store(fd, Relaxed);
}

/// Whether somebody wants to know what is used.
pub fn are_wanted() -> bool {
    TOLD.load(Relaxed) >= 0
}

/// From here on these pages, in the order of their addresses, are closed.
pub fn install(guards: Vec<Guard>) {
    for guard in &guards {
        if !guard.protect(&guard.range, 0) {
            crate::die!("no memory for the mappings of a replay");
        }
    }
    GUARDS.install(guards);
    ACTIVE.store(true, Relaxed);
}

/// The guards that have to do with `range`.
fn around(range: &Range<u64>) -> impl Iterator<Item = &'static Guard> {
    let all = GUARDS.try_get().map_or(&[][..], |all| all);
    let first = all.partition_point(|guard| guard.range.end <= range.start);
    let end = range.end;
    all.get(first..).unwrap_or_default().iter().take_while(move |guard| guard.range.start < end)
}

/// The program is about to use these bytes, or may.
#[inline]
pub fn open(start: u64, len: u64) {
    if ACTIVE.load(Relaxed) && len > 0 {
        open_all(start, len);
    }
}

#[cold]
fn open_all(start: u64, len: u64) {
    let pages = page_down(start)..page_up(start.saturating_add(len).min(u64::MAX - PAGE));
    for guard in around(&pages) {
        guard.open(&pages);
    }
}

/// Something at this address could not be accessed. True if it can now.
pub fn open_at(address: u64) -> bool {
    if !ACTIVE.load(Relaxed) {
        return false;
    }
    let pages = match FAULTS.fetch_add(1, Relaxed) / MANY {
        0 => 1,
        1 => 16,
        _ => 256,
    };
    let len = pages * PAGE;
    let start = address / len * len;
    let page = page_down(address)..page_down(address).saturating_add(PAGE);
    let Some(guard) = around(&page).next().filter(|guard| guard.is_closed(address)) else {
        return false;
    };
    guard.open(&(start..start.saturating_add(len)))
}

/// The replay ends: what was never used is told, a first byte and the first one behind for each.
pub fn tell() {
    let fd = TOLD.load(Relaxed);
    if fd < 0 || !ACTIVE.load(Relaxed) {
        return;
    }
    let mut bytes = Vec::new();
    for guard in GUARDS.try_get().into_iter().flatten() {
        let mut at = guard.range.start;
        while let Some(run) = guard.next(at, guard.range.end) {
            at = run.end;
            bytes.extend_from_slice(&run.start.to_le_bytes());
            bytes.extend_from_slice(&run.end.to_le_bytes());
        }
    }
    let mut rest = &bytes[..];
    while let Ok(n @ 1..) = sys::write(fd, rest) {
        rest = rest.get(n..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x7000_0000_0000;

    #[test]
    fn every_page_is_closed_at_first_and_none_behind() {
        for pages in [1, 63, 64, 65, 200] {
            let guard = Guard::new(BASE..BASE + pages * PAGE, 0);
            assert_eq!(guard.next(0, u64::MAX), Some(guard.range.clone()), "{pages}");
            let bits: u32 = guard.closed.iter().map(|w| w.load(Relaxed).count_ones()).sum();
            assert_eq!(u64::from(bits), pages);
        }
    }

    #[test]
    fn runs_are_cut_by_what_is_open() {
        let guard = Guard::new(BASE..BASE + 70 * PAGE, 0);
        for page in [0, 5, 64] {
            let (word, bit) = guard.bit(BASE + page * PAGE).expect("inside");
            word.fetch_and(!bit, Relaxed);
        }
        let run = |from: u64, to: u64| Some(BASE + from * PAGE..BASE + to * PAGE);
        assert_eq!(guard.next(BASE, u64::MAX), run(1, 5));
        assert_eq!(guard.next(BASE + 5 * PAGE, u64::MAX), run(6, 64));
        assert_eq!(guard.next(BASE + 64 * PAGE, BASE + 66 * PAGE), run(65, 66));
        assert_eq!(guard.next(BASE + 70 * PAGE, u64::MAX), None);
    }
}
