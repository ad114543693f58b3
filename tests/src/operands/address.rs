//! Effective addresses from the registers before an instruction.

use iced_x86::{Instruction, OpKind, Register};

use crate::sys::Regs;

/// The value of a general-purpose register, zero-extended from the register's own size.
pub fn register(regs: &Regs, register: Register) -> u64 {
    use Register::*;
    let full = match register.full_register() {
        RAX => regs.rax,
        RCX => regs.rcx,
        RDX => regs.rdx,
        RBX => regs.rbx,
        RSP => regs.rsp,
        RBP => regs.rbp,
        RSI => regs.rsi,
        RDI => regs.rdi,
        R8 => regs.r8,
        R9 => regs.r9,
        R10 => regs.r10,
        R11 => regs.r11,
        R12 => regs.r12,
        R13 => regs.r13,
        R14 => regs.r14,
        R15 => regs.r15,
        _ => 0,
    };
    match register.size() {
        8 => full,
        4 => full & 0xffff_ffff,
        2 => full & 0xffff,
        _ => full & 0xff,
    }
}

/// The same, sign-extended.
pub fn signed(regs: &Regs, which: Register) -> i64 {
    let value = register(regs, which);
    let unused = 64 - 8 * which.size() as u32;
    ((value << unused) as i64) >> unused
}

fn segment_base(regs: &Regs, segment: Register) -> u64 {
    match segment {
        Register::FS => regs.fs_base,
        Register::GS => regs.gs_base,
        _ => 0,
    }
}

/// The linear address of an operand with base, index and displacement.
pub fn effective(insn: &Instruction, regs: &Regs) -> u64 {
    let scaled = match insn.memory_index() {
        Register::None => 0,
        index => register(regs, index).wrapping_mul(insn.memory_index_scale().into()),
    };
    linear(insn, regs, scaled)
}

/// The linear address of an element whose index register holds `index`.
pub fn element(insn: &Instruction, regs: &Regs, index: i64) -> u64 {
    linear(insn, regs, index.wrapping_mul(insn.memory_index_scale().into()) as u64)
}

fn linear(insn: &Instruction, regs: &Regs, scaled_index: u64) -> u64 {
    let base = insn.memory_base();
    let displacement = insn.memory_displacement64();
    let offset = match base {
        // The decoder has already added the address of the next instruction.
        Register::None | Register::RIP | Register::EIP => displacement,
        _ => register(regs, base).wrapping_add(displacement),
    };
    let offset = offset.wrapping_add(scaled_index);
    let narrow = base.is_gpr32()
        || base == Register::EIP
        || insn.memory_index().is_gpr32()
        || (base == Register::None && insn.memory_displ_size() == 4);
    let offset = if narrow { offset & 0xffff_ffff } else { offset };
    segment_base(regs, insn.memory_segment()).wrapping_add(offset)
}

/// The linear address of a string instruction's operand.
pub fn string(insn: &Instruction, kind: OpKind, regs: &Regs) -> u64 {
    let segment = segment_base(regs, insn.memory_segment());
    let low = 0xffff_ffff;
    match kind {
        OpKind::MemorySegRSI => segment.wrapping_add(regs.rsi),
        OpKind::MemorySegRDI => segment.wrapping_add(regs.rdi),
        OpKind::MemorySegESI => segment.wrapping_add(regs.rsi & low),
        OpKind::MemorySegEDI => segment.wrapping_add(regs.rdi & low),
        OpKind::MemoryESEDI => regs.rdi & low,
        _ => regs.rdi,
    }
}
