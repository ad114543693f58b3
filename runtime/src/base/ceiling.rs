//! Where the program's memory ends. Views of watched threads lie below the memory that they are of, if that leaves room for them. It
//! does not in a program at fixed addresses, which are low: there all lies below a ceiling, and the views lie above it.

use crate::base::{maps, own, sys};
use abi::layout::{page_down, PAGE};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};

/// Where what is kept free for views begins, or 0; the program's stack may lie somewhat above that.
static KEPT_FROM: AtomicU64 = AtomicU64::new(0);
/// Where views begin.
static FIRST_VIEW: AtomicU64 = AtomicU64::new(0);
/// The program's stack.
static STACK: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Its largest size.
pub const MOST_STACK: u64 = 4 << 30;
/// The kernel places nothing so near below a stack, which grows; nor is anything kept there.
pub const GUARD: u64 = 1 << 20;
/// What the program has mapped above nevertheless, as it has asked for that place and no other; so many pieces.
static TAKEN: [[AtomicU64; 2]; PIECES] = [const { [const { AtomicU64::new(0) }; 2] }; PIECES];
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Most such pieces. A program that has more gets no more views.
const PIECES: usize = 64;
/// What a program can map ends here.
pub const END: u64 = 0x7fff_ffff_f000;

/// From here on the kernel finds nothing free from `kept` on, where the program's stack lies, and views may lie behind `first_view`.
pub fn begins(kept: u64, first_view: u64) {
    KEPT_FROM.store(kept, Relaxed);
    FIRST_VIEW.store(first_view, Relaxed);
}

/// Where views may lie, if they lie above the program's memory.
pub fn above() -> Option<Range<u64>> {
    let first = FIRST_VIEW.load(Relaxed);
    // (From there on lies what the runtime has mapped before.)
    (first != 0).then_some(first..own::OWN.start)
}

/// Whether what is mapped there, and can be neither read nor written, only keeps the program's memory away.
pub fn is_kept(range: &Range<u64>) -> bool {
    let from = KEPT_FROM.load(Relaxed);
    from != 0 && range.start >= from
}

/// Whether some of this range is nobody's, as far as the program can tell, but mapped: kept free, or of a view.
pub fn is_nobodys(range: &Range<u64>) -> bool {
    let [start, end] = STACK.each_ref().map(|at| at.load(Relaxed));
    let kept = KEPT_FROM.load(Relaxed);
    let meets = |free: &Range<u64>| range.start < free.end && free.start < range.end;
    kept != 0 && [kept..start - GUARD, end..END].iter().any(meets) && !is_taken(range)
}

/// Whether nothing is in all of this range, but that it is kept free.
pub fn has_nothing(range: &Range<u64>) -> bool {
    let has_it = |&(start, end): &(u64, u64)| start <= range.start && range.end <= end;
    if !is_kept(range) {
        return false;
    }
    // A process of many pieces asks for each of many: reading the whole list was a tenth of some programs' time.
    if let Some((piece, is_nothing)) = maps::piece_from(range.start) {
        return is_nothing && has_it(&(piece.start, piece.end));
    }
    let all = maps::read().unwrap_or_default();
    all.split(|&byte| byte == b'\n').filter_map(nothing).any(|r| has_it(&r))
}

/// The program has mapped something there. One thread at a time says so.
pub fn takes(range: &Range<u64>) {
    let has_it = |piece: Range<u64>| piece.start <= range.start && range.end <= piece.end;
    if !is_kept(range) || taken().any(has_it) {
        return;
    }
    let count = COUNT.load(Relaxed);
    let Some([start, end]) = TAKEN.get(count) else {
        return FIRST_VIEW.store(0, Relaxed);
    };
    start.store(range.start, Relaxed);
    end.store(range.end, Relaxed);
    COUNT.store(count + 1, Release);
}

/// Whether the program has mapped something in this range, which is kept free for views.
pub fn is_taken(range: &Range<u64>) -> bool {
    taken().any(|piece| piece.start < range.end && range.start < piece.end)
}

fn taken() -> impl Iterator<Item = Range<u64>> {
    let pieces = TAKEN.iter().take(COUNT.load(Acquire));
    pieces.map(|[start, end]| start.load(Relaxed)..end.load(Relaxed))
}

/// The address space, or what is locked of it, is about to have a limit, and what is kept free would count: no view can be any more.
pub fn gives_up() {
    if FIRST_VIEW.swap(0, Relaxed) != 0 {
        release(KEPT_FROM.swap(0, Relaxed));
    }
}

/// What is kept free from `kept` on is not any more.
pub fn release(kept: u64) {
    let Some(maps) = maps::read() else { return };
    let all = maps.split(|&byte| byte == b'\n').filter_map(nothing);
    for (start, end) in all.filter(|&(start, _)| start >= kept) {
        // SAFETY: nothing is there.
        let _ = unsafe { sys::call(sys::nr::MUNMAP, &[start as usize, (end - start) as usize]) };
    }
}

/// Maps memory for the program's stack, which ends at `end` and may grow to `len` bytes. All of that is there from the start: where the
/// stack could grow, the kernel would place other things. Returns where it begins.
pub fn map_stack(end: u64, len: u64) -> Result<u64, i32> {
    let from = end - len;
    map_growing(from, len)?;
    STACK[1].store(end, Relaxed);
    STACK[0].store(from, Relaxed);
    Ok(from)
}

/// The stack may have `len` bytes from now on, or what it has used already.
pub fn limit_stack(len: u64) {
    let [start, end] = STACK.each_ref().map(|at| at.load(Relaxed));
    if KEPT_FROM.load(Relaxed) == 0 {
        return;
    }
    // (The kernel lets it grow by whole pages.)
    let from = end.saturating_sub(page_down(len.min(MOST_STACK)));
    let from = if from > start { first_used(start..from) } else { from };
    let done = match from < start {
        true => give(from - GUARD..start) && map_growing(from, start - from).is_ok(),
        false => keep(start - GUARD..from - GUARD) && give(from - GUARD..from),
    };
    if done {
        STACK[0].store(from, Relaxed);
    }
}

/// Nothing is there any more, and it is kept free. False if the kernel refuses.
fn keep(range: Range<u64>) -> bool {
    range.is_empty() || own::keep_free(range.start, range.end - range.start) == 0
}

/// Nothing is kept there any more. False if the kernel refuses.
fn give(range: Range<u64>) -> bool {
    let args = [range.start as usize, (range.end - range.start) as usize];
    // SAFETY: kept free for this, or of the stack, and not used.
    unsafe { sys::call(sys::nr::MUNMAP, &args) }.is_ok()
}

/// The first page in the range that is in memory, or its end.
fn first_used(range: Range<u64>) -> u64 {
    const MINCORE: usize = 27;
    const PAGES: u64 = 1024;
    let mut at = range.start;
    while at < range.end {
        let mut there = [0u8; PAGES as usize];
        let len = (range.end - at).min(PAGES * PAGE);
        // SAFETY: the kernel writes a byte for each page.
        let asked = unsafe {
            sys::call(MINCORE, &[at as usize, len as usize, there.as_mut_ptr() as usize])
        };
        let first = there.iter().position(|&byte| byte & 1 != 0);
        match (asked, first) {
            (Err(_), _) => return at,
            (Ok(_), Some(first)) => return at + first as u64 * PAGE,
            (Ok(_), None) => at += len,
        }
    }
    range.end
}

fn map_growing(from: u64, len: u64) -> Result<u64, i32> {
    const MAP_GROWSDOWN: usize = 0x100;
    let flags = own::KEPT_FREE | MAP_GROWSDOWN | sys::MAP_FIXED_NOREPLACE;
    // SAFETY: NOREPLACE: nothing is there.
    unsafe { sys::mmap(from, len, sys::PROT_READ | sys::PROT_WRITE, flags, -1, 0) }
}

/// The range in a line of what is mapped, if nothing can be there.
fn nothing(line: &[u8]) -> Option<(u64, u64)> {
    let mut words = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    let is_bare = words.nth(1) == Some(b"---p") && words.nth(2) == Some(b"0");
    maps::range(line).filter(|_| is_bare)
}
