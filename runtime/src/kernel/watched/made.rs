//! Code that a watched program has made. Its bytes are in no file: a thread notes those that it is going to run and
//! has not stored itself, so that its replay has them, too.
//!
//! Translations are all threads'. So where code is about to be translated, or its translation to be opened again, all
//! other threads are brought out of generated code first, and each notes its bytes before it goes on
//! ([`catches_up`]): none comes to a translation whose bytes its replay would not have. Code that may change unnoticed,
//! which is compared each time, is noted each time.
// On the way of every entry: an index may panic, `get` says what then.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

use crate::base::attempt;
use crate::base::program;
use crate::code::jit::{jit, Linked, Opened, Opens};
use crate::code::links::ExitId;
use crate::code::made;
use crate::code::world::For;
use crate::kernel::switch::{starts_over, stop_others};
use crate::kernel::watched::start;
use crate::logs::inputs::unfollowed::unfollowed;
use crate::logs::inputs::view;
use crate::thread::Thread;
use abi::control::place;
use abi::ids::{CodeAddr, LiveAddr};
use abi::layout::{page_down, PAGE};

/// So often code may change while a thread is about to run it.
const MOST_TRIES: u32 = 200;

/// As [`crate::code::jit::Jit::resolve`], for the thread, which is in the runtime.
pub fn resolve(thread: &mut Thread, target: u64, what: Option<For>) -> Option<CodeAddr> {
    let target = LiveAddr(target);
    let mut jit = with_room(jit());
    match jit.opens(target) {
        Opens::AtOnce => jit.resolve(target, what),
        Opens::Compared => {
            let code = jit.resolve(target, what);
            let bytes = jit.compared(target);
            drop(jit);
            if let Some(span) = bytes {
                notes(thread, target.0, span.start.0, span.len());
            }
            code
        }
        Opens::Alone => {
            drop(jit);
            comes_through(thread, target);
            // (Where there are too many threads, none is watched any more.)
            let _stopped = stop_others();
            crate::code::jit::jit().resolve(target, what)
        }
    }
}

/// As [`crate::code::jit::Jit::link_from`], for the thread, which comes from that exit.
pub fn link(thread: &mut Thread, exit: ExitId) -> Linked {
    let mut jit = jit();
    let target = jit.target_of(thread.plain, exit);
    // Nothing is needed any more of the code that it comes from: it is in the runtime now.
    thread.slot.set_place(place::RUNTIME);
    if !jit.needs_room() && jit.opens(target) == Opens::AtOnce {
        return jit.link_from(thread.plain, exit);
    }
    drop(jit);
    Linked { target, code: resolve(thread, target.0, None) }
}

/// There is room for a translation.
fn with_room(jit: Opened) -> Opened {
    if !jit.needs_room() {
        return jit;
    }
    drop(jit);
    starts_over();
    crate::code::jit::jit()
}

/// Others may write to a page all the time on which the thread is to run code: that way it would never come there.
fn comes_through(thread: &mut Thread, target: LiveAddr) {
    let here = (target.0, thread.turns());
    match core::mem::replace(&mut thread.opening, here) == here {
        true => thread.tries += 1,
        false => thread.tries = 0,
    }
    if thread.tries == MOST_TRIES {
        thread.syscall_pc = target.0;
        unfollowed(thread, "code is made where other threads write all the time");
        start::gives_up(thread);
    }
}

/// The thread, with its registers in its block, is about to go on: it notes code that came to be translated
/// since it last did.
pub fn catches_up(thread: &mut Thread) {
    let last = made::last();
    if thread.made_known == last || !view::has(thread) {
        return;
    }
    let pages = jit().made_since(thread.made_known);
    thread.made_known = last;
    for page in pages {
        notes(thread, thread.resume_original, page.0, PAGE);
    }
}

/// The thread, in front of the instruction at `pc`, sees what is in memory there.
fn notes(thread: &mut Thread, pc: u64, at: u64, len: u64) {
    let end = at.saturating_add(len);
    let mut from = at;
    while from < end {
        let to = end.min(page_down(from) + PAGE);
        let mut page = [0u8; PAGE as usize];
        let len = to - from;
        let Some(part) = page.get_mut(..len as usize) else { return };
        // SAFETY: the bytes are borrowed; the rest is the program's memory.
        let reached = unsafe { attempt::copy(part.as_mut_ptr() as u64, from, len) };
        if reached || program::read_program_bytes(from, part) {
            view::sees(thread, pc, from, part);
        }
        from = to;
    }
}
