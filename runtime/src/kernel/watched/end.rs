//! Watched threads whose process ends.
//!
//! Whoever ends it brings the others to the runtime first, where each notes how far it has come: so its replay comes as
//! far. Else that would end with what the thread saw, or called, last, and what it computed behind that would be lost.
//! A thread that is in a system call stays there.

use crate::base::census;
use crate::base::control::Slot;
use crate::base::futex;
use crate::base::last_words::Line;
use crate::base::maps;
use crate::base::sys;
use crate::kernel::switch;
use crate::logs::inputs::view;
use crate::thread::Thread;
use abi::control::place;
use abi::event::{Event, WHOLE_UNIT};
use core::ffi::CStr;
use core::fmt::Write;
use core::sync::atomic::{AtomicU32, Ordering::*};

/// The process that ends: its id (a forked child has another one), or 0.
static ENDS: AtomicU32 = AtomicU32::new(0);
/// Counts threads that have come to stand still.
static STOOD: AtomicU32 = AtomicU32::new(0);

/// So many nanoseconds at most are waited for threads in generated code; the kernel may have no processor for them.
const IN_CODE: u64 = 2_000_000_000;
/// The same, for those that are busy in the runtime: in a call of the kernel's, maybe.
const IN_RUNTIME: u64 = 50_000_000;
/// How often is looked.
const STEP: u64 = 500_000;

/// The thread, with no lock of the runtime, is about to end the process: the others stand still, and have noted where.
pub fn others_stand(thread: &Thread) {
    // (Of a process whose memory another one uses, the other one's threads go on.)
    let is_alone = || Slot::all().all(|s| s.place() == place::GONE || s.is_of_process());
    let has_others = census::live() > 1 && !census::is_lent() && is_alone();
    if !view::has(thread) || !has_others || !switch::are_known() {
        return;
    }
    thread.slot.set_place(place::RUNTIME);
    // From here on they stand still wherever they look; whoever switches does not wait for them.
    ENDS.store(sys::getpid(), SeqCst);
    switch::keep_out();
    Slot::all().for_each(|slot| {
        slot.kick();
    });
    let begun = sys::monotonic_ns();
    loop {
        let stood = STOOD.load(Acquire);
        let are_in_code = Slot::all().any(|slot| slot.place() == place::CODE);
        let others = || Slot::all().filter(|&slot| slot != thread.slot);
        let is_at_work = |slot: Slot| slot.place() == place::RUNTIME && is_busy(slot.tid());
        let at_most = match are_in_code {
            true => IN_CODE,
            false if others().any(is_at_work) => IN_RUNTIME,
            false => return,
        };
        if sys::monotonic_ns().saturating_sub(begun) > at_most {
            return;
        }
        let _ = futex::wait(&STOOD, stood, Some([0, STEP]));
    }
}

/// Whether the thread runs, or would if there were a processor for it.
fn is_busy(tid: u32) -> bool {
    let mut path = Line::default();
    let _ = write!(path, "/proc/self/task/{tid}/stat\0");
    let path = CStr::from_bytes_with_nul(path.text());
    let text = path.ok().and_then(maps::read_file).unwrap_or_default();
    // Behind its name, which is in brackets and may have some.
    let name = text.iter().rposition(|&byte| byte == b')');
    name.and_then(|at| text.get(at + 2)) == Some(&b'R')
}

/// The thread, with its registers in its block, is in front of the instruction at `pc`, and has not begun it. If the
/// process ends, the thread gets no further.
pub fn look(thread: &mut Thread, pc: u64) {
    let ends = ENDS.load(Relaxed);
    if ends == 0 || ends != sys::getpid() || !view::has(thread) {
        return;
    }
    if !thread.transfer_undone && thread.is_between() {
        let registers = thread.register_state(pc, 0xffff);
        thread.event(WHOLE_UNIT, &Event::Checked(&registers));
    }
    thread.slot.set_place(place::STANDS);
    STOOD.fetch_add(1, SeqCst);
    futex::wake(&STOOD);
    loop {
        let _ = futex::wait(&ENDS, ends, None);
    }
}
