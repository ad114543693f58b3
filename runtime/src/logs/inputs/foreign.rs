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

use crate::base::census;
use crate::base::lock::{Forked, Lock};
use crate::base::own::anonymous;
use crate::base::program::{read_program_words, try_read_program_bytes};
use crate::base::sys::{self, nr};
use crate::logs::inputs::unfollowed::{has_happened, is_watched_instead, unfollowed_meanwhile};
use crate::logs::moment::Call;
use crate::thread::foreign::Foreign;
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
/// With less, its pages stay open until the next call; if others use them, too, they are closed as before until then, and the
/// process is watched behind it.
const SHORT_OF_CREDIT: u32 = CREDIT / 2;
/// What an access costs; and one of a thread that waits for others, in a loop around it.
const ACCESS: u32 = 8;
const WAITING: u32 = 1;
/// Most turns of such a loop.
const LOOP: u64 = 8;

/// Why a recording ends where the threads of the process cannot be watched instead.
const USED_BY_OTHERS: &str = "memory is shared, and used often (mmap with MAP_SHARED)";

static AREAS: Lock<Vec<Area>> = Lock::new(Vec::new());
/// From where to where they lie; nowhere if there are none.
static EXTENT: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
/// Threads in calls that were given addresses of [`for_kernel`].
static WAITING_THREADS: AtomicU32 = AtomicU32::new(0);
/// An area is used too often to be followed so.
static CROWDED: AtomicBool = AtomicBool::new(false);

/// A mapping: whole pages, which the program may load from and store to.
struct Area {
    start: u64,
    /// What the program has left there, as far as it is known; nothing until others have it, too.
    left: Vec<u8>,
    /// Its pages that are open.
    open: Vec<bool>,
    /// Others have it, too: that is certain, or it is made for that.
    is_shared: bool,
    /// Threads in a call that was given some of it.
    using: u32,
    /// Where the same memory lies once more, for the kernel ([`for_kernel`]), or 0.
    again_at: u64,
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

    /// Nobody else has it until a process is forked.
    fn sleeps(&self) -> bool {
        self.left.is_empty()
    }

    /// The program has left there what is there now. False if that cannot be known.
    fn close(&mut self) -> bool {
        if self.sleeps() || self.using > 0 || !self.open.contains(&true) {
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

    /// Others have it from now on, too. False if what the program has left there cannot be known.
    fn wakes(&mut self) -> bool {
        self.left.resize(self.open.len() * PAGE as usize, 0);
        self.pages().all(|page| self.keep(page))
    }

    /// What others have stored is noted as written for a call. All is closed behind it, unless it is in use.
    fn show(&mut self, thread: &mut Thread) {
        if self.sleeps() {
            return;
        }
        self.open_all();
        for page in self.pages() {
            self.look(page, |at, bytes| writes(thread, at, bytes));
        }
        self.close_all();
    }

    /// The program has left there what is known already.
    fn close_all(&mut self) {
        let can = !self.sleeps() && self.using == 0 && !holds_locks();
        if can && protect(self.start..self.end(), 0) {
            self.open.fill(false);
        }
    }

    /// Where the same memory lies for the kernel.
    fn again_at(&mut self) -> Option<u64> {
        let len = self.open.len() as u64 * PAGE;
        if self.again_at == 0 {
            let at = anonymous(len).ok()?;
            // An old length of 0 makes a second mapping.
            let flags = sys::MREMAP_MAYMOVE | sys::MREMAP_FIXED;
            let args = [self.start as usize, 0, len as usize, flags, at as usize];
            // SAFETY: memory of the runtime, mapped just now, which becomes this.
            unsafe { sys::call(nr::MREMAP, &args) }.ok()?;
            protect(at..at + len, OPEN).then_some(())?;
            self.again_at = at;
        }
        Some(self.again_at)
    }

    /// It is not followed any more.
    fn ends(&mut self) {
        let at = core::mem::take(&mut self.again_at);
        // (A thread may be about to wait there.)
        if at != 0 && WAITING_THREADS.load(Relaxed) == 0 {
            // SAFETY: memory of the runtime, which nobody uses any more.
            let _ =
                unsafe { sys::call(nr::MUNMAP, &[at as usize, self.open.len() * PAGE as usize]) };
        }
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
    /// now on. False if it cannot be read: a file has become shorter.
    fn look(&mut self, page: u64, mut with: impl FnMut(u64, &[u8])) -> bool {
        let mut now = vec![0; PAGE as usize];
        if try_read_program_bytes(page, &mut now) != Ok(PAGE as usize) {
            return false;
        }
        let Some(known) = self.known(page) else { return false };
        let mut any = false;
        for (from, bytes) in differences(known, &now) {
            any = true;
            with(page + from as u64, bytes);
        }
        known.copy_from_slice(&now);
        self.changed |= any;
        true
    }

    /// The same of all pages that were closed; of the others what is there now is known. All are open.
    fn open_and_look(&mut self, thread: &mut Thread, with: impl Fn(&mut Thread, u64, &[u8])) {
        if self.sleeps() {
            return;
        }
        let were_open = self.open.clone();
        self.open_all();
        for (page, was_open) in self.pages().zip(were_open) {
            match was_open {
                true => self.keep(page),
                false => self.look(page, |at, bytes| with(thread, at, bytes)),
            };
        }
    }

    /// Whether others use it, too.
    fn is_used(&self) -> bool {
        self.changed || self.is_shared
    }

    fn is_scarce(&self) -> bool {
        self.credit < SHORT_OF_CREDIT
    }

    /// Whether it can still be closed now and then, at this price; if others use it, too, it is, until the process is watched
    /// instead.
    fn can_go_on(&mut self, access: (u64, u64, u64), price: u32) -> bool {
        let earned = sys::monotonic_ns().saturating_sub(self.since) / EARNED_IN_NS;
        self.since += earned * EARNED_IN_NS;
        self.credit = CREDIT.min(self.credit.saturating_add(earned.min(CREDIT.into()) as u32));
        let (last_address, last_pc, last_turns) = core::mem::replace(&mut self.last, access);
        let (address, pc, turns) = access;
        let waits =
            (last_address, last_pc) == (address, pc) && turns.wrapping_sub(last_turns) <= LOOP;
        let price = if waits { WAITING } else { price };
        let can_pay = self.credit >= price;
        self.credit = self.credit.saturating_sub(price);
        if self.is_scarce() && self.is_used() {
            CROWDED.store(true, Relaxed);
        }
        can_pay || self.is_used()
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
    for area in AREAS.lock().iter_mut() {
        area.using = 0;
        area.close_all();
        WAITING_THREADS.store(0, Relaxed);
    }
}

/// Memory that is followed so if it is not too large.
pub enum Made {
    /// A file is mapped, of which the recording has the contents, from the first page on. `is_shared`: it is made for others.
    File { contents: Vec<u8>, is_shared: bool },
    /// Nobody else has it, but for processes that this one forks.
    ForChildren,
}

/// The program has mapped memory, and may store to it. Whether it is followed.
pub fn lies_at(range: Range<u64>, made: Made) -> bool {
    let len = range.end - range.start;
    let (mut left, is_shared) = match made {
        Made::File { contents, is_shared } => (contents, is_shared),
        Made::ForChildren => (Vec::new(), false),
    };
    let is_file = !left.is_empty();
    if len == 0 || len > LARGEST || is_file && left.len() as u64 + PAGE <= len || has_happened() {
        return false;
    }
    if is_file {
        left.resize(len as usize, 0);
    }
    let (since, last) = (sys::monotonic_ns(), (0, 0, 0));
    let open = vec![true; (len / PAGE) as usize];
    let (start, credit, using, changed, again_at) = (range.start, CREDIT, 0, false, 0);
    let area = Area { start, left, open, is_shared, using, again_at, credit, since, changed, last };
    let mut areas = AREAS.lock();
    areas.push(area);
    if let Some(area) = areas.last_mut().filter(|_| is_file && protect(range, 0)) {
        area.open.fill(false);
    }
    keep_extent(&areas);
    true
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

/// The thread is about to make the call, with its registers in its block.
pub fn before_call(thread: &mut Thread, call: &Call) {
    const PR_SET_SECCOMP: usize = 22;
    leaves_call(thread);
    // (Of a child of vfork the parent is in a call.)
    if !has_any() || thread.vfork_child {
        return;
    }
    let filters =
        call.number == nr::SECCOMP || call.number == nr::PRCTL && call.args[0] == PR_SET_SECCOMP;
    if !thread.recorder.to_file() || has_happened() || filters {
        return end();
    }
    let forks = forks(call);
    let changed = changes(call);
    let (pc, rcx) = (thread.syscall_pc, thread.block.registers.gpr[1]);
    let place = Place { pc, rcx, insn: WHOLE_UNIT };
    let each = |thread: &mut Thread, at: u64, bytes: &[u8]| sees(thread, &place, at, bytes);
    let mut areas = AREAS.lock();
    let given = Given::of(call);
    let mut has_locks = None;
    let mut stays = |area: &mut Area| {
        if forks && area.sleeps() && !area.wakes() {
            return false;
        }
        if !given.some_of(area) {
            let closes = area.open.contains(&true) && !*has_locks.get_or_insert_with(holds_locks);
            let is_known = !closes || area.close();
            if !is_known {
                area.open_all();
            }
            return is_known;
        }
        area.open_and_look(thread, each);
        if changed.is_some_and(|(start, end)| start < area.end() && area.start < end) {
            return false;
        }
        area.is_shared |= forks;
        if !area.sleeps() && call.number != nr::EXIT {
            thread.foreign.uses.push(area.start);
            area.using += 1;
        }
        area.can_go_on((pc, pc, thread.turns()), ACCESS + area.open.len() as u32)
    };
    areas.retain_mut(|area| {
        let stays = stays(area);
        if !stays {
            area.ends();
        }
        stays
    });
    keep_extent(&areas);
}

/// The call has returned.
pub fn after_call(thread: &mut Thread) {
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
    if !has_any() || thread.vfork_child || !thread.recorder.to_file() || has_happened() {
        return false;
    }
    let is_crowded = CROWDED.swap(false, Relaxed);
    let others_use = || {
        let given = Given::of(call);
        let areas = AREAS.lock();
        areas.iter().any(|area| !area.sleeps() && given.some_of(area))
    };
    let is_beyond = is_crowded || census::live() > 1 && !ends(call.number) && others_use();
    if is_beyond && !is_watched_instead(thread) {
        if AREAS.lock().iter().any(|area| area.is_shared) {
            unfollowed_meanwhile(thread, USED_BY_OTHERS);
        }
        // (What others leave in a file is compared in the end.)
        end();
        return false;
    }
    is_beyond
}

fn ends(number: usize) -> bool {
    matches!(number, nr::EXIT | nr::EXIT_GROUP | nr::EXECVE | nr::EXECVEAT)
}

/// A file that is mapped was written to: what of that shows is noted.
pub fn written_to(thread: &mut Thread) {
    if has_any() && thread.recorder.to_file() {
        AREAS.lock().iter_mut().for_each(|area| area.show(thread));
    }
}

/// The thread is in no call that was given such memory, or not any more.
fn leaves_call(thread: &mut Thread) {
    let uses = core::mem::take(&mut thread.foreign.uses);
    if !uses.is_empty() {
        let mut areas = AREAS.lock();
        let used = areas.iter_mut().filter(|area| uses.contains(&area.start));
        used.for_each(|area| area.using -= 1);
    }
}

/// What a call is given.
struct Given {
    /// It may be anything.
    all: bool,
    /// Pieces of memory: where, and how long.
    ranges: Vec<(u64, u64)>,
}

impl Given {
    fn of(call: &Call) -> Given {
        let args = call.args.map(|arg| arg as u64);
        if waits_for(call.number, &call.args) {
            // But for the time that it waits at most.
            return Given { all: false, ranges: alloc::vec![(args[3], 16)] };
        }
        let mut ranges: Vec<_> =
            call.writes.ranges.iter().map(|range| (range.address, range.length)).collect();
        let read = &mut |at, out: &mut [u8]| try_read_program_bytes(at, out) == Ok(out.len());
        let is_known = find(call.number as u64).is_some_and(|known| {
            may_read(known, &args, read, &mut |at, len| ranges.push((at, len)))
        });
        ranges.extend(names(call).map(|(start, end)| (start, end - start)));
        if is_futex(call.number) {
            ranges.extend(args.map(|arg| (arg, 1)));
        }
        let all = match call.number {
            // What the thread holds is given up for it.
            nr::EXIT => holds_locks(),
            number => ends(number) || forks(call) || call.writes.elsewhere || !is_known,
        };
        Given { all, ranges }
    }

    fn some_of(&self, area: &Area) -> bool {
        let is_in =
            |&(at, len): &(u64, u64)| at < area.end() && area.start < at.saturating_add(len);
        self.all || self.ranges.iter().any(is_in)
    }
}

/// Whether the call waits for a word, or wakes who waits for one, wherever it is mapped: it changes nothing.
fn waits_for(number: usize, args: &[usize; 6]) -> bool {
    const PRIVATE: usize = 128;
    const CLOCK_REALTIME: usize = 256;
    const WAIT: usize = 0;
    const WAKE: usize = 1;
    const REQUEUE: usize = 3;
    const CMP_REQUEUE: usize = 4;
    const WAIT_BITSET: usize = 9;
    const WAKE_BITSET: usize = 10;
    let operation = args[1] & !CLOCK_REALTIME;
    number == nr::FUTEX
        && operation & PRIVATE == 0
        && matches!(operation, WAIT | WAKE | REQUEUE | CMP_REQUEUE | WAIT_BITSET | WAKE_BITSET)
}

/// The arguments of a call that waits, or wakes, with the addresses where such memory is open for the kernel alone.
pub fn for_kernel(thread: &mut Thread, number: usize, args: &[usize; 6]) -> [usize; 6] {
    let mut given = *args;
    if !has_any() || !waits_for(number, args) {
        return given;
    }
    let mut areas = AREAS.lock();
    for at in [0, 4] {
        let word = given[at] as u64;
        let area = area_of(&mut areas, page_down(word)).filter(|area| !area.sleeps());
        let start = area.as_ref().map_or(0, |area| area.start);
        if let Some(again) = area.and_then(Area::again_at) {
            given[at] = (again + (word - start)) as usize;
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

/// Whether the arguments of a call may be addresses of words that threads wait for.
fn is_futex(number: usize) -> bool {
    const FUTEX_WAKE: usize = 454;
    const FUTEX_REQUEUE: usize = 456;
    matches!(number, nr::FUTEX | FUTEX_WAKE..=FUTEX_REQUEUE)
}

/// Whether the call makes a process that has a copy of all other memory.
fn forks(call: &Call) -> bool {
    const CLONE_VM: u64 = 0x100;
    let first = call.args[0] as u64;
    match call.number {
        nr::FORK => true,
        nr::CLONE => first & CLONE_VM == 0,
        // (Its flags are in memory.)
        nr::CLONE3 => {
            let mut flags = [0u64];
            read_program_words(first, &mut flags) && flags[0] & CLONE_VM == 0
        }
        _ => false,
    }
}

/// The memory that a call names which is about memory.
fn names(call: &Call) -> Option<(u64, u64)> {
    const MINCORE: usize = 27;
    const MLOCK: usize = 149;
    const MUNLOCK: usize = 150;
    const MLOCK2: usize = 325;
    let [at, len, ..] = call.args.map(|arg| arg as u64);
    match call.number {
        nr::MSYNC | nr::MADVISE | MINCORE | MLOCK | MUNLOCK | MLOCK2 => {
            Some((at, at.saturating_add(len)))
        }
        _ => changes(call),
    }
}

/// What lies there is another memory behind the call, or has other rights.
fn changes(call: &Call) -> Option<(u64, u64)> {
    const LONGEST: u64 = 1 << 46;
    let [first, second, third, fourth, fifth, _] = call.args.map(|arg| arg as u64);
    let from = |at: u64, len: u64| (at, at.saturating_add(len));
    match call.number {
        nr::MMAP | nr::MUNMAP | nr::MPROTECT | nr::PKEY_MPROTECT if first != 0 => {
            Some(from(first, second))
        }
        nr::MREMAP if fourth as usize & sys::MREMAP_FIXED != 0 => {
            let (one, other) = (from(first, second), from(fifth, third));
            Some((one.0.min(other.0), one.1.max(other.1)))
        }
        nr::MREMAP => Some(from(first, second.max(third))),
        nr::SHMAT if second != 0 => Some(from(second, LONGEST)),
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

/// What others have stored comes with the call.
fn writes(thread: &mut Thread, at: u64, bytes: &[u8]) {
    thread.event(WHOLE_UNIT, &Event::Written { address: LiveAddr(at), bytes });
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
    if !area.look(page, |at, bytes| sees(thread, place, at, bytes)) {
        return Access::Again;
    }
    if !area.can_go_on((address, place.pc, turns), ACCESS) {
        area.open_all();
        area.ends();
        areas.swap_remove(index);
        keep_extent(&areas);
        return Access::Again;
    }
    if may_step && (!area.is_scarce() || area.is_used() && area.credit > 0) {
        thread.foreign.pages.push(page);
        return Access::Once;
    }
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
    area.map(|area| area.is_shared = true).is_some()
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

/// What was read at `at`, with what the program has left of it in such memory.
pub fn put_left(at: u64, bytes: &mut [u8]) {
    each_part(at, bytes.len(), |left, part| {
        bytes.get_mut(part).into_iter().for_each(|there| there.copy_from_slice(left));
    });
}

/// A replay puts these bytes at `at`: that is what the program leaves in such memory.
pub fn is_put(at: u64, bytes: &[u8]) {
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
    areas.iter_mut().find(|area| (area.start..area.end()).contains(&page))
}

/// The thread was stepped over the instruction of [`Access::Once`]: what it has left is known, and its pages are closed again.
pub fn behind(thread: &mut Thread) {
    let pages = core::mem::take(&mut thread.foreign.pages);
    let has_locks = holds_locks();
    let mut areas = AREAS.lock();
    for page in pages.into_iter().filter(|_| !has_locks) {
        if let Some(area) = area_of(&mut areas, page).filter(|area| area.using == 0) {
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
        let found: Vec<_> = differences(&old, &new).map(|(at, bytes)| (at, bytes.len())).collect();
        assert_eq!(found, [(3, 18), (150, 1), (199, 1)]);
    }
}
