//! How a watched thread begins: what a replay of it alone has to know.

use crate::base::census;
use crate::base::own::anonymous;
use crate::base::sys::{self, nr};
use crate::base::vectors::{put_claimed, put_low_halves, save_vectors, vectors_len};
use crate::kernel::baton;
use crate::kernel::ring::parts;
use crate::kernel::signals::actions;
use crate::kernel::switch;
use crate::logs::inputs::unfollowed::unfollowed;
use crate::logs::inputs::{mappings, stamps, view};
use crate::thread::{claims, Thread};
use abi::event::{Event, WHOLE_UNIT};
use alloc::vec::Vec;

/// Why threads are not watched any more.
pub const TOO_MANY: &str = "there are more threads than can be watched";

/// The only thread, in front of a call that makes another one, or (at `pc`) a thread behind one that lets others write to
/// its memory, is watched from here on, and serial ones are that have waited meanwhile ([`joins`]). What came before is
/// replayed as with serial threads.
pub fn from_here_on(thread: &mut Thread, pc: u64) {
    if !view::waits() || !view::can_begin(thread) {
        return;
    }
    let interval = parts::interval();
    if parts::is_active() {
        thread.recorder.begin_part();
    }
    let registers = thread.register_state(pc, 0xffff);
    thread.event(WHOLE_UNIT, &Event::Checked(&registers));
    if census::live() > 1 {
        baton::leaves_order(thread, pc);
    }
    thread.event(WHOLE_UNIT, &Event::Watched);
    gets_view(thread);
    begins_in(thread, pc, interval);
}

/// The thread is about to go on at `resume_original`. If it was in the order of serial threads, and they are watched by
/// now, it is from here on, and lets the next one do the same.
pub fn joins(thread: &mut Thread) {
    if !thread.in_order || baton::is_serial() {
        return;
    }
    thread.in_order = false;
    let pc = thread.resume_original;
    if !view::is_watched() {
        // Given up, before all had views.
        baton::leaves_order(thread, pc);
        unfollowed(thread, TOO_MANY);
    } else if !view::has(thread) {
        baton::leaves_order(thread, pc);
        thread.event(WHOLE_UNIT, &Event::Watched);
        if gets_late_view(thread) {
            begins_in(thread, pc, parts::interval());
        }
    }
    baton::hands_over(thread);
}

/// A new thread, which may have waited to begin as a serial one, is watched from its start if others are by now.
pub fn begins_late(thread: &mut Thread) {
    if baton::is_serial() {
        return;
    }
    if view::have_begun() && view::is_watched() && !view::has(thread) && !view::join(thread) {
        gives_up(thread);
    }
    baton::hands_over(thread);
}

/// False if there are more threads than have room: then none is watched any more.
fn gets_late_view(thread: &mut Thread) -> bool {
    let has_one = view::join(thread);
    if !has_one {
        unfollowed(thread, TOO_MANY);
        gives_up(thread);
    }
    has_one
}

/// Behind a call of the thread's: if it has mapped memory where threads cannot be watched, none is from here on.
pub fn up_to_here(thread: &mut Thread) {
    if view::is_uncovered(thread) {
        gives_up(thread);
    }
}

/// No thread is watched from here on, which is in the thread's recording. Each other one notes it where it comes to
/// the runtime, and runs the code that does not watch.
pub fn gives_up(thread: &mut Thread) {
    if !switch::unwatches() {
        crate::die!("too many threads run to stop watching them: use --threads serial");
    }
    view::leave(thread);
}

/// In a forked child: the thread gets a view and runs code that watches.
pub fn changes_code(thread: &mut Thread) {
    let begins = !view::only_if_shared() || mappings::are_shared() && view::may_begin(thread);
    if view::waits() && begins && view::can_begin(thread) {
        gets_view(thread);
    }
}

fn gets_view(thread: &mut Thread) {
    view::begin(thread);
    mappings::watched();
    switch::watches(thread);
}

/// The watched thread, with its registers in its block, goes on at `pc` as one that begins: a replay may begin there.
pub fn anew(thread: &mut Thread, pc: u64) {
    let interval = parts::interval();
    thread.recorder.begin_part();
    let registers = thread.register_state(pc, 0xffff);
    thread.event(WHOLE_UNIT, &Event::Checked(&registers));
    thread.event(WHOLE_UNIT, &Event::Anew);
    view::empty(thread);
    begins_in(thread, pc, interval);
}

/// The thread, with its registers in its block, is about to begin at `pc`.
pub fn begins(thread: &mut Thread, pc: u64) {
    begins_in(thread, pc, parts::interval());
}

/// The same, in this interval of a ring.
fn begins_in(thread: &mut Thread, pc: u64, interval: u32) {
    if !view::is_watched() {
        return;
    }
    let all = actions::of(thread).to_bytes();
    thread.event(WHOLE_UNIT, &Event::Actions(&all));
    let vectors = vectors(thread);
    let state = thread.register_state(pc, 0xffff);
    let event = thread.state_event(&state, &vectors);
    thread.event(WHOLE_UNIT, &event);
    stamps::begins(thread, pc);
    (thread.unwatched, thread.made_known) = (false, 0);
    parts::has_begun(thread, interval);
}

/// The processor's vector and floating-point state, with the registers that the runtime uses as the thread
/// has them.
fn vectors(thread: &Thread) -> Vec<u8> {
    let len = vectors_len();
    let Ok(area) = anonymous(len) else { return Vec::new() };
    // SAFETY: a new area, as large as the state.
    let mut saved = unsafe {
        save_vectors(area);
        core::slice::from_raw_parts(area as *const u8, len as usize).to_vec()
    };
    // SAFETY: mapped here.
    let _ = unsafe { sys::call(nr::MUNMAP, &[area as usize, len as usize]) };
    put_low_halves(&mut saved, &thread.xmm);
    put_claimed(&mut saved, claims::first(thread.vector), &thread.block.program_vectors);
    saved
}
