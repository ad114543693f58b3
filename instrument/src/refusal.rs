//! Which instructions cannot be run translated, and why.

use crate::operand::{is_reachable, uses_gs};
use abi::thread::refuse;
use iced_x86::{Instruction, Mnemonic, Register};
use lifter::flow::Flow;

/// Why an instruction cannot be run translated, if so: a number of [`abi::thread::refuse`].
pub fn refusal(insn: &Instruction) -> Option<u32> {
    if uses_gs(insn) && !is_reachable(insn) {
        return Some(refuse::GS);
    }
    match insn.mnemonic() {
        Mnemonic::Lgs => return Some(refuse::GS),
        // What code that is not selected says of the new base is a whole register.
        Mnemonic::Wrgsbase if insn.op0_register().size() == 4 => return Some(refuse::GS),
        Mnemonic::Mov | Mnemonic::Pop if insn.op0_register() == Register::GS => {
            return Some(refuse::GS);
        }
        _ => {}
    }
    match Flow::of(insn) {
        // Other interrupts are faults and traps, at the same instruction as natively.
        flow if flow.is_old_syscall() => Some(refuse::OLD_SYSCALL),
        Flow::FarCall | Flow::FarJump => Some(refuse::FAR_TRANSFER),
        Flow::Transaction(_) => Some(refuse::TRANSACTION),
        _ => None,
    }
}
