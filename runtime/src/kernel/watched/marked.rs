//! An instruction that is marked, of a thread that is not watched, has come to memory that is closed for good
//! ([`foreign`]): what others have stored there is seen, or the runtime carries the instruction out.

use super::atomic::put_in;
use super::once::{carry_out, may_be_carried_out, Carried};
use super::{extents, Extents};
use crate::code::guarded;
use crate::code::jit::jit;
use crate::kernel::ask::fetch;
use crate::logs::inputs::foreign::{self, Place};
use crate::thread::Thread;
use abi::event::WHOLE_UNIT;
use abi::ids::LiveAddr;
use abi::thread::watch;
use iced_x86::Instruction;

/// The thread has come from the instruction at `pc`; `why` is of [`watch`]. `resume` is set, unless what is returned is where
/// it goes on.
pub fn enter(thread: &mut Thread, pc: u64, why: u32) -> Option<u64> {
    let insn = fetch(pc);
    thread.resume_original = pc;
    let place = Place { pc, rcx: thread.block.registers.gpr[1], insn: WHOLE_UNIT };
    let released = guarded::released();
    let anew = || guarded::released() != released;
    if matches!(why, watch::MEND | watch::BEFORE) {
        let Extents { loaded, stored } = extents(thread, &insn);
        let mut all = loaded.iter().chain(&stored);
        if !all.all(|&(at, len)| foreign::look_at(thread, &place, at, len)) {
            // It faults where the program has it.
            jit().unmark(LiveAddr(pc));
            return Some(pc);
        }
        if why == watch::BEFORE {
            thread.stored_on_view = stored;
        }
        return None;
    }
    if why == watch::AFTER {
        let next = insn.next_ip();
        thread.resume_original = next;
        for (at, len) in core::mem::take(&mut thread.stored_on_view) {
            if !foreign::shows_others(at, len) {
                crate::die!("what the instruction at {pc:#x} stores at {at:#x} cannot be stored there: use --threads watched");
            }
        }
        return anew().then_some(next);
    }
    let done = carries_out(thread, &place, &insn);
    if done == Done::IsGone {
        jit().unmark(LiveAddr(pc));
        return Some(pc);
    }
    if done == Done::No {
        // The processor is to carry it out, or the rest of it, and faults where that is closed.
        thread.syscall_pc = pc;
        thread.transfer_undone = true;
        return None;
    }
    thread.resume_original = insn.next_ip();
    thread.block.resume = thread.block.behind;
    // What has been stored may be code that follows.
    anew().then_some(insn.next_ip())
}

/// What has become of an instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Done {
    Yes,
    /// It is not done, or not all of its rounds are.
    No,
    /// The memory cannot be reached any more, and nothing was done.
    IsGone,
}

fn carries_out(thread: &mut Thread, place: &Place, insn: &Instruction) -> Done {
    if !may_be_carried_out(insn) {
        return Done::No;
    }
    let mut rounds = 0;
    loop {
        let place = Place { rcx: thread.block.registers.gpr[1], ..*place };
        let Extents { loaded, stored } = extents(thread, insn);
        let mut is_any = false;
        for &(at, _) in loaded.iter().chain(&stored) {
            match foreign::is_there(at) {
                None => {}
                Some(true) => is_any = true,
                Some(false) if rounds == 0 => return Done::IsGone,
                Some(false) => return Done::No,
            }
        }
        // (It comes to the program's own memory this time.)
        let carried = if is_any { carry_out(thread, &place, insn) } else { None };
        let Some(Carried { flags, changed, registers, repeats }) = carried else { return Done::No };
        rounds += 1;
        let all = &mut thread.block.registers;
        all.rflags = all.rflags & !changed | flags & changed;
        for (register, value) in registers.into_iter().flatten() {
            put_in(&mut all.gpr, register, value);
        }
        if !repeats {
            if !insn.is_string_instruction() {
                foreign::opens_for_locks(thread);
            }
            return Done::Yes;
        }
    }
}
