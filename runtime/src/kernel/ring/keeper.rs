//! A copy of the process, which sleeps.
//!
//! It is a child of the program's process that the program does not see: it sends no signal when it ends,
//! and whoever waits for children is not told of it. It has none of the program's descriptors, and is in a
//! session of its own. It ends when it is told to, or when the process is gone; the oldest one then adds
//! what it is to the trace, so that a process that was killed leaves something that can be replayed.
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::control::Slot;
use crate::base::heap;
use crate::base::lock::Forked;
use crate::base::own::own;
use crate::base::signal::{block_all, set_real_mask, SIGKILL};
use crate::base::sys::{self, nr};
use crate::kernel::ring::copied::Copied;
use crate::kernel::ring::dump::{self, Told};
use crate::recording::trace_file::trace;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// How often the youngest copy looks, and how often the others do, in nanoseconds.
const TICK: u64 = 5_000_000;
const SELDOM: u64 = 100_000_000;
/// Copies that there can be.
const PLACES: u32 = 64;
const PATH: usize = 4096;

/// What the process and its copies share.
#[repr(C)]
struct Page {
    /// Counted by the youngest copy.
    tick: AtomicU32,
    /// Numbers of the intervals of the youngest copy and of the oldest.
    youngest: AtomicU32,
    oldest: AtomicU32,
    /// Not 0: the trace needs the oldest one's memory.
    is_cut: AtomicU32,
    /// Snapshot frames in the trace.
    frames: AtomicU32,
    /// For each place: what the copy there is to do.
    states: [AtomicU32; PLACES as usize],
    /// Arguments and results of that: where to begin, what there is, errno.
    from: AtomicU64,
    end: AtomicU64,
    errno: AtomicU32,
    /// Not 0: to a new file.
    elsewhere: AtomicU32,
    path: [core::sync::atomic::AtomicU8; PATH],
}

/// A copy begins.
const BEGINS: u32 = 0;
const SLEEPS: u32 = 1;
/// It is to write down what it is.
const WRITES: u32 = 2;
const WRITTEN: u32 = 3;
const FAILED: u32 = 4;
/// It is not needed any more.
const ENDS: u32 = 5;

static PAGE: AtomicU64 = AtomicU64::new(0);

fn page() -> Option<&'static Page> {
    let at = PAGE.load(Relaxed);
    // SAFETY: mapped by `prepare`, for good; zeros are valid, and all of it is atomics.
    (at != 0).then(|| unsafe { &*(at as *const Page) })
}

/// A page of the process's own; false: there is no memory.
pub(super) fn prepare() -> bool {
    let prot = sys::PROT_READ | sys::PROT_WRITE;
    let len = size_of::<Page>() as u64;
    let made = own(len, prot, sys::MAP_SHARED | sys::MAP_ANONYMOUS, -1, 0);
    PAGE.store(made.unwrap_or(0), Relaxed);
    made.is_ok()
}

/// Ticks so far.
pub(super) fn tick() -> u32 {
    page().map_or(0, |page| page.tick.load(Relaxed))
}

/// Says which copy is needed if the process is killed.
pub(super) fn set_places(oldest: Option<&Keeper>, is_cut: bool) {
    let (Some(page), Some(oldest)) = (page(), oldest) else { return };
    page.oldest.store(oldest.number, Relaxed);
    page.is_cut.store(u32::from(is_cut), Release);
}

// Other processes wait for these words, too.

fn wait(word: &AtomicU32, value: u32, nanoseconds: u64) {
    let time = [nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000];
    let args = [word.as_ptr() as usize, 0, value as usize, time.as_ptr() as usize];
    // SAFETY: the kernel reads the word and the time.
    let _ = unsafe { sys::call(nr::FUTEX, &args) };
}

fn wake(word: &AtomicU32) {
    // SAFETY: the kernel uses the address as a key.
    let _ = unsafe { sys::call(nr::FUTEX, &[word.as_ptr() as usize, 1, i32::MAX as usize]) };
}

/// A copy of the process, from outside.
pub(super) struct Keeper {
    pid: u32,
    number: u32,
}

fn state_of(page: &Page, number: u32) -> Option<&AtomicU32> {
    page.states.get((number % PLACES) as usize)
}

/// Makes a copy of the process for interval `number`.
#[inline(never)]
pub(super) fn make(copied: Copied, number: u32) -> Result<Keeper, i32> {
    let page = page().ok_or(sys::ENOMEM)?;
    let state = state_of(page, number).ok_or(sys::ENOMEM)?;
    state.store(BEGINS, Release);
    let previous = page.youngest.load(Relaxed);
    let owner = sys::getpid();
    let fd = trace().fd.load(Relaxed);
    let before = block_all();
    // Nor does the program's tracer see it.
    const CLONE_UNTRACED: usize = 0x80_0000;
    // SAFETY: the child gets a copy of this memory, and never returns from here. No signal is sent when it
    // ends.
    let made = unsafe { sys::call(nr::CLONE, &[CLONE_UNTRACED, 0, 0, 0, 0]) };
    if made == Ok(0) {
        sleep(page, &copied, number, owner, fd);
    }
    set_real_mask(before);
    let keeper = Keeper { pid: made? as u32, number };
    // Until it has begun it has the program's descriptors.
    while state.load(Acquire) == BEGINS {
        wait(state, BEGINS, SELDOM);
        if state.load(Acquire) == BEGINS && keeper.is_gone() {
            // The previous one goes on as the youngest.
            page.youngest.store(previous, Release);
            return Err(sys::ESRCH);
        }
    }
    Ok(keeper)
}

impl Keeper {
    fn wait4(&self, options: usize) -> sys::Result {
        const WALL: usize = 0x4000_0000;
        // SAFETY: nothing is written.
        unsafe { sys::call(nr::WAIT4, &[self.pid as usize, 0, options | WALL, 0]) }
    }

    /// Whether it has ended, by somebody else's hand.
    fn is_gone(&self) -> bool {
        const NO_HANG: usize = 1;
        !matches!(self.wait4(NO_HANG), Ok(0) | Err(sys::EINTR))
    }

    /// It is not needed any more. It is told so, too: a process that has given up its rights since the copy
    /// was made may not kill it.
    pub(super) fn end(self) {
        const KILL: usize = 62;
        if let Some(state) = page().and_then(|page| state_of(page, self.number)) {
            state.store(ENDS, Release);
            wake(state);
        }
        // SAFETY: a child of ours, which nobody else waits for.
        let _ = unsafe { sys::call(KILL, &[self.pid as usize, SIGKILL as usize]) };
        while self.wait4(0) == Err(sys::EINTR) {}
    }

    /// It writes down what it is. Returns where that ends.
    pub(super) fn write(&self, told: &Told<'_>) -> Result<u64, i32> {
        let page = page().ok_or(sys::ENOMEM)?;
        let state = state_of(page, self.number).ok_or(sys::ENOMEM)?;
        match *told {
            Told::InPlace { from } => {
                page.from.store(from, Relaxed);
                page.elsewhere.store(0, Relaxed);
            }
            Told::Elsewhere { path, end, is_cut } => {
                const ENAMETOOLONG: i32 = 36;
                if path.len() >= PATH {
                    return Err(ENAMETOOLONG);
                }
                page.from.store(end, Relaxed);
                page.elsewhere.store(1 + u32::from(is_cut), Relaxed);
                let bytes = path.iter().chain([&0]);
                page.path.iter().zip(bytes).for_each(|(to, &byte)| to.store(byte, Relaxed));
            }
        }
        state.store(WRITES, Release);
        wake(state);
        while state.load(Acquire) == WRITES {
            wait(state, WRITES, SELDOM);
            if state.load(Acquire) == WRITES && self.is_gone() {
                return Err(sys::ESRCH);
            }
        }
        match state.swap(SLEEPS, AcqRel) {
            WRITTEN => Ok(page.end.load(Relaxed)),
            _ => Err(page.errno.load(Relaxed) as i32),
        }
    }
}

// --- the copy ---

/// What the copy does.
fn sleep(page: &Page, copied: &Copied, number: u32, owner: u32, fd: i32) -> ! {
    // SAFETY: a child with one thread, which has no guard of the heap's.
    heap::after_fork(&unsafe { Forked::child() });
    withdraw(fd);
    let Some(state) = state_of(page, number) else { end() };
    // Before it looks how long it is to sleep.
    page.youngest.store(number, Release);
    state.store(SLEEPS, Release);
    wake(state);
    loop {
        let is_youngest = page.youngest.load(Acquire) == number;
        wait(state, SLEEPS, if is_youngest { TICK } else { SELDOM });
        let told = state.load(Acquire);
        if told == ENDS {
            end();
        }
        if told == WRITES {
            let written = write(page, copied, fd);
            let now = match written {
                Ok(end) => {
                    page.end.store(end, Relaxed);
                    WRITTEN
                }
                Err(errno) => {
                    page.errno.store(errno as u32, Relaxed);
                    FAILED
                }
            };
            state.store(now, Release);
            wake(state);
            continue;
        }
        if sys::getppid() != owner {
            if page.is_cut.load(Acquire) != 0 && page.oldest.load(Relaxed) == number {
                let _ = dump::in_place(copied, fd, None, &page.frames);
            }
            end();
        }
        if is_youngest {
            page.tick.fetch_add(1, Release);
            Slot::all().for_each(|slot| {
                slot.kick();
            });
        }
    }
}

fn write(page: &Page, copied: &Copied, fd: i32) -> Result<u64, i32> {
    let from = page.from.load(Relaxed);
    match page.elsewhere.load(Relaxed) {
        0 => dump::in_place(copied, fd, Some(from), &page.frames),
        what => {
            let mut path = [0u8; PATH];
            path.iter_mut().zip(&page.path).for_each(|(to, byte)| *to = byte.load(Relaxed));
            dump::elsewhere(copied, fd, &path, from, what > 1)
        }
    }
}

fn end() -> ! {
    sys::exit_group(0)
}

/// Gives up what is the program's but its memory: descriptors, but for that of the trace, and the session.
fn withdraw(fd: i32) {
    const SETSID: usize = 112;
    const SET_NAME: usize = 15;
    let (fd, last) = (fd as u32 as usize, u32::MAX as usize);
    let around = [(0, fd.wrapping_sub(1)), (fd + 1, last)];
    for (from, to) in around.into_iter().filter(|&(from, to)| from <= to && to <= last) {
        // SAFETY: descriptors of this process, which has its own table.
        if unsafe { sys::call(nr::CLOSE_RANGE, &[from, to, 0]) }.is_err() {
            let most = sys::limit(sys::RLIMIT_NOFILE).min(1 << 16) as usize;
            for one in from..=to.min(most) {
                // SAFETY: as above.
                let _ = unsafe { sys::call(nr::CLOSE, &[one]) };
            }
        }
    }
    // SAFETY: no memory involved.
    let _ = unsafe { sys::call(SETSID, &[]) };
    let name = c"dep-ring".as_ptr() as usize;
    // SAFETY: the kernel reads the name.
    let _ = unsafe { sys::call(nr::PRCTL, &[SET_NAME, name]) };
}
