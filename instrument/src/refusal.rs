//! Which instructions cannot be run translated, and why.

use abi::thread::refuse;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use lifter::flow::Flow;

/// Why an instruction cannot be run translated, if so: a number of [`abi::thread::refuse`].
pub fn refusal(insn: &Instruction) -> Option<u32> {
    if insn.segment_prefix() == Register::GS
        && insn.op_kinds().any(has_segment)
        && !matches!(insn.mnemonic(), Mnemonic::Lea | Mnemonic::Nop)
    {
        return Some(refuse::GS);
    }
    match insn.mnemonic() {
        Mnemonic::Rdgsbase | Mnemonic::Wrgsbase | Mnemonic::Lgs => return Some(refuse::GS),
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

/// Memory operands that a segment prefix applies to.
fn has_segment(kind: OpKind) -> bool {
    use OpKind::{
        Memory, MemorySegDI, MemorySegEDI, MemorySegESI, MemorySegRDI, MemorySegRSI, MemorySegSI,
    };
    matches!(
        kind,
        Memory
            | MemorySegSI
            | MemorySegESI
            | MemorySegRSI
            | MemorySegDI
            | MemorySegEDI
            | MemorySegRDI
    )
}
