//! A program at fixed addresses goes below a [ceiling](ceiling): its stack, and all that the kernel is going to place for it.

use crate::base::own::{choose, is_randomized, random, reserve};
use crate::base::{ceiling, maps, sys};
use crate::start::stack::Start;
use crate::start::vdso;
use abi::layout::{page_down, page_up, PAGE};
use alloc::vec::Vec;
use core::ops::Range;

/// The lowest ceiling: AddressSanitizer's shadow ends below.
const LOWEST: u64 = 17 << 40;
/// By so much it differs from process to process, as what the kernel places does.
const RANDOM: u64 = 1 << 40;
/// The stack ends so far above what the kernel places, and views begin so far.
const STACK_END: u64 = 16 << 30;
const VIEWS: u64 = 32 << 30;
/// Room of the stack besides what the kernel has put there.
const LEAST_STACK: u64 = 128 << 10;
/// The runtime's own memory lies so far below all that the kernel is going to place, and has so much room.
const OWN_BELOW: u64 = 1 << 40;
const OWN_LEN: u64 = 256 << 30;

/// Does that. The program has not started, and nobody has a pointer into the kernel's stack but `start`; returns where that is
/// from now on. If it cannot be done, all stays as it is.
pub fn lower(start: Start) -> Start {
    let from = start.stack as u64;
    vdso::remove(&start);
    let Some(stack) = vdso::mapping_of(b"[stack]").filter(|range| range.contains(&from)) else {
        return start;
    };
    let by = if is_randomized() { random() % RANDOM / PAGE * PAGE } else { 0 };
    let kept = LOWEST + by;
    let stack_end = kept + STACK_END;
    let used = stack.end - page_down(from);
    let len =
        page_up(sys::limit(sys::RLIMIT_STACK).min(ceiling::MOST_STACK)).max(used + LEAST_STACK);
    let lowest = stack_end - len;
    if !keep_all(kept..lowest - ceiling::GUARD) || !keep_all(stack_end..ceiling::END) {
        return start;
    }
    if ceiling::map_stack(stack_end, len) != Ok(lowest) {
        return start;
    }
    let to = stack_end - (stack.end - from);
    let size = (stack.end - from) as usize;
    // SAFETY: the kernel's stack up to its end, and new memory of that size.
    unsafe { core::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, size) };
    let moved = Start { stack: to as *mut u64, argc: start.argc };
    moved.relocate(&stack, to.wrapping_sub(from));
    // Who lists processes reads arguments where the kernel believes that they are. If it cannot be told, they stay there, too.
    if tell_kernel(&stack, stack_end.wrapping_sub(stack.end)) {
        let (at, len) = (stack.start, stack.end - stack.start);
        // SAFETY: nobody uses the kernel's stack any more: we run on our own.
        let _ = unsafe { sys::call(sys::nr::MUNMAP, &[at as usize, len as usize]) };
        keep_all(at..stack.end);
    }
    let own = kept - OWN_BELOW;
    choose(own..own + OWN_LEN);
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

/// Tells the kernel that what it has put on the stack lies `distance` from where it was. False if it does not listen.
fn tell_kernel(stack: &Range<u64>, distance: u64) -> bool {
    const PR_SET_MM: usize = 35;
    const PR_SET_MM_MAP: usize = 14;
    const NO_FILE: u64 = u32::MAX as u64;
    /// Fields of /proc/self/stat, counted from the one behind the name, in the order of `prctl_mm_map` (proc(5), prctl(2)): code, data,
    /// the start of the heap, its end, which is not there, the stack, arguments and environment.
    const FIELDS: [Option<usize>; 11] = [
        Some(23),
        Some(24),
        Some(42),
        Some(43),
        Some(44),
        None,
        Some(25),
        Some(45),
        Some(46),
        Some(47),
        Some(48),
    ];
    let Some(text) = maps::read_file(c"/proc/self/stat") else { return false };
    let behind_name = text.iter().rposition(|&byte| byte == b')').map_or(0, |at| at + 2);
    let rest = core::str::from_utf8(text.get(behind_name..).unwrap_or_default());
    let fields: Vec<u64> =
        rest.unwrap_or_default().split_ascii_whitespace().map(|f| f.parse().unwrap_or(0)).collect();
    // SAFETY: asks only.
    let brk = unsafe { sys::raw(sys::nr::BRK, [0; 6]) } as u64;
    let mut words = [0u64; 13];
    for (word, field) in words.iter_mut().zip(FIELDS) {
        let value = field.map_or(Some(brk), |field| fields.get(field).copied());
        let Some(value) = value.filter(|&value| value != 0) else { return false };
        let is_moved = (stack.start..=stack.end).contains(&value);
        *word = if is_moved { value.wrapping_add(distance) } else { value };
    }
    // The auxiliary vector stays as it was, and so does the file.
    words[12] = NO_FILE << 32;
    let args =
        [PR_SET_MM, PR_SET_MM_MAP, words.as_ptr() as usize, core::mem::size_of_val(&words), 0];
    // SAFETY: the kernel reads the words.
    unsafe { sys::call(sys::nr::PRCTL, &args) }.is_ok()
}
