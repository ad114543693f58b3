//! Words that threads of the process wait for in the kernel.
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::sys::{self, nr};
use core::sync::atomic::AtomicU32;

/// Commands of the call (linux/futex.h).
pub const WAIT: usize = 0;
pub const LOCK_PI: usize = 6;
pub const UNLOCK_PI: usize = 7;
pub const WAIT_BITSET: usize = 9;
pub const WAIT_REQUEUE_PI: usize = 11;
pub const LOCK_PI2: usize = 13;

/// Which of them an operation has.
pub fn command(operation: usize) -> usize {
    operation & 0x7f
}

/// Whether it waits for a lock that inherits priorities.
pub fn waits_for_lock(operation: usize) -> bool {
    matches!(command(operation), LOCK_PI | WAIT_REQUEUE_PI | LOCK_PI2)
}

const FUTEX_WAIT_PRIVATE: usize = 128;
const FUTEX_WAKE_PRIVATE: usize = 129;

/// What [`wait`] returns when the time is over.
pub const ETIMEDOUT: i32 = 110;

/// Waits while the word has this value, `at_most` so many seconds and nanoseconds. It may return early.
pub fn wait(word: &AtomicU32, value: u32, at_most: Option<[u64; 2]>) -> sys::Result {
    let limit = at_most.as_ref().map_or(0, |limit| limit.as_ptr() as usize);
    let args = [word.as_ptr() as usize, FUTEX_WAIT_PRIVATE, value as usize, limit];
    // SAFETY: the kernel reads the word and the time.
    unsafe { sys::call(nr::FUTEX, &args) }
}

/// Wakes all that wait for the word.
pub fn wake(word: &AtomicU32) {
    let args = [word.as_ptr() as usize, FUTEX_WAKE_PRIVATE, i32::MAX as usize];
    // SAFETY: the kernel uses the address as a key.
    let _ = unsafe { sys::call(nr::FUTEX, &args) };
}
