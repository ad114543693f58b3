//! Signals that wait: raised by the runtime, arrived where they could not be delivered, or blocked
//! by the program and not by the kernel.

use crate::base::signal::*;
use crate::base::sys::{self, nr};
use crate::thread::Thread;

impl Thread {
    /// The program's mask changes.
    pub fn set_mask(&mut self, mask: u64) {
        self.mask = mask & !(bit(SIGKILL) | bit(SIGSTOP));
        self.real_mask = self.mask & !SYNCHRONOUS;
        if self.held.iter().flatten().any(|signal| self.mask & bit(signal.number) == 0) {
            // To be let in on the way back.
            self.pending = 1;
        }
    }

    /// Runs a system call while the kernel knows the program's mask as it is, and which signals wait
    /// behind it.
    pub fn with_true_mask<T>(&mut self, call: impl FnOnce(&mut Thread) -> T) -> T {
        if self.mask & SYNCHRONOUS == 0 || self.pending != 0 {
            return call(self);
        }
        set_real_mask(self.mask);
        for signal in self.held.iter_mut().filter_map(Option::take) {
            queue(&signal);
        }
        let result = call(self);
        if self.pending == 0 {
            set_real_mask(self.real_mask);
        }
        result
    }
}

/// The runtime raises a signal for the program, which has not gone on yet.
pub fn raise(thread: &mut Thread, number: i32, info: SigInfo) {
    // There is room for one: another waits in the kernel.
    match thread.waiting.take() {
        Some(earlier) => {
            queue(&earlier);
        }
        None => {
            block_all();
        }
    }
    thread.waiting = Some(PendingSignal { number, info });
    thread.pending = 1;
}

/// Last thing on the way back to translated code: lets a waiting signal in there.
pub extern "C" fn before_leaving(thread: &mut Thread) {
    if thread.pending == 0 {
        return;
    }
    block_all();
    thread.pending = 0;
    thread.unblock = 1;
    thread.tail_mask = thread.real_mask;
    if let Some(signal) = thread.waiting.take() {
        // It came in under a mask that a system call had set for a moment (sigsuspend, ppoll).
        thread.tail_mask = thread.real_mask & !bit(signal.number);
        queue(&signal);
    }
    queue_held(thread);
}

/// Sends `signal` to this thread once more, which has it blocked. False if there is no room for it.
pub fn queue(signal: &PendingSignal) -> bool {
    let info = &signal.info as *const SigInfo as usize;
    let args = [sys::getpid() as usize, sys::gettid() as usize, signal.number as usize, info];
    // SAFETY: the kernel reads the info.
    unsafe { sys::call(nr::RT_TGSIGQUEUEINFO, &args) }.is_ok()
}

/// Keeps a signal for [`queue_held`], unless one of its number is kept already.
pub fn hold(thread: &mut Thread, number: i32, info: &SigInfo) {
    let same =
        |slot: &&mut Option<PendingSignal>| slot.as_ref().is_none_or(|held| held.number == number);
    if let Some(slot) = thread.held.iter_mut().find(same) {
        slot.get_or_insert(PendingSignal { number, info: *info });
    }
}

/// Sends what was kept and is not blocked (any more).
pub fn queue_held(thread: &mut Thread) {
    let blocked = thread.mask;
    for slot in &mut thread.held {
        if let Some(signal) = slot.take_if(|signal| blocked & bit(signal.number) == 0) {
            queue(&signal);
        }
    }
}
