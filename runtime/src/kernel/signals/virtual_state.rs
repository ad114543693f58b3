//! `rt_sigaction`, `rt_sigprocmask`, `sigaltstack`: the program sees its own state.

use crate::base::signal::{
    Action, AltStack, SIGKILL, SIGSTOP, SIG_IGN, SS_AUTODISARM, SS_DISABLE, SS_ONSTACK,
};
use crate::base::sys::{self, failed};
use crate::kernel::signals::actions;
use crate::kernel::signals::pending;
use crate::logs::inputs::at_hand;
use crate::thread::Thread;

/// `rt_sigaction(signal, new, old, size)`
pub fn sigaction(thread: &mut Thread, args: &[usize; 6]) -> usize {
    let [signal, new_at, old_at, size, ..] = *args;
    if !(1..65).contains(&signal) || size != 8 {
        return failed(sys::EINVAL);
    }
    let mut new = Action::default();
    if new_at != 0 && !at_hand::read_value(new_at as u64, &mut new) {
        return failed(sys::EFAULT);
    }
    let number = signal as i32;
    if new_at != 0 && (number == SIGKILL || number == SIGSTOP) {
        return failed(sys::EINVAL);
    }
    let old = match new_at {
        0 => actions::with(thread, number, |action| *action),
        _ => actions::set(thread, number, &new),
    };
    if new_at != 0 && new.handler == SIG_IGN {
        thread.mailbox.drop_held(|held| held == number);
    }
    // SAFETY: the program wants it there.
    if old_at != 0 && !unsafe { at_hand::write_value(old_at as u64, &old) } {
        return failed(sys::EFAULT);
    }
    0
}

/// `rt_sigprocmask(how, new, old, size)`
pub fn sigprocmask(thread: &mut Thread, args: &[usize; 6]) -> usize {
    let [how, new_at, old_at, size, ..] = *args;
    if size != 8 {
        return failed(sys::EINVAL);
    }
    let old = thread.mailbox.mask();
    if new_at != 0 {
        let mut new = 0u64;
        if !at_hand::read_value(new_at as u64, &mut new) {
            return failed(sys::EFAULT);
        }
        let mask = match how {
            0 => old | new,
            1 => old & !new,
            2 => new,
            _ => return failed(sys::EINVAL),
        };
        thread.mailbox.set_mask(mask);
        pending::apply_mask(thread.mailbox);
    }
    // SAFETY: the program wants it there.
    if old_at != 0 && !unsafe { at_hand::write_value(old_at as u64, &old) } {
        return failed(sys::EFAULT);
    }
    0
}

/// `sigaltstack(new, old)`
pub fn sigaltstack(thread: &mut Thread, args: &[usize; 6], sp: u64) -> usize {
    let [new_at, old_at, ..] = *args;
    let on_it = thread.on_alt_stack(sp);
    let mut old = thread.alt_stack;
    if old.flags & SS_DISABLE == 0 && on_it {
        old.flags |= SS_ONSTACK;
    }
    if new_at != 0 {
        let mut new = AltStack::default();
        if !at_hand::read_value(new_at as u64, &mut new) {
            return failed(sys::EFAULT);
        }
        const MINSIGSTKSZ: u64 = 2048;
        if on_it {
            return failed(sys::EPERM);
        }
        match new.flags & !SS_AUTODISARM {
            SS_DISABLE => new = AltStack::DISABLED,
            0 | SS_ONSTACK if new.size < MINSIGSTKSZ => return failed(sys::ENOMEM),
            0 | SS_ONSTACK => new.flags &= SS_AUTODISARM,
            _ => return failed(sys::EINVAL),
        }
        thread.alt_stack = new;
    }
    // SAFETY: the program wants it there.
    if old_at != 0 && !unsafe { at_hand::write_value(old_at as u64, &old) } {
        return failed(sys::EFAULT);
    }
    0
}
