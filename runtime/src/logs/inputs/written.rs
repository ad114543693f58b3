//! What the kernel has written.
//!
//! Of a call whose result says how far it came (`read`), so many bytes are recorded. Of the others what
//! they may write is compared with what was there before: what is the same now would be the same in a
//! replay. Where other threads may write meanwhile, or the memory is large, all is recorded.

use crate::base::program::look_at;
use crate::base::{census, sys};
use crate::logs::inputs::at_hand::{pending, read};
use crate::logs::inputs::unfollowed::unfollowed;
use crate::logs::inputs::{foreign, view};
use crate::logs::moment::Call;
use crate::logs::writes::Writes;
use crate::thread::Thread;
use abi::event::{Event, EVENT_HEADER_SIZE, WHOLE_UNIT};
use abi::ids::LiveAddr;
use abi::layout::PAGE;
use alloc::vec::Vec;
use smallvec::SmallVec;

/// Bytes in one event.
const PIECE: u64 = 64 << 10;
/// Most bytes that are compared.
const COMPARED: u64 = 16 << 10;
/// So many bytes are kept without the heap.
const FEW: usize = 128;
/// Two places of change with fewer bytes in between are one event.
const GAP: usize = EVENT_HEADER_SIZE + 16;

/// What was in the memory that a call may write whatever its result: all of these ranges, one behind the
/// other.
#[derive(Default)]
pub struct Image {
    bytes: SmallVec<[u8; FEW]>,
    /// It could be taken.
    taken: bool,
}

impl Image {
    /// Takes it of the memory as it is now, if it has one owner.
    pub fn take(&mut self, writes: &Writes) {
        let ranges = || writes.ranges.iter().filter(|range| range.unit == 0);
        let len = ranges().fold(0u64, |sum, range| sum.saturating_add(range.length));
        if len > COMPARED || census::live() > 1 || view::is_watched() {
            return;
        }
        for range in ranges() {
            let Some(piece) = alone(range.address, range.length) else { return };
            self.bytes.extend_from_slice(piece);
        }
        self.taken = true;
    }
}

/// A few pages of memory where they lie, if the process has one thread.
pub fn alone<'a>(at: u64, len: u64) -> Option<&'a [u8]> {
    if len > COMPARED || census::live() > 1 {
        return None;
    }
    // SAFETY: the only thread is here, and keeps the slice no longer than until its next system call.
    unsafe { look_at(at, len, pending(at, len)) }
}

/// Records what the kernel has written for a call that returned `result`.
pub fn by_call(thread: &mut Thread, call: &Call, result: sys::Result) {
    let faulted = result == Err(sys::EFAULT);
    let mut left = result.unwrap_or(0) as u64;
    let mut before = call.before.bytes.as_slice();
    for range in &call.writes.ranges {
        let (at, len, unit) = (range.address, range.length, u64::from(range.unit));
        match unit {
            // How far it came is not known.
            1.. if faulted => copied(thread, at, len),
            1.. => {
                let written = len.min(left.saturating_mul(unit));
                left -= written.div_ceil(unit);
                copied(thread, at, written);
            }
            0 if call.before.taken => {
                let old = before.split_off(..len as usize).unwrap_or_default();
                changes(thread, at, old);
            }
            // A call that fails may have written, too.
            0 => copied(thread, at, len),
        }
    }
}

/// Records what is at `address`, as far as the kernel has copied something there. It copies upwards: where a call is given
/// more than can be looked at, it has come no further than to the first gap.
fn copied(thread: &mut Thread, address: u64, len: u64) {
    let _ = looked_at(thread, address, len);
}

/// Records what is not as in `old` at `address`.
fn changes(thread: &mut Thread, address: u64, old: &[u8]) {
    let Some(new) = alone(address, old.len() as u64) else {
        // A part is gone.
        return all(thread, address, old.len() as u64);
    };
    let mut run: Option<(usize, usize)> = None;
    for at in (0..old.len()).filter(|&i| old[i] != new[i]) {
        run = match run {
            Some((from, end)) if at - end < GAP => Some((from, at + 1)),
            Some((from, end)) => {
                piece(thread, address + from as u64, &new[from..end]);
                Some((at, at + 1))
            }
            None => Some((at, at + 1)),
        };
    }
    if let Some((from, end)) = run {
        piece(thread, address + from as u64, &new[from..end]);
    }
}

/// Records what is at `address`, as far as there is something.
pub fn all(thread: &mut Thread, address: u64, len: u64) {
    if !looked_at(thread, address, len) {
        unfollowed(thread, "more memory than can be looked at was written");
    }
}

/// The same; false if there is so much behind a gap that looking at each page would take too long: that is not recorded.
fn looked_at(thread: &mut Thread, address: u64, len: u64) -> bool {
    if len == 0 || !thread.recorder.to_file() {
        return true;
    }
    if let Some(bytes) = alone(address, len) {
        piece(thread, address, bytes);
        return true;
    }
    let (mut few, mut many) = ([0; FEW], Vec::new());
    let (mut at, mut left) = (address, len.min(u64::MAX - address));
    while left > 0 {
        let wanted = left.min(PIECE) as usize;
        let buffer = few.get_mut(..wanted).unwrap_or_else(|| {
            many.resize(wanted, 0);
            &mut many
        });
        match read(at, buffer) {
            Ok(read) if read > 0 => {
                piece(thread, at, &buffer[..read]);
                (at, left) = (at + read as u64, left - read as u64);
            }
            Ok(_) | Err(sys::EFAULT) => {
                if left > 1 << 30 {
                    return false;
                }
                let hole = left.min(PAGE - at % PAGE);
                (at, left) = (at + hole, left - hole);
            }
            // A filter of system calls is in the way.
            Err(_) => {
                unfollowed(thread, "the program's memory cannot be read");
                return true;
            }
        }
    }
    true
}

/// Records that the kernel has put `bytes` at `at`.
pub fn piece(thread: &mut Thread, at: u64, bytes: &[u8]) {
    view::put(thread, at, bytes);
    foreign::leaves(at, bytes);
    thread.event(WHOLE_UNIT, &Event::Written { address: LiveAddr(at), bytes });
}
