//! Where a signal has found the program.

use crate::thread::Thread;
use abi::event::{Event, WHOLE_UNIT};
use abi::trace::RegisterState;

/// The program's registers at an instruction boundary.
#[derive(Clone, Copy)]
pub struct State {
    pub gpr: [u64; 16],
    pub rip: u64,
    pub rflags: u64,
    /// Instructions done in the last unit that was recorded.
    pub insn: u32,
    /// Registers that hold the program's values.
    pub valid: u64,
}

/// Notes where inside a unit the thread was interrupted, and with which registers: iterations of a
/// repeated string instruction that are done already follow from them.
pub fn interrupted(thread: &mut Thread, state: &State) {
    if state.insn == WHOLE_UNIT || !thread.recorder.active() {
        return;
    }
    let registers = RegisterState {
        gpr: state.gpr,
        rip: state.rip,
        rflags: state.rflags,
        fs_base: thread.fs_base(),
        gs_base: 0,
        valid: state.valid,
    };
    thread.event(state.insn, &Event::Interrupted(&registers));
}
