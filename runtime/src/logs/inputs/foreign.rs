//! What other processes store to memory that they share with this one, while no thread is watched: a file that is mapped, or
//! what a forked process has from its parent.
//!
//! The memory is closed to the program: its first access faults. Then what is there is compared with what the program left
//! there, what is new is noted as what the thread sees at that instruction ([`Event::Seen`]), the page is opened, and closed
//! again behind the instruction. Memory that is used more often stays open until the next system call, in front of which
//! what the program has left is kept. If it is used all the time, the process is watched from its next call on; a file of which
//! nobody knows whether others use it at all stays open.
//!
//! The kernel finds all of it open that is given some of it, and so does whoever looks for the locks of a thread that is killed.
// On the way of faults: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

mod area;
mod credit;
mod elsewhere;
mod given;

use crate::base::facts::facts;
use crate::base::lock::{Forked, Lock};
use crate::base::program::try_read_program_bytes;
use crate::base::sys::nr;
use crate::base::{attempt, census};
use crate::code::writing::write_program;
use crate::logs::inputs::foreign::area::{Area, CROWDED, WAITING_THREADS};
use crate::logs::inputs::foreign::credit::ACCESS;
pub use crate::logs::inputs::foreign::given::forks;
use crate::logs::inputs::foreign::given::{
    changes, ends, holds_locks, is_gone, still_holds_locks, waits_for, Given,
};
use crate::logs::inputs::unfollowed::{
    has_happened, is_watched_instead, unfollowed_meanwhile, unfollowed_unwatched,
};
use crate::logs::inputs::view;
use crate::logs::moment::Call;
use crate::thread::foreign::Foreign;
use crate::thread::Thread;
use abi::event::{Event, WHOLE_UNIT};
use abi::ids::LiveAddr;
use abi::layout::{page_down, PAGE};
use abi::options::torture;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Most bytes of a mapping that is followed so: all of them are kept twice.
const LARGEST: u64 = 256 << 10;

/// Why a recording ends where the threads of the process cannot be watched instead.
const USED_BY_OTHERS: &str = "memory is shared, and used often (mmap with MAP_SHARED)";

/// Instructions that come to what is closed for good are marked, to be translated so that they do not fault there.
static MARKS: AtomicBool = AtomicBool::new(false);

static AREAS: Lock<Vec<Area>> = Lock::new(Vec::new());
/// From where to where they lie; nowhere if there are none.
static EXTENT: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// How a fault is to go on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It is none of ours.
    Elsewhere,
    /// It is done again.
    Again,
    /// The same, and what was opened is closed behind the instruction ([`behind`]): the page is in [`crate::thread::foreign::Foreign::pages`].
    Once,
}

/// How a thread has come to it.
pub struct How {
    /// It can be stepped over the instruction.
    pub may_step: bool,
    /// The instruction stores nothing there.
    pub loads_only: bool,
}

/// The place of an access: the instruction's original pc, the thread's rcx there, and instructions done in its unit.
pub struct Place {
    pub pc: u64,
    pub rcx: u64,
    pub insn: u32,
}

/// Whether there is such memory.
fn has_any() -> bool {
    EXTENT[1].load(Relaxed) != 0
}

/// Whether some of it may lie in `start..end`.
pub fn may_lie_in(start: u64, end: u64) -> bool {
    let [first, behind] = EXTENT.each_ref().map(|at| at.load(Relaxed));
    start < behind && first < end
}

/// Whether some of it may lie there, as far as that can be told at once.
pub fn may_be_closed(start: u64, end: u64) -> bool {
    let meets = |areas: &[Area]| areas.iter().any(|area| area.meets(start, end));
    may_lie_in(start, end) && AREAS.try_lock().is_none_or(|areas| meets(&areas))
}

fn keep_extent(areas: &[Area]) {
    let [first, behind] = &EXTENT;
    first.store(areas.iter().map(|area| area.start).min().unwrap_or(0), Relaxed);
    behind.store(areas.iter().map(Area::end).max().unwrap_or(0), Relaxed);
}

/// In the only thread of a forked child, which may be in the midst of a call.
pub fn forked(forked: &Forked) {
    AREAS.force_unlock(forked);
}

/// In such a child, whose recording has begun: it finds what its parent has left in front of the call, and what others have
/// stored since.
pub fn child_starts(thread: &mut Thread) {
    thread.foreign = Foreign::default();
    CROWDED.store(false, Relaxed);
    WAITING_THREADS.store(0, Relaxed);
    let mut areas = AREAS.lock();
    areas.retain_mut(|area| {
        area.using = 0;
        // It may not have inherited it (madvise with MADV_DONTFORK).
        let is_there = area.is_there();
        if is_there {
            area.close_all();
        }
        is_there
    });
    keep_extent(&areas);
}

/// Memory that is followed so if it is not too large.
pub enum Made {
    /// A file is mapped, of which the recording has the contents, from the first page on. `is_shared`: it is made for others;
    /// `is_writable`: the program may store there.
    File { contents: Vec<u8>, is_shared: bool, is_writable: bool },
    /// Nobody else has it, but for processes that this one forks.
    ForChildren,
    /// System V shared memory with these contents. How often it is mapped others can see.
    Segment { contents: Vec<u8> },
}

/// The program has mapped a file that is made for others, and that has nothing but zeros besides these pieces, from its start
/// on. Whether it is followed.
pub fn lies_among_zeros(thread: &Thread, range: Range<u64>, pieces: &[(u64, Vec<u8>)]) -> bool {
    if has_happened() || !elsewhere::can_be(thread) {
        return false;
    }
    let mut area = Area::new(&range, Vec::new(), true, true);
    let is_kept = area.is_kept_as(|left| {
        pieces.iter().all(|(from, bytes)| {
            let place = left.get_mut(*from as usize..).and_then(|rest| rest.get_mut(..bytes.len()));
            place.map(|place| place.copy_from_slice(bytes)).is_some()
        })
    });
    if is_kept {
        let mut areas = AREAS.lock();
        areas.push(area);
        keep_extent(&areas);
    }
    is_kept
}

/// The program has mapped memory. Whether it is followed.
pub fn lies_at(thread: &Thread, range: Range<u64>, mut made: Made) -> bool {
    let len = range.end - range.start;
    let (mut left, is_shared, is_writable) = match made {
        Made::File { ref mut contents, is_shared, is_writable } => {
            (core::mem::take(contents), is_shared, is_writable)
        }
        Made::ForChildren => (Vec::new(), false, true),
        Made::Segment { ref mut contents } => (core::mem::take(contents), true, true),
    };
    let is_counted = matches!(made, Made::Segment { .. });
    let is_file = !left.is_empty();
    let is_large = len > LARGEST;
    // (What others do not have yet is looked at when they get it.)
    let may_be_kept = || is_shared && elsewhere::can_be(thread);
    if len == 0
        || is_file && left.len() as u64 + PAGE <= len
        || has_happened()
        || is_large && !may_be_kept()
    {
        return false;
    }
    if is_file {
        left.resize(len as usize, 0);
    }
    let mut area = Area::new(&range, left, is_shared, is_writable);
    area.is_counted = is_counted;
    if is_large && !area.keep_closed() {
        area.open_all();
        return false;
    }
    area.close_all();
    let mut areas = AREAS.lock();
    areas.push(area);
    keep_extent(&areas);
    true
}

/// The thread is about to make a process, which has these parts of its memory, too: as far as nothing is known of them, they
/// are closed for good, if they can be.
pub fn comes_to_be_shared(thread: &Thread, parts: impl Iterator<Item = Range<u64>>) {
    for range in parts {
        let can_be = !has_happened() && elsewhere::can_be(thread);
        let mut area = Area::new(&range, Vec::new(), true, true);
        if !can_be || !area.keep_closed() {
            return;
        }
        let mut areas = AREAS.lock();
        areas.push(area);
        keep_extent(&areas);
    }
}

/// All of it is open from here on, and nothing is followed.
pub fn end() {
    if !has_any() {
        return;
    }
    let mut areas = AREAS.lock();
    areas.iter_mut().for_each(Area::open_all);
    areas.iter_mut().for_each(Area::ends);
    areas.clear();
    keep_extent(&areas);
}

/// All that others have stored is seen in front of the call that the thread is about to make, and can be read. False if there
/// is no such memory.
pub fn is_shown(thread: &mut Thread) -> bool {
    if !has_any() || thread.vfork_child || !thread.recorder.to_file() {
        return false;
    }
    let place = in_front_of_call(thread);
    let each = |thread: &mut Thread, at: u64, bytes: &[u8]| sees(thread, &place, at, bytes);
    AREAS.lock().iter_mut().for_each(|area| area.open_and_look(thread, each, false));
    thread.foreign.is_shown = true;
    true
}

fn in_front_of_call(thread: &Thread) -> Place {
    let (pc, rcx) = (thread.syscall_pc, thread.block.registers.gpr[1]);
    Place { pc, rcx, insn: WHOLE_UNIT }
}

/// The runtime is about to write, or to read, a frame of a signal in `start..start + len`: what others have stored there is
/// noted by `with`, and the memory is open until [`behind_frame`].
fn in_front_of_frame(
    thread: &mut Thread,
    start: u64,
    len: u64,
    with: impl Fn(&mut Thread, u64, &[u8]),
) {
    let end = start.saturating_add(len);
    if may_lie_in(start, end) && thread.recorder.to_file() {
        let mut areas = AREAS.lock();
        let met = areas.iter_mut().filter(|area| area.meets(start, end));
        met.for_each(|area| area.open_and_look(thread, &with, false));
    }
}

/// A frame is about to be written, of which a replay is told.
pub fn before_frame(thread: &mut Thread, start: u64, len: u64) {
    in_front_of_frame(thread, start, len, area::writes);
}

/// A handler is about to return, by way of a frame that lies at `start`.
pub fn before_return(thread: &mut Thread, start: u64) {
    let place = in_front_of_call(thread);
    let each = |thread: &mut Thread, at: u64, bytes: &[u8]| sees(thread, &place, at, bytes);
    in_front_of_frame(thread, start, LONGEST_FRAME, each);
}

/// The frame was written, or read: the program has left there what is known.
pub fn behind_frame(start: u64, len: u64) {
    let end = start.saturating_add(len);
    if may_lie_in(start, end) {
        let mut areas = AREAS.lock();
        areas.iter_mut().filter(|area| area.meets(start, end)).for_each(Area::close_all);
    }
}

/// No frame is longer, with all that a processor has.
pub const LONGEST_FRAME: u64 = 16 << 10;

/// The thread is about to make the call, with its registers in its block.
pub fn before_call(thread: &mut Thread, call: &Call) {
    const PR_SET_SECCOMP: usize = 22;
    leaves_call(thread);
    let is_shown = core::mem::take(&mut thread.foreign.is_shown);
    // (Of a child of vfork the parent is in a call.)
    if thread.vfork_child {
        return opens_for(call);
    }
    if !has_any() {
        return;
    }
    let filters =
        call.number == nr::SECCOMP || call.number == nr::PRCTL && call.args[0] == PR_SET_SECCOMP;
    if !thread.recorder.to_file() || has_happened() || filters {
        return end();
    }
    let forks = forks(call);
    let changed = changes(call);
    let place = in_front_of_call(thread);
    let each = |thread: &mut Thread, at: u64, bytes: &[u8]| sees(thread, &place, at, bytes);
    let mut given = Given::of(call);
    if call.number == nr::EXIT {
        given.and(thread.clear_tid, 4);
    }
    let mut areas = AREAS.lock();
    let mut has_locks = None;
    let (mut lent, mut is_lost) = (Vec::new(), false);
    let mut stays = |area: &mut Area| {
        let is_changed = changed.is_some_and(|(start, end)| area.meets(start, end));
        if area.is_kept_closed() {
            area.close_again(|at, bytes| each(thread, at, bytes));
            if is_changed {
                // (What the program leaves there is compared first.)
                area.open_all();
                area.is_ending = true;
                is_lost |= !is_gone(call, area.start, area.end());
                return true;
            }
            for part in given.parts(call, area.start, area.end()) {
                lent.push(area.lend(&part, |at, bytes| each(thread, at, bytes)));
            }
            return true;
        }
        if forks && area.sleeps() && !area.wakes() {
            return false;
        }
        if !given.some_of(area.start, area.end()) {
            if is_shown {
                area.close_all();
                return true;
            }
            if !area.is_writable {
                area.look_and_close(|at, bytes| each(thread, at, bytes));
                return true;
            }
            let closes = area.open.contains(&true) && !*has_locks.get_or_insert_with(holds_locks);
            let is_known = !closes || area.close();
            if !is_known {
                area.open_all();
            }
            return is_known;
        }
        if is_changed && !area.is_writable {
            // (What others leave in a file that is read no more is of no use.)
            area.open_all();
            return false;
        }
        area.open_and_look(thread, each, is_shown);
        if is_changed {
            return false;
        }
        if forks && area.is_writable {
            area.is_shared_now();
        }
        if !area.sleeps() && call.number != nr::EXIT {
            thread.foreign.uses.push(area.start);
            area.using += 1;
        }
        area.can_go_on(ACCESS + area.open.len() as u32)
    };
    areas.retain_mut(|area| {
        let stays = stays(area);
        if !stays {
            area.ends();
        }
        stays
    });
    keep_extent(&areas);
    drop(areas);
    thread.foreign.lent = lent;
    if is_lost {
        unfollowed_unwatched(thread, "memory is shared, and mapped or protected in another way");
    }
}

/// What the call is given of memory that is closed for good is open until the next call of a thread that is followed.
fn opens_for(call: &Call) {
    if !has_any() {
        return;
    }
    let given = Given::of(call);
    for area in AREAS.lock().iter_mut().filter(|area| area.is_kept_closed()) {
        for part in given.parts(call, area.start, area.end()) {
            for page in (page_down(part.start)..part.end).step_by(PAGE as usize) {
                area.open(page);
                area.is_used();
            }
        }
    }
}

/// The thread has had what it was lent: what is there is told to `with`, and closed again.
fn take_back(thread: &mut Thread, with: impl Fn(&mut Thread, u64, &[u8])) {
    let lent = core::mem::take(&mut thread.foreign.lent);
    if lent.is_empty() {
        return;
    }
    let mut areas = AREAS.lock();
    for pages in lent {
        let area = areas.iter_mut().find(|area| area.has(pages.start));
        if let Some(area) = area.filter(|area| area.is_kept_closed()) {
            area.give_back(&pages);
            area.look_at(&pages, |at, bytes| with(thread, at, bytes));
        }
    }
}

/// What the call has changed is not followed any more.
fn forget_ended() {
    let mut areas = AREAS.lock();
    let count = areas.len();
    areas.retain_mut(|area| {
        if area.is_ending {
            area.ends();
        }
        !area.is_ending
    });
    if areas.len() != count {
        keep_extent(&areas);
    }
}

/// The call has returned.
pub fn after_call(thread: &mut Thread) {
    if !has_any() {
        return;
    }
    forget_ended();
    take_back(thread, area::writes);
    let uses = core::mem::take(&mut thread.foreign.uses);
    if !uses.is_empty() {
        for area in AREAS.lock().iter_mut().filter(|area| uses.contains(&area.start)) {
            area.using -= 1;
            area.show(thread);
        }
    }
}

/// The call was not made: the kernel has changed nothing.
pub fn not_made(thread: &mut Thread) {
    let place = in_front_of_call(thread);
    take_back(thread, |thread, at, bytes| sees(thread, &place, at, bytes));
    let uses = core::mem::take(&mut thread.foreign.uses);
    if uses.is_empty() {
        return;
    }
    for area in AREAS.lock().iter_mut().filter(|area| uses.contains(&area.start)) {
        area.using -= 1;
        area.close_all();
    }
}

/// Whether the process is to be watched from in front of the call on, which the thread is about to make: such memory is used
/// too often, or other threads may use it during the call, which is given it.
pub fn is_beyond(thread: &mut Thread, call: &Call) -> bool {
    const SET_ROBUST_LIST: usize = 273;
    if call.number == SET_ROBUST_LIST {
        thread.foreign.locks = None;
    }
    if !has_any() || thread.vfork_child || !thread.recorder.to_file() || has_happened() {
        return false;
    }
    let has_locks = has_kept() && still_holds_locks(thread);
    let was_crowded = CROWDED.load(Relaxed) && CROWDED.swap(false, Relaxed);
    let is_crowded = was_crowded && (has_locks || !keeps_closed(thread));
    if is_tortured() && !is_crowded && !has_locks {
        keeps_closed(thread);
    }
    let others_use = || {
        let given = Given::of(call);
        let areas = AREAS.lock();
        // (What nobody was seen to change is not worth it.)
        let matters = |area: &&Area| !area.sleeps() && !area.is_only_read();
        areas.iter().filter(matters).any(|area| given.some_of(area.start, area.end()))
    };
    // (No other thread runs while a process is forked.)
    let is_long = !ends(call.number) && !forks(call);
    let is_in_use = census::live() > 1 && is_long && others_use();
    let is_beyond = is_crowded || is_in_use || has_locks;
    let can_be = is_beyond && view::uncovered().is_none() && is_watched_instead(thread);
    let is_granted = || AREAS.lock().iter_mut().all(Area::is_granted);
    if is_beyond && !can_be && (is_in_use || has_locks || !is_granted()) {
        // What others leave in a file is compared in the end.
        let is_lost = |area: &Area| area.is_shared && (area.has_changed() || !area.is_file);
        if AREAS.lock().iter().any(is_lost) {
            unfollowed_meanwhile(thread, USED_BY_OTHERS);
        }
        end();
    }
    can_be
}

/// Whether all that can be is closed for good, and all that comes there is marked.
fn is_tortured() -> bool {
    facts().options.process.torture & torture::SPILL != 0
}

/// Whether some of it is closed for good.
fn has_kept() -> bool {
    AREAS.lock().iter().any(Area::is_kept_closed)
}

/// What is used too often is closed for good from here on, and instructions that come there are marked. False if not all of
/// it can be.
fn keeps_closed(thread: &Thread) -> bool {
    let is_followed = thread.recorder.to_file() && elsewhere::can_be(thread);
    // (What another thread's call uses stays open until that returns.)
    let is_often = |area: &&mut Area| {
        let is_often = area.is_scarce() || is_tortured() && !area.is_counted;
        area.is_shared && area.using == 0 && is_often
    };
    let mut areas = AREAS.lock();
    let keeps = is_followed && areas.iter_mut().filter(is_often).all(Area::keep_closed);
    if keeps {
        MARKS.store(true, Relaxed);
    }
    keeps
}

/// The thread has changed memory that is closed for good: if it has a lock now that the kernel is to give up for it, the kernel
/// finds all open until the next call.
pub fn opens_for_locks(thread: &mut Thread) {
    if still_holds_locks(thread) {
        for area in AREAS.lock().iter_mut().filter(|area| area.is_kept_closed()) {
            area.open_all();
            area.is_used();
        }
    }
}

/// Whether an instruction that comes to `at` is to be marked.
pub fn marks(at: u64) -> bool {
    let is_kept =
        || AREAS.lock().iter().any(|area| area.has(page_down(at)) && area.is_kept_closed());
    MARKS.load(Relaxed) && is_kept()
}

/// Where the runtime reaches what lies at `at`, as the thread that runs may find it closed.
pub fn reach(at: u64) -> u64 {
    let is_kept =
        || AREAS.lock().iter().any(|area| area.has(page_down(at)) && area.is_kept_closed());
    if may_lie_in(at, at.saturating_add(1)) && is_kept() {
        elsewhere::open_at(at)
    } else {
        at
    }
}

/// If `at` is closed for good: whether it can be read where it is open. (Not where signals are blocked.)
pub fn is_there(at: u64) -> Option<bool> {
    let there = reach(at);
    let mut byte = 0u8;
    // SAFETY: the byte is borrowed; the rest is the program's memory.
    (there != at).then(|| unsafe { attempt::copy(&raw mut byte as u64, there, 1) })
}

/// What the program has left in `at..at + len`, which is closed for good, is stored where it is open. False if it cannot be.
pub fn shows_others(at: u64, len: u64) -> bool {
    // SAFETY: memory of the program's, as the instruction would.
    let store = |bytes: &mut [u8]| unsafe {
        let at = elsewhere::open_at(at);
        attempt::store(at, bytes) || write_program(at, bytes)
    };
    with_known(at, len, store) == Some(true)
}

/// The same of the page with `at`, if it is closed for good, wherever the thread is. False if not.
pub fn shows(thread: &mut Thread, place: &Place, at: u64) -> bool {
    let mut areas = AREAS.lock();
    let page = page_down(at);
    let area = area_of(&mut areas, page).filter(|area| area.is_kept_closed());
    area.is_some_and(|area| area.look(page, |at, bytes| sees(thread, place, at, bytes)))
}

/// What others have stored to the pages of `at..at + len` is seen at the instruction, as far as they are closed for good. False
/// if some of it cannot be read any more.
pub fn look_at(thread: &mut Thread, place: &Place, at: u64, len: u64) -> bool {
    let mut areas = AREAS.lock();
    let pages = (page_down(at)..at.saturating_add(len)).step_by(PAGE as usize);
    let mut is_there = true;
    for page in pages {
        if let Some(area) = area_of(&mut areas, page).filter(|area| area.is_kept_closed()) {
            is_there &= area.look_at_once(page, |at, bytes| sees(thread, place, at, bytes));
        }
    }
    is_there
}

/// A file that is mapped was written to: what of that shows is noted.
pub fn written_to(thread: &mut Thread) {
    if has_any() && thread.recorder.to_file() {
        AREAS.lock().iter_mut().for_each(|area| area.show(thread));
    }
}

/// The thread is in no call that was given such memory, or not any more.
fn leaves_call(thread: &mut Thread) {
    let place = in_front_of_call(thread);
    take_back(thread, |thread, at, bytes| sees(thread, &place, at, bytes));
    let uses = core::mem::take(&mut thread.foreign.uses);
    if !uses.is_empty() {
        let mut areas = AREAS.lock();
        let used = areas.iter_mut().filter(|area| uses.contains(&area.start));
        used.for_each(|area| area.using -= 1);
    }
}

/// The arguments of a call that waits, or wakes, with the addresses where such memory is open for the kernel alone.
pub fn for_kernel(thread: &mut Thread, number: usize, args: &[usize; 6]) -> [usize; 6] {
    let mut given = *args;
    if !has_any() || !waits_for(number, args) {
        return given;
    }
    let mut areas = AREAS.lock();
    let [first, .., second, _] = &mut given;
    for given in [first, second] {
        let word = *given as u64;
        let area = area_of(&mut areas, page_down(word)).filter(|area| !area.sleeps());
        let start = area.as_ref().map_or(0, |area| area.start);
        if let Some(again) = area.and_then(Area::again_at) {
            *given = (again + (word - start)) as usize;
            if !core::mem::replace(&mut thread.foreign.waits, true) {
                WAITING_THREADS.fetch_add(1, Relaxed);
            }
        }
    }
    given
}

/// The call of [`for_kernel`] has returned.
pub fn has_waited(thread: &mut Thread) {
    if core::mem::take(&mut thread.foreign.waits) {
        WAITING_THREADS.fetch_sub(1, Relaxed);
    }
}

fn sees(thread: &mut Thread, place: &Place, at: u64, bytes: &[u8]) {
    let (pc, address) = (LiveAddr(place.pc), LiveAddr(at));
    thread.event(place.insn, &Event::Seen { pc, rcx: place.rcx, address, bytes });
}

/// The thread has faulted at `address`, in translated code; its turns are those that it had made in front of the instruction.
pub fn access(thread: &mut Thread, address: u64, place: &Place, how: How) -> Access {
    if !may_lie_in(address, address.saturating_add(1)) {
        return Access::Elsewhere;
    }
    let turns = thread.turns();
    let follows = thread.recorder.to_file() && !has_happened();
    let mut areas = AREAS.lock();
    let page = page_down(address);
    let Some(index) = areas.iter().position(|area| area.has(page)) else {
        return Access::Elsewhere;
    };
    let Some(area) = areas.get_mut(index) else { return Access::Elsewhere };
    if area.is_open(page) {
        // Another thread has opened it; or it is a fault of the program's.
        let last = core::mem::replace(&mut thread.foreign.again, (address, turns));
        return if last == (address, turns) { Access::Elsewhere } else { Access::Again };
    }
    // (There may be no call for long.)
    let is_often = area.is_shared && (area.is_scarce() || is_tortured());
    let is_free = area.using == 0 && thread.foreign.pages.is_empty();
    if follows && is_often && is_free && elsewhere::can_be(thread) {
        MARKS.fetch_or(area.keep_closed(), Relaxed);
    }
    area.open(page);
    if !follows {
        return Access::Again;
    }
    if !area.look(page, |at, bytes| sees(thread, place, at, bytes)) {
        return Access::Again;
    }
    let price = area.price((address, place.pc, turns), how.loads_only);
    let can_go_on = area.can_go_on(price);
    if !can_go_on && !area.is_kept_closed() {
        if !area.is_writable {
            area.rests();
            return Access::Again;
        }
        area.open_all();
        area.ends();
        areas.swap_remove(index);
        keep_extent(&areas);
        return Access::Again;
    }
    // (Where it may not store the fault is the program's.)
    let is_allowed = how.loads_only || area.is_writable;
    if how.may_step && is_allowed && area.has_credit() {
        thread.foreign.pages.push(page);
        return Access::Once;
    }
    area.is_used();
    Access::Again
}

/// Whether all of `at..at + len` is such memory.
pub fn covers(at: u64, len: u64) -> bool {
    with_known(at, len, |_| {}).is_some()
}

/// Whether all of it is such memory: others have it, too, from now on.
pub fn is_shared(at: u64, len: u64) -> bool {
    let mut areas = AREAS.lock();
    let end = at.saturating_add(len);
    let area = areas.iter_mut().find(|area| area.start <= at && end <= area.end());
    area.map(Area::is_shared_now).is_some()
}

/// Calls `with` for what the program has left there, if it is such memory.
fn with_known<R>(at: u64, len: u64, with: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
    let end = at.checked_add(len)?;
    if !may_lie_in(at, end) {
        return None;
    }
    let mut areas = AREAS.lock();
    let area = areas.iter_mut().find(|area| area.start <= at && end <= area.end())?;
    let from = (at - area.start) as usize;
    area.left.get_mut(from..from + len as usize).map(with)
}

/// Whether others have stored at `at..at + len`, which is open, since this thread has looked.
pub fn has_changed(at: u64, len: u64) -> bool {
    with_known(at, len, |known| {
        let mut now = vec![0; known.len()];
        try_read_program_bytes(at, &mut now) == Ok(known.len()) && now != known
    }) == Some(true)
}

/// The program has left there what is there.
pub fn leaves_all(at: u64, len: u64) {
    with_known(at, len, |known| try_read_program_bytes(at, known));
}

/// What was read at `at`, with what the program has left of it in such memory.
pub fn put_left(at: u64, bytes: &mut [u8]) {
    each_part(at, bytes.len(), |left, part| {
        bytes.get_mut(part).into_iter().for_each(|there| there.copy_from_slice(left));
    });
}

/// The program has left these bytes at `at`, or a replay puts them there: as far as that is such memory.
pub fn leaves(at: u64, bytes: &[u8]) {
    each_part(at, bytes.len(), |left, part| {
        bytes.get(part).into_iter().for_each(|bytes| left.copy_from_slice(bytes));
    });
}

/// Calls `with` for each part of `at..at + len` that is such memory: what is left there, and where it is from `at` on.
fn each_part(at: u64, len: usize, mut with: impl FnMut(&mut [u8], Range<usize>)) {
    let end = at.saturating_add(len as u64);
    if !may_lie_in(at, end) {
        return;
    }
    for area in AREAS.lock().iter_mut().filter(|area| !area.sleeps()) {
        let (start, end) = (at.max(area.start), end.min(area.end()));
        if start < end {
            let part = (start - area.start) as usize..(end - area.start) as usize;
            if let Some(left) = area.left.get_mut(part) {
                with(left, (start - at) as usize..(end - at) as usize);
            }
        }
    }
}

/// The thread has seen these bytes at the instruction.
pub fn saw(thread: &mut Thread, place: &Place, at: u64, bytes: &[u8]) {
    sees(thread, place, at, bytes);
    leaves(at, bytes);
}

/// What is in the pages that the thread has opened for one instruction, other than was left there, is seen.
pub fn look(thread: &mut Thread, place: &Place) {
    let mut areas = AREAS.lock();
    for page in thread.foreign.pages.clone() {
        if let Some(area) = area_of(&mut areas, page) {
            area.look(page, |at, bytes| sees(thread, place, at, bytes));
        }
    }
}

fn area_of(areas: &mut [Area], page: u64) -> Option<&mut Area> {
    areas.iter_mut().find(|area| area.has(page))
}

/// The thread was stepped over the instruction of [`Access::Once`]: what it has left is known, and its pages are closed again.
pub fn behind(thread: &mut Thread) {
    let pages = core::mem::take(&mut thread.foreign.pages);
    let has_locks = holds_locks();
    let mut areas = AREAS.lock();
    for page in pages {
        if let Some(area) = area_of(&mut areas, page) {
            match has_locks {
                true => area.is_used(),
                false if area.is_kept_closed() || area.using == 0 => area.close_page(page),
                false => {}
            }
        }
    }
}

/// The runtime itself has faulted at `address`, or code that stands for no instruction of the program: opens it, without a note.
pub fn opens(address: u64) -> bool {
    if !may_lie_in(address, address.saturating_add(1)) {
        return false;
    }
    let Some(mut areas) = AREAS.try_lock() else { return false };
    let page = page_down(address);
    let area = area_of(&mut areas, page).filter(|area| !area.is_open(page));
    area.map(|area| area.open(page)).is_some()
}
