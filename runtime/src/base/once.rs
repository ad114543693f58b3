//! A value that is put in place once, at start, and then only shared.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;

/// A place for a value that boot makes.
pub struct Once<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: written by `install` before a second thread exists, and only shared afterwards.
unsafe impl<T: Sync> Sync for Once<T> {}

impl<T> Once<T> {
    pub const fn new() -> Once<T> {
        Once(UnsafeCell::new(MaybeUninit::uninit()))
    }

    /// Puts the value in place.
    ///
    /// # Safety
    /// Called once, while there is one thread, and before [`Once::get`].
    pub unsafe fn install(&self, value: T) {
        // SAFETY: as promised, nobody else looks.
        unsafe { (*self.0.get()).write(value) };
    }

    /// The value.
    ///
    /// # Safety
    /// [`Once::install`] has been called.
    pub unsafe fn get(&self) -> &T {
        // SAFETY: as promised.
        unsafe { (*self.0.get()).assume_init_ref() }
    }
}

impl<T> Default for Once<T> {
    fn default() -> Self {
        Once::new()
    }
}
