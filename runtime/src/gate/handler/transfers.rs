//! Jumps, calls and returns whose look-up has met its limits: they go on by way of a miss.

use crate::base::costs;
use crate::base::facts::facts;
use crate::base::program::read_program_value;
use crate::code::jit::jit;
use crate::code::statics;
use crate::gate::dispatch::{is_canonical, popped_by, put_back};
use crate::gate::handler::interrupted::Interrupted;
use crate::gate::handler::place::{locate, Place};
use crate::gate::handler::state::state_at;
use crate::thread::Thread;
use abi::event::Cost;
use iced_x86::{Decoder, DecoderOptions, Instruction, Register};
use instrument::emit::{
    ToVector, JUMPS_ON, MERGES_HIGH_HALF, PUTS_RETURN_ADDRESS, READS_HIGH_HALF, SAVES_RCX,
};
use instrument::recipe::Entry;
use lifter::flow::Flow;

/// A look-up at `address`, outside the mapped parts of the tables: is done again when that part is
/// there, or goes on as if it had found a miss stub.
pub fn finish_look_up(at: &mut Interrupted, place: &Place, address: u64) -> bool {
    // The program's own load of a target, which comes first, may look the same.
    if place.code_before() == Some(SAVES_RCX) {
        return false;
    }
    let tables = &mut jit().tables;
    let Some((look_up, miss)) = tables.look_up(&place.code(), &at.context.gpr(), address) else {
        return false;
    };
    if tables.cover_missing(address) {
        return true;
    }
    at.context.rip += look_up.length();
    match look_up.to_vector() {
        None => at.context.rcx = miss,
        Some(ToVector::Xmm30) => at.set_zmm30([miss, 0, 0, 0, 0, 0, 0, 0]),
        Some(ToVector::Xmm7) => at.set_xmm(7, [miss, 0]),
    }
    true
}

/// The same for a look-up behind the code of units, where there is no place: generated code looks there for what it
/// does not have itself.
pub fn finish_cold_look_up(at: &mut Interrupted, address: u64) -> bool {
    let pc = at.pc();
    let mut jit = jit();
    let range = jit.arena.range();
    if !range.contains(&pc) || !range.contains(&(pc + 16)) || !jit.tables.has(address) {
        return false;
    }
    // SAFETY: the code cache is readable, and nobody changes what was interrupted.
    let code = unsafe { (pc as *const [u8; 11]).read_unaligned() };
    let Some((look_up, miss)) = jit.tables.look_up(&code, &at.context.gpr(), address) else {
        return false;
    };
    if !jit.tables.cover_missing(address) {
        at.context.rip += look_up.length();
        at.context.rcx = miss;
    }
    true
}

/// A return or a jump has kept the high half of an address outside the window: it goes on by way of a miss.
pub fn leave_window(thread: &mut Thread, at: &mut Interrupted) {
    costs::count(Cost::Fault, at.pc() >> 32 << 32 | thread.block.target & 0xffff_ffff);
    let was_return = {
        let tables = &mut jit().tables;
        let was_return = tables.was_return(at.pc());
        tables.land(at.pc(), thread.block.target as u32);
        was_return
    };
    thread.block.target = at.pc() >> 32 << 32 | thread.block.target & 0xffff_ffff;
    if was_return {
        put_back(at.context.rsp, thread.block.target);
    }
    at.context.rip = thread.block.stub_miss;
}

/// An indirect jump or call to an address that is not canonical: the processor has refused the merged address, which has
/// the same high half. It goes on by way of a miss, which knows what to make of it. `pc`: the original address of
/// the instruction, if it is not in a thunk, where a call has gone.
pub fn refused_jump(thread: &mut Thread, at: &mut Interrupted, pc: Option<u64>) -> bool {
    let mut code = [0; JUMPS_ON.len()];
    let is_jump = read_program_value(at.pc(), &mut code) && code == JUMPS_ON;
    if !is_jump || is_canonical(thread.block.jump) || is_canonical(thread.block.target) {
        return false;
    }
    let pc = if is_in_thunk(at.pc()) { calls(at.pc()) } else { pc };
    let Some(pc) = pc else { return false };
    thread.block.exit_id = pc;
    at.context.rip = thread.block.stub_miss;
    true
}

/// Whether the jump at `jump` is the end of a call's thunk: the return address is put right in front.
fn is_in_thunk(jump: u64) -> bool {
    PUTS_RETURN_ADDRESS.into_iter().any(|(distance, store)| {
        let mut in_front = [0; 3];
        read_program_value(jump - distance, &mut in_front) && in_front == store
    })
}

/// The original address of the call whose thunk ends in the jump at `jump`: thunks lie behind what calls them.
fn calls(jump: u64) -> Option<u64> {
    const CALL: u8 = 0xe8;
    let code = statics::code_around(jump).unwrap_or(jit().arena.range());
    let len = jump.checked_sub(code.start).filter(|_| code.contains(&jump))?;
    // SAFETY: translated code is readable up to what is executed.
    let bytes = unsafe { core::slice::from_raw_parts(code.start as *const u8, len as usize) };
    bytes.windows(5).enumerate().rev().find_map(|(i, bytes)| {
        let [CALL, a, b, c, d] = *bytes else { return None };
        let at = code.start + i as u64;
        let to = (at + 5).wrapping_add_signed(i32::from_le_bytes([a, b, c, d]).into());
        let is_meant = PUTS_RETURN_ADDRESS.iter().any(|(distance, _)| to == jump - distance);
        locate(at).filter(|_| is_meant)?.indirect_call()
    })
}

/// A return at original address `pc` to an address that is not canonical: the processor has refused
/// it, with the merged address on the stack. It goes on by way of a miss, which knows what to make of
/// it.
pub fn refused_return(thread: &mut Thread, at: &mut Interrupted, place: &Place, pc: u64) -> bool {
    let insn = Decoder::new(64, &place.code::<15>(), DecoderOptions::NONE).decode();
    if Flow::of(&insn) != Flow::Return {
        return false;
    }
    let mut merged = 0u64;
    if !read_program_value(at.context.rsp, &mut merged) {
        return false;
    }
    let target = merged >> 32 << 32 | thread.block.target & 0xffff_ffff;
    if is_canonical(target) {
        return false;
    }
    misses(thread, at, &insn, target, pc);
    true
}

/// A return whose stack can be read and not written, as another thread may have made it: the
/// program's return only reads. It goes on by way of a miss.
pub fn unwritable_return(
    thread: &mut Thread,
    at: &mut Interrupted,
    place: &Place,
    entry: &Entry,
) -> bool {
    let code = place.code::<32>();
    let mut decoder = Decoder::new(64, &code, DecoderOptions::NONE);
    let store = decoder.decode();
    let replaces = store.memory_base() == Register::RSP && store.memory_displacement64() == 0;
    // What the look-up has used may be restored in between.
    let behind = [decoder.decode(), decoder.decode()];
    let insn = behind.iter().find(|insn| Flow::of(insn) == Flow::Return).filter(|_| replaces);
    let mut target = 0u64;
    let Some(insn) = insn.filter(|_| read_program_value(at.context.rsp, &mut target)) else {
        return false;
    };
    let state = state_at(thread, at, place, entry);
    at.context.set_gpr(&state.gpr);
    misses(thread, at, insn, target, state.rip);
    true
}

/// The return `insn` at `pc` goes to `target` by way of a miss: its address is taken off the stack.
fn misses(thread: &mut Thread, at: &mut Interrupted, insn: &Instruction, target: u64, pc: u64) {
    thread.block.target = target;
    thread.block.exit_id = pc;
    at.context.rsp += popped_by(insn);
    at.context.rip = thread.block.stub_miss;
}

/// What a return looks up ahead of itself is not there to be read: the program goes on to the return, which finds
/// that out itself. If it does not, as the memory has come into being meanwhile, the look-up has missed.
pub fn pass_over(thread: &mut Thread, at: &mut Interrupted, place: &Place) -> bool {
    let offset = place.offset(at.pc());
    let recipe = place.recipe();
    let next = recipe.and_then(|recipe| recipe.entries().find(|entry| entry.code > offset));
    let Some(next) = next else { return false };
    at.context.rip = place.entry() + u64::from(next.code);
    thread.block.target = thread.block.target >> 32 << 32;
    let miss = facts().entries.return_miss & 0xffff_ffff;
    at.set_zmm30([miss, 0, 0, 0, 0, 0, 0, 0]);
    true
}

/// Whether the interrupted instruction is the first look at the stack of a return, at the high half.
pub fn is_return(place: &Place) -> bool {
    place.code() == READS_HIGH_HALF || place.code() == MERGES_HIGH_HALF
}
