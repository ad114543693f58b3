//! How many threads the program has: what may only be done while there is one asks here.

use core::sync::atomic::{AtomicU32, Ordering::*};

#[link_section = ".data.at_fork"]
static LIVE: AtomicU32 = AtomicU32::new(0);

/// Children of vfork that use the memory.
#[link_section = ".data.at_fork"]
static BORROWERS: AtomicU32 = AtomicU32::new(0);

/// A thread of the program begins.
pub fn begins() {
    LIVE.fetch_add(1, Relaxed);
}

/// A thread of the program ends. True if it was the last one.
pub fn ends() -> bool {
    LIVE.fetch_sub(1, AcqRel) == 1
}

/// In a forked child, which has one thread.
pub fn forked() {
    LIVE.store(1, Relaxed);
    BORROWERS.store(0, Relaxed);
}

/// A child of vfork begins, which uses the memory.
pub fn lends() {
    BORROWERS.fetch_add(1, Relaxed);
}

/// It is gone.
pub fn has_back() {
    BORROWERS.fetch_sub(1, Relaxed);
}

/// Whether a child of vfork uses the memory.
pub fn is_lent() -> bool {
    BORROWERS.load(Relaxed) != 0
}

/// Threads of the program.
pub fn live() -> u32 {
    LIVE.load(Relaxed)
}
