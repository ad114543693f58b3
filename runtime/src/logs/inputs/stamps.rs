//! An order of all watched threads that respects what synchronises them: a number at the moments that it rests on.
//!
//! Whoever reads the recording has the thread with the lowest next stamp go on up to the one behind that. So a stamp
//! tells more than where it stands: what a thread did *in front of* it, and behind its stamp before, is put where that
//! one is. That is why a thread that has the newest stamp of all needs no other: nobody has come in between.
//!
//! A moment *leaves* what the thread has done for others (a call begins, an atomic instruction begins, a store), or
//! *takes* what others have left (a call has returned, an atomic instruction is behind the thread, a load has seen
//! what another thread stored). If one thread left something before another took it, the number in force as it was
//! left must be less than that in force as it was taken. A thread stamps what it takes, unless the newest stamp is its
//! own; so that number is at least as new as all that came before, and the other thread's is one of those.
//!
//! Most atomic instructions are on memory that one thread uses for a while, and need no stamp: the owner of the line
//! is looked at. A thread becomes the owner behind its stamp in front of the instruction; it stamps behind the
//! instruction where somebody else has stamped since, or has become the owner. So of two threads whose instructions
//! overlap one at least finds the other, and each later instruction finds the owner changed. What the instruction leaves
//! counts from its stamp in front on, or, if it needed none, from the one before: not from that of a load that it makes.

use crate::logs::inputs::view;
use crate::thread::Thread;
use abi::event::{Event, Moment, WHOLE_UNIT};
use abi::ids::LiveAddr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Bits of a stamp that name its thread.
const THREAD_BITS: u32 = 20;
const LINES: usize = 1024;
/// Bytes of memory that have one owner, as a power of two: a line.
const LINE_BITS: u32 = 6;

/// The newest stamp: its number, and whose it is.
static NEWEST: AtomicU64 = AtomicU64::new(0);
/// Whoever began the last atomic instruction on a line of memory, which shares the place with others.
static OWNERS: [AtomicU32; LINES] = [const { AtomicU32::new(0) }; LINES];

/// What names the thread here: not 0.
fn name(thread: &Thread) -> u32 {
    (thread.index.wrapping_add(1)) & ((1 << THREAD_BITS) - 1)
}

/// Notes the thread's place in the order, at the instruction at `pc`.
pub fn stamp(thread: &mut Thread, pc: u64, moment: Moment) {
    newest(thread, pc, moment);
}

/// Notes where the thread begins, at `pc`: there is nothing before.
pub fn begins(thread: &mut Thread, pc: u64) {
    put(thread, pc, Moment::Begins, true);
}

/// As [`stamp`]; returns the newest stamp, which is the thread's.
fn newest(thread: &mut Thread, pc: u64, moment: Moment) -> u64 {
    put(thread, pc, moment, false)
}

/// The same; `always`: even if the newest stamp is the thread's.
fn put(thread: &mut Thread, pc: u64, moment: Moment, always: bool) -> u64 {
    if !view::has(thread) || !thread.recorder.to_file() {
        return 0;
    }
    let name = u64::from(name(thread));
    let next = |newest: u64| match newest & ((1 << THREAD_BITS) - 1) == name && !always {
        true => None,
        false => Some(((newest >> THREAD_BITS) + 1) << THREAD_BITS | name),
    };
    match NEWEST.fetch_update(SeqCst, SeqCst, next) {
        Ok(before) => {
            let number = (before >> THREAD_BITS) + 1;
            thread.event(WHOLE_UNIT, &Event::Stamp { pc: LiveAddr(pc), number, moment });
            number << THREAD_BITS | name
        }
        Err(own) => own,
    }
}

fn owner(at: u64) -> &'static AtomicU32 {
    let line = at >> LINE_BITS;
    let hash = line ^ line >> LINES.trailing_zeros();
    let place = OWNERS.get(hash as usize % LINES);
    // The place is less than their number.
    place.unwrap_or(&OWNERS[0])
}

/// The atomic instruction at `pc`, on memory at `at`, is about to begin. What is returned is for [`behind_atomic`].
pub fn before_atomic(thread: &mut Thread, pc: u64, at: u64) -> Option<u64> {
    let (owner, name) = (owner(at), name(thread));
    if owner.load(SeqCst) == name {
        return None;
    }
    let stamp = newest(thread, pc, Moment::Before);
    owner.store(name, SeqCst);
    Some(stamp)
}

/// The instruction is behind the thread.
pub fn behind_atomic(thread: &mut Thread, pc: u64, at: u64, begun: Option<u64>) {
    let others_came = begun.is_some_and(|stamp| NEWEST.load(SeqCst) != stamp);
    if others_came || owner(at).load(SeqCst) != name(thread) {
        stamp(thread, pc, Moment::Behind);
    }
}
