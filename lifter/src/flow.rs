//! What an instruction does to control: the one place that decides it.
//!
//! [`Flow::of`] names every case that anybody treats in a way of its own. What the parts of the
//! product ask (does a unit end here, what follows, does control come back) are methods of
//! [`Flow`], so that an instruction is classified once and the answers cannot disagree.

use abi::ids::OrigAddr;
use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind};

/// How an instruction passes control on. A target is the one that the instruction names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// To the next instruction.
    Next,
    /// A privileged instruction: a fault in a user program, whose handler may go on behind it.
    Privileged,
    /// `hlt`: a fault behind which nothing goes on.
    Halt,
    /// To the target.
    Jump(OrigAddr),
    /// To the target or to the next instruction: conditional jumps, `loop`, `jrcxz`.
    Branch(OrigAddr),
    /// A jump through a register or memory.
    IndirectJump,
    /// To the target, and back by a return.
    Call(OrigAddr),
    /// A call through a register or memory.
    IndirectCall,
    /// A near return.
    Return,
    /// `syscall`.
    Syscall,
    /// `sysenter`, which 64-bit programs have no use for.
    Sysenter,
    /// `xbegin`: on, or to the target if the transaction fails.
    Transaction(OrigAddr),
    /// A far call.
    FarCall,
    /// Far jumps and returns, `iret` and its kin.
    FarJump,
    /// Calls of a hypervisor, and the like.
    Hypercall,
    /// `int n`: to a handler, or to the kernel, which may go on behind it.
    Interrupt(u8),
    /// `int3`, `int1`.
    Trap,
    /// `ud2` and its kin, and bytes that are no instruction: a fault.
    Undefined,
}

/// The vector of the 32-bit system call.
const OLD_SYSCALL: u8 = 0x80;

impl Flow {
    /// What `insn` does.
    #[inline]
    pub fn of(insn: &Instruction) -> Flow {
        // Most instructions do nothing to control, and everybody asks.
        match insn.flow_control() {
            FlowControl::Next if !insn.is_privileged() => Flow::Next,
            control => Flow::of_others(insn, control),
        }
    }

    fn of_others(insn: &Instruction, control: FlowControl) -> Flow {
        match control {
            FlowControl::Next => match insn.mnemonic() {
                Mnemonic::Hlt => Flow::Halt,
                _ => Flow::Privileged,
            },
            FlowControl::UnconditionalBranch => near(insn, Flow::Jump),
            FlowControl::ConditionalBranch => near(insn, Flow::Branch),
            FlowControl::XbeginXabortXend => match insn.mnemonic() {
                Mnemonic::Xbegin => near(insn, Flow::Transaction),
                _ => Flow::Next,
            },
            FlowControl::IndirectBranch if insn.is_jmp_near_indirect() => Flow::IndirectJump,
            FlowControl::IndirectBranch => Flow::FarJump,
            FlowControl::Return => match insn.code() {
                Code::Retnq | Code::Retnq_imm16 => Flow::Return,
                _ => Flow::FarJump,
            },
            FlowControl::Call => match insn.mnemonic() {
                Mnemonic::Syscall => Flow::Syscall,
                Mnemonic::Sysenter => Flow::Sysenter,
                Mnemonic::Call => near(insn, Flow::Call),
                _ => Flow::Hypercall,
            },
            FlowControl::IndirectCall if insn.is_call_near_indirect() => Flow::IndirectCall,
            FlowControl::IndirectCall => Flow::FarCall,
            FlowControl::Interrupt => match insn.mnemonic() {
                Mnemonic::Int => Flow::Interrupt(insn.immediate8()),
                Mnemonic::Int3 | Mnemonic::Int1 => Flow::Trap,
                // `into`, which does not exist in 64-bit code.
                _ => Flow::Interrupt(4),
            },
            FlowControl::Exception => Flow::Undefined,
        }
    }

    /// The address that the instruction names and control goes to, perhaps.
    pub fn target(self) -> Option<OrigAddr> {
        match self {
            Flow::Jump(target)
            | Flow::Branch(target)
            | Flow::Call(target)
            | Flow::Transaction(target) => Some(target),
            _ => None,
        }
    }

    /// A conditional branch of any kind, `loop` and `jrcxz` included.
    pub fn is_conditional(self) -> bool {
        matches!(self, Flow::Branch(_))
    }

    /// Whether the instruction at `address`, which does this, is a *turn*: one behind which code may run
    /// that has run before. Between two turns control only moves forward, and no instruction runs twice
    /// (but for the iterations of a repeated one), so the number of turns that a thread has made and an
    /// address name one moment.
    pub fn is_turn(self, address: OrigAddr) -> bool {
        match self {
            Flow::Jump(target) | Flow::Branch(target) | Flow::Call(target) => target.0 <= address.0,
            Flow::IndirectJump | Flow::IndirectCall | Flow::Return => true,
            _ => false,
        }
    }

    /// Calls of the program's own code.
    pub fn is_call(self) -> bool {
        matches!(self, Flow::Call(_) | Flow::IndirectCall | Flow::FarCall)
    }

    /// `int 0x80`, `sysenter`.
    pub fn is_old_syscall(self) -> bool {
        matches!(self, Flow::Sysenter | Flow::Interrupt(OLD_SYSCALL))
    }

    /// Whether a unit ends with the instruction. What only faults, and what a hypervisor answers,
    /// happens where it stands.
    pub fn ends_unit(self) -> bool {
        match self {
            Flow::Next | Flow::Privileged | Flow::Halt | Flow::Hypercall => false,
            Flow::Trap | Flow::Undefined => false,
            Flow::Interrupt(_) => self.is_old_syscall(),
            _ => true,
        }
    }

    /// Whether a block of the listing ends with the instruction, whatever it did.
    pub fn ends_block(self) -> bool {
        !matches!(self, Flow::Next | Flow::Privileged | Flow::Halt)
    }

    /// Where control goes in the same stretch of code, as far as the instruction says it: to `next`,
    /// behind the instruction, or to its target. Nothing of what lies behind calls: a callee may do
    /// anything first.
    pub fn successors(self, next: OrigAddr) -> [Option<OrigAddr>; 2] {
        match self {
            Flow::Next | Flow::Privileged | Flow::Halt => [Some(next), None],
            Flow::Jump(target) => [Some(target), None],
            Flow::Branch(target) => [Some(next), Some(target)],
            _ => [None; 2],
        }
    }

    /// Whether control comes back behind the instruction from where it went: calls of all kinds.
    pub fn comes_back(self) -> bool {
        self.is_call() || matches!(self, Flow::Syscall | Flow::Sysenter)
    }

    /// Whether what lies behind the instruction may run without anybody branching there.
    pub fn may_go_on(self) -> bool {
        match self {
            Flow::Next | Flow::Privileged | Flow::Halt | Flow::Branch(_) => true,
            Flow::Interrupt(_) | Flow::Trap => true,
            _ => self.comes_back(),
        }
    }

    /// The same as a handler of the fault or trap may have it: debuggers put `int3` where code never
    /// goes on, and compilers `ud2`, while `int n` and privileged instructions have handlers that do.
    pub fn resumes(self) -> bool {
        matches!(self, Flow::Privileged | Flow::Interrupt(_) | Flow::Sysenter | Flow::Hypercall)
    }

    /// How a block ends whose last instruction this is.
    pub fn end(self) -> End {
        match self {
            Flow::Next => End::FallThrough,
            Flow::Jump(target) => End::Jump(target),
            Flow::Branch(target) | Flow::Transaction(target) => End::Branch(target),
            Flow::IndirectJump => End::IndirectJump,
            Flow::Call(target) => End::Call(target),
            Flow::IndirectCall => End::IndirectCall,
            Flow::Return => End::Return,
            Flow::Syscall => End::Syscall,
            Flow::Privileged
            | Flow::Halt
            | Flow::Sysenter
            | Flow::FarCall
            | Flow::FarJump
            | Flow::Hypercall
            | Flow::Interrupt(_)
            | Flow::Trap
            | Flow::Undefined => End::Stop,
        }
    }
}

/// How a block of discovery ends. The last instruction of the block is the one that is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Into the address behind the block, which need not be the start of a block: in front of bytes
    /// that do not decode it is none.
    FallThrough,
    /// A direct jump to the address.
    Jump(OrigAddr),
    /// Conditional jumps, `loop`, `jrcxz`, `xbegin`.
    Branch(OrigAddr),
    /// A jump through a register or memory.
    IndirectJump,
    /// A direct call of the address.
    Call(OrigAddr),
    /// A call through a register or memory.
    IndirectCall,
    /// A near return.
    Return,
    /// A system call.
    Syscall,
    /// Traps and faults: `ud2`, `hlt`, `int`, privileged instructions, far transfers.
    Stop,
}

impl End {
    /// Where the block leads by itself; `next` is the address behind it.
    pub fn successors(self, next: OrigAddr) -> [Option<OrigAddr>; 2] {
        match self {
            End::Jump(target) => [Some(target), None],
            End::Branch(target) => [Some(target), Some(next)],
            End::FallThrough => [Some(next), None],
            _ => [None; 2],
        }
    }
}

/// A direct transfer; with an operand of 16 bits, which no program has, it goes nowhere.
fn near(insn: &Instruction, make: fn(OrigAddr) -> Flow) -> Flow {
    match insn.op0_kind() {
        OpKind::NearBranch64 => make(OrigAddr(insn.near_branch64())),
        _ => Flow::FarJump,
    }
}

#[cfg(test)]
#[path = "flow_tests.rs"]
mod tests;
