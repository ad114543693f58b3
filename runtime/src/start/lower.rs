//! A program goes below a [ceiling]: what of it can be moved, its stack, and all that the kernel is going to place for it.

use crate::base::own::{choose, is_randomized, random, reserve};
use crate::base::{ceiling, maps, sys};
use crate::start::stack::Start;
use crate::start::{kernel_view, place, vdso};
use abi::layout::{page_down, PAGE, WINDOW_SIZE};
use alloc::vec::Vec;
use core::ops::Range;

/// AddressSanitizer's shadow ends here; so far up there may be programs that have no fixed addresses.
const WINDOWS: Range<u64> = 0x1040_0000_0000..0x10c0_0000_0000;
/// The lowest ceiling, and by how much it may be higher: as what the kernel places, it differs from process to process.
const LOWEST: u64 = 18 << 40;
const RANDOM: u64 = 1 << 40;
/// The stack ends so far above what the kernel places, and views begin so far.
const STACK_END: u64 = 16 << 30;
const VIEWS: u64 = 32 << 30;
/// Room of the stack besides what the kernel has put there.
const LEAST_STACK: u64 = 128 << 10;
/// The runtime's own memory lies so far below all that the kernel is going to place, and has so much room.
const OWN_BELOW: u64 = 1 << 40;
const OWN_LEN: u64 = 256 << 30;

/// Where the program's window is to be, which is `window`, if it has to move for that: it would lie among the views.
pub fn window(window: u64) -> Option<u64> {
    if is_low(window) {
        return None;
    }
    let count = (WINDOWS.end - WINDOWS.start) / WINDOW_SIZE;
    let first = if is_randomized() { random() % count } else { 0 };
    let mut all = (first..count).chain(0..first).map(|i| WINDOWS.start + i * WINDOW_SIZE);
    all.find(|&window| place::is_free(window))
}

/// Whether a window is below all ceilings.
fn is_low(window: u64) -> bool {
    window == 0 || WINDOWS.contains(&window)
}

/// Does that. The program has not started, and nobody has a pointer into the kernel's stack but `start`; returns where that is
/// from now on. If it cannot be done, all stays as it is.
pub fn lower(start: Start, window: u64) -> Start {
    let from = start.stack as u64;
    if !is_low(window) {
        return start;
    }
    let by = if is_randomized() { random() % RANDOM / PAGE * PAGE } else { 0 };
    let kept = LOWEST + by;
    // The first piece of memory of the runtime's own is about to be mapped.
    choose(kept - OWN_BELOW..kept - OWN_BELOW + OWN_LEN);
    vdso::remove(&start);
    let Some(stack) = vdso::mapping_of(b"[stack]").filter(|range| range.contains(&from)) else {
        return start;
    };
    let stack_end = kept + STACK_END;
    let used = stack.end - page_down(from);
    let len =
        page_down(sys::limit(sys::RLIMIT_STACK).min(ceiling::MOST_STACK)).max(used + LEAST_STACK);
    let lowest = stack_end - len;
    if ceiling::map_stack(stack_end, len) != Ok(lowest) {
        return start;
    }
    if !keep_all(kept..lowest - ceiling::GUARD) || !keep_all(stack_end..ceiling::END) {
        ceiling::release(kept);
        return start;
    }
    let to = stack_end - (stack.end - from);
    let size = (stack.end - from) as usize;
    // SAFETY: the kernel's stack up to its end, and new memory of that size.
    unsafe { core::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, size) };
    let moved = Start { stack: to as *mut u64, argc: start.argc };
    moved.relocate(&stack, to.wrapping_sub(from));
    // Who lists processes reads arguments where the kernel believes that they are. If it cannot be told, they stay there, too.
    if kernel_view::moves(&moved, &stack, stack_end.wrapping_sub(stack.end)) {
        let (at, len) = (stack.start, stack.end - stack.start);
        // SAFETY: nobody uses the kernel's stack any more: we run on our own.
        let _ = unsafe { sys::call(sys::nr::MUNMAP, &[at as usize, len as usize]) };
        keep_all(at..stack.end);
    }
    ceiling::begins(kept, kept + VIEWS);
    moved
}

/// Keeps the kernel from placing anything in `range`. False if it can do that everywhere but where something is.
fn keep_all(range: Range<u64>) -> bool {
    let Some(maps) = maps::read() else { return false };
    let lines = maps.split(|&byte| byte == b'\n').filter_map(maps::range);
    let mut there: Vec<(u64, u64)> = lines.filter(|&(_, end)| end > range.start).collect();
    there.push((range.end, range.end));
    let mut from = range.start;
    for (start, end) in there {
        let free = from..start.min(range.end);
        if free.start < free.end && !reserve(free.start, free.end - free.start) {
            return false;
        }
        from = from.max(end);
    }
    true
}
