//! What the program reaches by way of gs, which leads translated code to the thread block: its base is kept
//! there, and added to the operand's registers by hand.

use crate::operand::{displacement, displacement_size, register64};
use crate::weaver::Weaver;
use abi::ids::Gpr;
use abi::thread;
use iced_x86::{Code as Op, Instruction, MemoryOperand, Mnemonic, Register};
use lifter::regs::gpr_number;

/// The form with a register in the operand, where there is one with an absolute address alone.
fn with_register(code: Op) -> Op {
    match code {
        Op::Mov_AL_moffs8 => Op::Mov_r8_rm8,
        Op::Mov_AX_moffs16 => Op::Mov_r16_rm16,
        Op::Mov_EAX_moffs32 => Op::Mov_r32_rm32,
        Op::Mov_RAX_moffs64 => Op::Mov_r64_rm64,
        Op::Mov_moffs8_AL => Op::Mov_rm8_r8,
        Op::Mov_moffs16_AX => Op::Mov_rm16_r16,
        Op::Mov_moffs32_EAX => Op::Mov_rm32_r32,
        Op::Mov_moffs64_RAX => Op::Mov_rm64_r64,
        other => other,
    }
}

impl Weaver<'_> {
    /// The gs base, and the scaled register added to it, in `reg`, which is neither of both.
    pub fn gs_base_and(&mut self, reg: Gpr, index: Option<(Gpr, u32)>) {
        self.code().load(reg, thread::PROGRAM_GS);
        if let Some((index, scale)) = index {
            let sum =
                MemoryOperand::with_base_index_scale(register64(reg), register64(index), scale);
            self.encode_with(Op::Lea_r64_m, reg, sum);
        }
    }

    /// The instruction, which [`uses_gs`], with an operand that has `reg`, and what leads there in `reg`.
    pub fn through_gs(&mut self, insn: &Instruction, reg: Gpr) -> Instruction {
        let mut through = *insn;
        through.set_code(with_register(insn.code()));
        through.set_segment_prefix(Register::None);
        let index = gpr_number(insn.memory_index());
        self.gs_base_and(reg, index.map(|index| (index, insn.memory_index_scale())));
        let base = insn.memory_base();
        if insn.is_vsib() {
            if let Some(base) = gpr_number(base) {
                self.code().lea_sum(true, reg, base, reg, 0);
            }
            through.set_memory_base(register64(reg));
        } else if base == Register::None {
            through.set_memory_base(register64(reg));
            through.set_memory_index(Register::None);
            through.set_memory_index_scale(1);
        } else {
            through.set_memory_index(register64(reg));
            through.set_memory_index_scale(1);
        }
        let displacement = displacement(insn);
        through.set_memory_displacement64(displacement as u64);
        through.set_memory_displ_size(displacement_size(displacement));
        through
    }

    /// Instructions that read or write the gs base itself; false if this is none of them.
    pub fn gs_base(&mut self, insn: &Instruction) -> bool {
        let register = insn.op0_register();
        let Some(number) = gpr_number(register) else { return false };
        match insn.mnemonic() {
            Mnemonic::Rdgsbase if register.size() == 4 => {
                self.code().load32(number, thread::PROGRAM_GS);
            }
            Mnemonic::Rdgsbase => self.code().load(number, thread::PROGRAM_GS),
            Mnemonic::Wrgsbase => self.code().store(thread::PROGRAM_GS, number),
            _ => return false,
        }
        true
    }
}
