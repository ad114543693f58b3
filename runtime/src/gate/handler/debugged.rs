//! What a debugger has put into a replay: breakpoints in translated code, as a replay does itself, and watchpoints in
//! the processor's debug registers.

use crate::base::signal::{SigInfo, TRAP_HWBKPT};
use crate::code::jit::jit;
use crate::gate::handler::buffers::take_pointers;
use crate::gate::handler::interrupted::{Interrupted, TRAP_FLAG};
use crate::gate::handler::onward::go;
use crate::gate::handler::place::locate;
use crate::gate::handler::state::state_at;
use crate::kernel::replay::{is_replay, steer};
use crate::kernel::signals::state::{interrupted, State};
use crate::thread::seek::Sought;
use crate::thread::Thread;
use abi::ids::CodeAddr;
use lifter::regs::GprSet;

/// What the processor raises for `int3`.
const BREAKPOINT: u64 = 3;

/// Whether the signal says that a watchpoint was met.
pub fn is_for_debugger(info: &SigInfo) -> bool {
    info.code() == TRAP_HWBKPT && steer::is_steered()
}

/// Behind an instruction that has accessed what is watched: the thread comes to the runtime in front of the
/// next one, where that is looked at.
pub fn watched(thread: &mut Thread, at: &mut Interrupted) {
    steer::touched();
    if thread.mailbox.is_stepping() {
        return;
    }
    let here =
        locate(at.pc()).and_then(|place| place.boundary(at.pc()).map(|entry| (place, entry)));
    match here {
        Some((place, entry)) => {
            take_pointers(thread, at, &place);
            let state = state_at(thread, at, &place, &entry);
            go(thread, at, &state);
        }
        None => {
            thread.seek.sought = Some(Sought { moment: None, first: false });
            thread.mailbox.keep_trap_flag(at.context.rflags & TRAP_FLAG != 0);
            thread.mailbox.set_stepping(true);
            at.step();
        }
    }
}

/// Whether the thread has come to a breakpoint; then it goes to the runtime from there.
pub fn at_breakpoint(thread: &mut Thread, at: &mut Interrupted) -> bool {
    if at.context.trap != BREAKPOINT || !is_replay() {
        return false;
    }
    let Some(boundary) = jit().break_at(CodeAddr(at.pc() - 1)) else { return false };
    let Some(place) = locate(boundary.0) else { return false };
    let Some(entry) = place.boundary(boundary.0) else { return false };
    at.context.rip = boundary.0;
    take_pointers(thread, at, &place);
    let state = state_at(thread, at, &place, &entry);
    // A replay keeps all registers.
    let state = State { valid: u64::from(GprSet::ALL.bits()), ..state };
    interrupted(thread, &state);
    go(thread, at, &state);
    true
}
