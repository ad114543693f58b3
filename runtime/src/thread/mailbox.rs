//! What the signal handler shares with the code of this thread that it interrupts.
//!
//! While the runtime runs on a thread, a `&mut Thread` exists (see [`crate::gate::dispatch`]), and
//! nobody else may touch the thread. A signal may come in all the same. The handler then knows the
//! mailbox and nothing else of the thread: the mailbox lies behind the [`Thread`], is no part of it,
//! and is only ever reached through a shared reference. Its fields are atomics and slots.
//!
//! Both sides run on one thread, one of them interrupted by the other, so what orders them is the
//! order in which the compiler leaves the accesses: acquire and release for a slot, and a fence of the
//! compiler's where the order of two fields matters.
//!
//! [`Thread`]: crate::thread::Thread
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::replaying::is_replay;
use crate::base::signal::{bit, PendingSignal, SigInfo, SIGKILL, SIGSTOP, UNBLOCKED};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{
    compiler_fence, AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*,
};

/// How signals stand with one thread.
#[repr(C)]
pub struct Mailbox {
    /// Not zero: something is to be let in on the way back. Generated and naked code looks here.
    pub(super) pending: AtomicU32,
    /// Not zero: signals are blocked beyond the program's mask, and let in at the tail.
    pub(super) unblock: AtomicU32,
    /// What the tail sets if `unblock` is set.
    pub(super) tail_mask: AtomicU64,
    /// The program's mask as it believes it to be.
    mask: AtomicU64,
    /// The signal that is let in next.
    pub waiting: Slot,
    /// Signals of the kinds that faults raise, which the kernel never blocks for us, but which were
    /// sent while a step was under way, or while the program blocks them: one of each, as the
    /// kernel keeps them.
    pub held: [Slot; 7],
    /// The signal in `waiting` that the program blocks, but not during the call that it came in, or 0.
    let_in: AtomicI32,
    /// Stepping to an instruction boundary with a signal in `waiting`.
    stepping: AtomicBool,
    /// A record is being stored with the program's alignment check off.
    unaligned: AtomicBool,
    mask_of_unaligned: AtomicU64,
    /// The program's own trap flag, while the processor's is not what the program has set.
    trap_flag: AtomicBool,
    /// Signals are held back for a while; a kick ends that.
    in_spell: AtomicBool,
    /// How the thread stands in the line for the baton, if one thread runs at a time: it waits here.
    pub baton: AtomicU32,
    /// 1: the lock that it waited for was given to it. It waits here.
    pub lock: AtomicU32,
}

impl Mailbox {
    /// Of a thread that blocks nothing, and for which nothing waits.
    pub const fn new() -> Mailbox {
        Mailbox {
            pending: AtomicU32::new(0),
            unblock: AtomicU32::new(0),
            tail_mask: AtomicU64::new(0),
            mask: AtomicU64::new(0),
            waiting: Slot::new(),
            held: [const { Slot::new() }; 7],
            let_in: AtomicI32::new(0),
            stepping: AtomicBool::new(false),
            unaligned: AtomicBool::new(false),
            mask_of_unaligned: AtomicU64::new(0),
            trap_flag: AtomicBool::new(false),
            in_spell: AtomicBool::new(false),
            baton: AtomicU32::new(0),
            lock: AtomicU32::new(0),
        }
    }

    /// As new: the thread has ended, and another begins in its place.
    pub fn reset(&self) {
        self.waiting.take();
        self.drop_held(|_| true);
        self.pending.store(0, Relaxed);
        self.unblock.store(0, Relaxed);
        self.mask.store(0, Relaxed);
        self.let_in.store(0, Relaxed);
        self.stepping.store(false, Relaxed);
        self.unaligned.store(false, Relaxed);
        self.trap_flag.store(false, Relaxed);
        self.in_spell.store(false, Relaxed);
        self.baton.store(0, Relaxed);
        self.lock.store(0, Relaxed);
    }

    // --- what waits ---

    /// Whether something is to be let in on the way back.
    pub fn is_pending(&self) -> bool {
        self.pending.load(Acquire) != 0
    }

    /// Something is to be let in on the way back.
    pub fn set_pending(&self) {
        self.pending.store(1, Release);
    }

    /// It is being let in: signals are blocked.
    pub fn clear_pending(&self) {
        self.pending.store(0, Release);
    }

    /// The word that a system call looks at before it starts.
    pub fn pending_word(&self) -> *const u32 {
        self.pending.as_ptr()
    }

    /// Puts a signal in the one place for what is let in next. False if another waits there.
    pub fn wait(&self, signal: PendingSignal) -> bool {
        let put = self.waiting.put(signal);
        self.set_pending();
        put
    }

    /// Keeps a signal that the kernel does not block for us, unless one of its number is kept.
    pub fn hold(&self, signal: PendingSignal) {
        let same = |slot: &Slot| slot.number() == Some(signal.number);
        if !self.held.iter().any(same) {
            // There is room: a slot for each of these numbers, and one that may be in use.
            self.held.iter().any(|slot| slot.put(signal));
        }
    }

    /// A kept signal of which `wanted` says, by its number, that it is to be taken.
    pub fn take_held(&self, wanted: impl Fn(i32) -> bool) -> Option<PendingSignal> {
        self.held.iter().find_map(|slot| slot.take_if(&wanted))
    }

    /// Drops the kept signals of which `unwanted` says so.
    pub fn drop_held(&self, unwanted: impl Fn(i32) -> bool) {
        while self.take_held(&unwanted).is_some() {}
    }

    // --- masks ---

    /// The program's mask as it believes it to be.
    pub fn mask(&self) -> u64 {
        self.mask.load(Relaxed)
    }

    /// That without the signals that we do not block: what the kernel is to know. In a replay what the
    /// program blocks is no matter of the kernel's.
    pub fn real_mask(&self) -> u64 {
        match is_replay() {
            true => 0,
            false => self.mask() & !UNBLOCKED,
        }
    }

    /// Whether the program blocks `signal`.
    pub fn blocks(&self, signal: i32) -> bool {
        self.mask() & bit(signal) != 0
    }

    /// The program's mask changes.
    pub fn set_mask(&self, mask: u64) {
        self.mask.store(mask & !(bit(SIGKILL) | bit(SIGSTOP)), Relaxed);
        // What is held from here on is held under the new mask; what was held before is seen below.
        compiler_fence(SeqCst);
        let free = |signal| !self.blocks(signal);
        if self.held.iter().filter_map(Slot::number).any(free) {
            // To be let in on the way back.
            self.set_pending();
        }
    }

    /// At the tail, signals are let in under `mask`.
    pub fn let_in_at_tail(&self, mask: u64) {
        self.tail_mask.store(mask, Relaxed);
        self.unblock.store(1, Release);
    }

    /// A signal came in at the tail: what is left of the way is by way of its delivery.
    pub fn leave_tail(&self) {
        self.unblock.store(0, Relaxed);
        self.let_in.store(0, Relaxed);
    }

    /// The signal that the program blocks, but not during the call that it came in.
    pub fn lets_in(&self, signal: i32) -> bool {
        self.let_in.load(Relaxed) == signal
    }

    /// `signal` is let in although the program blocks it.
    pub fn let_in(&self, signal: i32) {
        self.let_in.store(signal, Relaxed);
    }

    /// Whether signals are held back for a while.
    pub fn is_in_spell(&self) -> bool {
        self.in_spell.load(Relaxed)
    }

    pub fn set_in_spell(&self, in_spell: bool) {
        self.in_spell.store(in_spell, Relaxed);
    }

    // --- steps ---

    /// Whether the thread is stepped to an instruction boundary.
    pub fn is_stepping(&self) -> bool {
        self.stepping.load(Relaxed)
    }

    /// The thread is stepped, or is not any more.
    pub fn set_stepping(&self, stepping: bool) {
        self.stepping.store(stepping, Relaxed);
    }

    /// Keeps the program's trap flag, while the processor's says something else.
    pub fn keep_trap_flag(&self, set: bool) {
        self.trap_flag.store(set, Relaxed);
    }

    /// Whether the program has set the trap flag that was kept.
    pub fn has_trap_flag(&self) -> bool {
        self.trap_flag.load(Relaxed)
    }

    /// The same, and it is not kept any more.
    pub fn take_trap_flag(&self) -> bool {
        // (A look costs less than an exchange.)
        self.trap_flag.load(Relaxed) && self.trap_flag.swap(false, Relaxed)
    }

    /// One instruction is stepped without the alignment check; the interrupted mask was `mask`.
    pub fn step_unaligned(&self, mask: u64) {
        self.mask_of_unaligned.store(mask, Relaxed);
        self.unaligned.store(true, Relaxed);
    }

    /// That step is over, if there was one: the mask from before it.
    pub fn take_unaligned(&self) -> Option<u64> {
        self.unaligned.swap(false, Relaxed).then(|| self.mask_of_unaligned.load(Relaxed))
    }
}

impl Default for Mailbox {
    fn default() -> Self {
        Mailbox::new()
    }
}

/// Room for one signal. Whoever finds the slot in use by the code that was interrupted finds it
/// neither empty nor full.
pub struct Slot {
    /// The signal's number, or one of the two below.
    state: AtomicI32,
    info: UnsafeCell<MaybeUninit<SigInfo>>,
}

const EMPTY: i32 = 0;
const BUSY: i32 = -1;

// SAFETY: `info` is only touched by who has made the state BUSY, and only one can.
unsafe impl Sync for Slot {}

impl Slot {
    const fn new() -> Slot {
        Slot { state: AtomicI32::new(EMPTY), info: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// Number of the signal that is kept here.
    pub fn number(&self) -> Option<i32> {
        Some(self.state.load(Acquire)).filter(|&state| state > EMPTY)
    }

    /// Keeps the signal; false if the slot is in use.
    pub fn put(&self, signal: PendingSignal) -> bool {
        if self.state.compare_exchange(EMPTY, BUSY, Acquire, Relaxed).is_err() {
            return false;
        }
        // SAFETY: the state was made BUSY here.
        unsafe { (*self.info.get()).write(signal.info) };
        self.state.store(signal.number, Release);
        true
    }

    /// Takes the signal out.
    pub fn take(&self) -> Option<PendingSignal> {
        self.take_if(|_| true)
    }

    /// Takes the signal out if `wanted` says so of its number.
    pub fn take_if(&self, wanted: impl Fn(i32) -> bool) -> Option<PendingSignal> {
        let number = self.number().filter(|&number| wanted(number))?;
        self.state.compare_exchange(number, BUSY, Acquire, Relaxed).ok()?;
        // SAFETY: the state was made BUSY here, and was a number: `put` had written the info.
        let info = unsafe { (*self.info.get()).assume_init_read() };
        self.state.store(EMPTY, Release);
        Some(PendingSignal { number, info })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::signal::{SIGBUS, SIGSEGV};

    fn signal(number: i32, address: u64) -> PendingSignal {
        PendingSignal { number, info: SigInfo::fault(number, 0, address) }
    }

    #[test]
    fn a_slot_keeps_one_signal() {
        let slot = Slot::new();
        assert!(slot.take().is_none());
        assert!(slot.put(signal(10, 1)));
        assert!(!slot.put(signal(12, 2)));
        assert!(slot.take_if(|number| number == 12).is_none());
        let taken = slot.take().expect("a signal");
        assert_eq!((taken.number, taken.info.address()), (10, 1));
        assert!(slot.take().is_none());
        assert!(slot.put(signal(12, 2)));
    }

    #[test]
    fn a_slot_in_use_by_the_interrupted_code_is_left_alone() {
        let slot = Slot::new();
        slot.state.store(BUSY, Relaxed);
        assert!(!slot.put(signal(10, 1)));
        assert!(slot.take().is_none());
        assert!(slot.number().is_none());
    }

    #[test]
    fn one_of_each_number_is_held() {
        let mailbox = Mailbox::new();
        for address in 0..10 {
            mailbox.hold(signal(SIGSEGV, address));
        }
        mailbox.hold(signal(SIGBUS, 7));
        let first = mailbox.take_held(|number| number == SIGSEGV).expect("the first");
        assert_eq!(first.info.address(), 0);
        assert!(mailbox.take_held(|number| number == SIGSEGV).is_none());
        mailbox.drop_held(|_| true);
        assert!(mailbox.take_held(|_| true).is_none());
    }

    #[test]
    fn a_mask_that_frees_a_held_signal_asks_for_the_way_back() {
        let mailbox = Mailbox::new();
        mailbox.set_mask(!0);
        assert!(mailbox.blocks(SIGSEGV) && !mailbox.blocks(SIGKILL));
        assert_eq!(mailbox.real_mask() & UNBLOCKED, 0);
        mailbox.hold(signal(SIGSEGV, 0));
        mailbox.set_mask(bit(SIGSEGV));
        assert!(!mailbox.is_pending());
        mailbox.set_mask(0);
        assert!(mailbox.is_pending());
    }

    #[test]
    fn what_comes_while_one_waits_is_refused() {
        let mailbox = Mailbox::new();
        assert!(mailbox.wait(signal(10, 0)) && mailbox.is_pending());
        assert!(!mailbox.wait(signal(12, 0)));
        assert_eq!(mailbox.waiting.take().map(|s| s.number), Some(10));
    }
}
