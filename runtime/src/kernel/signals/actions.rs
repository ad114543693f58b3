//! What the program wants done when a signal comes, and what the kernel is told of it.

use crate::base::facts::facts;
use crate::base::lock::{Forked, Guard, Lock};
use crate::base::once::Once;
use crate::base::replaying::is_replay;
use crate::base::signal::{
    bit, ends_by_default, set_kernel_action, Action, Actions, SA_NOCLDSTOP, SA_NOCLDWAIT,
    SA_NODEFER, SA_ONSTACK, SA_RESETHAND, SA_RESTART, SA_RESTORER, SA_SIGINFO, SIGBUS, SIGFPE,
    SIGILL, SIGKILL, SIGSEGV, SIGSTOP, SIGSYS, SIGTRAP, SIG_DFL, SIG_IGN, UNBLOCKED,
};
use crate::base::sys;
use crate::thread::Thread;
use abi::control::KICK;
use alloc::boxed::Box;

#[link_section = ".data.at_fork"]
static ACTIONS: Once<Lock<Table>> = Once::new();

/// How many of a signal's actions are known: the one that holds, and those before it.
pub const REGISTRATIONS: u8 = 16;
/// From one place where our handler returns to, to the next.
const RESTORER_STEP: u64 = 8;

/// The program's actions. Each gets the next number of its signal, its *registration*, which the kernel
/// tells us with a signal that it delivers: by the place where our handler is to return to. So the action is
/// that of the moment when the kernel delivered, as natively, whatever was wanted since.
struct Table {
    now: Actions,
    signals: [Registered; 65],
}

/// One signal's.
struct Registered {
    last: u8,
    /// By registration; none while the kernel has never had another than the first.
    actions: Option<Box<[Action; REGISTRATIONS as usize]>>,
    /// Signals that were delivered and have been sent once more to their thread ([`keep`]): until they have
    /// come, the kernel's action is ours, even if the program wants the signal ignored, or to die of it.
    on_the_way: u32,
}

impl Registered {
    const NEW: Registered = Registered { last: 0, actions: None, on_the_way: 0 };

    fn of(&mut self, registration: u8) -> Option<&mut Action> {
        self.actions.as_mut()?.get_mut(usize::from(registration))
    }
}

/// Which action a signal has.
#[derive(Clone, Copy)]
pub enum Which {
    /// The one that holds.
    Now,
    /// The one under which the kernel has delivered it.
    Registered(u8),
    /// The last one with this handler, if there is one; else the one that holds.
    Handler(u64),
}

/// Puts the program's actions in place: what the kernel left us.
pub fn start() {
    let now = match is_replay() {
        true => Actions([Action::default(); 65]),
        false => Actions::new(),
    };
    ACTIONS.install(Lock::new(Table { now, signals: [const { Registered::NEW }; 65] }));
}

/// In the only thread of a forked child.
pub fn forked(forked: &Forked) {
    place().force_unlock(forked);
    // What is on its way comes to the parent.
    let mut table = of_all();
    for signal in 1..65 {
        table.release(signal, u32::MAX);
    }
    if sys::getpid() == sys::FIRST_PROCESS {
        // What would end another process is not even delivered to this one, and interrupts nothing.
        for signal in 1..65 {
            let now = table.now.0[signal as usize];
            if now.handler == SIG_DFL {
                tell_kernel(signal, &now, 0, false);
            }
        }
    }
}

/// The actions of a process that has had some of its own for now.
#[inline(never)]
pub fn replace(actions: Box<Actions>) {
    let mut table = of_all();
    table.now = *actions;
    // The kernel was told the first number.
    table.signals = [const { Registered::NEW }; 65];
}

fn place() -> &'static Lock<Table> {
    ACTIONS.get()
}

fn of_all() -> Guard<'static, Table> {
    place().lock()
}

/// A copy of the actions that hold for the thread.
pub fn of(thread: &Thread) -> Actions {
    match &thread.own_actions {
        Some(own) => (**own).clone(),
        None => of_all().now.clone(),
    }
}

/// Lets `change` look at, and change, the thread's action for `signal`.
pub fn with<T>(thread: &mut Thread, signal: i32, change: impl FnOnce(&mut Action) -> T) -> T {
    match &mut thread.own_actions {
        Some(own) => change(&mut own.0[signal as usize]),
        None => change(&mut of_all().now.0[signal as usize]),
    }
}

/// From now on `new` is the thread's action for `signal`. Returns the old one.
pub fn set(thread: &mut Thread, signal: i32, new: &Action) -> Action {
    let new = Action { mask: new.mask & !(bit(SIGKILL) | bit(SIGSTOP)), ..*new };
    match &mut thread.own_actions {
        Some(own) => {
            let old = core::mem::replace(&mut own.0[signal as usize], new);
            tell_kernel(signal, &new, 0, false);
            old
        }
        None => of_all().set(signal, new),
    }
}

/// From now on the thread has the default action for each signal that it does not ignore, as CLONE_CLEAR_SIGHAND asks for.
pub fn clear(thread: &mut Thread) {
    for signal in 1..65 {
        let now = with(thread, signal, |action| *action);
        let handler = if now.handler == SIG_IGN { SIG_IGN } else { SIG_DFL };
        let new = Action { handler, ..Action::default() };
        if new != now {
            set(thread, signal, &new);
        }
    }
}

/// The action that `which` says; a handler that is good for one time is used up.
pub fn take(thread: &mut Thread, signal: i32, which: Which) -> Action {
    match &mut thread.own_actions {
        Some(own) => use_up(&mut own.0[signal as usize]),
        None => of_all().take(signal, which),
    }
}

fn use_up(slot: &mut Action) -> Action {
    let action = *slot;
    if action.flags & SA_RESETHAND != 0 && action.handler > SIG_IGN {
        slot.handler = SIG_DFL;
    }
    action
}

/// `signal` is about to be sent once more to the calling thread: the kernel's action for it is ours, until it
/// has [come](release).
pub fn keep(thread: &Thread, signal: i32) {
    if thread.own_actions.is_some() {
        return;
    }
    let mut table = of_all();
    let now = table.now.0[signal as usize];
    let registered = &mut table.signals[signal as usize];
    registered.on_the_way += 1;
    if now.handler <= SIG_IGN {
        install_with(signal, SA_RESTART, registered.last);
    }
}

/// A signal that was [kept](keep) has come.
pub fn release(thread: &Thread, signal: i32) {
    if thread.own_actions.is_none() {
        of_all().release(signal, 1);
    }
}

impl Table {
    fn set(&mut self, signal: i32, new: Action) -> Action {
        let old = core::mem::replace(&mut self.now.0[signal as usize], new);
        let registered = &mut self.signals[signal as usize];
        registered.actions.get_or_insert_with(|| Box::new([old; REGISTRATIONS as usize]));
        registered.last = (registered.last + 1) % REGISTRATIONS;
        let last = registered.last;
        if let Some(slot) = registered.of(last) {
            *slot = new;
        }
        tell_kernel(signal, &new, last, registered.on_the_way != 0);
        old
    }

    fn take(&mut self, signal: i32, which: Which) -> Action {
        let registered = &mut self.signals[signal as usize];
        let (last, now) = (registered.last, &mut self.now.0[signal as usize]);
        let back = |n| (last + REGISTRATIONS - n) % REGISTRATIONS;
        let chosen = match which {
            Which::Now => last,
            Which::Registered(registration) => registration,
            Which::Handler(handler) => (0..REGISTRATIONS)
                .map(back)
                .find(|&n| registered.of(n).is_some_and(|action| action.handler == handler))
                .unwrap_or(last),
        };
        match registered.of(chosen) {
            Some(slot) => {
                let action = use_up(slot);
                if chosen == last {
                    now.handler = slot.handler;
                }
                action
            }
            None => use_up(now),
        }
    }

    fn release(&mut self, signal: i32, count: u32) {
        let now = self.now.0[signal as usize];
        let registered = &mut self.signals[signal as usize];
        if registered.on_the_way == 0 {
            return;
        }
        registered.on_the_way = registered.on_the_way.saturating_sub(count);
        if registered.on_the_way == 0 && now.handler <= SIG_IGN {
            tell_kernel(signal, &now, registered.last, false);
        }
    }
}

/// Makes the kernel do for `new`, which has this `registration`, what it has to. `keeps`: our handler stays
/// the kernel's.
fn tell_kernel(signal: i32, new: &Action, registration: u8, keeps: bool) {
    if is_replay() {
        // Nothing comes but from the script.
        return;
    }
    let is_followed = new.handler == SIG_DFL && follows_end_by(signal);
    let is_ours = bit(signal) & UNBLOCKED != 0 || keeps || is_followed;
    match new.handler {
        // One that is ignored interrupts nothing.
        SIG_IGN if is_ours => install_with(signal, SA_RESTART, registration),
        SIG_DFL | SIG_IGN if !is_ours => {
            // SAFETY: no handler.
            unsafe { set_kernel_action(signal, new) }
        }
        _ => install_with(signal, new.flags, registration),
    }
}

/// Whether `signal`, if the process is to die of it, comes by way of us: a recording of inputs says then where its threads
/// were, and its replay gets there. (By SIGSYS a filter of system calls forbids one: that call has not returned.)
fn follows_end_by(signal: i32) -> bool {
    facts().options.recording.inputs()
        && ends_by_default(signal)
        && !matches!(signal, SIGKILL | SIGSYS)
        && sys::getpid() != sys::FIRST_PROCESS
}

/// Makes our handler the kernel's for the signals that the processor raises, for kicks, and for those that end the process, if
/// they are followed.
pub fn install_handlers() {
    if !is_replay() {
        let now = of_all().now.clone();
        for signal in (1..65).filter(|&signal| follows_end_by(signal)) {
            if now.0[signal as usize].handler == SIG_DFL {
                install_with(signal, SA_RESTART, 0);
            }
        }
    }
    for signal in [SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV] {
        install_with(signal, 0, 0);
    }
    // A kick interrupts nothing.
    install_with(KICK, SA_RESTART, 0);
}

/// Makes our handler the kernel's for `signal`, whatever the program's action is.
pub fn install(signal: i32) {
    let last = of_all().signals[signal as usize].last;
    install_with(signal, 0, last);
}

/// The registration that the kernel's frame names by where its handler returns to.
pub fn registration(restorer: u64) -> u8 {
    let n = restorer.wrapping_sub(facts().entries.restorer) / RESTORER_STEP;
    n.min(u64::from(REGISTRATIONS) - 1) as u8
}

/// Our handler becomes the kernel's, with those of the program's flags that only the kernel can honour.
fn install_with(signal: i32, flags: u64, registration: u8) {
    let flags = flags & (SA_NOCLDSTOP | SA_NOCLDWAIT | SA_RESTART);
    let action = Action {
        handler: facts().entries.handler,
        flags: SA_SIGINFO | SA_ONSTACK | SA_RESTORER | SA_NODEFER | flags,
        restorer: facts().entries.restorer + RESTORER_STEP * u64::from(registration),
        // Nothing nests: what was sent waits in the kernel meanwhile.
        mask: !0,
    };
    // SAFETY: the addresses are those of the gate's handler and of its restorer.
    unsafe { set_kernel_action(signal, &action) };
}
