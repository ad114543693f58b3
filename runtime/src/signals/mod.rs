//! Signals: the program's view of them, and ours.
//!
//! The kernel knows one handler, ours, on a stack of ours. It asks where the thread was:
//!
//! * in translated code, with a full buffer: the next chunk, and the unit starts again;
//! * in translated code, with a fault: the recipe gives the program's state, and the signal is
//!   delivered to the program's handler with a frame as the kernel would have written it;
//! * in translated code, with an asynchronous signal: the thread is stepped to the next
//!   instruction boundary (a few instructions of a snippet), and the signal is delivered there;
//! * on the way back from the runtime: the thread block is the program's state;
//! * in the runtime: the signal waits, all others are blocked, and it is let in on the way back.
//!   A system call that has not started yet is not started.

pub mod deliver;
pub mod frame;
pub mod handler;
pub mod virtual_state;

use crate::process::process;
use crate::stubs;
use crate::sys::{self, nr};
use crate::thread::{PendingSignal, Thread};
use frame::SigInfo;

pub const SIGILL: i32 = 4;
pub const SIGTRAP: i32 = 5;
pub const SIGBUS: i32 = 7;
pub const SIGFPE: i32 = 8;
pub const SIGKILL: i32 = 9;
pub const SIGSEGV: i32 = 11;
pub const SIGPIPE: i32 = 13;
pub const SIGSTOP: i32 = 19;
pub const SIGXFSZ: i32 = 25;

/// si_code: the kernel says no more; a fault where nothing is mapped; where it is, without the right.
pub const SI_KERNEL: i32 = 0x80;
pub const SEGV_MAPERR: i32 = 1;
pub const SEGV_ACCERR: i32 = 2;

pub const SA_NOCLDSTOP: u64 = 1;
pub const SA_NOCLDWAIT: u64 = 2;
pub const SA_SIGINFO: u64 = 4;
pub const SA_ONSTACK: u64 = 0x0800_0000;
pub const SA_RESTART: u64 = 0x1000_0000;
pub const SA_NODEFER: u64 = 0x4000_0000;
pub const SA_RESETHAND: u64 = 0x8000_0000;
pub const SA_RESTORER: u64 = 0x0400_0000;

pub const SIG_DFL: u64 = 0;
pub const SIG_IGN: u64 = 1;

/// Signals that the processor raises; never blocked for real.
pub const SYNCHRONOUS: u64 = bit(SIGILL) | bit(SIGTRAP) | bit(SIGBUS) | bit(SIGFPE) | bit(SIGSEGV);

pub const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// `struct kernel_sigaction`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Action {
    pub handler: u64,
    pub flags: u64,
    pub restorer: u64,
    pub mask: u64,
}

/// The program's actions, by signal number.
#[derive(Clone)]
pub struct Actions(pub [Action; 65]);

impl Actions {
    /// What the kernel left us: default or ignored.
    pub fn new() -> Actions {
        let mut actions = Actions([Action::default(); 65]);
        for signal in 1..65 {
            let slot = &mut actions.0[signal as usize] as *mut Action as usize;
            // SAFETY: the kernel fills one action.
            let _ = unsafe { sys::call(nr::RT_SIGACTION, &[signal as usize, 0, slot, 8]) };
        }
        actions
    }
}

impl Default for Actions {
    fn default() -> Self {
        Actions::new()
    }
}

/// Makes our handler the kernel's for the signals that the processor raises.
pub fn install_handlers() {
    for signal in [SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV] {
        install(signal);
    }
}

/// Makes our handler the kernel's for `signal`.
pub fn install(signal: i32) {
    install_with(signal, 0);
}

/// As [`install`], with those of the program's flags that only the kernel can honour.
pub fn install_with(signal: i32, flags: u64) {
    let flags = flags & (SA_NOCLDSTOP | SA_NOCLDWAIT | SA_RESTART);
    let action = Action {
        handler: handler::handler as *const () as u64,
        flags: SA_SIGINFO | SA_ONSTACK | SA_RESTORER | SA_NODEFER | flags,
        restorer: stubs::restorer as *const () as u64,
        // Nothing nests: what was sent waits in the kernel meanwhile.
        mask: !0,
    };
    set_kernel_action(signal, &action);
}

pub fn set_kernel_action(signal: i32, action: &Action) {
    let at = action as *const Action as usize;
    // SAFETY: the kernel reads one action; the handler is ours or none.
    let _ = unsafe { sys::call(nr::RT_SIGACTION, &[signal as usize, at, 0, 8]) };
}

const SIG_SETMASK: usize = 2;

/// Blocks everything; returns what the kernel had.
pub fn block_all() -> u64 {
    let (all, mut old) = (!0u64, 0u64);
    let args = [SIG_SETMASK, &all as *const u64 as usize, &mut old as *mut u64 as usize, 8];
    // SAFETY: the kernel reads and writes one word each.
    let _ = unsafe { sys::call(nr::RT_SIGPROCMASK, &args) };
    old
}

/// Takes `signal`, which is blocked, if it is pending.
pub fn take_pending(signal: i32) {
    let (wanted, at_once) = (bit(signal), [0u64; 2]);
    let args = [&wanted as *const u64 as usize, 0, at_once.as_ptr() as usize, 8];
    // SAFETY: the kernel reads the mask and the time.
    let _ = unsafe { sys::call(nr::RT_SIGTIMEDWAIT, &args) };
}

pub fn set_real_mask(mask: u64) {
    let args = [SIG_SETMASK, &mask as *const u64 as usize, 0, 8];
    // SAFETY: the kernel reads one word.
    let _ = unsafe { sys::call(nr::RT_SIGPROCMASK, &args) };
}

pub fn current_mask() -> u64 {
    let mut mask = 0u64;
    let args = [SIG_SETMASK, 0, &mut mask as *mut u64 as usize, 8];
    // SAFETY: the kernel writes one word.
    let _ = unsafe { sys::call(nr::RT_SIGPROCMASK, &args) };
    mask
}

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
fn queue(signal: &PendingSignal) -> bool {
    let info = &signal.info as *const SigInfo as usize;
    let args = [sys::getpid() as usize, sys::gettid() as usize, signal.number as usize, info];
    // SAFETY: the kernel reads the info.
    unsafe { sys::call(nr::RT_TGSIGQUEUEINFO, &args) }.is_ok()
}

/// Keeps a signal for [`queue_held`], unless one of its number is kept already.
fn hold(thread: &mut Thread, number: i32, info: &SigInfo) {
    let same =
        |slot: &&mut Option<PendingSignal>| slot.as_ref().is_none_or(|held| held.number == number);
    if let Some(slot) = thread.held.iter_mut().find(same) {
        slot.get_or_insert(PendingSignal { number, info: *info });
    }
}

/// Sends what was kept and is not blocked (any more).
fn queue_held(thread: &mut Thread) {
    let blocked = thread.mask;
    for slot in &mut thread.held {
        if let Some(signal) = slot.take_if(|signal| blocked & bit(signal.number) == 0) {
            queue(&signal);
        }
    }
}

/// Whether anything is mapped at `address`.
pub fn is_mapped(address: u64) -> bool {
    const MS_ASYNC: usize = 1;
    let page = abi::layout::page_down(address) as usize;
    // SAFETY: asks only.
    unsafe { sys::call(nr::MSYNC, &[page, 4096, MS_ASYNC]) }.is_ok()
}

fn transfer(number: usize, local: usize, remote: u64, len: usize) -> bool {
    try_transfer(number, local, remote, len) == Ok(len)
}

fn try_transfer(number: usize, local: usize, remote: u64, len: usize) -> sys::Result {
    let (here, there) = ([local, len], [remote as usize, len]);
    // Not the process's id: its first thread may have ended, and then has no memory.
    let args = [sys::gettid() as usize, here.as_ptr() as usize, 1, there.as_ptr() as usize, 1, 0];
    if number == nr::PROCESS_VM_WRITEV {
        crate::jit::before_writing(remote, remote.saturating_add(len as u64));
    }
    // SAFETY: the kernel checks both sides.
    let result = unsafe { sys::call(number, &args) };
    if result != Err(sys::EFAULT) || !touch(remote) {
        return result;
    }
    // SAFETY: as above.
    unsafe { sys::call(number, &args) }
}

/// Lets the kernel read the program's memory at `at` on the program's behalf, which makes the stack
/// grow that far if it can: `process_vm_readv` and `process_vm_writev` do not. False if nothing can
/// be read there.
fn touch(at: u64) -> bool {
    const NO_SUCH_HOW: usize = 99;
    // SAFETY: the kernel reads a word and then refuses to do anything.
    let result = unsafe { sys::call(nr::RT_SIGPROCMASK, &[NO_SUCH_HOW, at as usize, 0, 8]) };
    result == Err(sys::EINVAL)
}

/// Reads words of the program's memory; false if they are not there.
pub fn read_program(at: u64, out: &mut [u64]) -> bool {
    transfer(nr::PROCESS_VM_READV, out.as_mut_ptr() as usize, at, out.len() * 8)
}

/// Reads bytes of the program's memory; false if they are not all there.
pub fn read_program_bytes(at: u64, out: &mut [u8]) -> bool {
    try_read_program_bytes(at, out) == Ok(out.len())
}

/// Reads bytes of the program's memory, as far as they are there; EFAULT if the first one is not.
pub fn try_read_program_bytes(at: u64, out: &mut [u8]) -> sys::Result {
    match out.len() {
        0 => Ok(0),
        len => try_transfer(nr::PROCESS_VM_READV, out.as_mut_ptr() as usize, at, len),
    }
}

/// Reads plain data of the program's; false if it is not there.
pub fn read_program_value<T: Copy>(at: u64, out: &mut T) -> bool {
    transfer(nr::PROCESS_VM_READV, out as *mut T as usize, at, core::mem::size_of::<T>())
}

/// Writes plain data to the program's memory; false if it cannot be written there.
pub fn write_program_value<T: Copy>(at: u64, value: &T) -> bool {
    transfer(nr::PROCESS_VM_WRITEV, value as *const T as usize, at, core::mem::size_of::<T>())
}

/// Writes bytes to the program's memory; false if they cannot be written there.
pub fn write_program(at: u64, bytes: &[u8]) -> bool {
    bytes.is_empty() || transfer(nr::PROCESS_VM_WRITEV, bytes.as_ptr() as usize, at, bytes.len())
}

/// The process dies of `signal`, as it would natively: default action, raised again.
pub fn die_of(signal: i32) -> ! {
    set_kernel_action(signal, &Action::default());
    set_real_mask(!bit(signal));
    let args = [sys::getpid() as usize, sys::gettid() as usize, signal as usize];
    // SAFETY: the signal's default action ends the process.
    let _ = unsafe { sys::call(nr::TGKILL, &args) };
    // Something keeps us from dying as we should.
    sys::exit_group(128 + signal)
}
