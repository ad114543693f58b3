//! Memory operands and register names, as the encoder takes them.

use abi::ids::Gpr;
use iced_x86::{Instruction, MemoryOperand, Mnemonic, OpKind, Register};
use lifter::asks::asks;
use lifter::flow::Flow;

/// The memory operand of an instruction, for use in another one.
pub(crate) fn memory_operand(insn: &Instruction) -> MemoryOperand {
    MemoryOperand::new(
        insn.memory_base(),
        insn.memory_index(),
        insn.memory_index_scale(),
        displacement(insn),
        insn.memory_displ_size(),
        insn.is_broadcast(),
        insn.segment_prefix(),
    )
}

/// The displacement of a memory operand, with the sign that it has: what is added to it may not
/// exceed 32 bits.
pub(crate) fn displacement(insn: &Instruction) -> i64 {
    let register = |r: Register| r != Register::None && r.size() == 4;
    match register(insn.memory_base()) || register(insn.memory_index()) {
        true => i64::from(insn.memory_displacement32() as i32),
        false => insn.memory_displacement64() as i64,
    }
}

/// Where the 4-byte displacement of a pc-relative operand lies in the instruction's bytes.
pub(crate) fn displacement_offset(insn: &Instruction, bytes: &[u8]) -> Option<usize> {
    let mut decoder =
        iced_x86::Decoder::with_ip(64, bytes, insn.ip(), iced_x86::DecoderOptions::NONE);
    let again = decoder.decode();
    let offsets = decoder.get_constant_offsets(&again);
    (offsets.has_displacement() && offsets.displacement_size() == 4)
        .then(|| offsets.displacement_offset())
}

/// The register as the encoder names it.
pub(crate) fn register64(register: Gpr) -> Register {
    const NAMES: [Register; 16] = [
        Register::RAX,
        Register::RCX,
        Register::RDX,
        Register::RBX,
        Register::RSP,
        Register::RBP,
        Register::RSI,
        Register::RDI,
        Register::R8,
        Register::R9,
        Register::R10,
        Register::R11,
        Register::R12,
        Register::R13,
        Register::R14,
        Register::R15,
    ];
    NAMES[register.index()]
}

/// The name of a register's low half.
pub(crate) fn register32(register: Gpr) -> Register {
    const NAMES: [Register; 16] = [
        Register::EAX,
        Register::ECX,
        Register::EDX,
        Register::EBX,
        Register::ESP,
        Register::EBP,
        Register::ESI,
        Register::EDI,
        Register::R8D,
        Register::R9D,
        Register::R10D,
        Register::R11D,
        Register::R12D,
        Register::R13D,
        Register::R14D,
        Register::R15D,
    ];
    NAMES[register.index()]
}

/// The name of a register's lowest 1, 2, 4 or 8 bytes.
pub(crate) fn sized(register: Gpr, size: u32) -> Register {
    const BYTES: [Register; 16] = [
        Register::AL,
        Register::CL,
        Register::DL,
        Register::BL,
        Register::SPL,
        Register::BPL,
        Register::SIL,
        Register::DIL,
        Register::R8L,
        Register::R9L,
        Register::R10L,
        Register::R11L,
        Register::R12L,
        Register::R13L,
        Register::R14L,
        Register::R15L,
    ];
    const WORDS: [Register; 16] = [
        Register::AX,
        Register::CX,
        Register::DX,
        Register::BX,
        Register::SP,
        Register::BP,
        Register::SI,
        Register::DI,
        Register::R8W,
        Register::R9W,
        Register::R10W,
        Register::R11W,
        Register::R12W,
        Register::R13W,
        Register::R14W,
        Register::R15W,
    ];
    match size {
        1 => BYTES[register.index()],
        2 => WORDS[register.index()],
        4 => register32(register),
        _ => register64(register),
    }
}

/// Whether the instruction has an operand in memory that is relative to the gs base.
pub fn uses_gs(insn: &Instruction) -> bool {
    insn.segment_prefix() == Register::GS
        && insn.op_kinds().any(has_segment)
        && !matches!(insn.mnemonic(), Mnemonic::Lea | Mnemonic::Nop)
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

/// Whether such an operand can be written as one of other registers.
pub fn is_reachable(insn: &Instruction) -> bool {
    let (base, index) = (insn.memory_base(), insn.memory_index());
    let is_narrow = base.is_gpr32()
        || index.is_gpr32()
        || base == Register::None
            && !index.is_gpr64()
            && insn.memory_displ_size() == 4
            && !insn.is_vsib();
    // A transfer has rcx for itself.
    let is_transfer = matches!(Flow::of(insn), Flow::IndirectCall | Flow::IndirectJump);
    let is_claimed = is_transfer && [base, index].contains(&Register::RCX);
    insn.op_kinds().all(|kind| kind == OpKind::Memory || !has_segment(kind))
        && !insn.is_ip_rel_memory_operand()
        && !is_narrow
        && !is_claimed
        && !asks(insn)
        && insn.mnemonic() != Mnemonic::Xlatb
        && i32::try_from(displacement(insn)).is_ok()
}

/// How the encoder wants the size of a displacement to be told.
pub fn displacement_size(displacement: i64) -> u32 {
    match displacement {
        0 => 0,
        -128..=127 => 1,
        _ => 8,
    }
}
