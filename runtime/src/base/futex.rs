//! Words that threads of the process wait for in the kernel.
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::sys::{self, nr};
use core::sync::atomic::AtomicU32;

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
