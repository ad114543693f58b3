//! Memory that is closed to the program for good, and open elsewhere.
//!
//! It lies at two more places, at distances that are the same for all such memory: where it is open, for the runtime and for
//! instructions that are known to access it (they are *marked*, `instrument/marked.rs`), and where the program's copy of it
//! is, as the program has left it. A table has a byte for each page that is closed so.
// On the way of faults: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::ceiling;
use crate::base::elsewhere::{LEFT, OPEN, PAGES};
use crate::base::maps;
use crate::base::own::KEPT_FREE;
use crate::base::processor;
use crate::base::sys::{self, nr};
use crate::logs::inputs::view;
use crate::thread::Thread;
use abi::layout::PAGE;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// No memory lies lower, or what lies elsewhere would meet the table.
const LOWEST: u64 = PAGES.end + LEFT;

/// The table is there.
static HAS_PAGES: AtomicBool = AtomicBool::new(false);

/// Where what lies at `at` is open.
pub fn open_at(at: u64) -> u64 {
    at.wrapping_sub(OPEN)
}

/// Whether memory can be kept closed, as far as can be told.
pub fn can_be(thread: &Thread) -> bool {
    view::only_if_shared()
        && view::has_means(thread)
        && !thread.vfork_child
        && ceiling::above().is_none()
        && processor::has_bmi2()
        && (HAS_PAGES.load(Relaxed) || has_pages())
}

fn has_pages() -> bool {
    let has_them = reserve(&PAGES, sys::PROT_READ | sys::PROT_WRITE);
    HAS_PAGES.store(has_them, Relaxed);
    has_them
}

/// Maps memory where nothing is.
fn reserve(range: &Range<u64>, rights: usize) -> bool {
    let (at, len) = (range.start, range.end - range.start);
    let flags = KEPT_FREE | sys::MAP_FIXED_NOREPLACE;
    // SAFETY: nothing is replaced.
    let mapped = unsafe { sys::mmap(at, len, rights, flags, -1, 0) };
    match mapped {
        Ok(there) if there == at => true,
        Ok(there) => {
            unmap(&(there..there + len));
            false
        }
        Err(_) => false,
    }
}

fn unmap(range: &Range<u64>) {
    let args = [range.start as usize, (range.end - range.start) as usize];
    // SAFETY: mapped here, and nobody uses it any more.
    let _ = unsafe { sys::call(nr::MUNMAP, &args) };
}

fn lower(range: &Range<u64>, by: u64) -> Range<u64> {
    range.start - by..range.end - by
}

/// The memory in `range`, which others share, lies elsewhere from now on, with these rights. Returns what the program has
/// left there: zeros. `None` if there is no room.
pub fn begins(range: &Range<u64>, rights: usize) -> Option<&'static mut [u8]> {
    if range.start < LOWEST || range.end > 1 << 47 || !is_one(range, rights) {
        return None;
    }
    let (open, left) = (lower(range, OPEN), lower(range, LEFT));
    let (from, len) = (range.start as usize, (range.end - range.start) as usize);
    if !reserve(&open, 0) {
        return None;
    }
    if !reserve(&left, sys::PROT_READ | sys::PROT_WRITE) {
        unmap(&open);
        return None;
    }
    // An old length of 0 makes a second mapping.
    let flags = sys::MREMAP_MAYMOVE | sys::MREMAP_FIXED;
    // SAFETY: reserved just now.
    let is_there = unsafe {
        sys::call(nr::MREMAP, &[from, 0, len, flags, open.start as usize]).is_ok()
            && sys::call(nr::MPROTECT, &[open.start as usize, len, rights]).is_ok()
    };
    if !is_there {
        unmap(&open);
        unmap(&left);
        return None;
    }
    pages(range).fill(1);
    // SAFETY: mapped just now; the thread that runs is the only one that uses it.
    Some(unsafe { core::slice::from_raw_parts_mut(left.start as *mut u8, len) })
}

/// It does not any more.
pub fn ends(range: &Range<u64>) {
    pages(range).fill(0);
    unmap(&lower(range, OPEN));
    unmap(&lower(range, LEFT));
}

/// The bytes of the table.
fn pages(range: &Range<u64>) -> &'static mut [u8] {
    let (first, end) = (range.start / PAGE, range.end / PAGE);
    // SAFETY: the table is mapped, and only the thread that runs changes it.
    unsafe {
        core::slice::from_raw_parts_mut((PAGES.start + first) as *mut u8, (end - first) as usize)
    }
}

/// Whether it is one shared mapping, with these rights: what lies elsewhere is a copy of that.
fn is_one(range: &Range<u64>, rights: usize) -> bool {
    let is_writable = rights & sys::PROT_WRITE != 0;
    let rights = if is_writable { b"rw-s" } else { b"r--s" };
    maps::read().is_some_and(|all| maps::is_in_one(&all, range, rights))
}
