//! Where control goes after an instruction.

use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind};

/// How an instruction passes control on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// To the next instruction.
    Next,
    Jump(u64),
    /// To the target or to the next instruction: conditional jumps, loops, `xbegin`.
    Branch(u64),
    IndirectJump,
    Call(u64),
    IndirectCall,
    Return,
    Syscall,
    /// Nowhere that user code can rely on: traps, faults, privileged instructions, far transfers.
    Stop {
        /// Whether the next instruction may run all the same (a handler or the kernel resumes).
        resumes: bool,
    },
}

/// Classifies a valid instruction.
pub fn flow(insn: &Instruction) -> Flow {
    match insn.flow_control() {
        FlowControl::Next => match insn.mnemonic() {
            Mnemonic::Hlt => Flow::Stop { resumes: false },
            _ if insn.is_privileged() => Flow::Stop { resumes: true },
            _ => Flow::Next,
        },
        FlowControl::UnconditionalBranch => near(insn, Flow::Jump),
        FlowControl::ConditionalBranch => near(insn, Flow::Branch),
        FlowControl::XbeginXabortXend => match insn.mnemonic() {
            Mnemonic::Xbegin => near(insn, Flow::Branch),
            _ => Flow::Next,
        },
        FlowControl::IndirectBranch if insn.is_jmp_near_indirect() => Flow::IndirectJump,
        FlowControl::Return if is_near_return(insn) => Flow::Return,
        FlowControl::Call => match insn.mnemonic() {
            Mnemonic::Syscall => Flow::Syscall,
            Mnemonic::Call => near(insn, Flow::Call),
            _ => Flow::Stop { resumes: true },
        },
        FlowControl::IndirectCall if insn.is_call_near_indirect() => Flow::IndirectCall,
        FlowControl::Interrupt => {
            Flow::Stop { resumes: !matches!(insn.mnemonic(), Mnemonic::Int3 | Mnemonic::Int1) }
        }
        _ => Flow::Stop { resumes: false },
    }
}

fn near(insn: &Instruction, make: fn(u64) -> Flow) -> Flow {
    match insn.op0_kind() {
        OpKind::NearBranch64 => make(insn.near_branch64()),
        _ => Flow::Stop { resumes: false },
    }
}

fn is_near_return(insn: &Instruction) -> bool {
    matches!(insn.code(), Code::Retnq | Code::Retnq_imm16)
}
