//! Signals as the kernel defines them: numbers, actions, masks, what it tells a handler.

use crate::base::program::Plain;
use crate::base::sys::{self, nr};
use abi::control::KICK;
use alloc::vec::Vec;
use core::arch::asm;

pub const SIGILL: i32 = 4;
pub const SIGTRAP: i32 = 5;
pub const SIGBUS: i32 = 7;
pub const SIGFPE: i32 = 8;
pub const SIGKILL: i32 = 9;
pub const SIGSEGV: i32 = 11;
pub const SIGPIPE: i32 = 13;
pub const SIGSTOP: i32 = 19;
pub const SIGSYS: i32 = 31;
pub const SIGXFSZ: i32 = 25;

/// si_code: `kill` has sent it.
pub const SI_USER: i32 = 0;
/// si_code: the kernel says no more; a fault where nothing is mapped; where it is, without the right.
pub const SI_KERNEL: i32 = 0x80;
pub const SEGV_MAPERR: i32 = 1;
pub const SEGV_ACCERR: i32 = 2;

/// si_code of SIGTRAP: `int1`, or a step whose reason got lost.
pub const TRAP_BRKPT: i32 = 1;
/// A step.
pub const TRAP_TRACE: i32 = 2;
pub const TRAP_HWBKPT: i32 = 4;

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

/// What the kernel never blocks for us: those, and what brings a thread out of generated code.
pub const UNBLOCKED: u64 = SYNCHRONOUS | bit(KICK);

/// Signals that are ignored by default, or stop the process or have it go on: SIGCHLD to SIGURG, SIGWINCH.
const HARMLESS: u64 = 0x7f << 16 | bit(28);

/// Whether `signal` ends the process by default.
pub const fn ends_by_default(signal: i32) -> bool {
    bit(signal) & HARMLESS == 0
}

pub const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// `struct kernel_sigaction`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq)]
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
    /// The actions of signals 1 to 64 as events have them.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for action in self.0.iter().skip(1) {
            for word in [action.handler, action.flags, action.restorer, action.mask] {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
        }
        bytes
    }

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

/// What the kernel does when `signal` comes.
///
/// # Safety
/// The handler is none (default, ignore), or the runtime's own, with its restorer.
pub unsafe fn set_kernel_action(signal: i32, action: &Action) {
    let at = action as *const Action as usize;
    // SAFETY: the kernel reads one action; the rest is as promised.
    let _ = unsafe { sys::call(nr::RT_SIGACTION, &[signal as usize, at, 0, 8]) };
}

/// The kernel does what it does by default when `signal` comes.
pub fn set_default_action(signal: i32) {
    // SAFETY: no handler.
    unsafe { set_kernel_action(signal, &Action::default()) };
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

/// The process dies of `signal`, as it would natively: default action, raised again.
pub fn die_of(signal: i32) -> ! {
    set_default_action(signal);
    set_real_mask(!bit(signal));
    let args = [sys::getpid() as usize, sys::gettid() as usize, signal as usize];
    // SAFETY: the signal's default action ends the process.
    let _ = unsafe { sys::call(nr::TGKILL, &args) };
    // The first process of a PID namespace dies of no signal that it is sent, but of its faults.
    fault(signal);
    // Something keeps us from dying as we should.
    sys::exit_group(128 + signal)
}

/// A fault that has `signal`, if there is one.
fn fault(signal: i32) {
    const ALIGNMENT_CHECK: u32 = 1 << 18;
    // SAFETY: the default action ends the process.
    unsafe {
        match signal {
            SIGSEGV => asm!("mov eax, [{}]", in(reg) 1u64 << 63, out("eax") _),
            SIGILL => asm!("ud2"),
            SIGTRAP => asm!("int3"),
            SIGFPE => asm!("xor eax, eax", "xor edx, edx", "div eax", out("eax") _, out("edx") _),
            SIGBUS => asm!(
                "pushfq",
                "or dword ptr [rsp], {check}",
                "popfq",
                "mov eax, [rsp + 1]",
                check = const ALIGNMENT_CHECK,
                out("eax") _,
            ),
            _ => {}
        }
    }
}

/// `siginfo_t`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct SigInfo(pub [u8; 128]);

/// What stands in front of a registration.
const REGISTERED: [u8; 3] = *b"dep";
const KEPT: u8 = 0x80;

impl SigInfo {
    /// A fault at `address`.
    pub fn fault(signal: i32, code: i32, address: u64) -> SigInfo {
        let mut bytes = [0; 128];
        bytes[0..4].copy_from_slice(&signal.to_le_bytes());
        bytes[8..12].copy_from_slice(&code.to_le_bytes());
        bytes[16..24].copy_from_slice(&address.to_le_bytes());
        SigInfo(bytes)
    }

    pub fn code(&self) -> i32 {
        i32::from_le_bytes([self.0[8], self.0[9], self.0[10], self.0[11]])
    }

    pub fn address(&self) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.0[16..24]);
        u64::from_le_bytes(word)
    }

    pub fn set_code(&mut self, code: i32) {
        self.0[8..12].copy_from_slice(&code.to_le_bytes());
    }

    /// The registration ([`crate::kernel::signals::actions`]) under which the kernel has delivered it: told
    /// in bytes that nobody uses, which the kernel keeps when the signal is sent again.
    pub fn registration(&self) -> Option<u8> {
        (self.0[12..15] == REGISTERED).then_some(self.0[15] & !KEPT)
    }

    /// Whether the kernel's action is kept for it.
    pub fn is_kept(&self) -> bool {
        self.registration().is_some() && self.0[15] & KEPT != 0
    }

    pub fn set_registration(&mut self, registration: u8) {
        self.0[12..15].copy_from_slice(&REGISTERED);
        self.0[15] = registration & !KEPT;
    }

    /// The kernel's action is kept for it, or is not any more.
    pub fn set_kept(&mut self, kept: bool) {
        if self.registration().is_some() {
            self.0[15] = self.0[15] & !KEPT | if kept { KEPT } else { 0 };
        }
    }

    /// As the kernel tells it to a program.
    pub fn told(&self) -> SigInfo {
        let mut info = *self;
        if self.registration().is_some() {
            info.0[12..16].fill(0);
        }
        info
    }

    pub fn set_address(&mut self, address: u64) {
        self.0[16..24].copy_from_slice(&address.to_le_bytes());
    }
}

/// The program's alternate signal stack, as `sigaltstack` describes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AltStack {
    pub sp: u64,
    pub flags: i32,
    pub pad: i32,
    pub size: u64,
}

pub const SS_ONSTACK: i32 = 1;

pub const SS_DISABLE: i32 = 2;

/// The stack is disabled while a handler runs on it.
pub const SS_AUTODISARM: i32 = 1 << 31;

impl AltStack {
    pub const DISABLED: AltStack = AltStack { sp: 0, flags: SS_DISABLE, pad: 0, size: 0 };

    /// Whether `sp` lies on it.
    pub fn contains(&self, sp: u64) -> bool {
        self.flags & SS_DISABLE == 0 && sp > self.sp && sp - self.sp <= self.size
    }
}

/// A signal that arrived where it could not be delivered.
#[derive(Clone, Copy)]
pub struct PendingSignal {
    pub number: i32,
    pub info: SigInfo,
}

// SAFETY: numbers, without gaps.
unsafe impl Plain for Action {}
// SAFETY: numbers, with the gap named.
unsafe impl Plain for AltStack {}
