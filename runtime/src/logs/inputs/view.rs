//! Watched threads: each has a view, a copy of what it believes memory to be, at a distance of its own.
//!
//! A view is all zero at first. The thread's stores go there, and what the kernel writes for it; what it
//! sees and has not stored itself is put there when it is seen, and noted ([`Event::Seen`]). So the view
//! is at each moment what the memory of a replay is that has nothing but this thread.

use crate::base::ceiling;
use crate::base::census;
use crate::base::facts::facts;
use crate::base::last_words::Line;
use crate::base::lock::Forked;
use crate::base::own::{keep_free, own_range, KEPT_FREE};
use crate::base::program::is_mapped;
use crate::base::sys::{self, nr};
use crate::logs::inputs::covered::{self, covered, covers};
use crate::logs::inputs::unfollowed::unfollowed;
use crate::logs::inputs::{regions, stamps};
use crate::logs::moment::Call;
use crate::thread::Thread;
use abi::event::{Event, Moment, WHOLE_UNIT};
use abi::ids::LiveAddr;
use abi::layout::{page_up, tables, PAGE};
use abi::options::Options;
use alloc::vec::Vec;
use core::fmt::Write;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

const MADV_DONTNEED: usize = 4;
const MADV_DONTFORK: usize = 10;

/// Views lie at multiples of this below the program's memory, or above a [ceiling].
const STEP: u64 = 16 << 30;
/// At each so many of them, as long as there are enough.
const APART: [u64; 3] = [18, 6, 1];
/// Those that are taken first lie so far below. Programs that choose addresses by chance reserve up to some TiB in one
/// piece, in which no view of a part of it can lie; and what lies lower than its view is far away cannot be covered.
const FIRST: Range<u64> = 3 << 39..4 << 40;
/// No view lies below: programs ask for memory there.
const LOW: u64 = 4 << 30;

/// Threads are serial. The only one of a process gets a view if others may write to its memory.
static ONLY_IF_SHARED: AtomicBool = AtomicBool::new(false);
/// A thread has a filter of system calls.
static IS_FILTERED: AtomicBool = AtomicBool::new(false);
/// All that is mapped is locked in memory: views are much.
static LOCKS_ALL: AtomicBool = AtomicBool::new(false);
/// A thread has got a view.
static BEGUN: AtomicBool = AtomicBool::new(false);
/// Nobody else writes to the memory of the thread, or of the serial threads: there is no view yet.
static WAITS: AtomicBool = AtomicBool::new(false);
/// Somebody else may write to it from the call on that is under way.
static WANTED: AtomicBool = AtomicBool::new(false);
/// Memory that was mapped meanwhile, and of which no view has a place.
static ELSEWHERE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Memory that was mapped by the call that is under way, and of which no view has a place; else 0.
static UNCOVERED: AtomicU64 = AtomicU64::new(0);
/// There is memory of which no view has a place: no thread is watched any more.
static GAVE_UP: AtomicBool = AtomicBool::new(false);

/// Whether the threads of this process have views, or will have.
pub fn may_be_watched() -> bool {
    let options = facts().options;
    (options.recording.watches() || only_if_shared()) && !options.process.replays
}

/// Whether threads are serial, and only a process of one thread, whose memory others may write to, is watched.
pub fn only_if_shared() -> bool {
    ONLY_IF_SHARED.load(Relaxed)
}

/// That is so. The program has not started.
pub fn begins_if_shared() {
    ONLY_IF_SHARED.store(true, Relaxed);
}

/// Whether a thread of the process has had a view: the others have, too.
pub fn have_begun() -> bool {
    BEGUN.load(Relaxed)
}

/// Whether a process of one thread, or of serial ones, could be watched from here on, as far as can be told, if others
/// may write to its memory.
pub fn may_begin(thread: &Thread) -> bool {
    !only_if_shared() || has_means(thread) && has_room()
}

/// Whether the runtime may map much, and nobody forbids it the calls that it takes.
pub fn has_means(thread: &Thread) -> bool {
    // What a filter of system calls makes of those that a view takes is not known.
    let is_filtered = thread.filter != 0 || thread.kernel_filter != 0 || IS_FILTERED.load(Relaxed);
    !is_filtered && !LOCKS_ALL.load(Relaxed) && !sys::address_space_is_limited()
}

/// A thread has got a filter of system calls: others that wait may have one.
pub fn has_filter() {
    IS_FILTERED.store(true, Relaxed);
}

/// Whether there is address space for a view of each thread.
fn has_room() -> bool {
    let _change = covered::change();
    let threads = census::live() as usize;
    let free: Vec<u64> = distances().filter(|&distance| map(distance)).take(threads).collect();
    free.iter().for_each(|&distance| unmap_all(distance));
    free.len() == threads
}

/// The options that describe the process: whether its threads are watched.
pub fn described() -> Options {
    match have_begun() && only_if_shared() {
        true => facts().options.watching(),
        false => facts().options,
    }
}

/// Whether the threads of this process have views.
pub fn is_watched() -> bool {
    may_be_watched() && !waits() && !gave_up()
}

/// Whether this thread has a view: the others may have given theirs up already.
pub fn has(thread: &Thread) -> bool {
    thread.block.view != 0
}

fn gave_up() -> bool {
    GAVE_UP.load(Acquire)
}

/// Whether threads will have views, and the only one has none yet.
pub fn waits() -> bool {
    WAITS.load(Relaxed)
}

/// The program starts, and its thread has no view yet.
pub fn wait() {
    WAITS.store(true, Relaxed);
}

/// What the thread that waits sees is no longer its own alone, behind the call that it is making.
pub fn want() {
    WANTED.store(true, Relaxed);
}

/// Whether that was said.
pub fn is_wanted() -> bool {
    waits() && WANTED.load(Relaxed)
}

/// The options of the code in use.
pub fn options() -> Options {
    let options = facts().options;
    match (waits() || gave_up(), only_if_shared()) {
        (true, true) | (false, false) => options,
        (true, false) => options.plain(),
        (false, true) => options.watching(),
    }
}

/// Memory of the program's of which views have no place, if there is any.
pub fn uncovered() -> Option<u64> {
    let [at, end] = ELSEWHERE.each_ref().map(|at| at.load(Relaxed));
    (at != end && is_mapped(at)).then_some(at)
}

/// Whether the only thread of the process, which waits, can be watched. If not, nobody ever is.
pub fn can_begin(thread: &mut Thread) -> bool {
    covered::forget_unmapped();
    let Some(at) = uncovered() else { return true };
    say_uncovered(thread, at);
    GAVE_UP.store(true, Release);
    WAITS.store(false, Relaxed);
    false
}

/// The first thread of the process that has a view gets it, in the runtime.
pub fn begin(thread: &mut Thread) {
    BEGUN.store(true, Relaxed);
    WAITS.store(false, Relaxed);
    if !join(thread) {
        crate::die!("no address space for the view of a watched thread: use --threads serial");
    }
}

/// The thread, which has run without one and is in the runtime, gets its view. False if there is no address space.
#[must_use]
pub fn join(thread: &mut Thread) -> bool {
    thread.block.program_fs = thread.fs_base();
    let has_one = take(thread);
    if has_one {
        enter(thread);
    }
    has_one
}

fn say_uncovered(thread: &mut Thread, at: u64) {
    let mut why = Line::new();
    let _ = write!(why, "memory is mapped at {at:#x}, where watched threads cannot see it");
    unfollowed(thread, core::str::from_utf8(why.text()).unwrap_or("memory is mapped elsewhere"));
}

/// Whether the thread's call has mapped memory of which views have no place. That has been said, and is
/// forgotten.
pub fn is_uncovered(thread: &mut Thread) -> bool {
    // (A look costs less than an exchange.)
    let at = if UNCOVERED.load(Relaxed) == 0 { 0 } else { UNCOVERED.swap(0, Relaxed) };
    if at == 0 || !is_watched() {
        return false;
    }
    say_uncovered(thread, at);
    true
}

/// No thread is watched from here on. False if that is so already.
pub fn give_up() -> bool {
    !GAVE_UP.swap(true, AcqRel)
}

/// The process, if it has no views yet, never gets one.
pub fn never_begins() {
    if WAITS.swap(false, Relaxed) {
        GAVE_UP.store(true, Release);
    }
}

/// The thread, which is in the runtime and goes on in code that does not watch, gives up its view if there are none any
/// more.
pub fn leave(thread: &mut Thread) {
    if gave_up() && has(thread) {
        unfollowed(thread, "the threads of the process are not watched any more");
        set_fs(thread.block.program_fs);
        release(thread);
    }
}

/// The thread's call has mapped memory there, which views may not cover.
pub fn lies_at(at: u64, len: u64) {
    match may_be_watched() && !gave_up() && !comes_to_be_covered(at, len) {
        false => {}
        true if waits() => {
            let [start, end] = &ELSEWHERE;
            start.store(at, Relaxed);
            end.store(at.saturating_add(len), Relaxed);
        }
        true => UNCOVERED.store(at, Relaxed),
    }
}

/// Whether views have a place for all of this memory, or get it.
#[inline(never)]
fn comes_to_be_covered(at: u64, len: u64) -> bool {
    if covers(at, len) {
        return true;
    }
    let _change = covered::change();
    // (Another thread may have been here.)
    covers(at, len) || covered::add(at, len, |place| is_free(&place) && map_place(place), unmap)
}

/// The call, which has returned `result`, may have mapped memory: where a view has no place of it, no thread is watched
/// any more.
pub fn follow(call: &Call, result: usize) {
    const MLOCKALL: usize = 151;
    const MCL_FUTURE: usize = 2;
    regions::note(call, result);
    if let (nr::MMAP | nr::MREMAP, Ok(at)) = (call.number, sys::check(result)) {
        let at = at as u64;
        let len = if call.number == nr::MMAP { call.args[1] } else { call.args[2] };
        let range = at..at.saturating_add(page_up(len as u64));
        if ceiling::is_kept(&range) {
            let _change = covered::change();
            ceiling::takes(&range);
        }
    }
    let may_be_watched = may_be_watched() && !gave_up();
    let (true, Ok(at)) = (may_be_watched, sys::check(result)) else { return };
    let [first, second, third, fourth, ..] = call.args;
    match call.number {
        // What is only reserved nobody reaches until a part of it gets rights.
        nr::MMAP if third == 0 => {}
        nr::MPROTECT | nr::PKEY_MPROTECT if third != 0 => lies_at(first as u64, second as u64),
        MLOCKALL if call.args[0] & MCL_FUTURE != 0 => LOCKS_ALL.store(true, Relaxed),
        nr::MMAP | nr::MREMAP => {
            let len = if call.number == nr::MMAP { second } else { third };
            lies_at(at as u64, len as u64);
            // (Memory without a file is shared with a child that is forked, which is looked at there.)
            let is_of_others = fourth & sys::MAP_SHARED != 0 && fourth & sys::MAP_ANONYMOUS == 0;
            let waits = waits() && !only_if_shared();
            if waits && call.number == nr::MMAP && is_of_others && third & sys::PROT_WRITE != 0 {
                want();
            }
        }
        _ => {}
    }
}

/// The calling thread's fs base leads to its view from here on.
pub fn enter(thread: &Thread) {
    if has(thread) {
        set_fs(thread.block.view);
    } else if gave_up() {
        // The thread that has made it may have had a view still.
        set_fs(thread.block.program_fs);
    }
}

fn set_fs(base: u64) {
    // SAFETY: no code of ours uses fs, and it is the program's base or the distance of a view. The processor has the
    // instruction ([`has_fsgsbase`]).
    unsafe {
        core::arch::asm!("wrfsbase {}", in(reg) base, options(nostack, nomem, preserves_flags));
    }
}

/// Whether threads may set their fs base themselves, as the kernel says in the auxiliary vector.
pub fn has_fsgsbase(mut vector: impl Iterator<Item = [u64; 2]>) -> bool {
    const AT_HWCAP2: u64 = 26;
    const FSGSBASE: u64 = 2;
    vector.find(|entry| entry[0] == AT_HWCAP2).is_some_and(|entry| entry[1] & FSGSBASE != 0)
}

/// How far views may lie from the program's memory, downwards ([`take`]), in the order in which they are tried: first so that
/// there is room for more of it, then closer together.
fn distances() -> impl Iterator<Item = u64> {
    let lowest = covered().map(|range| range.start).min().unwrap_or(0);
    let highest = covered().map(|range| range.end).max().unwrap_or(0);
    let above = ceiling::above();
    let is_above = above.is_some();
    let (least, most) = match above {
        Some(room) => (room.start, room.end.saturating_sub(highest)),
        None => (0, lowest.saturating_sub(LOW)),
    };
    let apart =
        move |n: u64| (1..).map(move |i| least + i * n * STEP).take_while(move |&far| far <= most);
    let is_first = move |far: &u64| !is_above && FIRST.contains(far);
    let first = APART.into_iter().take(2).flat_map(apart).filter(is_first);
    let all = first.chain(APART.into_iter().flat_map(apart));
    all.map(move |far| if is_above { far.wrapping_neg() } else { far })
}

/// Gives the thread a view. False if there is no address space for it.
#[must_use]
pub fn take(thread: &mut Thread) -> bool {
    if !is_watched() {
        return true;
    }
    let _change = covered::change();
    let Some(distance) = distances().find(|&distance| map(distance)) else { return false };
    if !covered::begins(distance) {
        unmap_all(distance);
        return false;
    }
    thread.block.view = distance.wrapping_neg();
    thread.block.view_back = distance;
    true
}

/// Maps a view at this distance, if all of it is free there, and is not where the program's memory may be.
fn map(distance: u64) -> bool {
    let places = || covered::places_at(distance);
    if covered::has_begun(distance) || !places().all(|place| is_free(&place)) {
        return false;
    }
    for (done, place) in places().enumerate() {
        if !map_place(place) {
            places().take(done).for_each(unmap);
            return false;
        }
    }
    true
}

/// Whether neither the program's memory may lie there nor the runtime's, which maps its own and the tables as it needs them.
#[inline(never)]
fn is_free(place: &Range<u64>) -> bool {
    let mut kept = covered().chain([own_range(), tables(true), tables(false)]);
    let is_within = match ceiling::above() {
        Some(_) => is_kept_free(place),
        None => place.start >= LOW,
    };
    is_within
        && place.start < place.end
        && kept.all(|r| place.end <= r.start || r.end <= place.start)
}

/// Whether a wish for memory at `at`, which the kernel need not fulfil, had better not be followed: views would have no place
/// of it, or the program has had many such wishes.
pub fn is_out_of_reach(at: u64, len: u64) -> bool {
    /// What is larger is a reservation, of which parts are used.
    const MOST: u64 = 64 << 30;
    /// Who wants less may need addresses of few bits, or ask for the same one in each run.
    const ANYWHERE: u64 = (64 << 30) + 1;
    /// Wishes that lie so far from each other, so many of them, are those of an allocator that chooses by chance, and needs no
    /// address.
    const FAR: u64 = 1 << 40;
    const BY_CHANCE: u32 = 2;
    /// Below what lies lower there is no room for the views of many threads.
    const ROOMY: u64 = 16 << 40;
    static LAST: AtomicU64 = AtomicU64::new(0);
    static APART: AtomicU32 = AtomicU32::new(0);
    let is_high = at >= covered::LOWEST_PIECE;
    if (waits() || is_watched()) && is_high && LAST.swap(at, Relaxed).abs_diff(at) > FAR {
        APART.fetch_add(1, Relaxed);
    }
    let lacks_room = match APART.load(Relaxed) < BY_CHANCE {
        true => ANYWHERE..covered::LOWEST_PIECE,
        false => LOW..ROOMY,
    };
    let is_one_of_many = ceiling::above().is_some() && covered::is_spread() && !covers(at, len);
    let is_too_low =
        ceiling::above().is_none() && (waits() || is_watched()) && lacks_room.contains(&at);
    let is_wish = is_watched() && is_high;
    is_one_of_many || len <= MOST && (is_too_low || is_wish && !comes_to_be_covered(at, len))
}

/// Whether nothing is in this range, but that it is kept free for views.
pub fn is_kept_free(range: &Range<u64>) -> bool {
    let is_within =
        ceiling::above().is_some_and(|room| room.start <= range.start && range.end <= room.end);
    is_within && !ceiling::is_taken(range) && !covered::is_used(range)
}

/// Maps a part of a view; false if something lies there.
fn map_place(place: Range<u64>) -> bool {
    let how = match ceiling::above() {
        // It is kept free.
        Some(_) => sys::MAP_FIXED,
        None => sys::MAP_FIXED_NOREPLACE,
    };
    let flags = KEPT_FREE | how;
    let (at, len) = (place.start, place.end - place.start);
    // SAFETY: nothing is replaced.
    let mapped = unsafe { sys::mmap(at, len, sys::PROT_READ | sys::PROT_WRITE, flags, -1, 0) };
    if mapped != Ok(at) {
        return false;
    }
    // A forked process has one thread, which begins with another view.
    // SAFETY: the view alone.
    let _ = unsafe { sys::call(nr::MADVISE, &[at as usize, len as usize, MADV_DONTFORK]) };
    true
}

/// Gives all of a view back.
fn unmap_all(distance: u64) {
    covered::places_at(distance).for_each(unmap);
}

/// Gives a part of a view back, which nobody uses any more.
fn unmap(place: Range<u64>) {
    let len = place.end - place.start;
    if ceiling::above().is_some() {
        keep_free(place.start, len);
        return;
    }
    let args = [place.start as usize, len as usize];
    // SAFETY: of a view that is no thread's.
    let _ = unsafe { sys::call(nr::MUNMAP, &args) };
}

/// The thread needs its view no longer.
pub fn release(thread: &mut Thread) {
    let distance = core::mem::take(&mut thread.block.view_back);
    if distance == 0 {
        return;
    }
    let _change = covered::change();
    covered::ends(distance);
    unmap_all(distance);
    thread.block.view = 0;
}

/// Nothing is in the thread's view any more.
pub fn empty(thread: &Thread) {
    let distance = thread.block.view_back;
    if distance == 0 {
        return;
    }
    for place in covered::places_at(distance) {
        let (at, len) = (place.start, place.end - place.start);
        let args = [at as usize, len as usize, MADV_DONTNEED];
        // SAFETY: the thread's view, of which nobody has a slice.
        if unsafe { sys::call(nr::MADVISE, &args) }.is_err() {
            crate::die!("the view of a watched thread cannot be emptied: use --threads serial");
        }
    }
}

/// In the only thread of a forked child, which has inherited no view.
pub fn forked(thread: &mut Thread, forked: &Forked) {
    if ceiling::above().is_some() {
        // What was not inherited is kept free again.
        covered::places().for_each(unmap);
    }
    covered::forked(forked);
    let had_one = has(thread);
    (thread.block.view, thread.block.view_back) = (0, 0);
    if gave_up() {
        if had_one {
            set_fs(thread.block.program_fs);
        }
        return;
    }
    if !take(thread) {
        crate::die!("no address space for the view of a forked process: use --threads serial");
    }
    enter(thread);
}

/// What the thread has at `at` in its view, if that is covered.
pub fn bytes(thread: &Thread, at: u64, len: u64) -> Option<&[u8]> {
    if thread.block.view == 0 || !covers(at, len) {
        return None;
    }
    let place = at.wrapping_add(thread.block.view);
    // SAFETY: in the thread's view, which is mapped, and which nobody else uses.
    Some(unsafe { core::slice::from_raw_parts(place as *const u8, len as usize) })
}

/// Puts bytes into the thread's view; false if it has no place for them.
pub fn put(thread: &mut Thread, at: u64, bytes: &[u8]) -> bool {
    if thread.block.view == 0 || !covers(at, bytes.len() as u64) {
        return false;
    }
    let place = at.wrapping_add(thread.block.view);
    // SAFETY: as above; the bytes are none of the view.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), place as *mut u8, bytes.len()) };
    true
}

/// The instruction at `pc` sees these bytes, which lie in one page: those that are not in the view are noted,
/// and put there.
pub fn sees(thread: &mut Thread, pc: u64, at: u64, seen: &[u8]) {
    debug_assert!(at % PAGE + seen.len() as u64 <= PAGE);
    let Some(known) = bytes(thread, at, seen.len() as u64) else { return };
    if is_equal(known, seen) {
        return;
    }
    let differs = |i: &usize| known.get(*i) != seen.get(*i);
    let Some(first) = (0..seen.len()).find(differs) else { return };
    let last = (first..seen.len()).rev().find(differs).unwrap_or(first);
    let Some(new) = seen.get(first..=last) else { return };
    let (address, rcx) = (at + first as u64, thread.block.registers.gpr[1]);
    put(thread, address, new);
    // Whoever has stored it did so by now.
    stamps::stamp(thread, pc, Moment::Sees);
    let event = Event::Seen { pc: LiveAddr(pc), rcx, address: LiveAddr(address), bytes: new };
    thread.event(WHOLE_UNIT, &event);
}

/// Whether these are the same bytes, looked at by the word.
pub fn is_equal(one: &[u8], other: &[u8]) -> bool {
    let (words, rest) = one.as_chunks::<8>();
    let (others, other_rest) = other.as_chunks::<8>();
    one.len() == other.len()
        && words.iter().zip(others).all(|(a, b)| u64::from_ne_bytes(*a) == u64::from_ne_bytes(*b))
        && rest == other_rest
}
