//! What the kernel does for a thread that ends: done by us, while the thread has the baton, so that it
//! has its place in the order of the threads. Then the kernel is told to forget it.
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::program::read_program_value;
use crate::base::sys::{self, nr};
use crate::code::writing::{before_writing, write_program_value};
use crate::kernel::baton::{is_serial, note};
use crate::thread::Thread;
use abi::event::Event;
use abi::ids::LiveAddr;
use core::sync::atomic::{AtomicU32, Ordering::SeqCst};

const FUTEX_WAKE: usize = 1;
const FUTEX_WAKE_OP: usize = 5;
const GET_ROBUST_LIST: usize = 274;
const SET_ROBUST_LIST: usize = 273;

/// As in the kernel.
const MOST_LOCKS: u32 = 2048;
pub(super) const WAITERS: u32 = 0x8000_0000;
pub(super) const OWNER_DIED: u32 = 0x4000_0000;
pub(super) const OWNER: u32 = 0x3fff_ffff;

/// The thread ends, and others go on.
pub fn before_end(thread: &mut Thread) {
    if !is_serial() {
        return;
    }
    give_locks_up(thread);
    let at = core::mem::take(&mut thread.clear_tid);
    if at == 0 {
        return;
    }
    // SAFETY: the program has asked for it.
    if unsafe { write_program_value(at, &0u32) } {
        note_written(thread, at, 0);
    }
    wake_one(at);
    // SAFETY: nothing is written.
    let _ = unsafe { sys::call(nr::SET_TID_ADDRESS, &[0]) };
}

pub(super) fn note_written(thread: &mut Thread, at: u64, value: u32) {
    let bytes = value.to_le_bytes();
    let written = Event::Written { address: LiveAddr(at), bytes: &bytes[..] };
    note(thread, &written);
}

fn wake_one(at: u64) {
    // SAFETY: the kernel uses the address as a key.
    let _ = unsafe { sys::call(nr::FUTEX, &[at as usize, FUTEX_WAKE, 1]) };
}

/// The list of robust locks that the thread has, and of the one that it was about to take or to give.
fn give_locks_up(thread: &mut Thread) {
    let (mut head, mut len) = (0u64, 0u64);
    let args = [0, &raw mut head as usize, &raw mut len as usize];
    // SAFETY: the kernel writes two words.
    let known = unsafe { sys::call(GET_ROBUST_LIST, &args) }.is_ok();
    if !known || head == 0 {
        return;
    }
    // SAFETY: nothing is written.
    let _ = unsafe { sys::call(SET_ROBUST_LIST, &[0, len as usize]) };
    // struct robust_list_head: the first lock, what to add to find its word, the one in between.
    let mut words = [0u64; 3];
    if !read_program_value(head, &mut words) {
        return;
    }
    let [mut next, offset, between] = words;
    for _ in 0..MOST_LOCKS {
        let lock = next;
        if lock & !1 == head {
            break;
        }
        let is_last = !read_program_value(lock & !1, &mut next);
        if lock & !1 != between & !1 && !give_up(thread, lock, offset, false) {
            return;
        }
        if is_last {
            return;
        }
    }
    if between & !1 != 0 {
        give_up(thread, between, offset, true);
    }
}

/// The owner of a lock has died; `is_between`: it may not have been its owner yet, or any more. False if
/// there is no lock.
fn give_up(thread: &mut Thread, lock: u64, offset: u64, is_between: bool) -> bool {
    let (at, has_priority) = ((lock & !1).wrapping_add(offset), lock & 1 == 1);
    let mut value = 0u32;
    if !at.is_multiple_of(4) || !read_program_value(at, &mut value) {
        return false;
    }
    if is_between && !has_priority && value & OWNER == 0 {
        wake_one(at);
        return true;
    }
    if value & OWNER != thread.tid {
        return true;
    }
    before_writing(at, at.saturating_add(4));
    if !is_writable(at) {
        return false;
    }
    // SAFETY: it is mapped, and may be written: nobody of this process changes that, as this thread
    // has the baton. Other processes may use the word, as an atomic.
    let word = unsafe { &*(at as *const AtomicU32) };
    let died = |value| (value & OWNER == thread.tid).then_some(value & WAITERS | OWNER_DIED);
    let Ok(old) = word.fetch_update(SeqCst, SeqCst, died) else { return true };
    note_written(thread, at, old & WAITERS | OWNER_DIED);
    if old & WAITERS != 0 && !has_priority {
        wake_one(at);
    }
    true
}

/// Adds nothing to the word, by way of the kernel, which minds where it is.
fn is_writable(at: u64) -> bool {
    const ADD_NOTHING: usize = 1 << 28;
    // Whoever waits for this is woken: nobody.
    let own = AtomicU32::new(0);
    let args = [own.as_ptr() as usize, FUTEX_WAKE_OP, 0, 0, at as usize, ADD_NOTHING];
    // SAFETY: the word keeps its value.
    unsafe { sys::call(nr::FUTEX, &args) }.is_ok()
}
