//! The program's registers at the instruction that was interrupted, made of the processor's and of
//! what the unit's snippet has put aside.

use crate::gate::handler::interrupted::{Interrupted, TRAP_FLAG};
use crate::gate::handler::place::Place;
use crate::kernel::signals::state::State;
use crate::thread::{claims, Thread};
use abi::thread::{program_vector, FIRST_VECTOR, POINTERS, PROGRAM_YMM15, VECTORS};
use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register,
};
use instrument::recipe::{Entry, Recipe};
use lifter::regs::RCX;

/// The program's state; the thread is in the sequence of `entry`.
pub fn state_at(thread: &mut Thread, at: &mut Interrupted, place: &Place, entry: &Entry) -> State {
    let gpr = gpr_at(thread, at, place, entry);
    if place.offset(at.pc()) > entry.code {
        if entry.saves_vector(place.offset(at.pc()) - entry.code) {
            let [.., [low, high, ..], _] = thread.block.program_vectors;
            at.set_xmm(7, [low, high]);
        }
        if entry.kind.exchanges_pointers() {
            // The exchange was interrupted: the program's values go to the block, the pointers are there
            // already.
            take_vectors(thread, at, place, entry);
        }
    }
    let valid = place.recipe().map_or(0xffff, |r| valid_at(place, &r, entry));
    State {
        gpr,
        rip: place.start() + u64::from(entry.original),
        rflags: program_flags(thread, at),
        insn: place.position(entry.insn),
        valid,
    }
}

/// The program's general registers; nothing changes.
pub fn gpr_at(thread: &Thread, at: &Interrupted, place: &Place, entry: &Entry) -> [u64; 16] {
    let mut gpr = at.context.gpr();
    let offset = place.offset(at.pc());
    let spilled = entry.spilled(offset - entry.code);
    for (register, value) in spilled.into_iter().zip(thread.block.spill) {
        if let Some(register) = register {
            gpr[register.index()] = value;
        }
    }
    if offset > entry.code && entry.saves_rcx() {
        gpr[RCX.index()] = thread.block.saved_rcx;
    }
    gpr
}

/// Copies to the thread block what the sequence of `entry`, which exchanges vector registers around an instruction, has
/// loaded from there until now: the instruction may have done a part of its work. In the others there is what translated
/// code has there.
fn take_vectors(thread: &mut Thread, at: &Interrupted, place: &Place, entry: &Entry) {
    let own = (FIRST_VECTOR..).zip(&mut thread.block.program_vectors);
    let loaded = loaded_vectors(place, entry);
    for ((number, own), _) in own.zip(loaded).filter(|(_, loaded)| *loaded) {
        match thread.vector == claims::XMM15 {
            true => own[..4].copy_from_slice(&at.ymm15()),
            false => at.vector(number).into_iter().for_each(|value| *own = value),
        }
    }
}

/// The registers from [`FIRST_VECTOR`] on into which the sequence of `entry` has loaded the program's values, and nothing
/// else since: its code says so. xmm15 is the last one here, as in the thread block.
fn loaded_vectors(place: &Place, entry: &Entry) -> [bool; VECTORS] {
    const _: () = assert!(PROGRAM_YMM15 == program_vector(FIRST_VECTOR + VECTORS - 1));
    let mut loaded = [false; VECTORS];
    for moved in moves_with_block(place, entry).filter(|moved| moved.is_load) {
        let which = match moved.register.number() {
            15 => Some(VECTORS - 1),
            number => number.checked_sub(FIRST_VECTOR),
        };
        let place = which.and_then(|which| loaded.get_mut(which).zip(Some(which + FIRST_VECTOR)));
        if let Some((loaded, number)) = place {
            // The lower half of ymm15 alone is loaded on the way to the whole.
            *loaded = moved.offset == program_vector(number) && !moved.register.is_xmm();
        }
    }
    loaded
}

/// Whether the register of the buffer pointers is being exchanged: they are in the thread block from where the sequence
/// has stored them there to where it has loaded them again.
pub fn pointers_are_exchanged(at: &Interrupted, place: &Place) -> bool {
    let offset = place.offset(at.pc());
    let entry = place.recipe().and_then(|recipe| recipe.at(offset));
    let entry = entry.filter(|entry| entry.kind.exchanges_pointers() && offset > entry.code);
    entry.is_some_and(|entry| {
        let last = moves_with_block(place, &entry).filter(|moved| moved.offset == POINTERS).last();
        last.is_some_and(|moved| !moved.is_load)
    })
}

/// An instruction that moves between a vector register and the thread block.
struct Moved {
    register: Register,
    offset: i32,
    is_load: bool,
}

/// Those that the sequence of `entry` has executed until now.
fn moves_with_block<'a>(place: &'a Place, entry: &Entry) -> impl Iterator<Item = Moved> + 'a {
    let done = Decoder::new(64, place.code_until_here(entry.code), DecoderOptions::NONE);
    let is_one = |insn: &Instruction| {
        matches!(insn.mnemonic(), Mnemonic::Vmovdqu64 | Mnemonic::Vmovdqu)
            && insn.segment_prefix() == Register::GS
    };
    done.into_iter().filter(is_one).map(|insn| {
        let is_load = insn.op1_kind() == OpKind::Memory;
        let register = if is_load { insn.op0_register() } else { insn.op1_register() };
        Moved { register, offset: insn.memory_displacement64() as i32, is_load }
    })
}

/// The flags as the program has them: the trap flag may be ours.
fn program_flags(thread: &Thread, at: &Interrupted) -> u64 {
    let flags = at.context.rflags;
    match thread.mailbox.is_stepping() {
        true if thread.mailbox.has_trap_flag() => flags | TRAP_FLAG,
        true => flags & !TRAP_FLAG,
        false => flags,
    }
}

/// Registers that hold the program's values before the instruction of `entry`.
///
/// It may allocate: translated code was interrupted, so this thread does not hold the heap's lock.
fn valid_at(place: &Place, recipe: &Recipe, entry: &Entry) -> u64 {
    let header = recipe.header();
    let mut decoder = Decoder::with_ip(64, place.original(), place.start(), DecoderOptions::NONE);
    let mut factory = InstructionInfoFactory::new();
    let effects: alloc::vec::Vec<_> = core::iter::from_fn(|| {
        decoder.can_decode().then(|| lifter::use_def::use_def(&decoder.decode(), &mut factory))
    })
    .collect();
    let done = (entry.insn as usize).min(effects.len());
    let written = effects[..done].iter().fold(header.live_in, |set, e| set.union(e.defined));
    let live = effects[done..]
        .iter()
        .rev()
        .fold(header.live_out, |live, e| live.minus(e.defined).union(e.used));
    u64::from(written.bits() & live.bits()) | 1 << 4
}
