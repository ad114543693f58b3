//! The program's heap end, and the places that the runtime chooses in the window.

use crate::process::process;
use crate::sys;
use abi::layout::{page_up, AREA_STEP, ARENA_END, ARENA_LEN, PAGE};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The virtual `brk`: the heap stays behind the program's own segments, where it would be without
/// the segments that were added.
pub struct Brk {
    pub start: u64,
    pub current: u64,
    /// End of what is mapped.
    mapped: u64,
    /// The heap cannot grow beyond.
    pub limit: u64,
    /// The room up to there is reserved.
    reserved: bool,
}

impl Brk {
    pub fn new(start: u64, limit: u64) -> Brk {
        let mapped = page_up(start);
        let reserved = limit > mapped
            && !crate::boot::address_space_is_limited()
            && reserve(mapped, limit - mapped);
        Brk { start, current: start, mapped, limit, reserved }
    }

    /// The program looks at, or maps, memory that nothing but our reservation may be in: from now on
    /// nothing is there, as natively.
    pub fn uncover(&mut self, start: u64, end: u64) {
        if self.reserved && start < self.limit && self.mapped < end {
            let (at, len) = (self.mapped as usize, (self.limit - self.mapped) as usize);
            // SAFETY: reserved by us, and used by nobody.
            let _ = unsafe { sys::call(sys::nr::MUNMAP, &[at, len]) };
            self.reserved = false;
        }
    }

    /// `brk(wanted)`: the new end, or the old one if it cannot be had.
    pub fn set(&mut self, wanted: u64) -> u64 {
        if wanted < self.start || wanted > self.limit {
            return self.current;
        }
        let end = page_up(wanted);
        if end > self.mapped {
            let prot = sys::PROT_READ | sys::PROT_WRITE;
            let place = if self.reserved { sys::MAP_FIXED } else { sys::MAP_FIXED_NOREPLACE };
            let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | place;
            // SAFETY: reserved, or NOREPLACE: nothing is there.
            match unsafe { sys::mmap(self.mapped, end - self.mapped, prot, flags, -1, 0) } {
                Ok(at) if at == self.mapped => {}
                Ok(at) => {
                    // SAFETY: an old kernel placed it elsewhere; it is new.
                    let _ = unsafe {
                        sys::call(sys::nr::MUNMAP, &[at as usize, (end - self.mapped) as usize])
                    };
                    return self.current;
                }
                Err(_) => return self.current,
            }
        } else if end < self.mapped {
            let (at, len) = (end, self.mapped - end);
            // SAFETY: the program gives this part of its heap back.
            let _ = unsafe { sys::call(sys::nr::MUNMAP, &[at as usize, len as usize]) };
            self.reserved = self.reserved && reserve(at, len);
        }
        self.mapped = end;
        self.current = wanted;
        wanted
    }
}

/// Whether nothing but a reservation of ours is at `address`.
pub fn is_reserved(address: u64) -> bool {
    let brk = process().brk.lock();
    let heap = brk.reserved && (brk.mapped..brk.limit).contains(&address);
    drop(brk);
    let jit = process().jit.lock();
    heap || (jit.arena.range().end..jit.library_top).contains(&address)
}

/// Where the runtime's own memory lies: below all that the kernel chooses for the program, which
/// runs over the ends of its arrays and uses memory that it has given back. Where it has given some
/// back there must be nothing then, as natively. (ThreadSanitizer expects nothing much further down.)
const OWN: core::ops::Range<u64> = 0x7e80_0000_0000..0x7ec0_0000_0000;
/// What is next, relative to the start of [`OWN`].
static NEXT_OWN: AtomicU64 = AtomicU64::new(0);

/// Maps memory for the runtime, behind a gap. Addresses are not used again until all have been.
pub fn own(len: u64, prot: usize, flags: usize, fd: i32, offset: u64) -> Result<u64, i32> {
    const TRIES: u64 = 64;
    const STEP: u64 = 1 << 30;
    let size = OWN.end - OWN.start;
    let len = page_up(len);
    if NEXT_OWN.load(Relaxed) == 0 {
        let first = crate::boot::random() % (size / 2 / PAGE) * PAGE;
        let _ = NEXT_OWN.compare_exchange(0, first + PAGE, Relaxed, Relaxed);
    }
    let flags = flags | sys::MAP_FIXED_NOREPLACE;
    for _ in 0..TRIES {
        let at = NEXT_OWN.fetch_add(len + PAGE, Relaxed) % size;
        if at + len > size {
            continue;
        }
        // SAFETY: NOREPLACE: nothing is there.
        match unsafe { sys::mmap(OWN.start + at, len, prot, flags, fd, offset) } {
            Err(sys::EEXIST) => NEXT_OWN.fetch_add(STEP, Relaxed),
            result => return result,
        };
    }
    // SAFETY: new memory at a place that the kernel chooses.
    unsafe { sys::mmap(0, len, prot, flags & !sys::MAP_FIXED_NOREPLACE, fd, offset) }
}

/// Anonymous private memory for the runtime.
pub fn anonymous(len: u64) -> Result<u64, i32> {
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE;
    own(len, sys::PROT_READ | sys::PROT_WRITE, flags, -1, 0)
}

/// Leaves memory of the runtime out of core dumps.
pub fn not_in_dumps(at: u64, len: u64) {
    const MADV_DONTDUMP: usize = 16;
    // SAFETY: our own mapping; its contents stay.
    let _ = unsafe { sys::call(sys::nr::MADVISE, &[at as usize, len as usize, MADV_DONTDUMP]) };
}

/// The part of the window that code cache and libraries share, reserved before anything else is
/// mapped: the kernel places its own choices in the window otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    pub start: u64,
    pub end: u64,
}

impl Area {
    /// Reserves the largest free piece that lies behind `from` and in which the code cache is in
    /// reach of the whole program.
    pub fn reserve(window: u64, from: u64, end: u64) -> Option<Area> {
        let first = from.next_multiple_of(AREA_STEP);
        let last = window + ARENA_END - ARENA_LEN;
        // Everything in the area is within reach of the code cache at its start.
        let mut size = (window + end - first).min(1 << 31);
        while size >= ARENA_LEN + AREA_STEP {
            let mut start = first;
            while start <= last && start + size <= window + end {
                if reserve(start, size) {
                    return Some(Area { start, end: start + size });
                }
                start += AREA_STEP;
            }
            size = size / 4 * 3 / AREA_STEP * AREA_STEP;
        }
        None
    }
}

/// Keeps `start..start + len` free of anything else; false if something is there.
pub fn reserve(start: u64, len: u64) -> bool {
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE;
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

/// Maps `len` bytes in the reserved area, from its top down, with `prot`, `flags`, `fd` and
/// `offset` as the program asked. The file is a library: room is kept behind it for its translation.
pub fn map_library(len: u64, prot: usize, flags: usize, fd: i32, offset: u64) -> Result<u64, i32> {
    let len = page_up(len);
    let candidate = process().jit.lock().packs.candidate(fd, len);
    let again = candidate.and_then(|c| c.home).and_then(|home| {
        let flags = flags | sys::MAP_FIXED_NOREPLACE;
        // SAFETY: NOREPLACE: nothing is there; a kernel that does not know it takes a hint.
        let at = unsafe { sys::mmap(home, len, prot, flags, fd, offset) }.ok()?;
        if at != home {
            // SAFETY: mapped just now.
            let _ = unsafe { sys::call(sys::nr::MUNMAP, &[at as usize, len as usize]) };
        }
        (at == home).then_some(at)
    });
    let at = match again {
        Some(at) => at,
        None => map_in_window(len, candidate.map_or(0, |c| c.room), prot, flags, fd, offset)?,
    };
    if let Some(candidate) = candidate {
        process().jit.lock().packs.expect(candidate, at, len);
    }
    Ok(at)
}

/// Maps `len` bytes in the reserved area, from its top down, with `prot`, `flags`, `fd` and
/// `offset` as the program asked, and keeps `room` bytes behind them free.
pub fn map_in_window(
    len: u64,
    room: u64,
    prot: usize,
    flags: usize,
    fd: i32,
    offset: u64,
) -> Result<u64, i32> {
    let len = page_up(len);
    let mut jit = process().jit.lock();
    let top = jit.library_top - room;
    if top < len + jit.arena.range().end {
        return Err(sys::ENOMEM);
    }
    // SAFETY: inside the reserved area, which nothing else uses.
    let at = unsafe { sys::mmap(top - len, len, prot, flags | sys::MAP_FIXED, fd, offset) }?;
    jit.library_top = at;
    Ok(at)
}
