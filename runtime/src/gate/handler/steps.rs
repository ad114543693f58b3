//! The processor executes one instruction of the translation after the other: because the program has set the
//! trap flag, or to bring a thread to an instruction boundary, or both.

use crate::base::signal::{SigInfo, SIGTRAP};
use crate::gate::handler::interrupted::{Interrupted, TRAP_FLAG};
use crate::gate::handler::onward::{go, resume};
use crate::gate::handler::place::Place;
use crate::gate::handler::shared;
use crate::gate::handler::state::state_at;
use crate::kernel::replay::strings::hurry;
use crate::kernel::replay::{is_replay, stepping};
use crate::kernel::signals::deliver::Origin;
use crate::kernel::signals::state::{interrupted, State};
use crate::thread::Thread;
use iced_x86::{Decoder, DecoderOptions};
use instrument::moved::loads_flags;
use instrument::recipe::Entry;
use lifter::regs::GprSet;

/// The program has set the trap flag, and an instruction of `place` was executed.
pub fn trapped(thread: &mut Thread, info: &mut SigInfo, at: &mut Interrupted, place: &Place) {
    if let Some(due) = due(thread, at, place) {
        raise(thread, info, at, place, &due);
    }
}

/// A step was made. Whether that is all there is to it: it was made over an instruction that came to memory of others, which
/// is done, or about to be done once more.
pub fn stepped_between(thread: &mut Thread, at: &mut Interrupted) -> bool {
    if shared::stepped(thread, at) && thread.mailbox.waiting.number().is_none() {
        // On, as if nothing had been.
        end_steps(thread, at);
        at.mask = thread.mailbox.real_mask();
        return true;
    }
    !thread.foreign.pages.is_empty()
}

/// A step has led to an instruction of `place`.
pub fn stepped(thread: &mut Thread, info: &mut SigInfo, at: &mut Interrupted, place: &Place) {
    if stepped_between(thread, at) {
        return;
    }
    let boundary = place.boundary(at.pc());
    // The flag as it was when the instruction began.
    let due = if thread.mailbox.has_trap_flag() { due(thread, at, place) } else { None };
    if boundary.is_some() || is_behind_load(place, at.pc()) {
        stepping::passed(thread);
    }
    if let Some(due) = due {
        // What the thread was stepped for comes behind that: it is sent again, or sought again.
        end_steps(thread, at);
        return raise(thread, info, at, place, &due);
    }
    let Some(entry) = boundary else { return };
    if is_replay() {
        let rip = place.start() + u64::from(entry.original);
        let mut gpr = at.context.gpr();
        if !stepping::is_there(thread, rip, &gpr) {
            if let Some(moment) = thread.seek.sought.and_then(|sought| sought.moment) {
                hurry(&mut gpr, at.context.rflags, &place.code::<4>(), rip, &moment);
                at.context.set_gpr(&gpr);
            }
            return at.step();
        }
    }
    end_steps(thread, at);
    let state = state_at(thread, at, place, &entry);
    let Some(waiting) = thread.mailbox.waiting.take() else {
        // The unit may have changed itself: on with what is there now. Writable code keeps all
        // registers.
        let state = State { valid: u64::from(GprSet::ALL.bits()), ..state };
        interrupted(thread, &state);
        return go(thread, at, &state);
    };
    resume(thread, waiting.number, &waiting.info, Origin::Outside, at, state);
}

/// The trap flag is what the program has set, again.
fn end_steps(thread: &mut Thread, at: &mut Interrupted) {
    at.context.rflags &= !TRAP_FLAG;
    if thread.mailbox.take_trap_flag() {
        at.context.rflags |= TRAP_FLAG;
    }
    thread.mailbox.set_stepping(false);
}

/// A trap that the program is to have.
struct Due {
    /// The instruction that is next, or, if `done`, the one that was executed last.
    entry: Entry,
    done: bool,
}

fn raise(thread: &mut Thread, info: &mut SigInfo, at: &mut Interrupted, place: &Place, due: &Due) {
    let Due { entry, done } = due;
    let mut state = state_at(thread, at, place, entry);
    if *done {
        state.rip += u64::from(entry.length);
        if !place.is_outside() {
            state.insn += 1;
        }
    }
    info.set_address(state.rip);
    thread.fault.note(at.context.trap, at.context.error, 0);
    resume(thread, SIGTRAP, info, Origin::Instruction, at, state);
}

/// An instruction of the translation was executed with the program's trap flag set: a trap, if it is the last
/// one of the program's instruction.
fn due(thread: &mut Thread, at: &Interrupted, place: &Place) -> Option<Due> {
    let last = core::mem::replace(&mut thread.traps.last, at.pc());
    if let Some((entry, behind)) = load_behind(place, at.pc()) {
        if behind == 0 {
            return Some(Due { entry, done: true });
        }
        thread.traps.fresh = true;
        return None;
    }
    let entry = match place.boundary(at.pc()) {
        Some(entry) => {
            let here = (place.start() + u64::from(entry.original), at.pc());
            let (rip, pc) = core::mem::replace(&mut thread.traps.within, here);
            let goes_on = rip == here.0 && (pc + 1..pc + LONGEST_SNIPPET).contains(&here.1);
            if core::mem::take(&mut thread.traps.fresh) || goes_on {
                return None;
            }
            Some(entry)
        }
        // Once more round.
        None if last == at.pc() && is_repeated(&place.code()) => {
            place.recipe().and_then(|recipe| recipe.at(place.offset(at.pc())))
        }
        None => None,
    };
    entry.map(|entry| Due { entry, done: false })
}

/// No instruction has more code than this.
const LONGEST_SNIPPET: u64 = 1024;

/// If `pc` is in front of or behind the first instruction that follows one that loads the flags: that one,
/// and 0 or 1. See [`loads_flags`].
fn load_behind(place: &Place, pc: u64) -> Option<(Entry, u32)> {
    let entry = place.recipe()?.at(place.offset(pc))?;
    // It is copied as it is.
    let behind = (place.offset(pc) - entry.code).checked_sub(entry.length)?;
    let code = place.original().get(entry.original as usize..)?;
    let (length, last) = (entry.length as usize, code.get(entry.length.checked_sub(1)? as usize)?);
    if behind > 1 || *last != POPF {
        return None;
    }
    let insn = Decoder::new(64, &code[..length], DecoderOptions::NONE).decode();
    loads_flags(&insn).then_some((entry, behind))
}

/// Behind its prefixes, which come first.
const POPF: u8 = 0x9d;

fn is_behind_load(place: &Place, pc: u64) -> bool {
    load_behind(place, pc).is_some_and(|(_, behind)| behind == 0)
}

/// Whether the code is a string instruction that is repeated.
pub fn is_repeated(code: &[u8; 15]) -> bool {
    let insn = Decoder::new(64, code, DecoderOptions::NONE).decode();
    insn.is_string_instruction() && (insn.has_rep_prefix() || insn.has_repne_prefix())
}
