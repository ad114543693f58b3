//! The filters of system calls that the program has installed, and their answer.

use crate::base::lock::{Forked, Guard, Lock};
use crate::kernel::syscalls::bpf::{action, run, Data, Insn};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A filter that was installed, and the one that the thread had before: its number, or 0.
pub struct Filter {
    pub program: Vec<Insn>,
    pub by_prctl: bool,
    pub before: u32,
}

/// Filters of system calls: number 1 is the first.
static FILTERS: Lock<Vec<Filter>> = Lock::new(Vec::new());
/// The last one that holds for all threads, or 0.
static FILTER_OF_ALL: AtomicU32 = AtomicU32::new(0);

/// In the only thread of a forked child.
pub fn forked(forked: &Forked) {
    FILTERS.force_unlock(forked);
}

/// All filters.
pub fn filters() -> Guard<'static, Vec<Filter>> {
    FILTERS.lock()
}

/// The last filter that holds for all threads, or 0.
pub fn of_all() -> u32 {
    FILTER_OF_ALL.load(Relaxed)
}

/// From now on filter `number` holds for all threads.
pub fn set_for_all(number: u32) {
    FILTER_OF_ALL.store(number, Relaxed);
}

/// The strictest answer of a chain of filters: the lowest action, as a signed number.
pub fn verdict(filter: u32, data: &Data) -> u32 {
    let filters = filters();
    let mut strictest = action::ALLOW;
    let mut number = filter;
    while let Some(filter) = (number as usize).checked_sub(1).and_then(|i| filters.get(i)) {
        let answer = run(&filter.program, data);
        let rank = |answer: u32| (answer & action::ACTION) as i32;
        if rank(answer) < rank(strictest) {
            strictest = answer;
        }
        number = filter.before;
    }
    strictest
}
