//! The thread's buffers: where their pointers are, and what follows when one is full.

use crate::base::facts::facts;
use crate::gate::handler::interrupted::Interrupted;
use crate::gate::handler::place::Place;
use crate::gate::handler::state::pointers_are_exchanged;
use crate::logs::log;
use crate::recording::trace_file::trace;
use crate::thread::Thread;
use abi::trace::RegisterState;
use iced_x86::{Decoder, DecoderOptions};
use lifter::regs::GprSet;

/// Copies the buffer pointers into the thread block, unless the code was just using the program's
/// own register: then they are there already.
pub fn take_pointers(thread: &mut Thread, at: &Interrupted, place: &Place) {
    let pointers = at.pointers(thread.vector);
    if let Some(pointers) = pointers.filter(|_| !pointers_are_exchanged(at, place)) {
        thread.block.pointers = pointers;
    }
}

/// The other way round. The thread goes on in translated code, and not in the midst of an exchange.
pub fn give_pointers(thread: &Thread, at: &mut Interrupted) {
    at.set_increments(thread.vector);
    at.set_pointers(thread.vector, thread.block.pointers);
}

/// Whether a fault at `address` is a buffer that is full; then there is room now.
pub fn make_room(thread: &mut Thread, at: &mut Interrupted, place: &Place, address: u64) -> bool {
    if thread.recorder.is_guard(address) {
        if !store_outcome(thread, at, place) {
            next_chunk(thread, at, place);
        }
        return true;
    }
    thread.recorder.is_overflow(address) && {
        // Not so where an index of the program's, in the register that is claimed, was just being recorded: the
        // pointers come back behind the instruction.
        let are_there = !pointers_are_exchanged(at, place);
        open_overflow(thread, at, are_there);
        true
    }
}

/// The same for the routine that records what there is to record at a call.
pub fn make_room_for_call(thread: &mut Thread, at: &mut Interrupted, address: u64) -> bool {
    let Some(pointers) = at.pointers(thread.vector) else { return false };
    thread.recorder.is_overflow(address) && {
        thread.block.pointers = pointers;
        open_overflow(thread, at, true);
        true
    }
}

/// The memory stream has come to its overflow area. `are_there`: the pointers are in their register.
fn open_overflow(thread: &mut Thread, at: &mut Interrupted, are_there: bool) {
    let mut pointers = thread.block.pointers;
    thread.recorder.overflow(&mut pointers);
    thread.block.pointers = pointers;
    if are_there {
        at.set_pointers(thread.vector, pointers);
    }
}

/// The next chunk, and the unit starts again: it has not changed anything.
fn next_chunk(thread: &mut Thread, at: &mut Interrupted, place: &Place) {
    let mut gpr = at.context.gpr();
    let mut valid = GprSet::ALL;
    if let Some(recipe) = place.recipe() {
        let header = recipe.header();
        valid = header.live_in;
        for (slot, scratch) in header.scratch.into_iter().enumerate() {
            if let Some(scratch) = scratch.filter(|scratch| scratch.spilled) {
                gpr[scratch.register.index()] = thread.block.spill[slot];
            }
        }
    }
    at.context.set_gpr(&gpr);
    let state = RegisterState {
        gpr,
        rip: place.start(),
        rflags: at.context.rflags,
        fs_base: thread.fs_base(),
        gs_base: thread.block.program_gs,
        // The stack pointer is the program's, whether anything here needs it or not.
        valid: u64::from(valid.bits()) | 1 << 4,
    };
    if facts().pauses {
        trace().pause_now_and_then();
    }
    let pointers = thread.block.pointers;
    thread.block.pointers = thread.recorder.next_chunk(&pointers, &state, place.window());
    log().chunk_starts(thread);
    give_pointers(thread, at);
    // Undo log: what the runtime has saved in front of the unit is not saved again.
    let announced = (place.entry()..=at.pc()).contains(&thread.block.resume);
    at.context.rip = if announced { thread.block.resume } else { place.entry() };
}

/// `bits`: the outcome of a unit whose control-flow pointer was parked after it had claimed the
/// byte. The store is done again, with the pointer that it meant.
fn store_outcome(thread: &Thread, at: &mut Interrupted, place: &Place) -> bool {
    let in_prologue =
        place.recipe().is_none_or(|recipe| recipe.at(place.offset(at.pc())).is_none());
    let Some(flow) = thread.recorder.parked().filter(|_| !in_prologue) else { return false };
    let code = place.code::<15>();
    let insn = Decoder::new(64, &code, DecoderOptions::NONE).decode();
    let Some(base) = lifter::regs::gpr_number(insn.memory_base()) else { return false };
    let mut gpr = at.context.gpr();
    gpr[base.index()] = flow;
    at.context.set_gpr(&gpr);
    true
}
