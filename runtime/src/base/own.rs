//! Memory of the runtime's own, and room that is kept free.

use crate::base::maps;
use crate::base::replaying::is_replay;
use crate::base::sys;
use abi::layout::{page_up, PAGE};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Where the runtime's own memory lies: below all that the kernel chooses for the program, which
/// runs over the ends of its arrays and uses memory that it has given back. Where it has given some
/// back there must be nothing then, as natively. (ThreadSanitizer expects nothing much further down.)
pub const OWN: core::ops::Range<u64> = 0x7e80_0000_0000..0x7ec0_0000_0000;

/// Where it lies in this process: [`OWN`], or in a replay where the recorded program had nothing.
static START: AtomicU64 = AtomicU64::new(OWN.start);
static END: AtomicU64 = AtomicU64::new(OWN.end);

/// What is next, relative to the start of that: of little memory, and of [much](MUCH).
///
/// What the runtime uses all the time is little, and lies side by side: a fork makes a page table for each
/// 2 MiB in which something was written.
static NEXT: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// From so many bytes on it is much.
const MUCH: u64 = 2 << 20;

/// From here on the runtime's memory lies in `range`.
pub fn choose(range: core::ops::Range<u64>) {
    if range != own_range() {
        START.store(range.start, Relaxed);
        END.store(range.end, Relaxed);
        NEXT.iter().for_each(|next| next.store(0, Relaxed));
    }
}

/// Where the runtime's own memory lies.
pub fn own_range() -> core::ops::Range<u64> {
    START.load(Relaxed)..END.load(Relaxed)
}

/// Memory from which requests are met when the kernel has none: as a program has used up its address space,
/// its mappings or its limits. Start of what is left, and end.
static SPARE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// As much as all requests of a program that cannot get memory itself take.
const SPARE_LEN: u64 = 16 << 20;

/// Keeps memory for when there is none any more. To be called before the program starts.
pub fn keep_spare() {
    let len = if sys::address_space_is_limited() { SPARE_LEN / 4 } else { SPARE_LEN };
    if let Ok(at) = anonymous(len) {
        SPARE[1].store(at + len, Relaxed);
        SPARE[0].store(at, Relaxed);
    }
}

fn spare(len: u64) -> Option<u64> {
    let [start, end] = &SPARE;
    let end = end.load(Relaxed);
    let fits = |at: u64| at.checked_add(len).filter(|&next| next <= end);
    start.fetch_update(Relaxed, Relaxed, fits).ok()
}

/// Room that is kept free for the runtime, once the program has come to where its memory lies: the start of what
/// is left, and the end.
static KEPT: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// More than threads, traces and translations of libraries need.
const MOST_KEPT: u64 = 32 << 30;

/// Where room is kept free for the runtime, if it is.
pub fn kept() -> core::ops::Range<u64> {
    KEPT[0].load(Relaxed)..KEPT[1].load(Relaxed)
}

/// Keeps room free for the runtime: the kernel places the program's memory among its own. False if there is
/// some already.
pub fn keep_room() -> bool {
    if !kept().is_empty() || is_replay() {
        return false;
    }
    let range = own_range();
    let mut len = MOST_KEPT;
    while len >= 64 << 20 {
        for at in (range.start..range.end - len).step_by(len as usize) {
            if reserve(at, len) {
                KEPT[0].store(at, Relaxed);
                KEPT[1].store(at + len, Relaxed);
                return true;
            }
        }
        len /= 2;
    }
    false
}

/// Flags of memory that is anonymous and private, and counts when it is used.
pub const KEPT_FREE: usize = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE;

/// Maps memory for the runtime where nothing is, whatever `flags` say, and behind a gap. Addresses are
/// not used again until all have been.
pub fn own(len: u64, prot: usize, flags: usize, fd: i32, offset: u64) -> Result<u64, i32> {
    const TRIES: u64 = 64;
    const STEP: u64 = 1 << 30;
    let range = own_range();
    let size = range.end - range.start;
    let len = page_up(len);
    let [little, much] = &NEXT;
    let (next, from) = if len < MUCH { (little, 0) } else { (much, size / 2) };
    if next.load(Relaxed) == 0 {
        let first = from + random() % (size / 4 / MUCH).max(1) * MUCH;
        let _ = next.compare_exchange(0, first + PAGE, Relaxed, Relaxed);
    }
    let anywhere = flags & !(sys::MAP_FIXED | sys::MAP_FIXED_NOREPLACE);
    if !kept().is_empty() {
        let [start, end] = &KEPT;
        let end = end.load(Relaxed);
        let fits = |at: u64| at.checked_add(len + PAGE).filter(|&next| next <= end);
        if let Ok(at) = start.fetch_update(Relaxed, Relaxed, fits) {
            // SAFETY: kept free, and nobody else has got it.
            let map = || unsafe { sys::mmap(at, len, prot, anywhere | sys::MAP_FIXED, fd, offset) };
            return sys::beyond_limits(map).or_else(|errno| instead(len, prot, flags, errno));
        }
    }
    let flags = anywhere | sys::MAP_FIXED_NOREPLACE;
    for _ in 0..TRIES {
        let at = next.fetch_add(len + PAGE, Relaxed) % size;
        if at + len > size {
            continue;
        }
        // SAFETY: NOREPLACE: nothing is there.
        let map = || unsafe { sys::mmap(range.start + at, len, prot, flags, fd, offset) };
        match sys::beyond_limits(map) {
            Err(sys::EEXIST) => next.fetch_add(STEP, Relaxed),
            result => return result.or_else(|errno| instead(len, prot, flags, errno)),
        };
    }
    if is_replay() {
        // The kernel might choose a place that the program is going to need.
        return Err(sys::ENOMEM);
    }
    // SAFETY: new memory at a place that the kernel chooses.
    unsafe { sys::mmap(0, len, prot, anywhere, fd, offset) }
}

/// The spare memory serves for what would be like it.
fn instead(len: u64, prot: usize, flags: usize, errno: i32) -> Result<u64, i32> {
    const WHICH: usize = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_SHARED;
    let alike = prot == sys::PROT_READ | sys::PROT_WRITE
        && flags & WHICH == sys::MAP_PRIVATE | sys::MAP_ANONYMOUS;
    match errno {
        sys::ENOMEM if alike => spare(len).ok_or(errno),
        _ => Err(errno),
    }
}

/// Anonymous private memory for the runtime.
pub fn anonymous(len: u64) -> Result<u64, i32> {
    own(len, sys::PROT_READ | sys::PROT_WRITE, KEPT_FREE, -1, 0)
}

/// Leaves memory of the runtime out of core dumps.
pub fn not_in_dumps(at: u64, len: u64) {
    const MADV_DONTDUMP: usize = 16;
    // SAFETY: our own mapping; its contents stay.
    let _ = unsafe { sys::call(sys::nr::MADVISE, &[at as usize, len as usize, MADV_DONTDUMP]) };
}

/// Keeps `start..start + len` free of anything else; false if something is there.
pub fn reserve(start: u64, len: u64) -> bool {
    let flags = KEPT_FREE;
    // SAFETY: NOREPLACE: nothing is there.
    match unsafe { sys::mmap(start, len, 0, flags | sys::MAP_FIXED_NOREPLACE, -1, 0) } {
        Ok(at) if at == start => true,
        Ok(at) => {
            // SAFETY: an old kernel placed it elsewhere; it is new.
            let _ = unsafe { sys::call(sys::nr::MUNMAP, &[at as usize, len as usize]) };
            false
        }
        Err(_) => false,
    }
}

/// Keeps what the program gives back at `start` free for the runtime: as the kernel would answer munmap.
pub fn keep_free(start: u64, len: u64) -> usize {
    let flags = KEPT_FREE | sys::MAP_FIXED;
    // SAFETY: the program has given it back.
    match unsafe { sys::mmap(start, len, 0, flags, -1, 0) } {
        Ok(_) => 0,
        Err(error) => sys::failed(error),
    }
}

/// Keeps all of `range` free of anything else that is free of it now; what is there stays.
pub fn reserve_gaps(range: core::ops::Range<u64>) {
    // By the list: to look for the ends of what is there takes a thousand calls for each megabyte.
    let all = maps::read().unwrap_or_default();
    let mut from = range.start;
    for (start, end) in all.split(|&byte| byte == b'\n').filter_map(maps::range) {
        reserve_halves(from..start.min(range.end));
        from = from.max(end);
    }
    reserve_halves(from..range.end);
}

/// As [`reserve_gaps`], where most likely nothing is.
fn reserve_halves(range: core::ops::Range<u64>) {
    let len = range.end.saturating_sub(range.start);
    if len == 0 || reserve(range.start, len) || len <= PAGE {
        return;
    }
    let middle = range.start + page_up(len / 2);
    reserve_halves(range.start..middle);
    reserve_halves(middle..range.end);
}

pub fn random() -> u64 {
    let mut word = 0u64;
    // SAFETY: the kernel writes one word.
    let _ = unsafe { sys::call(sys::nr::GETRANDOM, &[&mut word as *mut u64 as usize, 8, 1]) };
    word
}

/// Whether the kernel chooses addresses by chance (not where ASLR is off).
pub fn is_randomized() -> bool {
    const ADDR_NO_RANDOMIZE: usize = 0x40000;
    const PERSONALITY: usize = 135;
    // SAFETY: asks only.
    let persona = unsafe { sys::raw(PERSONALITY, [0xffff_ffff, 0, 0, 0, 0, 0]) };
    persona & ADDR_NO_RANDOMIZE == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_kept_and_what_is_there_stays() {
        const FLAGS: usize = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE;
        let len = 1 << 34;
        // SAFETY: new memory.
        let at = unsafe { sys::mmap(0, len, 0, FLAGS, -1, 0) }.unwrap();
        let page = |n: u64| at + n * PAGE;
        let [first, second] = [page(3)..page(2000), page(3_000_000)..page(3_000_001)];
        // SAFETY: of the memory above.
        let unmap = |from: u64, to: u64| unsafe {
            sys::call(sys::nr::MUNMAP, &[from as usize, (to - from) as usize]).unwrap();
        };
        unmap(at, first.start);
        unmap(first.end, second.start);
        unmap(second.end, at + len);
        reserve_gaps(at..at + len);
        let all = maps::read().unwrap();
        let lines = || all.split(|&byte| byte == b'\n').filter_map(maps::range);
        let mut covered = at;
        for (start, end) in lines().filter(|&(start, end)| end > at && start < at + len) {
            assert!(start <= covered, "{covered:x} is free");
            covered = end;
        }
        assert!(covered >= at + len);
        unmap(at, at + len);
    }
}
