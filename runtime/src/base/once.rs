//! A value that is put in place once, at start, and then only shared.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU8, Ordering::*};

const EMPTY: u8 = 0;
const BUSY: u8 = 1;
const READY: u8 = 2;

/// A place for a value that boot makes.
pub struct Once<T> {
    state: AtomicU8,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: written by the one who makes the state BUSY, and only shared once it is READY. It is never
// dropped.
unsafe impl<T: Sync + Send> Sync for Once<T> {}

#[cold]
fn out_of_order() -> ! {
    crate::die!("internal error: the runtime was started out of order")
}

impl<T> Once<T> {
    pub const fn new() -> Once<T> {
        Once { state: AtomicU8::new(EMPTY), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// Puts the value in place. A second time ends the process.
    pub fn install(&self, value: T) {
        if self.state.compare_exchange(EMPTY, BUSY, Acquire, Relaxed).is_err() {
            out_of_order();
        }
        // SAFETY: the state was made BUSY here, which happens once.
        unsafe { (*self.value.get()).write(value) };
        self.state.store(READY, Release);
    }

    /// The value, if it is in place.
    pub fn try_get(&self) -> Option<&T> {
        let ready = self.state.load(Acquire) == READY;
        // SAFETY: as for `get`.
        ready.then(|| unsafe { (*self.value.get()).assume_init_ref() })
    }

    /// The value. Asked for before it is in place, it ends the process.
    pub fn get(&self) -> &T {
        if self.state.load(Acquire) != READY {
            out_of_order();
        }
        // SAFETY: it was written before the state became READY, and is not written again.
        unsafe { (*self.value.get()).assume_init_ref() }
    }
}

impl<T> Default for Once<T> {
    fn default() -> Self {
        Once::new()
    }
}
