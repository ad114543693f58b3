//! Memory of the runtime's own, and room that is kept free.

use crate::base::replaying::is_replay;
use crate::base::sys;
use abi::layout::{page_up, PAGE};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Where the runtime's own memory lies: below all that the kernel chooses for the program, which
/// runs over the ends of its arrays and uses memory that it has given back. Where it has given some
/// back there must be nothing then, as natively. (ThreadSanitizer expects nothing much further down.)
const OWN: core::ops::Range<u64> = 0x7e80_0000_0000..0x7ec0_0000_0000;

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
    let flags = anywhere | sys::MAP_FIXED_NOREPLACE;
    for _ in 0..TRIES {
        let at = next.fetch_add(len + PAGE, Relaxed) % size;
        if at + len > size {
            continue;
        }
        // SAFETY: NOREPLACE: nothing is there.
        match unsafe { sys::mmap(range.start + at, len, prot, flags, fd, offset) } {
            Err(sys::EEXIST) => next.fetch_add(STEP, Relaxed),
            result => return result,
        };
    }
    if is_replay() {
        // The kernel might choose a place that the program is going to need.
        return Err(sys::ENOMEM);
    }
    // SAFETY: new memory at a place that the kernel chooses.
    unsafe { sys::mmap(0, len, prot, anywhere, fd, offset) }
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

pub fn random() -> u64 {
    let mut word = 0u64;
    // SAFETY: the kernel writes one word.
    let _ = unsafe { sys::call(sys::nr::GETRANDOM, &[&mut word as *mut u64 as usize, 8, 1]) };
    word
}
