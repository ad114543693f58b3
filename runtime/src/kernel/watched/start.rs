//! How a watched thread begins: what a replay of it alone has to know.

use crate::base::own::anonymous;
use crate::base::sys::{self, nr};
use crate::base::vectors::{save_vectors, vectors_len};
use crate::kernel::signals::actions;
use crate::logs::inputs::view;
use crate::thread::Thread;
use abi::event::{Event, WHOLE_UNIT};
use alloc::vec::Vec;

/// Where XSAVE puts the first vector registers.
const FIRST: usize = 160;
/// Where it says what is in use.
const STATE: usize = 512;

/// The thread, with its registers in its block, is about to begin.
pub fn begins(thread: &mut Thread) {
    if !view::is_watched() {
        return;
    }
    let mut all = Vec::new();
    for action in actions::of(thread).0.iter().skip(1) {
        for word in [action.handler, action.flags, action.restorer, action.mask] {
            all.extend_from_slice(&word.to_le_bytes());
        }
    }
    thread.event(WHOLE_UNIT, &Event::Actions(&all));
    let vectors = vectors(thread);
    let state = thread.register_state(thread.block.registers.rip, 0xffff);
    let alternate = &thread.alt_stack;
    let event = Event::State {
        index: thread.index,
        tid: thread.tid,
        parent: thread.parent,
        turns: thread.turns(),
        mask: thread.mailbox.mask(),
        alternate: [alternate.sp, u64::from(alternate.flags.cast_unsigned()), alternate.size],
        clear_tid: thread.clear_tid,
        registers: &state,
        vectors: vectors.as_slice(),
    };
    thread.event(WHOLE_UNIT, &event);
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
    let low = thread.xmm.iter().flatten().flat_map(|word| word.to_le_bytes());
    saved.iter_mut().skip(FIRST).zip(low).for_each(|(to, from)| *to = from);
    if let Some(byte) = saved.get_mut(STATE) {
        *byte |= 2;
    }
    saved
}
