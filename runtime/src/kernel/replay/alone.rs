//! One watched thread alone: its memory holds nothing at first but code, and what files have that nobody
//! can write.
// What is read was made by another program: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::facts::facts;
use crate::base::program::{is_mapped, read_program_value};
use crate::base::replaying::is_alone;
use crate::base::sys::{self, nr};
use crate::kernel::brk::brk;
use crate::kernel::replay::outcome::impossible_at_start;
use crate::kernel::replay::replay;
use crate::kernel::replay::script::Next;
use abi::event::Event;
use abi::layout::{page_down, page_up, PAGE};
use core::ops::Range;

const LOAD: u64 = 1;
const WRITABLE: u64 = 2;

/// The thread begins anew: nothing of its memory is known any more.
pub fn begins_anew() {
    const MADV_DONTNEED: usize = 4;
    let drop = |range: Range<u64>| {
        let args = [range.start as usize, (range.end - range.start) as usize, MADV_DONTNEED];
        // SAFETY: the program's own memory, of nobody's file: it is zero again, and code as in its file.
        let _ = unsafe { sys::call(nr::MADVISE, &args) };
    };
    let (mut script, header) = {
        let replay = replay();
        (replay.script.from_start(), replay.header)
    };
    while let Next::Entry(entry) = script.peek() {
        match entry.event() {
            Some(Event::Region { start, len, .. }) => drop(start.0..start.0.saturating_add(len)),
            Some(Event::Snapshot { .. }) => break,
            _ => {}
        }
        script.take(&entry);
    }
    // (The page where it begins may be shared with the program's data, which is cleared below.)
    let heap = {
        let brk = brk();
        page_up(brk.start)..page_up(brk.current)
    };
    if heap.start < heap.end {
        drop(heap);
    }
    let mut stack = page_down(header.stack);
    while is_mapped(stack - PAGE) {
        stack -= PAGE;
    }
    drop(stack..header.stack_end);
    clear();
}

/// What the program and its interpreter may write to is zero, if one thread is replayed alone.
pub fn clear() {
    if !is_alone() {
        return;
    }
    let (header, window) = (&facts().header, facts().window);
    segments(window + header.program_headers, header.program_header_count, window);
    let interpreter = replay().header.interpreter;
    if interpreter != 0 {
        let mut elf = [0u8; 64];
        if !read_program_value(interpreter, &mut elf) {
            impossible_at_start(format_args!("the interpreter is not there"));
        }
        let table = elf.get(32..40).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
        let count = elf.get(56..58).and_then(|b| b.try_into().ok()).map_or(0, u16::from_le_bytes);
        segments(interpreter.wrapping_add(table), count.into(), interpreter);
    }
}

/// Clears those of the program headers at `table`.
fn segments(table: u64, count: u64, base: u64) {
    for at in (0..count).map(|n| table.wrapping_add(56 * n)) {
        // Type and flags, offset, address, physical address, size in the file, size in memory.
        let mut words = [0u64; 6];
        if !read_program_value(at, &mut words) {
            impossible_at_start(format_args!("the program's headers are not there"));
        }
        let [kind, _, address, _, _, size] = words;
        if kind & 0xffff_ffff != LOAD || kind >> 32 & WRITABLE == 0 || size == 0 {
            continue;
        }
        let start = page_down(base.wrapping_add(address));
        let end = page_up(base.wrapping_add(address).wrapping_add(size));
        let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_FIXED;
        let prot = sys::PROT_READ | sys::PROT_WRITE;
        // SAFETY: the program's own, which has not begun.
        if unsafe { sys::mmap(start, end - start, prot, flags, -1, 0) } != Ok(start) {
            impossible_at_start(format_args!("no memory for the program's data"));
        }
    }
}
