//! How often memory that others may use can be closed again.
// On the way of faults: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::sys;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// An area that others use, too, has so much to its credit, and gets an access back in each millisecond.
pub const MOST: u32 = 4000 * ACCESS;
/// One of which nobody knows whether others use it. As much is there for all together that are only read, as many files are
/// read that nobody changes.
pub const LITTLE: u32 = MOST / 8;
/// What an access costs; and one of a thread that waits for others, in a loop around it.
pub const ACCESS: u32 = 8;
pub const WAITING: u32 = 1;
const EARNED_IN_NS: u64 = 1_000_000 / ACCESS as u64;

/// What is left, and since when.
pub struct Credit {
    pub left: u32,
    since: u64,
}

impl Credit {
    pub fn new(left: u32) -> Credit {
        Credit { left, since: sys::monotonic_ns() }
    }

    /// What was earned meanwhile is there, up to `most`. Whether the price can be paid; it is, as far as it can be.
    pub fn pays(&mut self, price: u32, most: u32) -> bool {
        let earned = sys::monotonic_ns().saturating_sub(self.since) / EARNED_IN_NS;
        self.since += earned * EARNED_IN_NS;
        self.left = most.min(self.left.saturating_add(earned.min(most.into()) as u32));
        let can_pay = self.left >= price;
        self.left = self.left.saturating_sub(price);
        can_pay
    }
}

/// [`Credit`] of all that is only read, and that nobody was seen to change.
static LEFT: AtomicU32 = AtomicU32::new(0);
static SINCE: AtomicU64 = AtomicU64::new(0);

/// The same for that, under the lock of all areas.
pub fn reading_pays(price: u32) -> bool {
    let mut credit = Credit { left: LEFT.load(Relaxed), since: SINCE.load(Relaxed) };
    let can_pay = credit.pays(price, LITTLE);
    LEFT.store(credit.left, Relaxed);
    SINCE.store(credit.since, Relaxed);
    can_pay
}
