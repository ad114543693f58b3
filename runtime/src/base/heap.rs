//! Memory for the runtime's own data: size classes of powers of two over mapped memory.
//!
//! Freed blocks are kept for the next allocation of their class. Large blocks are mapped and
//! unmapped. Callers hold no other lock of the runtime while they wait here.

use crate::base::lasting;
use crate::base::lock::{Forked, Lock};
use crate::base::populate::{populate, Access};
use crate::base::sys;
use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{
    compiler_fence, AtomicBool, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};

const SMALLEST: usize = 16;
const CLASSES: usize = 14; // 16 bytes to 128 KiB
const REFILL: usize = 1 << 20;
/// What the kernel is asked for at once, where it can be: a page fault each would cost more.
const POPULATED: usize = 128 << 10;

struct Free {
    /// Heads of the free lists: each free block starts with the address of the next one.
    heads: [usize; CLASSES],
    next: usize,
    /// Behind the memory that has pages.
    populated: usize,
    end: usize,
}

pub struct Heap(Lock<Free>);

impl Heap {
    pub const fn new() -> Heap {
        Heap(Lock::new(Free { heads: [0; CLASSES], next: 0, populated: 0, end: 0 }))
    }

    /// Gives up the lock in a child that was forked while another thread held it.
    pub fn reset_lock(&self, forked: &Forked) {
        self.0.force_unlock(forked);
    }
}

/// A forked child often ends soon: it gets its pages one by one.
//
// What a fork writes to costs a page fault in the parent and one in the child. So such statics have a
// section of their own, here and elsewhere, rather than lie on the pages of all others.
#[link_section = ".data.at_fork"]
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// What unlocks the heap in a forked child; set by the blob, which owns the allocator.
static AFTER_FORK: AtomicUsize = AtomicUsize::new(0);

/// Whether the process was forked from one that was recorded, and may end soon.
pub fn is_child() -> bool {
    IS_CHILD.load(Relaxed)
}

/// Names the function that unlocks the heap in a forked child.
pub fn set_after_fork(hook: fn(&Forked)) {
    AFTER_FORK.store(hook as usize, Relaxed);
}

/// In a forked child: other threads do not hold the heap any more.
pub fn after_fork(forked: &Forked) {
    IS_CHILD.store(true, Relaxed);
    let hook = AFTER_FORK.load(Relaxed);
    if hook != 0 {
        // SAFETY: `set_after_fork` stored a function of this type.
        let hook: fn(&Forked) = unsafe { core::mem::transmute(hook) };
        hook(forked);
    }
}

impl Default for Heap {
    fn default() -> Self {
        Heap::new()
    }
}

fn no_memory(errno: i32) -> ! {
    crate::die!("no memory for the runtime's own data (error {errno})")
}

fn class_of(layout: Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(SMALLEST).next_power_of_two();
    let class = (size / SMALLEST).trailing_zeros() as usize;
    (class < CLASSES).then_some(class)
}

// SAFETY: blocks are disjoint pieces of mapped memory, aligned to their size (classes) or to a
// page (large blocks; no caller asks for more).
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(block) = lasting::take(layout) {
            return block;
        }
        let Some(class) = class_of(layout) else {
            return match crate::base::own::anonymous(layout.size() as u64) {
                Ok(at) => at as *mut u8,
                Err(errno) => no_memory(errno),
            };
        };
        let size = SMALLEST << class;
        let mut free = self.0.lock();
        let head = free.heads[class];
        if head != 0 {
            // SAFETY: a free block of ours starts with the next one's address.
            free.heads[class] = unsafe { *(head as *const usize) };
            return head as *mut u8;
        }
        let mut at = (free.next + size - 1) & !(size - 1);
        if free.next == 0 || at + size > free.end {
            match crate::base::own::anonymous(REFILL as u64) {
                Ok(new) => {
                    // A child that is forked in the midst of this finds no room, rather than too much.
                    free.end = 0;
                    compiler_fence(SeqCst);
                    free.next = new as usize;
                    free.populated = free.next;
                    compiler_fence(SeqCst);
                    free.end = new as usize + REFILL;
                }
                Err(errno) => no_memory(errno),
            }
            at = (free.next + size - 1) & !(size - 1);
        }
        free.next = at + size;
        while free.next > free.populated && !IS_CHILD.load(Relaxed) {
            populate(free.populated as u64, POPULATED as u64, Access::Write);
            free.populated += POPULATED;
        }
        at as *mut u8
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if lasting::has(block) {
            return;
        }
        let Some(class) = class_of(layout) else {
            // SAFETY: it was mapped by `alloc` with this size.
            let _ = unsafe { sys::call(sys::nr::MUNMAP, &[block as usize, layout.size()]) };
            return;
        };
        let mut free = self.0.lock();
        // SAFETY: the block is ours again and at least 16 bytes long.
        unsafe { *(block as *mut usize) = free.heads[class] };
        free.heads[class] = block as usize;
    }
}
