//! File descriptors of the runtime, which the program neither sees closed nor closes.

use crate::base::sys::{self, nr};
use core::sync::atomic::{AtomicI32, Ordering::*};

/// Descriptors in use by the runtime, -1: none.
static HIDDEN: [AtomicI32; MOST] = [const { AtomicI32::new(-1) }; MOST];
const MOST: usize = 12;

const F_DUPFD_CLOEXEC: usize = 1030;

/// Moves `fd` out of the program's way, as far up as its limit allows, and remembers it.
pub fn hide(fd: i32) -> i32 {
    let moved = move_up(fd).unwrap_or(fd);
    for slot in &HIDDEN {
        if slot.compare_exchange(-1, moved, Relaxed, Relaxed).is_ok() {
            break;
        }
    }
    moved
}

/// The runtime uses `fd` in place of `old`, a hidden descriptor that is closed. Returns the number of
/// the new one.
pub fn replace(old: Option<i32>, fd: i32) -> i32 {
    let Some(old) = old else { return hide(fd) };
    let args = [fd as usize, old as usize, sys::O_CLOEXEC];
    // SAFETY: both descriptors are ours.
    match unsafe { sys::call(nr::DUP3, &args) } {
        Ok(_) => {
            // SAFETY: as above.
            let _ = unsafe { sys::call(nr::CLOSE, &[fd as usize]) };
            old
        }
        Err(_) => hide(fd),
    }
}

/// `fd` is not ours any more.
pub fn reveal(fd: i32) {
    for slot in &HIDDEN {
        let _ = slot.compare_exchange(fd, -1, Relaxed, Relaxed);
    }
}

/// Closes a descriptor of ours.
pub fn close(fd: i32) {
    reveal(fd);
    // SAFETY: ours.
    let _ = unsafe { sys::call(nr::CLOSE, &[fd as usize]) };
}

/// Whether a few more can be hidden.
pub fn have_room() -> bool {
    HIDDEN.iter().filter(|slot| slot.load(Relaxed) == -1).count() > 5
}

fn move_up(fd: i32) -> Option<i32> {
    // A fork copies the table of descriptors, up to the highest one.
    const MOST: u64 = 1024;
    let top = sys::limit(sys::RLIMIT_NOFILE).min(MOST) as usize;
    for from in (3..top).rev() {
        // SAFETY: no memory involved.
        match unsafe { sys::call(nr::FCNTL, &[fd as usize, F_DUPFD_CLOEXEC, from]) } {
            Ok(new) if new < top => {
                // SAFETY: the old number is ours.
                let _ = unsafe { sys::call(nr::CLOSE, &[fd as usize]) };
                return Some(new as i32);
            }
            // All from here on are in use.
            Ok(above) => {
                // SAFETY: made just now.
                let _ = unsafe { sys::call(nr::CLOSE, &[above]) };
            }
            Err(_) => {}
        }
    }
    None
}

pub fn is_hidden(fd: i32) -> bool {
    fd >= 0 && HIDDEN.iter().any(|slot| slot.load(Relaxed) == fd)
}

/// The hidden descriptors in `range`, for `close_range`.
pub fn hidden_in(range: core::ops::RangeInclusive<u32>) -> impl Iterator<Item = u32> {
    let mut all = [u32::MAX; MOST];
    for (to, slot) in all.iter_mut().zip(&HIDDEN) {
        let fd = slot.load(Relaxed);
        if fd >= 0 && range.contains(&(fd as u32)) {
            *to = fd as u32;
        }
    }
    all.sort_unstable();
    all.into_iter().filter(|&fd| fd != u32::MAX)
}
