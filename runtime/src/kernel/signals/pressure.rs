//! A thread goes on however dense its signals are.
//!
//! A signal costs more here than natively: one that is sent again before it has been handled would leave
//! the program nothing, where natively it left it something. So
//!
//! * when several in a row have left the program nearly nothing, what follows the last handler is a *spell*
//!   without signals, about as long as handling one takes. A timer ends it, and so does any system call;
//! * a system call that a signal has kept from starting once is started the next time, although a signal waits
//!   ([`start_anyway`]). A call that waits ends as the kernel ends one for which a signal waits.
//!
//! Signals that have been sent before the program goes on must all be handled before it does: those that the
//! thread sends itself, and queues of real-time signals, are not held back.

use crate::base::control::{end_timer, timer_of_kicks};
use crate::base::facts::facts;
use crate::base::futex;
use crate::base::signal::{bit, block_all, set_real_mask, SigInfo, SA_RESTART, UNBLOCKED};
use crate::base::sys::{self, failed, nr};
use crate::kernel::interruptible::{forced, interruptible, BROKEN_OFF, NOT_STARTED};
use crate::kernel::signals::actions;
use crate::kernel::signals::pending::{apply_mask, send_again};
use crate::thread::Thread;
use abi::control::KICK;

/// So many signals in a row, and the next one waits.
const IN_ROW: u32 = 16;
/// Shortest and longest spell, in nanoseconds.
const SPELL: (u64, u64) = (50_000, 1_000_000);
/// When a call that waits is broken off, in nanoseconds, and how often from there on.
const FORCED: (u64, u64) = (100_000, 1_000_000);

/// A signal is delivered to a handler; the program was at `pc`.
pub fn delivered(thread: &mut Thread, signal: i32, info: &SigInfo, pc: u64) {
    let now = sys::monotonic_ns();
    let pressure = &mut thread.pressure;
    let handling = pressure.returned.saturating_sub(pressure.delivered);
    let between = now.saturating_sub(pressure.returned);
    let hurries = pc == pressure.returned_to || between < handling / 2;
    let counts = hurries && !pressure.sends && !is_queued(signal, info);
    pressure.in_row = if counts { pressure.in_row + 1 } else { 0 };
    pressure.sends = false;
    pressure.delivered = now;
    end_spell(thread);
}

/// A signal of which several may wait: somebody has sent each of them.
fn is_queued(signal: i32, info: &SigInfo) -> bool {
    const FIRST_REAL_TIME: i32 = 32;
    const BY_A_PROCESS: [i32; 3] = [0, -1, -6];
    signal >= FIRST_REAL_TIME && BY_A_PROCESS.contains(&info.code())
}

/// The program has come back from a handler, to `pc`: the kernel is told its mask, or a spell begins.
pub fn returned(thread: &mut Thread, pc: u64) {
    let now = sys::monotonic_ns();
    let pressure = &mut thread.pressure;
    pressure.returned = now;
    pressure.returned_to = pc;
    if pressure.in_row < IN_ROW || thread.mailbox.is_pending() {
        return apply_mask(thread.mailbox);
    }
    let (least, most) = SPELL;
    let length = now.saturating_sub(pressure.delivered).clamp(least, most);
    thread.mailbox.set_in_spell(true);
    set_real_mask(!UNBLOCKED);
    thread.pressure.spell = timer_of_kicks(length, 0);
    if thread.pressure.spell.is_none() {
        thread.mailbox.set_in_spell(false);
        apply_mask(thread.mailbox);
    }
}

/// There is no spell (any more). True if there was one; the kernel does not know the mask yet.
pub fn end_spell(thread: &mut Thread) -> bool {
    let Some(timer) = thread.pressure.spell.take() else { return false };
    thread.mailbox.set_in_spell(false);
    end_timer(timer);
    true
}

/// The thread makes a system call: signals are let in again.
pub fn before_call(thread: &mut Thread, number: usize) {
    // kill, rt_sigqueueinfo, tkill, tgkill, rt_tgsigqueueinfo, pidfd_send_signal
    if matches!(number, 62 | 129 | 200 | 234 | 297 | 424) {
        thread.pressure.sends = true;
    }
    if end_spell(thread) {
        apply_mask(thread.mailbox);
    }
    if facts().keeps_calls && !has_kept(thread) {
        // As the kick at the end of a spell does.
        thread.mailbox.set_pending();
    }
}

/// Whether a signal has kept this call from starting already.
pub fn has_kept(thread: &Thread) -> bool {
    thread.pressure.kept == Some(this_call(thread))
}

/// A signal keeps the call from starting.
pub fn keeps(thread: &mut Thread) {
    thread.pressure.kept = Some(this_call(thread));
}

/// The call has been carried out.
pub fn made(thread: &mut Thread) {
    if thread.pressure.kept.is_some() && has_kept(thread) {
        thread.pressure.kept = None;
    }
}

fn this_call(thread: &Thread) -> (u64, u64) {
    (thread.syscall_pc, thread.block.registers.gpr[4])
}

/// Starts a call although a signal waits for the way back. `sets_mask`: the call has a mask of its own.
///
/// # Safety
/// The program's own call with the program's own arguments.
pub unsafe fn start_anyway(
    thread: &mut Thread,
    number: usize,
    args: &[usize; 6],
    sets_mask: bool,
) -> usize {
    let mailbox = thread.mailbox;
    block_all();
    let waiting = mailbox.waiting.number();
    if sets_mask {
        // The kernel lets it in during the call, or it waits behind it.
        mailbox.clear_pending();
        if let Some(signal) = mailbox.waiting.take() {
            send_again(thread, signal);
        }
        // SAFETY: as promised.
        let result = unsafe { interruptible(mailbox.pending_word(), number, args) };
        apply_mask(mailbox);
        return result;
    }
    let (first, then) = FORCED;
    let Some(timer) = timer_of_kicks(first, then) else { return NOT_STARTED };
    set_real_mask(!bit(KICK));
    // SAFETY: as promised.
    let result = unsafe { forced(number, args) };
    end_timer(timer);
    block_all();
    if result != BROKEN_OFF {
        return result;
    }
    // It would start again behind the handler if that has SA_RESTART.
    let is_repeated = number == nr::FUTEX && futex::waits_for_lock(args[1]);
    let restarts = waiting.is_none_or(|signal| {
        actions::with(thread, signal, |action| action.flags & SA_RESTART != 0)
    });
    match restarts || is_repeated {
        true => NOT_STARTED,
        false => failed(sys::EINTR),
    }
}
