//! Memory for what is made once and then only read, until the process ends: children have it in
//! common with their parent.
//!
//! It is one large page where the kernel has one: that is made in the time of 25 small ones, and a fork
//! copies one entry of a page table for it. Elsewhere a fork copies an entry for each page.

use crate::base::own::{not_in_dumps, own, KEPT_FREE};
use crate::base::populate::{populate, Access};
use crate::base::sys::{self, nr};
use core::alloc::Layout;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Most that it takes: a large page, which starts at a multiple of its size.
const ROOM: usize = 2 << 20;
/// What the kernel is asked for at once, where it can be: a page fault each would cost more.
const POPULATED: usize = 128 << 10;

/// Allocations come from here just now.
static OPEN: AtomicBool = AtomicBool::new(false);
/// Where it lies; 0: there is none.
static START: AtomicUsize = AtomicUsize::new(0);
/// How much of it is taken, and has pages.
static USED: AtomicUsize = AtomicUsize::new(0);
static READY: AtomicUsize = AtomicUsize::new(0);

/// Has `make` fill tables that nobody changes afterwards; they cannot be written to from then on.
/// To be called once, while no other thread runs that allocates.
pub fn lasting(make: impl FnOnce()) {
    let Ok(start) = aligned() else { return make() };
    START.store(start as usize, Relaxed);
    OPEN.store(true, Relaxed);
    make();
    OPEN.store(false, Relaxed);
    not_in_dumps(start, ROOM as u64);
    // SAFETY: what lies there is only read from here on, as promised by `make`.
    let _ = unsafe { sys::call(nr::MPROTECT, &[start as usize, ROOM, sys::PROT_READ]) };
}

/// [`ROOM`], for a large page.
fn aligned() -> Result<u64, i32> {
    const MADV_HUGEPAGE: usize = 14;
    let (room, prot) = (ROOM as u64, sys::PROT_READ | sys::PROT_WRITE);
    let all = own(2 * room, prot, KEPT_FREE, -1, 0)?;
    let start = all.next_multiple_of(room);
    for (from, to) in [(all, start), (start + room, all + 2 * room)] {
        if from != to {
            // SAFETY: mapped above; nobody knows of it.
            unsafe { sys::call(nr::MUNMAP, &[from as usize, (to - from) as usize]) }?;
        }
    }
    // SAFETY: as above. A kernel without large pages refuses.
    let _ = unsafe { sys::call(nr::MADVISE, &[start as usize, ROOM, MADV_HUGEPAGE]) };
    Ok(start)
}

/// Memory for an allocation that is made just now; `None`: it is an ordinary one.
#[inline]
pub fn take(layout: Layout) -> Option<*mut u8> {
    if !OPEN.load(Relaxed) {
        return None;
    }
    let at = USED.load(Relaxed).next_multiple_of(layout.align());
    let end = at + layout.size();
    if end > ROOM {
        return None;
    }
    USED.store(end, Relaxed);
    let start = START.load(Relaxed);
    while READY.load(Relaxed) < end {
        let ready = READY.fetch_add(POPULATED, Relaxed);
        populate((start + ready) as u64, POPULATED as u64, Access::Write);
    }
    Some((start + at) as *mut u8)
}

/// Whether `block` came from [`take`]: it is not given back.
#[inline]
pub fn has(block: *mut u8) -> bool {
    let start = START.load(Relaxed);
    start != 0 && (block as usize).wrapping_sub(start) < ROOM
}
