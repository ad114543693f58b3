//! Locks that inherit priorities (FUTEX_LOCK_PI). The kernel writes to such a lock when a thread comes to wait for it,
//! and when it gets it, while others run. Where one thread runs at a time and all that it sees has to be
//! recorded, the runtime does what the kernel does (Documentation/locking/pi-futex.rst), but for the priorities: each
//! change is made by a thread that has the baton, and is an input of that thread's.
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::census;
use crate::base::facts::facts;
use crate::base::futex::{wake, ETIMEDOUT, LOCK_PI, LOCK_PI2, UNLOCK_PI};
use crate::base::lock::{Forked, Lock};
use crate::base::program::read_program_value;
use crate::base::sys::{self, failed, nr, CLOCK_MONOTONIC, EFAULT};
use crate::code::writing::write_program_value;
use crate::kernel::baton::ending::{note_written, OWNER, OWNER_DIED, WAITERS};
use crate::kernel::baton::{give, is_serial, note, note_runs, take};
use crate::kernel::interruptible::{interruptible, NOT_STARTED};
use crate::kernel::ring;
use crate::thread::mailbox::Mailbox;
use crate::thread::Thread;
use abi::event::Event;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;

const ESRCH: i32 = 3;
const EINVAL: i32 = 22;
const EDEADLK: i32 = 35;

const PRIVATE: usize = 0x80;
/// With FUTEX_CLOCK_REALTIME.
const REAL_LOCK_PI2: usize = LOCK_PI2 | 0x100;
const CLOCK_REALTIME: usize = 0;

/// How often a thread that waits looks whether the owner is gone, in nanoseconds.
const EACH: u64 = 20_000_000;

/// A thread that waits for the lock at `at`.
struct Waiter {
    at: u64,
    tid: u32,
    mailbox: &'static Mailbox,
}

/// In the order of their arrival. A thread whose lock was given to it is not among them any more.
static WAITERS_OF_ALL: Lock<Vec<Waiter>> = Lock::new(Vec::new());

/// In the only thread of a forked child.
pub fn forked(forked: &Forked) {
    WAITERS_OF_ALL.force_unlock(forked);
    WAITERS_OF_ALL.lock().clear();
}

/// Carries out `futex` with these arguments, if it is about such a lock and the runtime has to. Returns what the call
/// returns, or [`NOT_STARTED`]. `None`: the kernel is to carry it out.
pub fn call(thread: &mut Thread, args: &[usize; 6]) -> Option<usize> {
    let (at, limit) = (args[0] as u64, args[3] as u64);
    let clock = match args[1] & !PRIVATE {
        LOCK_PI => Some(CLOCK_REALTIME),
        LOCK_PI2 => Some(CLOCK_MONOTONIC),
        REAL_LOCK_PI2 => Some(CLOCK_REALTIME),
        UNLOCK_PI => None,
        _ => return None,
    };
    let is_followed = is_serial() && facts().options.recording.inputs() && census::live() > 1;
    if !is_followed {
        return None;
    }
    let result = match clock {
        _ if !at.is_multiple_of(4) => Err(EINVAL),
        Some(clock) => deadline(limit, clock).and_then(|deadline| lock(thread, at, deadline)),
        None => unlock(thread, at),
    };
    leave(thread);
    match result {
        Ok(Done::Here) => Some(0),
        Ok(Done::Interrupted) => Some(NOT_STARTED),
        Ok(Done::ByKernel) => None,
        Err(errno) => Some(failed(errno)),
    }
}

/// What became of a call.
enum Done {
    /// It has done what was asked for.
    Here,
    /// Something comes first, and then the call once more.
    Interrupted,
    /// It is the kernel's business.
    ByKernel,
}

/// A clock, and the time in nanoseconds at which a thread does not wait any longer.
type Deadline = Option<(usize, u64)>;

/// What `at` says of that.
fn deadline(at: u64, clock: usize) -> Result<Deadline, i32> {
    const SECOND: u64 = 1_000_000_000;
    let mut time = [0u64; 2];
    if at == 0 {
        return Ok(None);
    }
    if !read_program_value(at, &mut time) {
        return Err(EFAULT);
    }
    let [seconds, nanoseconds] = time;
    match seconds.cast_signed() >= 0 && nanoseconds < SECOND {
        true => Ok(Some((clock, seconds.saturating_mul(SECOND).saturating_add(nanoseconds)))),
        false => Err(EINVAL),
    }
}

/// How long it is until then: 0 if the time is over.
fn left(deadline: Deadline) -> u64 {
    deadline.map_or(u64::MAX, |(clock, at)| at.saturating_sub(sys::clock_ns(clock)))
}

fn word_at(at: u64) -> Result<u32, i32> {
    let mut word = 0u32;
    read_program_value(at, &mut word).then_some(word).ok_or(EFAULT)
}

/// Changes the word, which the thread may.
fn set_word(at: u64, word: u32) -> Result<(), i32> {
    // SAFETY: the program has asked for it.
    unsafe { write_program_value(at, &word) }.then_some(()).ok_or(EFAULT)
}

/// Waits until the thread has the lock.
fn lock(thread: &mut Thread, at: u64, deadline: Deadline) -> Result<Done, i32> {
    let mut waited = false;
    loop {
        let word = word_at(at)?;
        let owner = word & OWNER;
        if owner == thread.tid {
            // It was given to this thread, or this thread had it.
            return if waited && !is_waiting(thread) { Ok(Done::Here) } else { Err(EDEADLK) };
        }
        // A thread that is gone leaves its lock to those that wait for it.
        if owner == 0 || waited && !exists(owner) {
            let died = if owner == 0 { word & OWNER_DIED } else { OWNER_DIED };
            leave(thread);
            set_word(at, thread.tid | died | waiters(at))?;
            return Ok(Done::Here);
        }
        if !is_here(owner) {
            return if exists(owner) { Ok(Done::ByKernel) } else { Err(ESRCH) };
        }
        if thread.mailbox.is_pending() {
            return Ok(Done::Interrupted);
        }
        if left(deadline) == 0 {
            return Err(ETIMEDOUT);
        }
        if word & WAITERS == 0 {
            set_word(at, word | WAITERS)?;
            note_written(thread, at, word | WAITERS);
        }
        wait(thread, at, owner, deadline);
        waited = true;
        if !is_serial() && is_waiting(thread) {
            // Threads are watched by now, and so will this one be in the call.
            return Ok(Done::Interrupted);
        }
    }
}

/// What the word at `at` says if a thread waits for it.
fn waiters(at: u64) -> u32 {
    match is_one(|waiter| waiter.at == at) {
        true => WAITERS,
        false => 0,
    }
}

/// Lets others run until the lock is this thread's, its owner is gone, the time is over or a signal comes.
fn wait(thread: &mut Thread, at: u64, owner: u32, deadline: Deadline) {
    let mailbox = thread.mailbox;
    if !is_waiting(thread) {
        mailbox.lock.store(0, Relaxed);
        WAITERS_OF_ALL.lock().push(Waiter { at, tid: thread.tid, mailbox });
    }
    ring::stands_at(thread, thread.syscall_pc);
    note(thread, &Event::Yields);
    give();
    let is_over = || {
        let has_it = mailbox.lock.load(Acquire) != 0;
        let is_left = word_at(at).is_ok_and(|word| word & OWNER == 0) || !exists(owner);
        has_it || is_left || mailbox.is_pending() || left(deadline) == 0 || !is_serial()
    };
    while !is_over() {
        const FUTEX_WAIT_PRIVATE: usize = 128;
        let time = [0, left(deadline).min(EACH)];
        let word = mailbox.lock.as_ptr() as usize;
        let args = [word, FUTEX_WAIT_PRIVATE, 0, time.as_ptr() as usize, 0, 0];
        // SAFETY: the kernel reads the word and the time.
        thread.with_true_mask(|_| unsafe {
            interruptible(mailbox.pending_word(), nr::FUTEX, &args);
        });
    }
    take(thread);
    note_runs(thread);
}

/// Gives the thread's lock to whoever has waited for it for longest.
fn unlock(thread: &mut Thread, at: u64) -> Result<Done, i32> {
    let is_mine = word_at(at)? & OWNER == thread.tid;
    let next = {
        let mut waiters = WAITERS_OF_ALL.lock();
        let first = waiters.iter().position(|waiter| waiter.at == at).filter(|_| is_mine);
        first.map(|first| waiters.remove(first))
    };
    let Some(next) = next else { return Ok(Done::ByKernel) };
    set_word(at, next.tid | waiters(at))?;
    next.mailbox.lock.store(1, Release);
    wake(&next.mailbox.lock);
    Ok(Done::Here)
}

fn is_waiting(thread: &Thread) -> bool {
    is_one(|waiter| waiter.tid == thread.tid)
}

/// Whether one of those that wait is like that.
fn is_one(like: impl Fn(&Waiter) -> bool) -> bool {
    WAITERS_OF_ALL.lock().iter().any(like)
}

/// The thread waits no longer.
fn leave(thread: &Thread) {
    WAITERS_OF_ALL.lock().retain(|waiter| waiter.tid != thread.tid);
}

/// Whether there is such a thread, anywhere.
fn exists(tid: u32) -> bool {
    // SAFETY: no memory involved; no signal is sent.
    let asked = unsafe { sys::call(nr::TKILL, &[tid as usize, 0]) };
    asked != Err(ESRCH)
}

/// Whether it is one of this process.
fn is_here(tid: u32) -> bool {
    let pid = sys::getpid() as usize;
    // SAFETY: as above.
    unsafe { sys::call(nr::TGKILL, &[pid, tid as usize, 0]) }.is_ok()
}
