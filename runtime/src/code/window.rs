//! The part of the window that code cache and libraries share, and what is placed in it.
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::own::reserve;
use crate::base::sys;
use crate::code::jit::{jit, Jit};
use crate::code::packs::Candidate;
use abi::layout::{page_up, AREA_STEP, ARENA_END, ARENA_LEN, PAGE};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The part of the window that code cache and libraries share, reserved before anything else is
/// mapped: the kernel places its own choices in the window otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    pub start: u64,
    pub end: u64,
}

impl Area {
    /// Reserves the largest free piece that lies behind `from` and in which the code cache is in
    /// reach of the whole program. `taken`: something is there, so the kernel need not be asked for that.
    pub fn reserve(window: u64, from: u64, end: u64, taken: Option<u64>) -> Option<Area> {
        let first = from.next_multiple_of(AREA_STEP);
        let last = window + ARENA_END - ARENA_LEN;
        // Everything in the area is within reach of the code cache at its start.
        let mut size = (window + end - first).min(1 << 31);
        while size >= ARENA_LEN + AREA_STEP {
            let mut start = first;
            while start <= last && start + size <= window + end {
                let is_taken = taken.is_some_and(|at| (start..start + size).contains(&at));
                if !is_taken && reserve(start, size) {
                    return Some(Area { start, end: start + size });
                }
                start += AREA_STEP;
            }
            size = size / 4 * 3 / AREA_STEP * AREA_STEP;
        }
        None
    }
}

/// Maps `len` bytes in the reserved area, from its top down, with `prot`, `flags`, `fd` and
/// `offset` as the program asked. The file is a library: room is kept behind it for its translation.
pub fn map_library(len: u64, prot: usize, flags: usize, fd: i32, offset: u64) -> Result<u64, i32> {
    let len = page_up(len);
    let candidate = jit().packs.candidate(fd, len);
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
        None => {
            let room = candidate.map_or(0, |c| room_for(&c, len));
            map_in_window(len, room, prot, flags, fd, offset)?
        }
    };
    if let Some(candidate) = candidate {
        jit().packs.expect(candidate, at, len);
    }
    Ok(at)
}

/// Reserves `len` bytes for a library of `image` bytes in `fd` that the program is going to map to the first
/// multiple of `align` in there; it gives back the rest. Room for its translation is kept behind it.
pub fn reserve_library(
    fd: i32,
    image: u64,
    len: u64,
    align: u64,
    flags: usize,
) -> Result<u64, i32> {
    let candidate = jit().packs.candidate(fd, image);
    let room = candidate.map_or(0, |c| room_for(&c, image));
    let room = (image + room).saturating_sub(len);
    let at = map_aligned(len, room, align, 0, flags, -1, 0)?;
    if let Some(candidate) = candidate {
        jit().packs.expect(candidate, at, image);
    }
    Ok(at)
}

/// Bytes to keep free behind a library of `len` bytes. Spare room is left only as long as most of the area is
/// free: others need it.
pub fn room_for(candidate: &Candidate, len: u64) -> u64 {
    let jit = jit();
    let left = jit.library_top.saturating_sub(lowest(&jit));
    match candidate.spare {
        spare if len + candidate.room + spare <= left / 4 => candidate.room + spare,
        _ => candidate.room,
    }
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
    map_aligned(len, room, PAGE, prot, flags, fd, offset)
}

/// The same, at a multiple of `align`.
fn map_aligned(
    len: u64,
    room: u64,
    align: u64,
    prot: usize,
    flags: usize,
    fd: i32,
    offset: u64,
) -> Result<u64, i32> {
    let len = page_up(len);
    let mut jit = jit();
    let at = jit.library_top.checked_sub(room + len).map(|at| at & !(align - 1));
    let at = at.filter(|at| *at >= lowest(&jit)).ok_or(sys::ENOMEM)?;
    // SAFETY: inside the reserved area, which nothing else uses.
    let at = unsafe { sys::mmap(at, len, prot, flags | sys::MAP_FIXED, fd, offset) }?;
    jit.library_top = at;
    Ok(at)
}

/// A replay maps the file of a library, all `len` bytes of it, at `at`: its translation will be put where it
/// belongs, if it can be.
pub fn library_at(fd: i32, at: u64, len: u64) {
    let packs = &mut jit().packs;
    if let Some(candidate) = packs.candidate_at(fd, at, len) {
        packs.expect(candidate, at, len);
    }
}

/// A replay has put something at `at` in the reserved area: where the recorded runtime did, which went
/// from the top down, too.
pub fn placed(at: u64) {
    let mut jit = jit();
    if at < jit.library_top && at >= jit.arena.range().end {
        jit.library_top = at;
    }
}

/// What is given up of the area ends here, or 0.
static GIVEN_UP: AtomicU64 = AtomicU64::new(0);

/// Where libraries can be at the lowest.
fn lowest(jit: &Jit) -> u64 {
    jit.arena.range().end.max(GIVEN_UP.load(Relaxed))
}

/// The address space is about to have a limit, and what is reserved would count: all but a little room for libraries goes.
pub fn gives_up() {
    const KEPT: u64 = 64 << 20;
    let jit = jit();
    let end = jit.library_top.saturating_sub(KEPT) & !(PAGE - 1);
    let [from, to] = IN_FRONT.each_ref().map(|at| at.swap(0, Relaxed));
    for piece in [from..to, lowest(&jit)..end] {
        if piece.start < piece.end {
            let args = [piece.start as usize, (piece.end - piece.start) as usize];
            // SAFETY: reserved by us, and used by nobody.
            let _ = unsafe { sys::call(sys::nr::MUNMAP, &args) };
        }
    }
    GIVEN_UP.fetch_max(end, Relaxed);
}

/// What is kept free in front of the area.
static IN_FRONT: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Keeps the kernel from placing anything between `from` and the area: a replay of this run has more code
/// of its own there. False if something lies there already.
pub fn keep_free_in_front(from: u64, area: &Area) -> bool {
    if from >= area.start {
        return true;
    }
    let is_free = reserve(from, area.start - from);
    if is_free {
        let [start, end] = &IN_FRONT;
        start.store(from, Relaxed);
        end.store(area.start, Relaxed);
    }
    is_free
}

/// What is reserved and holds nothing of the program's.
pub fn free_pieces() -> [core::ops::Range<u64>; 2] {
    let [start, end] = &IN_FRONT;
    let jit = jit();
    [start.load(Relaxed)..end.load(Relaxed), lowest(&jit)..jit.library_top]
}

/// Whether `address` lies in the reserved area, where nothing has been placed yet, or in what is kept free
/// in front of it.
pub fn is_free(address: u64) -> bool {
    let [start, end] = &IN_FRONT;
    if (start.load(Relaxed)..end.load(Relaxed)).contains(&address) {
        return true;
    }
    let jit = jit();
    (lowest(&jit)..jit.library_top).contains(&address)
}
