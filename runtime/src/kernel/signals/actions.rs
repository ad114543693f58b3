//! What the program wants done when a signal comes, and what the kernel is told of it.

use crate::base::facts::facts;
use crate::base::lock::{Forked, Guard, Lock};
use crate::base::once::Once;
use crate::base::replaying::is_replay;
use crate::base::signal::{
    set_kernel_action, Action, Actions, SA_NOCLDSTOP, SA_NOCLDWAIT, SA_NODEFER, SA_ONSTACK,
    SA_RESTART, SA_RESTORER, SA_SIGINFO, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP,
};
use crate::thread::Thread;
use abi::control::KICK;
use alloc::boxed::Box;

#[link_section = ".data.at_fork"]
static ACTIONS: Once<Lock<Actions>> = Once::new();

/// Puts the program's actions in place: what the kernel left us.
pub fn start() {
    ACTIONS.install(Lock::new(match is_replay() {
        true => Actions([Action::default(); 65]),
        false => Actions::new(),
    }));
}

/// In the only thread of a forked child.
pub fn forked(forked: &Forked) {
    place().force_unlock(forked);
}

/// The actions of a process that has had some of its own for now.
#[inline(never)]
pub fn replace(actions: Box<Actions>) {
    *of_all() = *actions;
}

fn place() -> &'static Lock<Actions> {
    ACTIONS.get()
}

fn of_all() -> Guard<'static, Actions> {
    place().lock()
}

/// A copy of the actions that hold for the thread.
pub fn of(thread: &Thread) -> Actions {
    match &thread.own_actions {
        Some(own) => (**own).clone(),
        None => of_all().clone(),
    }
}

/// Lets `change` look at, and change, the thread's action for `signal`.
pub fn with<T>(thread: &mut Thread, signal: i32, change: impl FnOnce(&mut Action) -> T) -> T {
    match &mut thread.own_actions {
        Some(own) => change(&mut own.0[signal as usize]),
        None => change(&mut of_all().0[signal as usize]),
    }
}

/// Makes our handler the kernel's for the signals that the processor raises, and for kicks.
pub fn install_handlers() {
    for signal in [SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV] {
        install(signal);
    }
    // A kick interrupts nothing.
    install_with(KICK, SA_RESTART);
}

/// Makes our handler the kernel's for `signal`.
pub fn install(signal: i32) {
    install_with(signal, 0);
}

/// As [`install`], with those of the program's flags that only the kernel can honour.
pub fn install_with(signal: i32, flags: u64) {
    let flags = flags & (SA_NOCLDSTOP | SA_NOCLDWAIT | SA_RESTART);
    let action = Action {
        handler: facts().entries.handler,
        flags: SA_SIGINFO | SA_ONSTACK | SA_RESTORER | SA_NODEFER | flags,
        restorer: facts().entries.restorer,
        // Nothing nests: what was sent waits in the kernel meanwhile.
        mask: !0,
    };
    // SAFETY: the addresses are those of the gate's handler and of its restorer.
    unsafe { set_kernel_action(signal, &action) };
}
