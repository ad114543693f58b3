//! One thread of the program at a time.
//!
//! A thread has the baton while it runs the program's code, and while the runtime works for it. So memory
//! is one: what the program does follows from the order in which the threads had the baton, and from
//! what it was told from outside.
//!
//! A thread that lets others run stands at a boundary of the program: in front of a system call that may
//! wait, or, when others have waited for long enough, wherever it is. It has the baton again before
//! anything of the program goes on, so before the results of the call are used. Most calls do not
//! wait. During these the thread keeps the baton *loosely*: somebody who waits may take it away.
//!
//! Who waits for the baton stands in a line, and gets it in the order of arrival. The first one keeps
//! the time: it takes a loose baton away, and kicks a thread that has had it for a whole slice
//! ([`crate::base::control::Slot::kick`]), which then arrives at the next boundary. There is no timer of
//! the process's, and with one thread no call of the kernel's.
//!
//! Signals may come in while a thread waits. They stay in its mailbox, or in the kernel, until it has the
//! baton again.
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

mod calls;
mod ending;
mod priorities;
mod schedule;

pub use ending::before_end;
pub use priorities::call as call_with_priorities;
pub use schedule::Schedule;

use crate::base::census;
use crate::base::control::Slot;
use crate::base::facts::facts;
use crate::base::futex::{wait, wake, ETIMEDOUT};
use crate::base::lock::{Forked, Guard, Lock};
use crate::kernel::ring;
use crate::logs::inputs::unfollowed::unfollowed_meanwhile;
use crate::logs::inputs::view;
use crate::thread::mailbox::Mailbox;
use crate::thread::Thread;
use abi::event::{Event, EventRef, WHOLE_UNIT};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

/// Who has the baton, and who waits for it.
static LINE: Lock<Line> = Lock::new(Line::new());
/// How many wait.
static WAITING: AtomicU32 = AtomicU32::new(0);
/// The thread that has the baton, and is in a call that need not have it; else 0.
static LOOSE: AtomicU64 = AtomicU64::new(0);
/// Whoever has the baton is to let others run.
static WANTED: AtomicBool = AtomicBool::new(false);

/// Threads run beside each other from some moment on.
static ALL_RUN: AtomicBool = AtomicBool::new(false);

/// A thread's word ([`Mailbox::baton`]): it does not wait; it waits; it is the first one that does; it
/// has been given the baton.
const AWAY: u32 = 0;
const WAITS: u32 = 1;
const FIRST: u32 = 2;
const GIVEN: u32 = 3;

/// How often the first one in the line looks, in nanoseconds.
const STEP: u64 = 1_000_000;

/// A thread in the line.
struct Waiter {
    thread: u64,
    slot: Slot,
    mailbox: &'static Mailbox,
}

impl Waiter {
    fn new(thread: &Thread) -> Waiter {
        Waiter { thread: thread.block.this, slot: thread.slot, mailbox: thread.mailbox }
    }
}

/// The line of threads, of which one has the baton.
pub struct Line {
    /// Who has it, or 0.
    holder: u64,
    slot: Option<Slot>,
    /// How long it may have it while others wait, in nanoseconds.
    slice: u64,
    /// The number of this stretch.
    number: u64,
    /// The number of the next one.
    next: u64,
    waiting: Vec<Waiter>,
    schedule: Schedule,
}

/// Threads that are to look at their words again.
#[must_use]
struct Wakes([Option<&'static Mailbox>; 2]);

impl Wakes {
    fn wake(self) {
        self.0.into_iter().flatten().for_each(|mailbox| wake(&mailbox.baton));
    }
}

impl Line {
    const fn new() -> Line {
        Line {
            holder: 0,
            slot: None,
            slice: 0,
            number: 0,
            next: 0,
            waiting: Vec::new(),
            schedule: Schedule::IN_ORDER,
        }
    }

    /// From here on the thread has the baton.
    fn grant(&mut self, thread: u64, slot: Slot) {
        (self.holder, self.slot) = (thread, Some(slot));
        (self.number, self.next) = (self.next, self.next.wrapping_add(1));
        self.slice = self.schedule.slice();
    }

    fn stand_in(&mut self, thread: &Thread) {
        let state = if self.waiting.is_empty() { FIRST } else { WAITS };
        thread.mailbox.baton.store(state, Relaxed);
        self.waiting.push(Waiter::new(thread));
        WAITING.store(self.waiting.len() as u32, Relaxed);
    }

    /// Whoever has the baton has it no longer: the next one has, if there is one.
    fn pass_on(&mut self) -> Wakes {
        LOOSE.store(0, Relaxed);
        WANTED.store(false, Relaxed);
        (self.holder, self.slot) = (0, None);
        if self.waiting.is_empty() {
            return Wakes([None, None]);
        }
        let chosen = self.schedule.choose(self.waiting.len());
        let next = self.waiting.remove(chosen);
        WAITING.store(self.waiting.len() as u32, Relaxed);
        self.grant(next.thread, next.slot);
        next.mailbox.baton.store(GIVEN, Release);
        Wakes([Some(next.mailbox), self.new_first()])
    }

    /// The first one in the line keeps the time, from now on if it did not.
    fn new_first(&mut self) -> Option<&'static Mailbox> {
        let mailbox = self.waiting.first()?.mailbox;
        (mailbox.baton.swap(FIRST, Relaxed) != FIRST).then_some(mailbox)
    }

    /// The first one in the line has waited for another [`STEP`]; `waited`: during which stretch, and how
    /// long.
    fn look(&mut self, waited: &mut (u64, u64), step: u64) -> Wakes {
        let loose = LOOSE.compare_exchange(self.holder, 0, AcqRel, Relaxed).is_ok();
        if self.holder == 0 || loose {
            return self.pass_on();
        }
        let (stretch, time) = *waited;
        *waited = if stretch == self.number { (stretch, time + step) } else { (self.number, 0) };
        if waited.1 >= self.slice {
            WANTED.store(true, Relaxed);
            // The line is locked: it is still there. If it is not in generated code, it looks before it
            // goes there, or is kicked the next time.
            self.slot.map(Slot::kick);
        }
        Wakes([None, None])
    }
}

/// Whether one thread runs at a time.
pub fn is_serial() -> bool {
    facts().serial && !view::have_begun() && !ALL_RUN.load(Relaxed)
}

/// Nobody waits for the baton any more, neither now nor later.
pub fn lets_all_run() {
    let waiting = {
        let mut line = LINE.lock();
        ALL_RUN.store(true, Relaxed);
        LOOSE.store(0, Relaxed);
        WANTED.store(false, Relaxed);
        WAITING.store(0, Relaxed);
        (line.holder, line.slot) = (0, None);
        core::mem::take(&mut line.waiting)
    };
    for waiter in waiting {
        waiter.mailbox.baton.store(GIVEN, Release);
        wake(&waiter.mailbox.baton);
    }
}

fn note(thread: &mut Thread, event: &EventRef<'_>) {
    if facts().options.recording.inputs() {
        thread.event(WHOLE_UNIT, event);
    }
}

/// The thread has the baton, and the trace says so.
pub fn note_runs(thread: &mut Thread) {
    let number = LINE.lock().number;
    thread.in_order = true;
    note(thread, &Event::Runs(number));
}

/// The thread, which is about to go on at `pc`, takes no part in the order any more: its last stretch ends here.
pub fn leaves_order(thread: &mut Thread, pc: u64) {
    let state = thread.register_state(pc, 0xffff);
    note(thread, &Event::Arrived(&state));
    note(thread, &Event::Yields);
}

/// Threads run beside each other by now: if this one has the baton, the next one gets it.
pub fn hands_over(thread: &Thread) {
    let wakes = {
        let mut line = LINE.lock();
        match line.holder == thread.block.this {
            true => line.pass_on(),
            false => return,
        }
    };
    wakes.wake();
}

/// The thread, which has the baton, lets others run and runs itself: the number of its next stretch.
pub fn next_stretch(thread: &Thread) -> u64 {
    let mut line = LINE.lock();
    line.grant(thread.block.this, thread.slot);
    line.number
}

/// Whether whoever has the baton is to let others run.
pub fn is_wanted() -> bool {
    WANTED.load(Relaxed)
}

/// Waits until the thread has the baton.
fn take(thread: &Thread) {
    {
        let mut line = LINE.lock();
        if ALL_RUN.load(Relaxed) {
            return;
        }
        if line.holder == 0 {
            return line.grant(thread.block.this, thread.slot);
        }
        line.stand_in(thread);
    }
    stand(thread.mailbox);
}

/// Stands in the line, until the baton comes.
fn stand(mailbox: &Mailbox) {
    let mut waited = (u64::MAX, 0);
    loop {
        match mailbox.baton.load(Acquire) {
            GIVEN => break,
            FIRST => {
                let step = STEP.min(rest_of_slice(&mut waited));
                if wait(&mailbox.baton, FIRST, Some([0, step])) == Err(ETIMEDOUT) {
                    let wakes = LINE.lock().look(&mut waited, step);
                    wakes.wake();
                }
            }
            state => drop(wait(&mailbox.baton, state, None)),
        }
    }
    mailbox.baton.store(AWAY, Relaxed);
}

/// What is left of the slice of whoever has the baton: when to look next.
fn rest_of_slice(waited: &mut (u64, u64)) -> u64 {
    let line = LINE.lock();
    if waited.0 != line.number {
        *waited = (line.number, 0);
    }
    match line.slice.saturating_sub(waited.1) {
        0 => STEP,
        left => left,
    }
}

fn give() {
    let wakes = LINE.lock().pass_on();
    wakes.wake();
}

// --- threads begin and end ---

/// The process starts: in which order threads get the baton.
pub fn start(schedule: Schedule) {
    LINE.lock().schedule = schedule;
}

/// The first thread begins, recorded already.
pub fn first(thread: &mut Thread) {
    if is_serial() {
        take(thread);
        note_runs(thread);
        ring::enters(thread);
    }
}

/// A new thread waits before it does anything.
pub fn enter(thread: &Thread) {
    if is_serial() {
        take(thread);
    }
}

/// The new thread is recorded from here on.
pub fn entered(thread: &mut Thread) {
    if is_serial() {
        note_runs(thread);
        ring::enters(thread);
    }
}

/// The thread is gone, but for leaving its stack.
pub fn end() {
    if is_serial() {
        give();
    }
}

/// The line does not change while the process is copied.
pub fn hold() -> Guard<'static, Line> {
    LINE.lock()
}

/// In the only thread of a forked child.
pub fn forked(thread: &Thread, mut held: Guard<'static, Line>, forked: &Forked) {
    priorities::forked(forked);
    held.waiting.clear();
    WAITING.store(0, Relaxed);
    LOOSE.store(0, Relaxed);
    WANTED.store(false, Relaxed);
    thread.mailbox.baton.store(AWAY, Relaxed);
    held.next = 0;
    held.grant(thread.block.this, thread.slot);
}

/// The trace of a forked child has begun.
pub fn begins_again(thread: &mut Thread) {
    if is_serial() {
        note_runs(thread);
    }
}

/// The thread makes a child of vfork, and stands still until that is gone.
pub fn before_vfork(thread: &mut Thread) {
    if is_serial() {
        note(thread, &Event::Yields);
        give();
    }
}

/// The child is gone, wherever it was.
pub fn after_vfork(thread: &mut Thread, child: &Thread) {
    if !is_serial() {
        return ring::leaves(child);
    }
    let gone = child.block.this;
    let wakes = {
        let mut line = LINE.lock();
        line.waiting.retain(|waiter| waiter.thread != gone);
        WAITING.store(line.waiting.len() as u32, Relaxed);
        match line.holder == gone {
            true => line.pass_on(),
            false => Wakes([line.new_first(), None]),
        }
    };
    wakes.wake();
    take(thread);
    note_runs(thread);
    ring::leaves(child);
}

// --- letting others run ---

/// What became of the baton for a system call.
#[must_use]
pub enum Lent {
    /// It was kept.
    No,
    /// Whoever waits may have taken it.
    Loosely,
    /// It was given up.
    Given,
}

/// The thread is about to make a system call, which may wait.
pub fn before_call(thread: &mut Thread, number: usize, args: &[usize; 6]) -> Lent {
    // Only this thread could begin another.
    if !is_serial() || census::live() < 2 {
        return Lent::No;
    }
    if calls::writes_while_it_waits(number, args) && facts().options.recording.inputs() {
        unfollowed_meanwhile(
            thread,
            "the kernel writes to a lock while threads run (futex with priorities)",
        );
    }
    let others = WAITING.load(Relaxed) != 0;
    let by_chance = others && {
        // The line is not kept locked while the kernel is asked below.
        let mut line = LINE.lock();
        line.schedule.gives()
    };
    ring::stands_at(thread, thread.syscall_pc);
    let gives =
        calls::waits(number, args) || by_chance || others && calls::is_not_ready(number, args);
    if !gives {
        LOOSE.store(thread.block.this, Release);
        return Lent::Loosely;
    }
    note(thread, &Event::Yields);
    give();
    Lent::Given
}

/// The call is over: the thread goes on when it has the baton.
pub fn after_call(thread: &mut Thread, lent: Lent) {
    match lent {
        Lent::No => return,
        Lent::Loosely => {
            if LOOSE.compare_exchange(thread.block.this, 0, AcqRel, Relaxed).is_ok() {
                return;
            }
            note(thread, &Event::Yields);
        }
        Lent::Given => {}
    }
    take(thread);
    note_runs(thread);
}

/// The thread, with its state in its block, is about to go on at `resume_original`, with these registers
/// `valid`: others run first, if they have waited for long enough.
pub fn let_others_run(thread: &mut Thread, valid: u64) {
    // What has been raised comes first: it may be that there is no instruction here.
    if !WANTED.load(Relaxed) || !thread.in_order || thread.mailbox.is_pending() {
        return;
    }
    if facts().options.recording.inputs() {
        let state = thread.register_state(thread.resume_original, valid);
        thread.event(WHOLE_UNIT, &Event::Arrived(&state));
        thread.event(WHOLE_UNIT, &Event::Yields);
    }
    ring::stands_at(thread, thread.resume_original);
    let wakes = {
        let mut line = LINE.lock();
        if ALL_RUN.load(Relaxed) {
            return;
        }
        line.stand_in(thread);
        line.pass_on()
    };
    wakes.wake();
    stand(thread.mailbox);
    note_runs(thread);
}
