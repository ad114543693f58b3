//! What the program passes to the kernel: the memory that a call is given to read. A recording keeps a digest
//! of it, and a replay that passes something else differs.
//!
//! It is taken when the call begins, while no other thread runs, whatever the call will read in the end: so it
//! follows from what the program did.

use crate::base::digest::Digest;
use crate::base::sys::nr;
use crate::logs::inputs::mappings::written_through;
use crate::logs::inputs::written::alone;
use crate::logs::inputs::{at_hand, foreign, view};
use crate::thread::Thread;
use abi::event::{Event, WHOLE_UNIT};
use abi::layout::{page_down, page_up, PAGE};
use abi::syscalls::{find, may_read};
use alloc::vec;

/// Bytes that are looked at together.
const PIECE: u64 = 16 << 10;
/// The kernel may read more, but not all of what is given to it: of a larger piece this is compared.
const MOST: u64 = 64 << 20;

/// Of the memory that the call is given to read.
pub fn passed(number: usize, args: &[usize; 6]) -> Digest {
    let mut digest = Digest::default();
    for range in leaves(number, args).into_iter().flat_map(|(from, to)| written_through(from, to)) {
        add(&mut digest, range.start, range.end - range.start);
    }
    let Some(call) = find(number as u64).filter(|call| !call.reads.is_empty()) else {
        return digest;
    };
    let args = args.map(|arg| arg as u64);
    // What is not certain is the same in a replay.
    let _ = may_read(call, &args, &mut read, &mut |at, len| add(&mut digest, at, len));
    digest
}

/// A watched thread passes this memory to the kernel: what others have stored there is noted, so that a replay
/// can show what the thread wrote.
pub fn shown(thread: &mut Thread, number: usize, args: &[usize; 6]) {
    let Some(call) = find(number as u64).filter(|call| !call.reads.is_empty()) else { return };
    let args = args.map(|arg| arg as u64);
    let mut ranges = vec![];
    let _ = may_read(call, &args, &mut read, &mut |at, len| ranges.push((at, len.min(MOST))));
    let pc = thread.syscall_pc;
    let mut page = vec![0u8; PAGE as usize];
    for (at, len) in ranges {
        let (mut from, end) = (at, at.saturating_add(len));
        while from < end {
            let to = end.min(page_down(from) + PAGE);
            let part = page.get_mut(..(to - from) as usize).unwrap_or_default();
            let Ok(got) = at_hand::read(from, part) else { break };
            view::sees(thread, pc, from, part.get(..got).unwrap_or_default());
            from = to;
        }
    }
}

/// Where the program has changed files by storing to memory when the call begins: from where to where the call
/// leaves that to others.
fn leaves(number: usize, args: &[usize; 6]) -> Option<(u64, u64)> {
    let [at, len, ..] = args.map(|arg| arg as u64);
    match number {
        nr::MUNMAP | nr::MSYNC => Some((at, at.saturating_add(page_up(len)))),
        nr::EXIT_GROUP | nr::EXECVE | nr::EXECVEAT => Some((0, u64::MAX)),
        _ => None,
    }
}

fn read(at: u64, out: &mut [u8]) -> bool {
    let len = out.len() as u64;
    let has_read = foreign::covers(at, len)
        || match alone(at, len) {
            Some(bytes) => {
                out.copy_from_slice(bytes);
                true
            }
            None => at_hand::read_all(at, out),
        };
    foreign::put_left(at, out);
    has_read
}

/// Adds what is at `at`, up to the first byte that cannot be read.
fn add(digest: &mut Digest, at: u64, len: u64) {
    let (mut at, mut left) = (at, len.min(MOST));
    while left > 0 {
        let wanted = left.min(PIECE);
        let is_own = !foreign::may_lie_in(at, at.saturating_add(wanted));
        let own = if is_own { alone(at, wanted) } else { None };
        if let Some(bytes) = own {
            digest.add(bytes);
        } else {
            let mut buffer = vec![0; wanted as usize];
            // Others may have stored there since the thread has looked.
            let read = match foreign::covers(at, wanted) {
                true => wanted as usize,
                false => at_hand::read(at, &mut buffer).unwrap_or(0),
            };
            foreign::put_left(at, &mut buffer);
            digest.add(buffer.get(..read).unwrap_or_default());
            if (read as u64) < wanted {
                return;
            }
        }
        (at, left) = (at.wrapping_add(wanted), left - wanted);
    }
}

/// Notes what was passed, if it was anything.
pub fn note(thread: &mut Thread) {
    let Digest { bytes, value } = core::mem::take(&mut thread.passed);
    if bytes != 0 {
        thread.event(WHOLE_UNIT, &Event::Passed { bytes, digest: value });
    }
}
