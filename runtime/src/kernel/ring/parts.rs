//! The ring of watched threads.
//!
//! No copy of the process is made: what a watched thread loads and has not stored itself is in the recording, so a replay
//! can begin wherever its view was empty. When an interval is over, each thread begins a new part where it next comes by
//! ([`anew`]): its view is emptied. What it sees from there on is noted again, once, as first loads are.
//!
//! Frames of a thread's events go out of the file when their interval is given up, and the thread has begun a part behind
//! them: one that waits, or computes by itself, keeps its part for as long as that takes. So at each moment the file is
//! one that replays, however the process ends.
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::control::Slot;
use crate::base::lock::{Forked, Lock};
use crate::base::once::Once;
use crate::base::sys;
use crate::kernel::ring::{dump, PARTS};
use crate::kernel::watched::start::{anew, from_here_on};
use crate::logs::inputs::{regions, unfollowed, view};
use crate::recording::lifecycle::Phase;
use crate::recording::trace_file::trace;
use crate::thread::Thread;
use abi::ring::Ring;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

/// So often a thread that mends its view looks whether an interval is over.
const LOOKS: u32 = 16;
const TRAP_FLAG: u64 = 0x100;

/// There is such a ring.
static ACTIVE: AtomicBool = AtomicBool::new(false);
/// The interval that is being recorded.
static INTERVAL: AtomicU32 = AtomicU32::new(0);
/// Turns of all threads since it began, as far as they have been counted.
static TURNS: AtomicU64 = AtomicU64::new(0);
/// Bytes of events when it began, and the time.
static BYTES: AtomicU64 = AtomicU64::new(0);
static TIME: AtomicU64 = AtomicU64::new(0);
/// How much is kept.
static RING: Once<Ring> = Once::new();
static KEPT: Lock<Kept> = Lock::new(Kept::new());

/// Where what is kept of a thread begins.
struct Part {
    thread: u32,
    /// The interval.
    begins: u32,
    /// That in which the thread ended.
    ended: Option<u32>,
}

struct Kept {
    /// Number of each interval, and what happened in it once it is over.
    intervals: VecDeque<(u32, u64)>,
    parts: Vec<Part>,
    /// What is in the way was said.
    said: bool,
}

impl Kept {
    const fn new() -> Kept {
        Kept { intervals: VecDeque::new(), parts: Vec::new(), said: false }
    }

    fn begin_interval(&mut self, number: u32) {
        self.intervals.push_back((number, 0));
        BYTES.store(trace().next_interval(number), Relaxed);
        TIME.store(sys::now_ns(), Relaxed);
        TURNS.store(0, Relaxed);
        INTERVAL.store(number, Release);
    }

    /// What is not needed any more goes.
    fn give_up(&mut self, ring: Ring) {
        loop {
            let rest = self.intervals.iter().skip(1).map(|&(_, amount)| amount);
            let rest = rest.fold(0, u64::saturating_add);
            if self.intervals.len() < 3 || rest < ring.amount() {
                break;
            }
            self.intervals.pop_front();
        }
        let Some(&(oldest, _)) = self.intervals.front() else { return };
        let parts = &self.parts;
        let part_of = |thread: u32| parts.iter().find(|part| part.thread == thread);
        let goes = |thread: u32, interval: u32| match part_of(thread) {
            _ if interval >= oldest => false,
            Some(part) => interval < part.begins || part.ended.is_some_and(|ended| ended < oldest),
            None => true,
        };
        let is_dropped = trace().drop_frames(goes);
        self.parts.retain(|part| part.ended.is_none_or(|ended| ended >= oldest));
        if !is_dropped && !core::mem::replace(&mut self.said, true) {
            crate::say!("the file system cannot give room back: the trace is larger than the ring");
        }
    }
}

/// How much has happened since the interval began, in the ring's unit.
fn amount(ring: Ring) -> u64 {
    match ring {
        Ring::Turns(_) => TURNS.load(Relaxed),
        Ring::Bytes(_) => trace().log().saturating_sub(BYTES.load(Relaxed)),
        Ring::Time(_) => sys::now_ns().saturating_sub(TIME.load(Relaxed)),
    }
}

/// The program starts.
pub(super) fn start(ring: Ring) {
    RING.install(ring);
    begin();
    ACTIVE.store(true, Release);
}

fn begin() {
    let mut kept = KEPT.lock();
    *kept = Kept::new();
    kept.begin_interval(0);
}

/// Whether there is such a ring.
pub fn is_active() -> bool {
    ACTIVE.load(Relaxed)
}

/// Whether the thread is to begin a part as soon as it can.
pub fn is_due(thread: &Thread) -> bool {
    is_active() && view::has(thread) && thread.part.interval != INTERVAL.load(Relaxed)
}

/// The interval in which a part begins of which nothing has been noted yet.
pub fn interval() -> u32 {
    INTERVAL.load(Acquire)
}

/// A part of the thread has begun in this interval: all that a replay needs to begin there is in the trace.
pub fn has_begun(thread: &mut Thread, begins: u32) {
    if !is_active() {
        return;
    }
    let mut kept = KEPT.lock();
    (thread.part.interval, thread.part.counted) = (begins, thread.turns());
    match kept.parts.iter_mut().find(|part| part.thread == thread.index) {
        Some(part) => part.begins = begins,
        None => kept.parts.push(Part { thread: thread.index, begins, ended: None }),
    }
}

/// Nothing more of the thread is recorded.
pub(super) fn leaves(thread: &Thread) {
    if is_active() {
        let mut kept = KEPT.lock();
        let part = kept.parts.iter_mut().find(|part| part.thread == thread.index);
        if let Some(part) = part {
            part.ended = Some(INTERVAL.load(Relaxed));
        }
    }
}

/// The thread, with its registers in its block, is in front of the instruction at `pc`, and has not begun it.
pub fn look(thread: &mut Thread, pc: u64) {
    if !is_active() || !view::has(thread) {
        return;
    }
    thread.part.looks = thread.part.looks.wrapping_add(1);
    if thread.part.looks.is_multiple_of(LOOKS) {
        look_at_interval(thread);
    }
    if is_due(thread) && can_begin(thread) {
        anew(thread, pc);
    }
}

/// The same behind a system call, at `next`. The only thread of the process may not be watched yet.
pub fn behind_call(thread: &mut Thread, next: u64) {
    if !is_active() || !view::has(thread) && !view::waits() {
        return;
    }
    if view::waits() && !can_begin(thread) {
        return;
    }
    let begun = look_at_interval(thread);
    if begun && view::waits() {
        return from_here_on(thread, next);
    }
    if is_due(thread) && can_begin(thread) {
        anew(thread, next);
    }
}

/// If the interval is over, another one begins; true then.
fn look_at_interval(thread: &mut Thread) -> bool {
    let made = thread.turns();
    TURNS.fetch_add(made.wrapping_sub(thread.part.counted), Relaxed);
    thread.part.counted = made;
    let Some(&ring) = RING.try_get() else { return false };
    let part = (ring.amount() / PARTS).max(1);
    if amount(ring) < part {
        return false;
    }
    let mut kept = KEPT.lock();
    // Somebody else may have been here.
    let amount = amount(ring);
    if amount < part || trace().phase() != Phase::Open {
        return false;
    }
    if unfollowed::has_happened() {
        // Where a replay ends now, it would not begin any more.
        ACTIVE.store(false, Relaxed);
        if !core::mem::replace(&mut kept.said, true) {
            crate::say!("something cannot be followed: the ring keeps all that follows");
        }
        return false;
    }
    if let Some(last) = kept.intervals.back_mut() {
        last.1 = amount;
    }
    let number = INTERVAL.load(Relaxed).wrapping_add(1);
    kept.begin_interval(number);
    kept.give_up(ring);
    drop(kept);
    Slot::all().for_each(|slot| {
        slot.kick();
    });
    true
}

/// Whether no signal waits, nothing is under way that a replay would have half, and no filter of system calls might end the
/// program for what it takes.
fn can_begin(thread: &Thread) -> bool {
    thread.filter == 0
        && thread.kernel_filter == 0
        && !thread.mailbox.is_pending()
        && !thread.mailbox.has_trap_flag()
        && thread.block.registers.rflags & TRAP_FLAG == 0
        && thread.is_between()
        && trace().phase() == Phase::Open
}

/// Somebody asks for what is kept, in a new file at `path`. Returns its size.
pub fn write_to(path: &[u8]) -> Result<u64, i32> {
    // Nothing is given up meanwhile.
    let _kept = KEPT.lock();
    let path = [path, b"\0"].concat();
    dump::copy(trace().fd.load(Relaxed), &path, trace().end_of_frames())
}

/// In the only thread of a forked child, whose trace has begun.
pub(super) fn forked(forked: &Forked) {
    KEPT.force_unlock(forked);
    if !is_active() {
        return;
    }
    regions::tell_all();
    begin();
    ACTIVE.store(trace().follows(), Relaxed);
}
