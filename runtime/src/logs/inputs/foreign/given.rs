//! What a call has to do with memory that other processes may store to.
// On the way of faults: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::attempt;
use crate::base::program::read_program_words;
use crate::base::sys::{self, nr};
use crate::logs::inputs::at_hand;
use crate::logs::moment::Call;
use crate::thread::Thread;
use abi::layout::page_up;
use abi::syscalls::{find, may_read};
use alloc::vec::Vec;
use core::ops::Range;

/// What a call is given.
pub struct Given {
    /// It may be anything.
    all: bool,
    /// Pieces of memory: where, and how long.
    ranges: Vec<(u64, u64)>,
}

impl Given {
    pub fn of(call: &Call) -> Given {
        let args = call.args.map(|arg| arg as u64);
        if waits_for(call.number, &call.args) {
            // But for the time that it waits at most.
            return Given { all: false, ranges: alloc::vec![(args[3], 16)] };
        }
        let mut ranges: Vec<_> =
            call.writes.ranges.iter().map(|range| (range.address, range.length)).collect();
        let is_known = find(call.number as u64).is_some_and(|known| {
            let each = &mut |at, len| ranges.push((at, len));
            may_read(known, &args, &mut at_hand::read_all, each)
        });
        ranges.extend(names(call).map(|(start, end)| (start, end - start)));
        if is_futex(call.number) {
            ranges.extend(args.map(|arg| (arg, 1)));
        }
        let all = match call.number {
            // What the thread holds is given up for it.
            nr::EXIT => holds_locks(),
            // The other side may be this process.
            nr::PROCESS_VM_READV | nr::PROCESS_VM_WRITEV => true,
            number => ends(number) || forks(call) || call.writes.elsewhere || !is_known,
        };
        Given { all, ranges }
    }

    /// It is given this, too.
    pub fn and(&mut self, at: u64, len: u64) {
        self.ranges.push((at, len));
    }

    /// What of `start..end` it may be given, as far as memory is concerned that is closed for good: a call that makes a process,
    /// or ends this one, is given all only if locks are to be given up.
    pub fn parts(&self, call: &Call, start: u64, end: u64) -> Vec<Range<u64>> {
        let all = match ends(call.number) || forks(call) {
            true => ends(call.number) && holds_locks(),
            false => self.all,
        };
        if all {
            return alloc::vec![start..end];
        }
        let common = |&(at, len): &(u64, u64)| at.max(start)..at.saturating_add(len).min(end);
        self.ranges.iter().map(common).filter(|range| range.start < range.end).collect()
    }

    /// Whether some of what it is given may lie in `start..end`.
    pub fn some_of(&self, start: u64, end: u64) -> bool {
        let is_in = |&(at, len): &(u64, u64)| at < end && start < at.saturating_add(len);
        self.all || self.ranges.iter().any(is_in)
    }
}

/// Whether the call waits for a word, or wakes who waits for one, wherever it is mapped: it changes nothing.
pub fn waits_for(number: usize, args: &[usize; 6]) -> bool {
    const PRIVATE: usize = 128;
    const CLOCK_REALTIME: usize = 256;
    const WAIT: usize = 0;
    const WAKE: usize = 1;
    const REQUEUE: usize = 3;
    const CMP_REQUEUE: usize = 4;
    const WAIT_BITSET: usize = 9;
    const WAKE_BITSET: usize = 10;
    let operation = args[1] & !CLOCK_REALTIME;
    number == nr::FUTEX
        && operation & PRIVATE == 0
        && matches!(operation, WAIT | WAKE | REQUEUE | CMP_REQUEUE | WAIT_BITSET | WAKE_BITSET)
}

/// Whether the arguments of a call may be addresses of words that threads wait for.
fn is_futex(number: usize) -> bool {
    const FUTEX_WAKE: usize = 454;
    const FUTEX_REQUEUE: usize = 456;
    matches!(number, nr::FUTEX | FUTEX_WAKE..=FUTEX_REQUEUE)
}

/// Whether the call makes a process that has a copy of all other memory.
pub fn forks(call: &Call) -> bool {
    const CLONE_VM: u64 = 0x100;
    let first = call.args[0] as u64;
    match call.number {
        nr::FORK => true,
        nr::CLONE => first & CLONE_VM == 0,
        // (Its flags are in memory.)
        nr::CLONE3 => {
            let mut flags = [0u64];
            read_program_words(first, &mut flags) && flags[0] & CLONE_VM == 0
        }
        _ => false,
    }
}

/// The memory that a call names which is about memory.
fn names(call: &Call) -> Option<(u64, u64)> {
    const MINCORE: usize = 27;
    const MLOCK: usize = 149;
    const MUNLOCK: usize = 150;
    const MLOCK2: usize = 325;
    let [at, len, ..] = call.args.map(|arg| arg as u64);
    match call.number {
        nr::MSYNC | nr::MADVISE | MINCORE | MLOCK | MUNLOCK | MLOCK2 => {
            Some((at, at.saturating_add(len)))
        }
        _ => changes(call),
    }
}

/// Whether the call takes all of `start..end` away.
pub fn is_gone(call: &Call, start: u64, end: u64) -> bool {
    let [first, second, ..] = call.args.map(|arg| arg as u64);
    let is_all = first <= start && end <= first.saturating_add(page_up(second));
    match call.number {
        nr::MMAP | nr::MUNMAP => is_all,
        number => number == nr::SHMDT && first == start,
    }
}

/// What lies there is another memory behind the call, or has other rights.
pub fn changes(call: &Call) -> Option<(u64, u64)> {
    const LONGEST: u64 = 1 << 46;
    const MSEAL: usize = 462;
    let [first, second, third, fourth, fifth, _] = call.args.map(|arg| arg as u64);
    let from = |at: u64, len: u64| (at, at.saturating_add(len));
    match call.number {
        nr::MMAP | nr::MUNMAP | nr::MPROTECT | nr::PKEY_MPROTECT | MSEAL if first != 0 => {
            Some(from(first, second))
        }
        nr::MREMAP if fourth as usize & sys::MREMAP_FIXED != 0 => {
            let (one, other) = (from(first, second), from(fifth, third));
            Some((one.0.min(other.0), one.1.max(other.1)))
        }
        nr::MREMAP => Some(from(first, second.max(third))),
        nr::SHMDT => Some(from(first, 1)),
        nr::SHMAT if second != 0 => Some(from(second, LONGEST)),
        _ => None,
    }
}

/// Whether the thread has locks that the kernel gives up for it, wherever they lie, when it is killed.
pub fn holds_locks() -> bool {
    let head = list_of_locks();
    // The first lock, or this list again; what to add; the one that is being taken or given.
    let mut words = [0u64; 3];
    head != 0 && read_program_words(head, &mut words) && is_held(head, &words)
}

/// The same, where that is asked again and again: in a call, or for an instruction, but not in the handler of signals.
pub fn still_holds_locks(thread: &mut Thread) -> bool {
    let head = *thread.foreign.locks.get_or_insert_with(list_of_locks);
    let mut words = [0u64; 3];
    let to = words.as_mut_ptr() as u64;
    let is_read = match thread.at_hand {
        _ if head == 0 => false,
        true => at_hand::read_value(head, &mut words),
        // SAFETY: the words are borrowed; the rest is the program's memory.
        false => unsafe { attempt::copy(to, head, size_of_val(&words) as u64) },
    };
    is_read && is_held(head, &words)
}

fn is_held(head: u64, [first, _, pending]: &[u64; 3]) -> bool {
    first & !1 != head || *pending != 0
}

/// Where the list lies, or 0.
fn list_of_locks() -> u64 {
    const GET_ROBUST_LIST: usize = 274;
    let (mut head, mut len) = (0u64, 0u64);
    let args = [0, &raw mut head as usize, &raw mut len as usize];
    // SAFETY: the kernel writes two words.
    let known = unsafe { sys::call(GET_ROBUST_LIST, &args) }.is_ok();
    if known {
        head
    } else {
        0
    }
}

/// Whether the call ends the thread, or what it runs.
pub fn ends(number: usize) -> bool {
    matches!(number, nr::EXIT | nr::EXIT_GROUP | nr::EXECVE | nr::EXECVEAT)
}
