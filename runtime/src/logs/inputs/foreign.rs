//! What other processes store to a file that the program maps and stores to itself, while no thread is watched.
//!
//! The memory is closed to the program: its first access faults. Then what is there is compared with what the program left
//! there, what is new is noted as what the thread sees at that instruction ([`Event::Seen`]), the page is opened, and closed
//! again behind the instruction. Memory that is used more often stays open until the next system call, in front of which
//! what the program has left is kept. Memory that is used all the time stays open: either others do not use it, or the process
//! is watched from its next call on.
//!
//! The kernel finds all of it open that is given some of it, and so does whoever looks for the locks of a thread that is killed.
// On the way of faults: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::lock::{Forked, Lock};
use crate::base::program::{read_program_words, try_read_program_bytes};
use crate::base::sys::{self, nr};
use crate::logs::inputs::unfollowed::{has_happened, is_watched_instead};
use crate::logs::inputs::written;
use crate::logs::moment::Call;
use crate::thread::Thread;
use abi::event::{Event, WHOLE_UNIT};
use abi::ids::LiveAddr;
use abi::layout::{page_down, PAGE};
use abi::syscalls::{find, may_read};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Most bytes of a mapping that is followed so: all of them are kept twice.
const LARGEST: u64 = 256 << 10;

/// An area has so many accesses to its credit, and gets one back in so much time.
const CREDIT: u32 = 4000 * ACCESS;
const EARNED_IN_NS: u64 = 1_000_000 / ACCESS as u64;
/// With less, its pages stay open until the next call.
const SHORT_OF_CREDIT: u32 = CREDIT / 2;
/// What an access costs; and one of a thread that waits for others, in a loop around it.
const ACCESS: u32 = 8;
const WAITING: u32 = 1;
/// Most turns of such a loop.
const LOOP: u64 = 8;

static AREAS: Lock<Vec<Area>> = Lock::new(Vec::new());
/// From where to where they lie; nowhere if there are none.
static EXTENT: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
/// Threads in a call that was given some of that memory.
static USING: AtomicU32 = AtomicU32::new(0);
/// Others use an area as often as the program.
static CROWDED: AtomicBool = AtomicBool::new(false);

/// A mapping: whole pages, which the program may load from and store to.
struct Area {
    start: u64,
    /// What the program has left there, as far as it is known.
    left: Vec<u8>,
    /// Its pages that are open.
    open: Vec<bool>,
    /// What is left of its credit, and since when.
    credit: u32,
    since: u64,
    /// Others have stored there.
    changed: bool,
    /// Where it was used last: address, pc, turns.
    last: (u64, u64, u64),
}

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

/// The place of an access: the instruction's original pc, the thread's rcx there, and instructions done in its unit.
pub struct Place {
    pub pc: u64,
    pub rcx: u64,
    pub insn: u32,
}

impl Area {
    fn end(&self) -> u64 {
        self.start + self.open.len() as u64 * PAGE
    }

    fn pages(&self) -> impl Iterator<Item = u64> + use<> {
        (self.start..self.end()).step_by(PAGE as usize)
    }

    fn index(&self, page: u64) -> usize {
        ((page - self.start) / PAGE) as usize
    }

    fn is_open(&self, page: u64) -> bool {
        self.open.get(self.index(page)).is_none_or(|open| *open)
    }

    /// False if the kernel has no room for so many mappings.
    fn open(&mut self, page: u64) {
        let index = self.index(page);
        if protect(page..page + PAGE, OPEN) {
            self.open.get_mut(index).into_iter().for_each(|open| *open = true);
            return;
        }
        // No room for another mapping: as one it needs none.
        if !protect(self.start..self.end(), OPEN) {
            crate::die!("no memory for the mappings of the program");
        }
        self.open.fill(true);
    }

    fn open_all(&mut self) {
        if self.open.iter().all(|open| *open) {
            return;
        }
        if !protect(self.start..self.end(), OPEN) {
            crate::die!("no memory for the mappings of the program");
        }
        self.open.fill(true);
    }

    /// The program has left there what is known already.
    fn close_page(&mut self, page: u64) {
        let index = self.index(page);
        if protect(page..page + PAGE, 0) {
            self.open.get_mut(index).into_iter().for_each(|open| *open = false);
        }
    }

    /// The program has left there what is there now. False if that cannot be known.
    fn close(&mut self) -> bool {
        if !self.open.contains(&true) {
            return true;
        }
        for page in self.pages() {
            if self.is_open(page) && !self.keep(page) {
                return false;
            }
        }
        let closed = protect(self.start..self.end(), 0);
        if closed {
            self.open.fill(false);
        }
        closed
    }

    fn known(&mut self, page: u64) -> Option<&mut [u8]> {
        let from = (page - self.start) as usize;
        self.left.get_mut(from..from + PAGE as usize)
    }

    fn keep(&mut self, page: u64) -> bool {
        let Some(known) = self.known(page) else { return false };
        try_read_program_bytes(page, known) == Ok(PAGE as usize)
    }

    /// What is at `page`, which is open now, other than the program has left it: where, and the bytes. That is known from
    /// now on.
    fn look(&mut self, page: u64, mut with: impl FnMut(u64, &[u8])) {
        let mut now = vec![0; PAGE as usize];
        if try_read_program_bytes(page, &mut now) != Ok(PAGE as usize) {
            return;
        }
        let Some(known) = self.known(page) else { return };
        let mut any = false;
        for (from, bytes) in differences(known, &now) {
            any = true;
            with(page + from as u64, bytes);
        }
        known.copy_from_slice(&now);
        self.changed |= any;
    }

    /// The same of all pages that were closed; of the others what is there now is known. All are open.
    fn open_and_look(&mut self, thread: &mut Thread, with: impl Fn(&mut Thread, u64, &[u8])) {
        let were_open = self.open.clone();
        self.open_all();
        for (page, was_open) in self.pages().zip(were_open) {
            match was_open {
                true => drop(self.keep(page)),
                false => self.look(page, |at, bytes| with(thread, at, bytes)),
            }
        }
    }

    /// Whether it can still be closed now and then, at this price. If others use it, too, and it cannot, the process is to be
    /// watched instead.
    fn can_go_on(&mut self, access: (u64, u64, u64), price: u32) -> bool {
        let now = sys::monotonic_ns();
        let earned = now.saturating_sub(self.since) / EARNED_IN_NS;
        self.since = now;
        self.credit = CREDIT.min(self.credit.saturating_add(earned.min(CREDIT.into()) as u32));
        let (last_address, last_pc, last_turns) = core::mem::replace(&mut self.last, access);
        let (address, pc, turns) = access;
        let waits = (last_address, last_pc) == (address, pc)
            && turns.wrapping_sub(last_turns) <= LOOP;
        let price = if waits { WAITING } else { price };
        let can_pay = self.credit >= price;
        self.credit = self.credit.saturating_sub(price);
        if !can_pay && self.changed {
            CROWDED.store(true, Relaxed);
        }
        can_pay || self.changed
    }
}

const OPEN: usize = sys::PROT_READ | sys::PROT_WRITE;

fn protect(range: Range<u64>, protection: usize) -> bool {
    let args = [range.start as usize, (range.end - range.start) as usize, protection];
    // SAFETY: memory of the program's, which it finds open wherever it comes to it.
    unsafe { sys::call(nr::MPROTECT, &args) }.is_ok()
}

/// Where `new` is not as `old`, and what is there: few bytes that are the same in between are among them.
fn differences<'a>(old: &'a [u8], new: &'a [u8]) -> impl Iterator<Item = (usize, &'a [u8])> {
    const GAP: usize = 32;
    let mut at = 0;
    core::iter::from_fn(move || {
        let differs = |i: &usize| old.get(*i) != new.get(*i);
        let first = (at..new.len()).find(differs)?;
        let mut end = first + 1;
        while let Some(next) = (end..new.len().min(end + GAP)).find(differs) {
            end = next + 1;
        }
        at = end;
        Some((first, new.get(first..end)?))
    })
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

fn is_in(areas: &[Area], start: u64, end: u64) -> bool {
    areas.iter().any(|area| start < area.end() && area.start < end)
}

fn keep_extent(areas: &[Area]) {
    let [first, behind] = &EXTENT;
    first.store(areas.iter().map(|area| area.start).min().unwrap_or(0), Relaxed);
    behind.store(areas.iter().map(Area::end).max().unwrap_or(0), Relaxed);
}

/// In the only thread of a forked child: a process that has such memory is followed otherwise when it forks.
pub fn forked(forked: &Forked) {
    AREAS.force_unlock(forked);
}

/// The program has mapped a file, and may store to it: the recording has its `contents`, from the first page on.
pub fn lies_at(range: Range<u64>, contents: Vec<u8>) {
    let len = range.end - range.start;
    let pages = (len / PAGE) as usize;
    if len > LARGEST || contents.len() as u64 + PAGE <= len || has_happened() {
        return;
    }
    let mut left = contents;
    left.resize(len as usize, 0);
    let (since, last) = (sys::monotonic_ns(), (0, 0, 0));
    let open = vec![true; pages];
    let area =
        Area { start: range.start, left, open, credit: CREDIT, since, changed: false, last };
    let mut areas = AREAS.lock();
    areas.push(area);
    if let Some(area) = areas.last_mut().filter(|area| protect(range, 0)) {
        area.open.fill(false);
    }
    keep_extent(&areas);
}

/// All of it is open from here on, and nothing is followed.
pub fn end() {
    if !has_any() {
        return;
    }
    let mut areas = AREAS.lock();
    areas.iter_mut().for_each(Area::open_all);
    areas.clear();
    keep_extent(&areas);
}

/// The thread is about to make the call, with its registers in its block.
pub fn before_call(thread: &mut Thread, call: &Call) {
    const PR_SET_SECCOMP: usize = 22;
    leaves_call(thread);
    // (Of a child of vfork the parent is in a call.)
    if !has_any() || thread.vfork_child {
        return;
    }
    let filters = call.number == nr::SECCOMP
        || call.number == nr::PRCTL && call.args[0] == PR_SET_SECCOMP;
    if !thread.recorder.to_file() || has_happened() || filters {
        return end();
    }
    let mut areas = AREAS.lock();
    if !is_given(&areas, call) {
        if !holds_locks() {
            close(&mut areas);
        }
        return;
    }
    let (pc, rcx) = (thread.syscall_pc, thread.block.registers.gpr[1]);
    let place = Place { pc, rcx, insn: WHOLE_UNIT };
    let each = |thread: &mut Thread, at: u64, bytes: &[u8]| sees(thread, &place, at, bytes);
    let goes_on = |area: &mut Area| {
        area.open_and_look(thread, each);
        area.can_go_on((pc, pc, thread.turns()), ACCESS + area.open.len() as u32)
    };
    areas.retain_mut(goes_on);
    match changes(call) {
        Some((start, end)) => areas.retain(|area| !(start < area.end() && area.start < end)),
        None if call.number == nr::EXIT => {}
        None => {
            thread.foreign.uses = true;
            USING.fetch_add(1, Relaxed);
        }
    }
    keep_extent(&areas);
}

/// The call has returned.
pub fn after_call(thread: &mut Thread) {
    if !thread.foreign.uses && !CROWDED.load(Relaxed) {
        return;
    }
    let mut areas = AREAS.lock();
    if thread.foreign.uses {
        show(thread, &mut areas);
    }
    leaves_call(thread);
    drop(areas);
    if CROWDED.swap(false, Relaxed) && !is_watched_instead(thread) {
        // What others leave there is compared in the end.
        end();
    }
}

/// A file that is mapped was written to: what of that shows is noted.
pub fn written_to(thread: &mut Thread) {
    if has_any() && thread.recorder.to_file() {
        show(thread, &mut AREAS.lock());
    }
}

/// What others have stored is noted as written for the call.
fn show(thread: &mut Thread, areas: &mut [Area]) {
    for area in areas {
        area.open_all();
        for page in area.pages() {
            area.look(page, |at, bytes| written::piece(thread, at, bytes));
        }
    }
}

fn leaves_call(thread: &mut Thread) {
    if core::mem::take(&mut thread.foreign.uses) {
        USING.fetch_sub(1, Relaxed);
    }
}

/// What the program has left is kept, unless the kernel may be at work there. What cannot be kept is not followed.
fn close(areas: &mut Vec<Area>) {
    if USING.load(Relaxed) != 0 {
        return;
    }
    areas.retain_mut(|area| {
        let closed = area.close();
        if !closed {
            area.open.fill(false);
            area.open_all();
        }
        closed
    });
    keep_extent(areas);
}

/// Whether some of the memory may be read or written for the call.
fn is_given(areas: &[Area], call: &Call) -> bool {
    const LONGEST: u64 = 1 << 46;
    let makes = matches!(call.number, nr::FORK | nr::VFORK | nr::CLONE | nr::CLONE3);
    let ends = matches!(call.number, nr::EXIT | nr::EXIT_GROUP | nr::EXECVE | nr::EXECVEAT);
    let args = call.args.map(|arg| arg as u64);
    if makes || ends || call.writes.elsewhere {
        return true;
    }
    let is_in = |at: u64, len: u64| is_in(areas, at, at.saturating_add(len.clamp(1, LONGEST)));
    let is_word = |&arg: &u64| is_futex(call.number) && is_in(arg, 1);
    if args.iter().any(is_word) || names(call).is_some_and(|(at, end)| is_in(at, end - at)) {
        return true;
    }
    if call.writes.ranges.iter().any(|range| is_in(range.address, range.length)) {
        return true;
    }
    let Some(known) = find(call.number as u64) else { return true };
    let mut reads = false;
    let read = &mut |at, out: &mut [u8]| try_read_program_bytes(at, out) == Ok(out.len());
    let certain = may_read(known, &args, read, &mut |at, len| reads |= is_in(at, len));
    reads || !certain
}

/// Whether the arguments of a call may be addresses of words that threads wait for.
fn is_futex(number: usize) -> bool {
    const FUTEX_WAKE: usize = 454;
    const FUTEX_REQUEUE: usize = 456;
    matches!(number, nr::FUTEX | FUTEX_WAKE..=FUTEX_REQUEUE)
}

/// The memory that a call names which is about memory.
fn names(call: &Call) -> Option<(u64, u64)> {
    const MINCORE: usize = 27;
    const MLOCK: usize = 149;
    const MUNLOCK: usize = 150;
    const MLOCK2: usize = 325;
    let [at, len, ..] = call.args.map(|arg| arg as u64);
    match call.number {
        nr::MSYNC | nr::MADVISE | MINCORE | MLOCK | MUNLOCK | MLOCK2 => Some((at, at.saturating_add(len))),
        _ => changes(call),
    }
}

/// What lies there is another memory behind the call, or has other rights, or others have it, too.
fn changes(call: &Call) -> Option<(u64, u64)> {
    const CLONE_VM: u64 = 0x100;
    const WHOLE: (u64, u64) = (0, u64::MAX);
    let [first, second, third, fourth, fifth, _] = call.args.map(|arg| arg as u64);
    let from = |at: u64, len: u64| (at, at.saturating_add(len));
    match call.number {
        nr::MMAP | nr::MUNMAP | nr::MPROTECT | nr::PKEY_MPROTECT if first != 0 => Some(from(first, second)),
        nr::MREMAP if fourth as usize & sys::MREMAP_FIXED != 0 => {
            let (one, other) = (from(first, second), from(fifth, third));
            Some((one.0.min(other.0), one.1.max(other.1)))
        }
        nr::MREMAP => Some(from(first, second.max(third))),
        nr::SHMAT | nr::FORK => Some(WHOLE),
        nr::CLONE if first & CLONE_VM == 0 => Some(WHOLE),
        // (Its flags are in memory.)
        nr::CLONE3 => {
            let mut flags = [0u64];
            let shares = read_program_words(first, &mut flags) && flags[0] & CLONE_VM != 0;
            (!shares).then_some(WHOLE)
        }
        _ => None,
    }
}

/// Whether the thread has locks that the kernel gives up for it, wherever they lie, when it is killed.
fn holds_locks() -> bool {
    const GET_ROBUST_LIST: usize = 274;
    let (mut head, mut len) = (0u64, 0u64);
    let args = [0, &raw mut head as usize, &raw mut len as usize];
    // SAFETY: the kernel writes two words.
    if unsafe { sys::call(GET_ROBUST_LIST, &args) }.is_err() || head == 0 {
        return false;
    }
    // The first lock, or this list again; what to add; the one that is being taken or given.
    let mut words = [0u64; 3];
    read_program_words(head, &mut words) && (words[0] & !1 != head || words[2] != 0)
}

fn sees(thread: &mut Thread, place: &Place, at: u64, bytes: &[u8]) {
    let (pc, address) = (LiveAddr(place.pc), LiveAddr(at));
    thread.event(place.insn, &Event::Seen { pc, rcx: place.rcx, address, bytes });
}

/// The thread has faulted at `address`, in translated code; its turns are those that it had made in front of the instruction.
/// `may_step`: it can be stepped over it.
pub fn access(thread: &mut Thread, address: u64, place: &Place, may_step: bool) -> Access {
    if !may_lie_in(address, address.saturating_add(1)) {
        return Access::Elsewhere;
    }
    let turns = thread.turns();
    let follows = thread.recorder.to_file() && !has_happened();
    let mut areas = AREAS.lock();
    let page = page_down(address);
    let Some(index) = areas.iter().position(|area| (area.start..area.end()).contains(&page)) else {
        return Access::Elsewhere;
    };
    let Some(area) = areas.get_mut(index) else { return Access::Elsewhere };
    if area.is_open(page) {
        // Another thread has opened it; or it is a fault of the program's.
        let last = core::mem::replace(&mut thread.foreign.again, (address, turns));
        return if last == (address, turns) { Access::Elsewhere } else { Access::Again };
    }
    area.open(page);
    if !follows {
        return Access::Again;
    }
    area.look(page, |at, bytes| sees(thread, place, at, bytes));
    if !area.can_go_on((address, place.pc, turns), ACCESS) {
        area.open_all();
        areas.swap_remove(index);
        keep_extent(&areas);
        return Access::Again;
    }
    if may_step && area.credit >= SHORT_OF_CREDIT {
        thread.foreign.pages.push(page);
        return Access::Once;
    }
    Access::Again
}

/// Whether all of `at..at + len` is such memory.
pub fn covers(at: u64, len: u64) -> bool {
    with_known(at, len, |_| {}).is_some()
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

/// The program has left these bytes there.
pub fn leaves(at: u64, bytes: &[u8]) {
    with_known(at, bytes.len() as u64, |known| known.copy_from_slice(bytes));
}

/// The program has left there what is there.
pub fn leaves_all(at: u64, len: u64) {
    with_known(at, len, |known| try_read_program_bytes(at, known));
}

/// What the program has left there: up to 8 bytes.
pub fn left(at: u64, len: u64) -> Option<u64> {
    with_known(at, len, |known| {
        let mut bytes = [0u8; 8];
        bytes.get_mut(..known.len())?.copy_from_slice(known);
        Some(u64::from_le_bytes(bytes))
    })?
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
    areas.iter_mut().find(|area| (area.start..area.end()).contains(&page))
}

/// The thread was stepped over the instruction of [`Access::Once`]: what it has left is known, and its pages are closed again.
pub fn behind(thread: &mut Thread) {
    let pages = core::mem::take(&mut thread.foreign.pages);
    let is_in_use = USING.load(Relaxed) != 0 || holds_locks();
    let mut areas = AREAS.lock();
    for page in pages.into_iter().filter(|_| !is_in_use) {
        if let Some(area) = area_of(&mut areas, page) {
            area.close_page(page);
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

#[cfg(test)]
#[allow(clippy::disallowed_macros, reason = "tests may panic")]
mod tests {
    use super::differences;

    #[test]
    fn places_of_change_are_found() {
        let old = [0u8; 200];
        let mut new = old;
        assert_eq!(differences(&old, &new).count(), 0);
        (new[3], new[20], new[150], new[199]) = (1, 2, 3, 4);
        let found: Vec<_> =
            differences(&old, &new).map(|(at, bytes)| (at, bytes.len())).collect();
        assert_eq!(found, [(3, 18), (150, 1), (199, 1)]);
    }
}
