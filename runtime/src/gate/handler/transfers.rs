//! Jumps, calls and returns whose look-up has met its limits: they go on by way of a miss.

use crate::base::costs;
use crate::base::facts::facts;
use crate::base::program::read_program_value;
use crate::code::jit::jit;
use crate::gate::dispatch::{is_canonical, popped_by, put_back};
use crate::gate::handler::interrupted::Interrupted;
use crate::gate::handler::place::Place;
use crate::thread::Thread;
use abi::event::Cost;
use iced_x86::{Decoder, DecoderOptions};
use instrument::emit::{ToVector, MERGES_HIGH_HALF, READS_HIGH_HALF, SAVES_RCX};
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

/// A return has kept the high half of an address outside the window: it goes on by way of a miss.
pub fn leave_window(thread: &mut Thread, at: &mut Interrupted) {
    costs::count(Cost::Fault, at.pc() >> 32 << 32 | thread.block.target & 0xffff_ffff);
    jit().tables.land(at.pc(), thread.block.target as u32);
    thread.block.target = at.pc() >> 32 << 32 | thread.block.target & 0xffff_ffff;
    put_back(at.context.rsp, thread.block.target);
    at.context.rip = thread.block.stub_miss;
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
    thread.block.target = target;
    thread.block.exit_id = pc;
    at.context.rsp += popped_by(&insn);
    at.context.rip = thread.block.stub_miss;
    true
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
