//! Signals that wait: raised by the runtime, arrived where they could not be delivered, or blocked
//! by the program and not by the kernel. They wait in the thread's [`Mailbox`]; what the kernel is
//! asked for on their behalf is here.

use crate::base::signal::{
    bit, block_all, ends_by_default, set_real_mask, PendingSignal, SigInfo, SIG_DFL, SI_USER,
    UNBLOCKED,
};
use crate::base::sys::{self, nr};
use crate::kernel::signals::{actions, pressure};
use crate::thread::mailbox::Mailbox;
use crate::thread::traps::RESUME_FLAG;
use crate::thread::Thread;

impl Thread {
    /// Runs a system call while the kernel knows the program's mask as it is, and which signals wait
    /// behind it.
    pub fn with_true_mask<T>(&mut self, call: impl FnOnce(&mut Thread) -> T) -> T {
        let mailbox = self.mailbox;
        if mailbox.mask() & UNBLOCKED == 0 || mailbox.is_pending() {
            return call(self);
        }
        set_real_mask(mailbox.mask());
        while let Some(signal) = mailbox.take_held(|_| true) {
            queue(&signal);
        }
        let result = call(self);
        apply_mask(mailbox);
        result
    }
}

/// Tells the kernel the thread's mask, unless all is blocked until what waits is let in.
///
/// A signal may come in between the look and the call, which then unblocks others behind it: they
/// find one waiting, and are sent again (see [`wait`]).
pub fn apply_mask(mailbox: &Mailbox) {
    if !mailbox.is_pending() {
        set_real_mask(mailbox.real_mask());
    }
}

/// The signal waits for the way back. There is room for one: another waits in the kernel, so all
/// signals are to be blocked from here on.
pub fn wait(mailbox: &Mailbox, signal: PendingSignal) {
    if !mailbox.wait(signal) {
        queue(&signal);
    }
}

/// The runtime raises a signal for the program, which has not gone on yet.
pub fn raise(thread: &mut Thread, number: i32, info: SigInfo) {
    block_all();
    thread.raised = number;
    // What is raised comes first.
    let earlier = thread.mailbox.waiting.take();
    thread.mailbox.wait(PendingSignal { number, info });
    if let Some(earlier) = earlier {
        queue(&earlier);
    }
}

/// The program has taken `signal` by waiting for it (`sigtimedwait`). Without a handler, and not blocked, it natively ends the
/// process as soon as it is sent; it came here because of ours.
pub fn taken(thread: &mut Thread, signal: i32) {
    let ends = ends_by_default(signal)
        && !thread.mailbox.blocks(signal)
        && actions::with(thread, signal, |action| action.handler == SIG_DFL);
    if ends {
        raise(thread, signal, SigInfo::fault(signal, SI_USER, 0));
    }
}

/// As [`raise`], what the processor would raise as a fault.
pub fn raise_fault(thread: &mut Thread, number: i32, info: SigInfo) {
    thread.block.registers.rflags |= RESUME_FLAG;
    raise(thread, number, info);
}

/// Last thing on the way back to translated code: lets a waiting signal in there.
pub extern "C" fn before_leaving(thread: &mut Thread) {
    let mailbox = thread.mailbox;
    if !mailbox.is_pending() {
        return;
    }
    block_all();
    pressure::end_spell(thread);
    mailbox.clear_pending();
    let waiting = mailbox.waiting.take();
    // It may have come in under a mask that a system call had set for a moment (sigsuspend, ppoll).
    let beyond_mask = waiting.map_or(0, |signal| bit(signal.number));
    mailbox.let_in_at_tail(mailbox.real_mask() & !beyond_mask);
    if let Some(signal) = waiting {
        send_again(thread, signal);
    }
    queue_held(mailbox);
}

/// Sends a signal that was delivered to this thread once more: it has it blocked.
pub fn send_again(thread: &Thread, mut signal: PendingSignal) {
    if bit(signal.number) & UNBLOCKED == 0 && !signal.info.is_kept() {
        signal.info.set_kept(true);
        if signal.info.is_kept() {
            actions::keep(thread, signal.number);
        }
    }
    queue(&signal);
}

/// Sends `signal` to this thread once more, which has it blocked. False if there is no room for it.
pub fn queue(signal: &PendingSignal) -> bool {
    let info = &signal.info as *const SigInfo as usize;
    let args = [sys::getpid() as usize, sys::gettid() as usize, signal.number as usize, info];
    // SAFETY: the kernel reads the info.
    unsafe { sys::call(nr::RT_TGSIGQUEUEINFO, &args) }.is_ok()
}

/// Sends what was kept and is not blocked (any more).
pub fn queue_held(mailbox: &Mailbox) {
    while let Some(signal) = mailbox.take_held(|number| !mailbox.blocks(number)) {
        queue(&signal);
    }
}
