//! The program's memory of which views have a copy: what the kernel places, the stack, the window, and what the program
//! asks for elsewhere, far away from all that, as allocators do that choose addresses by chance.

use crate::base::facts::facts;
use crate::base::lock::{Forked, Lock};
use crate::base::{ceiling, maps, sys};
use abi::layout::{page_down, page_up, PAGE, WINDOW_SIZE};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};

/// So much is covered from the start on of where the kernel places what the program maps: from the top downwards.
const AREA: u64 = 12 << 30;
/// And above that so far: there lies what was mapped earlier.
const MARGIN: u64 = 4 << 30;
/// And so much below the stack pointer that the program begins with, and behind its stack, where the kernel places the
/// vdso.
const STACK: u64 = 8 << 30;
const BEHIND_STACK: u64 = 1 << 30;
/// Where addresses end.
const END: u64 = 0x8000_0000_0000;
/// Pieces elsewhere lie above this: there would be room for few views, or none, below what lies lower.
pub const LOWEST_PIECE: u64 = 1 << 39;
/// Pieces are as large as the gap that they lie in, up to multiples of these: there are few then.
const ROUNDED_TO: [u64; 3] = [4 << 30, 1 << 30, PAGE];
/// Most pieces elsewhere, and how many are many.
const PIECES: usize = 128;
const MANY: usize = 24;
/// Most views.
const VIEWS: usize = 1024;

/// Where the kernel places what the program maps.
static PLACED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Where the first stack lies: from where to where.
static STACK_AT: [AtomicU64; 2] = [const { AtomicU64::new(END) }; 2];
/// First bytes of pieces elsewhere, and first bytes behind; so many.
static ELSEWHERE: [[AtomicU64; 2]; PIECES] = [const { [const { AtomicU64::new(0) }; 2] }; PIECES];
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The distances of the views in use, or 0. Who gives a view, takes it back, or adds a piece has the lock.
static IN_USE: [AtomicU64; VIEWS] = [const { AtomicU64::new(0) }; VIEWS];
static CHANGE: Lock<()> = Lock::new(());

/// Finds out where the program's memory is; the part of the stack that the kernel has made is `stack`. In front of the
/// first view.
pub fn place(stack: &Range<u64>) {
    const FLAGS: usize = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE;
    let below = page_down(stack.start.saturating_sub(STACK));
    let behind = page_up(stack.end).saturating_add(BEHIND_STACK).min(END);
    // The kernel takes the topmost place that is free.
    // SAFETY: new memory, which is given back.
    let free = unsafe { sys::mmap(0, PAGE, sys::PROT_READ, FLAGS, -1, 0) };
    if let Ok(at) = free {
        // SAFETY: mapped here.
        let _ = unsafe { sys::call(sys::nr::MUNMAP, &[at as usize, PAGE as usize]) };
    }
    let window = facts().window..facts().window + WINDOW_SIZE;
    let top = (free.unwrap_or(0).max(window.end) + MARGIN).min(below);
    let mut start = top.saturating_sub(AREA);
    if window.end > start && window.start < top {
        start = start.min(window.start);
    }
    for (to, at) in PLACED.iter().chain(&STACK_AT).zip([start, top, below, behind]) {
        to.store(at, Relaxed);
    }
}

/// All of it: what the kernel places, the stack, which may lie right above that, the window, which may lie in there, and
/// pieces elsewhere. None overlaps another.
pub fn covered() -> impl Iterator<Item = Range<u64>> {
    let [start, end] = PLACED.each_ref().map(|at| at.load(Relaxed));
    let [stack, behind] = STACK_AT.each_ref().map(|at| at.load(Relaxed));
    let window = facts().window..facts().window + WINDOW_SIZE;
    let (placed, stack) = match end < stack {
        true => (start..end, Some(stack..behind)),
        false => (start..behind, None),
    };
    let window = Some(window).filter(|window| window.end <= start);
    [Some(placed), stack, window].into_iter().flatten().chain(pieces())
}

fn pieces() -> impl Iterator<Item = Range<u64>> {
    let pieces = ELSEWHERE.iter().take(COUNT.load(Acquire));
    pieces.map(|[start, end]| start.load(Relaxed)..end.load(Relaxed))
}

/// Whether memory lies at many places.
pub fn is_spread() -> bool {
    COUNT.load(Relaxed) >= MANY
}

/// Whether views have a place for all of this memory.
#[inline(never)]
pub fn covers(at: u64, len: u64) -> bool {
    let end = at.saturating_add(len);
    let mut from = at;
    // (It may lie in pieces that touch.)
    while let Some(range) = covered().find(|range| range.contains(&from)) {
        if end <= range.end {
            return true;
        }
        from = range.end;
    }
    false
}

/// Nobody else gives a view, takes one back, or adds a piece.
pub fn change() -> impl Sized {
    CHANGE.lock()
}

/// A view at this distance is in use from now on; false if there are too many. The lock is held ([`change`]).
pub fn begins(distance: u64) -> bool {
    let free = IN_USE.iter().find(|view| view.load(Relaxed) == 0);
    free.is_some_and(|view| {
        view.store(distance, Relaxed);
        true
    })
}

/// The distances of all views in use.
fn views() -> impl Iterator<Item = u64> {
    IN_USE.iter().map(|view| view.load(Relaxed)).filter(|&distance| distance != 0)
}

/// The places of all views in use.
pub fn places() -> impl Iterator<Item = Range<u64>> {
    views().flat_map(places_at)
}

/// The places of a view at this distance.
pub fn places_at(distance: u64) -> impl Iterator<Item = Range<u64>> {
    covered().map(move |range| place_at(&range, distance))
}

/// The place of a range in a view at this distance, which is downwards.
fn place_at(range: &Range<u64>, distance: u64) -> Range<u64> {
    range.start.wrapping_sub(distance)..range.end.wrapping_sub(distance)
}

/// Whether a view in use has a place there.
pub fn is_used(place: &Range<u64>) -> bool {
    places().any(|used| used.start < place.end && place.start < used.end)
}

/// Whether a view at this distance is in use.
pub fn has_begun(distance: u64) -> bool {
    views().any(|view| view == distance)
}

/// It is not any more.
pub fn ends(distance: u64) {
    if let Some(view) = IN_USE.iter().find(|view| view.load(Relaxed) == distance) {
        view.store(0, Relaxed);
    }
}

/// `at..at + len` is covered from now on, if `map` maps the places of what was not in each view, given where they are;
/// else `unmap` takes back what was mapped. False if it cannot be. The lock is held ([`change`]).
pub fn add(
    at: u64,
    len: u64,
    map: impl Fn(Range<u64>) -> bool,
    unmap: impl Fn(Range<u64>),
) -> bool {
    let end = at.saturating_add(page_up(len));
    let mut from = at;
    while from < end {
        if let Some(range) = covered().find(|range| range.contains(&from)) {
            from = range.end;
            continue;
        }
        let before = covered().map(|range| range.end).filter(|&behind| behind <= from).max();
        let next = covered().map(|range| range.start).filter(|&start| start > from).min();
        // (Where views lie above, all lies below them.)
        let least = if ceiling::above().is_some() { 0 } else { LOWEST_PIECE };
        let (lowest, highest) = (before.unwrap_or(0).max(least), next.unwrap_or(END).min(END));
        let to = end.min(highest);
        if from < lowest {
            return false;
        }
        let is_added = ROUNDED_TO.iter().any(|to_multiple| {
            let start = (from / to_multiple * to_multiple).max(lowest);
            let behind = to.next_multiple_of(*to_multiple).min(highest);
            add_piece(start..behind, &map, &unmap)
        });
        if !is_added {
            return false;
        }
        from = to;
    }
    true
}

/// Covers a piece, no part of which is covered.
fn add_piece(
    piece: Range<u64>,
    map: impl Fn(Range<u64>) -> bool,
    unmap: impl Fn(Range<u64>),
) -> bool {
    let count = COUNT.load(Relaxed);
    let Some([first, behind]) = ELSEWHERE.get(count) else { return false };
    let place = |distance| place_at(&piece, distance);
    // No place of it may lie in that of another view.
    let len = piece.end - piece.start;
    let is_near = |one: u64| views().any(|other| one != other && one.abs_diff(other) < len);
    if views().any(is_near) {
        return false;
    }
    for (done, distance) in views().enumerate() {
        if !map(place(distance)) {
            views().take(done).map(place).for_each(unmap);
            return false;
        }
    }
    first.store(piece.start, Relaxed);
    behind.store(piece.end, Relaxed);
    COUNT.store(count + 1, Release);
    true
}

/// There is no view yet: pieces where nothing is mapped any more go.
pub fn forget_unmapped() {
    let _change = CHANGE.lock();
    if COUNT.load(Relaxed) == 0 {
        return;
    }
    let Some(maps) = maps::read() else { return };
    let mut kept = 0;
    for piece in pieces() {
        if !maps::mapped_in(&maps, piece.clone()).is_empty() {
            if let Some([first, behind]) = ELSEWHERE.get(kept) {
                first.store(piece.start, Relaxed);
                behind.store(piece.end, Relaxed);
            }
            kept += 1;
        }
    }
    COUNT.store(kept, Release);
}

/// In the only thread of a forked child, which has inherited no view.
pub fn forked(forked: &Forked) {
    CHANGE.force_unlock(forked);
    IN_USE.iter().filter(|view| view.load(Relaxed) != 0).for_each(|view| view.store(0, Relaxed));
}
