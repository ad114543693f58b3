//! The program comes to memory that other processes may store to ([`foreign`]).

use crate::gate::handler::faults::is_turn;
use crate::gate::handler::interrupted::{Interrupted, TRAP_FLAG};
use crate::gate::handler::place::Place;
use crate::gate::handler::state::gpr_at;
use crate::gate::handler::steps::is_repeated;
use crate::kernel::watched::once::{settle, Behind};
use crate::logs::inputs::foreign::{self, Access};
use crate::thread::foreign::Before;
use crate::thread::Thread;
use instrument::recipe::Entry;
use lifter::regs::RCX;

/// An instruction could not access `address`: if that is such memory, what others have stored there is noted, and the
/// instruction is done again.
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
    let traps = at.context.rflags & TRAP_FLAG != 0 || thread.mailbox.is_stepping();
    let may_step = !(traps && is_first) && !is_repeated(&place.code());
    // It was counted in front of what has faulted.
    let is_turn = is_turn(place, entry);
    let access =
        in_front(thread, is_turn, |thread| foreign::access(thread, address, &here, may_step));
    if access == Access::Once && is_first {
        let foreign = &mut thread.foreign;
        (foreign.tries, foreign.before) = (0, before(at, &here, is_turn));
        thread.block.registers.gpr = gpr;
        thread.block.registers.rflags = at.context.rflags;
        thread.mailbox.keep_trap_flag(false);
        thread.mailbox.set_stepping(true);
        at.step();
    }
    access != Access::Elsewhere
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
    let place = || foreign::Place { pc: before.pc, rcx, insn: before.insn };
    let (gpr, rflags) = (at.context.gpr(), at.context.rflags);
    if settle(thread, &Behind { place: place(), gpr: &gpr, rflags }) {
        foreign::behind(thread);
        return true;
    }
    at.context.set_gpr(&before.gpr);
    (at.context.rip, at.context.rflags) = (before.rip, before.rflags);
    at.floating().copy_from_slice(&before.floating);
    in_front(thread, before.is_turn, |thread| foreign::look(thread, &place()));
    thread.foreign.before = before;
    at.step();
    false
}
