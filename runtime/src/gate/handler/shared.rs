//! The program comes to memory that other processes may store to ([`foreign`]).

use crate::code::jit::jit;
use crate::gate::handler::interrupted::{Interrupted, TRAP_FLAG};
use crate::gate::handler::onward::go_round;
use crate::gate::handler::place::Place;
use crate::gate::handler::state::{gpr_at, state_at};
use crate::kernel::ask::instruction;
use crate::kernel::watched::atomic::put_in;
use crate::kernel::watched::once::{carry_out, may_be_carried_out, settle, Carried};
use crate::logs::inputs::foreign::{self, Access};
use crate::thread::foreign::Before;
use crate::thread::Thread;
use abi::ids::LiveAddr;
use iced_x86::{Decoder, DecoderOptions, Instruction, Register};
use instrument::recipe::Entry;
use lifter::regs::RCX;

/// An instruction could not access `address`: if that is such memory, what others have stored there is noted, and the
/// instruction is done again, or carried out.
pub fn opens(
    thread: &mut Thread,
    at: &mut Interrupted,
    place: &Place,
    entry: &Entry,
    address: u64,
) -> bool {
    if !foreign::may_lie_in(address, address.saturating_add(1)) {
        return false;
    }
    let gpr = gpr_at(thread, at, place, entry);
    let pc = place.start() + u64::from(entry.original);
    let here = foreign::Place { pc, rcx: gpr[RCX.index()], insn: place.position(entry.insn) };
    let is_first = thread.foreign.pages.is_empty();
    // It may be stepped to a boundary.
    let is_stepping = thread.mailbox.is_stepping();
    let traps = match is_stepping {
        true => thread.mailbox.has_trap_flag(),
        false => at.context.rflags & TRAP_FLAG != 0,
    };
    const BY_WRITE: u64 = 2;
    let loads_only = at.context.error & BY_WRITE == 0;
    let how = foreign::How { may_step: !(traps && is_first), loads_only };
    // It was counted in front of what has faulted.
    let is_turn = place.is_turn(entry);
    let access = in_front(thread, is_turn, |thread| foreign::access(thread, address, &here, how));
    if access != Access::Once {
        return access == Access::Again;
    }
    if is_first {
        thread.block.registers.gpr = gpr;
        thread.block.registers.rflags = at.context.rflags;
        if carries_out(thread, at, place, &here) {
            foreign::behind(thread);
            return true;
        }
        let foreign = &mut thread.foreign;
        (foreign.tries, foreign.before) = (0, before(at, &here, is_turn));
        if !is_stepping {
            thread.mailbox.keep_trap_flag(false);
            thread.mailbox.set_stepping(true);
        }
        at.step();
    }
    true
}

/// An instruction could not access `address`: if it is to be marked, it is, and begins again in a translation of its own.
pub fn marks(
    thread: &mut Thread,
    at: &mut Interrupted,
    place: &Place,
    entry: &Entry,
    address: u64,
) -> bool {
    if !foreign::may_lie_in(address, address.saturating_add(1)) || !foreign::marks(address) {
        return false;
    }
    let pc = place.start() + u64::from(entry.original);
    let is_stepping = thread.mailbox.is_stepping() || at.context.rflags & TRAP_FLAG != 0;
    let is_in_midst = !thread.foreign.pages.is_empty();
    // A transfer is not marked, and what is compared each time may not be there for long.
    let may_be = !is_stepping && !is_in_midst && !place.is_transfer(entry);
    if !may_be || !jit().mark(LiveAddr(pc)) {
        return false;
    }
    goes_anew(thread, at, place, entry);
    true
}

/// An instruction that is marked has faulted: it is none from here on, and begins again. False if it is none.
pub fn unmarks(thread: &mut Thread, at: &mut Interrupted, place: &Place, entry: &Entry) -> bool {
    let pc = place.start() + u64::from(entry.original);
    if !jit().unmark(LiveAddr(pc)) {
        return false;
    }
    breaks_off(thread);
    goes_anew(thread, at, place, entry);
    true
}

fn goes_anew(thread: &mut Thread, at: &mut Interrupted, place: &Place, entry: &Entry) {
    let state = state_at(thread, at, place, entry);
    go_round(thread, at, &state);
}

/// The instruction that the thread was stepped over has faulted: it has left nothing there.
pub fn breaks_off(thread: &mut Thread) {
    if !thread.foreign.pages.is_empty() {
        foreign::behind(thread);
    }
}

/// Carries out an instruction of which the translation has a copy that was about to be executed. False if it is none of those
/// that can be.
fn carries_out(
    thread: &mut Thread,
    at: &mut Interrupted,
    place: &Place,
    here: &foreign::Place,
) -> bool {
    let insn = instruction(here.pc);
    if !may_be_carried_out(&insn) {
        return false;
    }
    let code = place.code::<15>();
    let copy = Decoder::with_ip(64, &code, at.pc(), DecoderOptions::NONE).decode();
    if !is_copy(&copy, &insn) {
        return false;
    }
    let Some(Carried { flags, changed, registers, repeats }) = carry_out(thread, here, &insn)
    else {
        return false;
    };
    at.context.rflags = at.context.rflags & !changed | flags & changed;
    let mut gpr = at.context.gpr();
    for (register, value) in registers.into_iter().flatten() {
        put_in(&mut gpr, register, value);
    }
    at.context.set_gpr(&gpr);
    if !repeats {
        at.context.rip = copy.next_ip();
    }
    true
}

/// Whether this is the same instruction, but for where its memory is.
fn is_copy(copy: &Instruction, insn: &Instruction) -> bool {
    let registers = |insn: &Instruction| {
        (0..insn.op_count())
            .map(|n| insn.op_register(n))
            .collect::<smallvec::SmallVec<[Register; 4]>>()
    };
    copy.code() == insn.code()
        && registers(copy) == registers(insn)
        && copy.has_lock_prefix() == insn.has_lock_prefix()
        && copy.has_rep_prefix() == insn.has_rep_prefix()
}

/// Does `work` while the thread has as many turns as in front of the instruction.
fn in_front<R>(thread: &mut Thread, is_turn: bool, work: impl FnOnce(&mut Thread) -> R) -> R {
    if is_turn {
        thread.take_back_turn();
    }
    let result = work(thread);
    if is_turn {
        thread.count_turn();
    }
    result
}

fn before(at: &mut Interrupted, here: &foreign::Place, is_turn: bool) -> Before {
    let (gpr, rip, rflags) = (at.context.gpr(), at.pc(), at.context.rflags);
    let floating = at.floating().to_vec();
    Before { pc: here.pc, insn: here.insn, is_turn, gpr, rip, rflags, floating }
}

/// The thread has made a step. Whether it was stepped over such an instruction, which is done, and its memory is closed again.
pub fn stepped(thread: &mut Thread, at: &mut Interrupted) -> bool {
    if thread.foreign.pages.is_empty() {
        return false;
    }
    let before = core::mem::take(&mut thread.foreign.before);
    let rcx = thread.block.registers.gpr[RCX.index()];
    let place = foreign::Place { pc: before.pc, rcx, insn: before.insn };
    if settle(thread, &place, |register| at.program_vector(register)) {
        foreign::behind(thread);
        return true;
    }
    at.context.set_gpr(&before.gpr);
    (at.context.rip, at.context.rflags) = (before.rip, before.rflags);
    at.floating().copy_from_slice(&before.floating);
    in_front(thread, before.is_turn, |thread| foreign::look(thread, &place));
    thread.foreign.before = before;
    at.step();
    false
}
