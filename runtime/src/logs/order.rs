//! The order of all threads' synchronising instructions and system calls: one lock, in a page that
//! generated code reaches, and a number for each. A log that uses it maps the page at start.

use crate::base::sys;
use crate::thread::Thread;
use abi::event::{Event, WHOLE_UNIT};
use abi::layout::{PAGE, SYNC_COUNT, SYNC_LOCK, SYNC_PAGE};
use core::sync::atomic::{AtomicU64, Ordering::*};

/// Maps the page with the lock of synchronising instructions.
pub fn map_sync_page() -> bool {
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_FIXED_NOREPLACE;
    let prot = sys::PROT_READ | sys::PROT_WRITE;
    // SAFETY: NOREPLACE: nothing is there.
    let mapped = unsafe { sys::mmap(SYNC_PAGE, PAGE, prot, flags, -1, 0) };
    mapped == Ok(SYNC_PAGE)
}

fn word(at: u64) -> &'static AtomicU64 {
    // SAFETY: in the page that was mapped at boot; whoever has no such log does not come here.
    unsafe { &*(at as *const AtomicU64) }
}

/// Notes the thread's position in the order of all synchronising instructions.
pub fn stamp(thread: &mut Thread) {
    let this = thread.block.this;
    while word(SYNC_LOCK).swap(this, Acquire) != 0 {
        core::hint::spin_loop();
    }
    let number = word(SYNC_COUNT).load(Relaxed) + 1;
    word(SYNC_COUNT).store(number, Relaxed);
    word(SYNC_LOCK).store(0, Release);
    thread.event(WHOLE_UNIT, &Event::Order(number));
}

/// A synchronising instruction has faulted: others may go on.
pub fn release(thread: &mut Thread) {
    if thread.block.sync_held != 0 {
        thread.block.sync_held = 0;
        word(SYNC_LOCK).store(0, Release);
    }
}

/// In a forked child: whoever had the lock is not there any more.
pub fn forked() {
    word(SYNC_LOCK).store(0, Release);
}
