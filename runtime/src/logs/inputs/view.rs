//! Watched threads: each has a view, a copy of what it believes memory to be, at a distance of its own.
//!
//! A view is all zero at first. The thread's stores go there, and what the kernel writes for it; what it
//! sees and has not stored itself is put there when it is seen, and noted ([`Event::Seen`]). So the view
//! is at each moment what the memory of a replay is that has nothing but this thread.

use crate::base::facts::facts;
use crate::base::lock::Forked;
use crate::base::sys::{self, nr};
use crate::logs::inputs::unfollowed::unfollowed;
use crate::logs::moment::Call;
use crate::thread::Thread;
use abi::event::{Event, WHOLE_UNIT};
use abi::ids::LiveAddr;
use abi::layout::{PAGE, WINDOW_SIZE};
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering::*};

/// Distance between the views.
const STEP: u64 = 1 << 41;
/// As many views are there, so that none lies on another one or on the program.
const MOST: u32 = 19;
/// Where the kernel places what the program maps, and its stack.
const HIGH: Range<u64> = 0x7e00_0000_0000..0x8000_0000_0000;

/// Views that are in use, a bit for each.
#[link_section = ".data.at_fork"]
static USED: AtomicU32 = AtomicU32::new(0);

/// Whether the threads of this process have views.
pub fn is_watched() -> bool {
    facts().options.recording.watches() && !facts().options.process.replays
}

/// The program's memory of which a view has a copy. (The window may lie among what the kernel places.)
fn covered() -> impl Iterator<Item = Range<u64>> {
    let window = facts().window;
    let own = (!HIGH.contains(&window)).then_some(window..window + WINDOW_SIZE);
    core::iter::once(HIGH).chain(own)
}

/// Whether the view has a place for all of this memory.
pub fn covers(at: u64, len: u64) -> bool {
    let end = at.saturating_add(len);
    covered().any(|range| range.start <= at && end <= range.end)
}

/// The call, which has returned `result`, may have mapped memory: of which a view has no place, the program
/// cannot go on; of code that is in no file a replay of one thread knows nothing.
pub fn follow(thread: &mut Thread, call: &Call, result: usize) {
    let (true, Ok(at)) = (is_watched(), sys::check(result)) else { return };
    let [_, second, third, fourth, ..] = call.args;
    let executable = |prot: usize| prot & sys::PROT_EXEC != 0;
    match call.number {
        nr::MMAP | nr::MREMAP => {
            let len = if call.number == nr::MMAP { second } else { third };
            if !covers(at as u64, len as u64) {
                crate::die!("the program maps memory at {at:#x}, where a watched thread cannot see it: use --threads serial");
            }
            let made = fourth & sys::MAP_ANONYMOUS != 0;
            if call.number == nr::MMAP && executable(third) && made {
                unfollowed(
                    thread,
                    "code is made by the program (mmap), which --threads watched cannot follow",
                );
            }
        }
        nr::MPROTECT | nr::PKEY_MPROTECT if executable(third) => {
            unfollowed(
                thread,
                "code is made by the program (mprotect), which --threads watched cannot follow",
            );
        }
        _ => {}
    }
}

/// The calling thread's fs base leads to its view from here on.
pub fn enter(thread: &Thread) {
    if thread.block.view == 0 {
        return;
    }
    // SAFETY: no code of ours uses fs, and the program's fs base is in the block. The processor has the
    // instruction ([`can_be_entered`]).
    unsafe {
        core::arch::asm!(
            "wrfsbase {}",
            in(reg) thread.block.view,
            options(nostack, nomem, preserves_flags)
        );
    }
}

/// Whether threads may set their fs base themselves; `stack`: as the kernel has made it.
pub fn can_be_entered(stack: &Range<u64>) -> bool {
    const AT_HWCAP2: u64 = 26;
    const FSGSBASE: u64 = 2;
    // SAFETY: words of the stack that the kernel has made, in front of its end.
    let words = (stack.start..stack.end).step_by(8).map(|at| unsafe { (at as *const u64).read() });
    // The count of arguments, their addresses and a zero, those of the environment and a zero.
    let mut vector = words.skip(1).skip_while(|&word| word != 0).skip(1);
    vector.find(|&word| word == 0);
    while let (Some(kind), Some(value)) = (vector.next(), vector.next()) {
        match kind {
            AT_HWCAP2 => return value & FSGSBASE != 0,
            0 => return false,
            _ => {}
        }
    }
    false
}

/// Gives the thread a view. False if there is none left, or no address space for it.
#[must_use]
pub fn take(thread: &mut Thread) -> bool {
    if !is_watched() {
        return true;
    }
    let free = |used: u32| {
        let number = (!used).trailing_zeros();
        (number < MOST).then_some(used | 1 << number)
    };
    let Ok(before) = USED.fetch_update(AcqRel, Acquire, free) else { return false };
    let number = (!before).trailing_zeros();
    let distance = (u64::from(number) + 1) * STEP;
    thread.block.view = distance.wrapping_neg();
    thread.block.view_back = distance;
    const FLAGS: usize =
        sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE | sys::MAP_FIXED_NOREPLACE;
    for range in covered() {
        let (at, len) = (range.start - distance, range.end - range.start);
        // SAFETY: nothing is replaced.
        let mapped = unsafe { sys::mmap(at, len, sys::PROT_READ | sys::PROT_WRITE, FLAGS, -1, 0) };
        if mapped != Ok(at) {
            release(thread);
            return false;
        }
    }
    true
}

/// The thread needs its view no longer.
pub fn release(thread: &mut Thread) {
    let distance = core::mem::take(&mut thread.block.view_back);
    if distance == 0 {
        return;
    }
    for range in covered() {
        let args = [(range.start - distance) as usize, (range.end - range.start) as usize];
        // SAFETY: the view, which nobody uses any more.
        let _ = unsafe { sys::call(nr::MUNMAP, &args) };
    }
    thread.block.view = 0;
    USED.fetch_and(!(1 << (distance / STEP - 1)), AcqRel);
}

/// In the only thread of a forked child: the views of others are given back.
pub fn forked(thread: &Thread, _: &Forked) {
    if !is_watched() {
        return;
    }
    let own = thread.block.view_back;
    let used = USED.load(Relaxed);
    for distance in (0..MOST).filter(|n| used >> n & 1 == 1).map(|n| (u64::from(n) + 1) * STEP) {
        if distance == own {
            continue;
        }
        for range in covered() {
            let args = [(range.start - distance) as usize, (range.end - range.start) as usize];
            // SAFETY: the view of a thread that this process does not have.
            let _ = unsafe { sys::call(nr::MUNMAP, &args) };
        }
    }
    USED.store(if own == 0 { 0 } else { 1 << (own / STEP - 1) }, Relaxed);
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
