//! A mutual exclusion lock that waits in the kernel.
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::sys;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering::*};

/// 0: free, 1: held, 2: held and somebody may wait.
pub struct Lock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached through a guard, and only one guard exists at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

pub struct Guard<'a, T>(&'a Lock<T>);

/// Proof that this is a forked child: nobody is left who could hold a lock.
pub struct Forked(());

impl Forked {
    /// # Safety
    /// Called in the only thread of a forked child, which holds no guard of a lock that is unlocked
    /// with it.
    pub unsafe fn child() -> Forked {
        Forked(())
    }
}

const FUTEX_WAIT_PRIVATE: usize = 128;
const FUTEX_WAKE_PRIVATE: usize = 129;

impl<T> Lock<T> {
    pub const fn new(value: T) -> Lock<T> {
        Lock { state: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    pub fn lock(&self) -> Guard<'_, T> {
        if self.state.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            while self.state.swap(2, Acquire) != 0 {
                let at = self.state.as_ptr() as usize;
                // SAFETY: the kernel reads the word at `at`.
                let _ = unsafe { sys::call(sys::nr::FUTEX, &[at, FUTEX_WAIT_PRIVATE, 2, 0]) };
            }
        }
        Guard(self)
    }

    /// Without waiting.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.state.compare_exchange(0, 1, Acquire, Relaxed).is_ok().then(|| Guard(self))
    }

    /// Whoever held the lock is not there any more.
    pub fn force_unlock(&self, _: &Forked) {
        // (In a child, what is not written stays its parent's page.)
        if self.state.load(Relaxed) != 0 {
            self.state.store(0, Release);
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        if self.0.state.swap(0, Release) == 2 {
            let at = self.0.state.as_ptr() as usize;
            // SAFETY: the kernel uses the address as a key.
            let _ = unsafe { sys::call(sys::nr::FUTEX, &[at, FUTEX_WAKE_PRIVATE, 1]) };
        }
    }
}
