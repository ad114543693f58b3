//! Where a signal has found the program.

use crate::base::facts::facts;
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

impl State {
    /// The state as events have it.
    pub fn registers(&self, thread: &Thread) -> RegisterState {
        RegisterState {
            gpr: self.gpr,
            rip: self.rip,
            rflags: self.rflags,
            fs_base: thread.fs_base(),
            gs_base: thread.block.program_gs,
            valid: self.valid,
        }
    }
}

/// Notes where inside a unit the thread was interrupted, and with which registers: iterations of a
/// repeated string instruction that are done already follow from them. (Where inputs alone are recorded, no
/// position is inside of a unit.)
pub fn interrupted(thread: &mut Thread, state: &State) {
    let without_units = !facts().options.recording.streams();
    if state.insn == WHOLE_UNIT || !thread.recorder.active() || without_units {
        return;
    }
    let registers = state.registers(thread);
    thread.event(state.insn, &Event::Interrupted(&registers));
}
