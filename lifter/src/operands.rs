//! What memory an instruction references, in the order of its execution.
//!
//! Decided from the instruction alone. The rules where opinions could differ:
//! * a read-modify-write is a read, then a write; reads come before writes;
//! * implicit stack references count; `pop [m]` addresses its destination with the incremented rsp,
//!   which the displacement here already includes;
//! * a conditional access counts as if it happened (`cmov`, `cmpxchg`, masked vector accesses that
//!   are contiguous: these have their full width), gathers and scatters count per enabled element;
//! * hints and addresses that are only computed do not count (prefetch, nop, lea, clflush, ...).
//!
//! AMX tile loads and stores are not described.

use alloc::vec::Vec;

use abi::ids::Gpr;
use iced_x86::{
    Code, Instruction, InstructionInfoFactory, InstructionInfoOptions, MemorySize, Mnemonic,
    OpAccess, OpKind, Register,
};

use crate::regs::{gpr_number, RAX, RBP, RDI, RSI, RSP};

/// One memory reference (or, by its [`Shape`], a row of them).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reference {
    /// It is written, not read.
    pub write: bool,
    /// Bytes of each reference; 0 for [`Shape::Xsave`].
    pub size: u32,
    /// The base register.
    pub base: Option<Gpr>,
    /// What is added to the base.
    pub index: Index,
    /// For a pc-relative operand the absolute address.
    pub displacement: i64,
    /// The segment whose base is added.
    pub segment: Segment,
    /// The offset is truncated to 32 bits before the segment base is added.
    pub address32: bool,
    /// Number of the explicit memory operand; `None` for implicit ones.
    pub operand: Option<u8>,
    /// How many references it stands for.
    pub shape: Shape,
}

/// What a reference adds to its base register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Index {
    /// Nothing.
    None,
    /// A register, scaled.
    Gpr {
        /// The register.
        number: Gpr,
        /// 1, 2, 4 or 8.
        scale: u8,
    },
    /// The lowest byte of a register, zero-extended (`xlat`).
    LowByte {
        /// The register.
        number: Gpr,
    },
    /// `bt` and its kin with a bit offset in a register: adds
    /// `(signed offset >> log2(bits of the operand)) * operand_bytes`. The operand may have an
    /// index of its own: (number, scale).
    BitOffset {
        /// The register with the bit offset.
        number: Gpr,
        /// Bytes of the operand.
        operand_bytes: u8,
        /// The operand's own index.
        index: Option<(Gpr, u8)>,
    },
    /// Elements of a vector register, sign-extended.
    Vector {
        /// The vector register.
        number: u8,
        /// 1, 2, 4 or 8.
        scale: u8,
        /// 4 or 8.
        element_bytes: u8,
    },
}

/// A segment with a base of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Segment {
    /// None: the base is 0.
    None,
    /// `fs`.
    Fs,
    /// `gs`.
    Gs,
}

/// How many references one operand makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// One.
    Plain,
    /// A string instruction, which moves the address on by the direction flag.
    String,
    /// The same under `rep`, `repe` or `repne`: once per iteration.
    Repeated,
    /// Once per enabled element, from element 0 on (scatters too).
    Gather {
        /// How many elements there are.
        elements: u8,
        /// Which of them are enabled.
        mask: GatherMask,
    },
    /// One reference whose size follows from the requested components, see [`xsave_size`].
    Xsave {
        /// In the compacted form.
        compacted: bool,
    },
}

/// What enables the elements of a gather or scatter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GatherMask {
    /// Bit i of a mask register.
    Bits(u8),
    /// The sign bit of element i of a vector register; elements have the size of the reference.
    Signs(u8),
}

/// Bytes that an XSAVE-family instruction references: `requested` is edx:eax, `xcr0` and
/// `components` (size, offset) come from CPUID leaf 0xd.
pub fn xsave_size(compacted: bool, requested: u64, xcr0: u64, components: &[(u32, u32)]) -> u32 {
    let extended = components
        .iter()
        .enumerate()
        .take(63)
        .skip(2)
        .filter(|(i, _)| requested & xcr0 & (1 << i) != 0);
    if compacted {
        extended.fold(576, |sum: u32, (_, (size, _))| sum.saturating_add(*size))
    } else {
        extended.fold(576, |most, (_, (size, offset))| most.max(offset.saturating_add(*size)))
    }
}

/// Appends the references of `insn` to `out`, in the order of execution.
pub fn references(
    insn: &Instruction,
    factory: &mut InstructionInfoFactory,
    out: &mut Vec<Reference>,
) {
    if insn.is_string_instruction() {
        return string(insn, out);
    }
    let explicit = explicit(insn, factory);
    match insn.mnemonic() {
        Mnemonic::Enter => return enter(insn, out),
        Mnemonic::Leave => {
            let size = if insn.code() == Code::Leavew { 2 } else { 8 };
            return out.push(stack(false, RBP, 0, size));
        }
        // The source is read, and 64 bytes are stored to where the register operand points.
        Mnemonic::Movdir64b => {
            out.extend(explicit.map(|(reference, _)| Reference { size: 64, ..reference }));
            let to = insn.op0_register();
            return out.push(Reference {
                address32: to.size() == 4,
                ..stack(true, gpr_number(to).unwrap_or(RAX), 0, 64)
            });
        }
        _ => {}
    }
    if let Some((reference, access)) = explicit {
        if access.0 {
            out.push(reference);
        }
    }
    if insn.is_stack_instruction() {
        implicit_stack(insn, out);
    }
    if let Some((mut reference, access)) = explicit {
        if access.1 {
            if insn.mnemonic() == Mnemonic::Pop && reference.base == Some(RSP) {
                reference.displacement += i64::from(insn.stack_pointer_increment());
            }
            reference.write = true;
            out.push(reference);
        }
    }
}

/// Instructions whose memory operand is not referenced although iced may say so.
fn only_hints(insn: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        insn.mnemonic(),
        Lea | Nop
            | Endbr64
            | Endbr32
            | Prefetch
            | Prefetchw
            | Prefetchwt1
            | Prefetchnta
            | Prefetcht0
            | Prefetcht1
            | Prefetcht2
            | Prefetchit0
            | Prefetchit1
            | Clflush
            | Clflushopt
            | Clwb
            | Cldemote
            | Invlpg
            | Ud0
            | Ud1
            | Bndcl
            | Bndcn
            | Bndcu
            | Bndldx
            | Bndmk
            | Bndmov
            | Bndstx
            | Reservednop
            | Tileloadd
            | Tileloaddt1
            | Tilestored
    )
}

/// The explicit memory operand (there is at most one but for string instructions), and whether it
/// is read and written.
fn explicit(
    insn: &Instruction,
    factory: &mut InstructionInfoFactory,
) -> Option<(Reference, (bool, bool))> {
    let operand = (0..insn.op_count()).find(|&n| {
        matches!(
            insn.op_kind(n),
            OpKind::Memory | OpKind::MemorySegDI | OpKind::MemorySegEDI | OpKind::MemorySegRDI
        )
    })?;
    if only_hints(insn) {
        return None;
    }
    let options =
        InstructionInfoOptions::NO_MEMORY_USAGE | InstructionInfoOptions::NO_REGISTER_USAGE;
    let mut access = match factory.info_options(insn, options).op_access(operand) {
        OpAccess::Read | OpAccess::CondRead => (true, false),
        OpAccess::Write | OpAccess::CondWrite => (false, true),
        OpAccess::ReadWrite | OpAccess::ReadCondWrite => (true, true),
        OpAccess::None | OpAccess::NoMemAccess => return None,
    };
    if insn.op_kind(operand) != OpKind::Memory {
        // maskmovq, maskmovdqu: stores through (e)di.
        access = (false, true);
        let address32 = insn.op_kind(operand) == OpKind::MemorySegEDI;
        let mut reference = stack(true, RDI, 0, bytes(insn.memory_size().size()));
        reference.segment = segment(insn);
        reference.address32 = address32;
        return Some((reference, access));
    }
    let base = insn.memory_base();
    let relative = insn.is_ip_rel_memory_operand();
    let address32 = base == Register::EIP
        || base.is_gpr32()
        || insn.memory_index().is_gpr32()
        || (base == Register::None
            && !insn.memory_index().is_gpr64()
            && insn.memory_displ_size() == 4
            && !insn.is_vsib());
    let mut reference = Reference {
        write: false,
        size: size(insn),
        base: if relative { None } else { gpr_number(base) },
        index: index(insn, operand),
        displacement: insn.memory_displacement64() as i64,
        segment: segment(insn),
        address32,
        operand: Some(small(operand)),
        shape: shape(insn),
    };
    if let Shape::Xsave { .. } = reference.shape {
        // xsaveopt, xsavec and xsave do not read what they save over.
        access = (!is_save(insn), is_save(insn));
    }
    if relative && address32 {
        reference.displacement &= 0xffff_ffff;
    }
    Some((reference, access))
}

fn size(insn: &Instruction) -> u32 {
    use Mnemonic::*;
    let vector = || {
        (0..insn.op_count())
            .filter(|&n| insn.op_kind(n) == OpKind::Register)
            .map(|n| insn.op_register(n))
            .find(|r| r.is_vector_register())
            .map_or(0, |r| bytes(r.size()))
    };
    match insn.mnemonic() {
        // Contiguous, of the full width whatever the mask says.
        Vpcompressb | Vpcompressw | Vpcompressd | Vpcompressq | Vcompressps | Vcompresspd
        | Vpexpandb | Vpexpandw | Vpexpandd | Vpexpandq | Vexpandps | Vexpandpd => vector(),
        Fxsave | Fxsave64 | Fxrstor | Fxrstor64 => 512,
        _ if insn.is_broadcast() => bytes(insn.memory_size().element_size()),
        _ => bytes(insn.memory_size().size()),
    }
}

fn shape(insn: &Instruction) -> Shape {
    use Mnemonic::*;
    match insn.mnemonic() {
        Xsave | Xsave64 | Xsaveopt | Xsaveopt64 | Xrstor | Xrstor64 => {
            return Shape::Xsave { compacted: false }
        }
        Xsavec | Xsavec64 | Xsaves | Xsaves64 | Xrstors | Xrstors64 => {
            return Shape::Xsave { compacted: true }
        }
        _ => {}
    }
    if !insn.is_vsib() {
        return Shape::Plain;
    }
    let index_elements = insn.memory_index().size() / vsib_bytes(insn);
    let data =
        if insn.op0_kind() == OpKind::Register { insn.op0_register() } else { insn.op1_register() };
    let data_elements = data.size() / insn.memory_size().element_size().max(1);
    let mask = if insn.has_op_mask() {
        GatherMask::Bits(small(insn.op_mask().number()))
    } else {
        GatherMask::Signs(small(insn.op2_register().number()))
    };
    Shape::Gather { elements: small(index_elements.min(data_elements)), mask }
}

fn is_save(insn: &Instruction) -> bool {
    use Mnemonic::*;
    !matches!(insn.mnemonic(), Xrstor | Xrstor64 | Xrstors | Xrstors64)
}

fn vsib_bytes(insn: &Instruction) -> usize {
    if insn.is_vsib64() {
        8
    } else {
        4
    }
}

fn index(insn: &Instruction, operand: u32) -> Index {
    let scale = small(insn.memory_index_scale());
    let register = insn.memory_index();
    let plain = gpr_number(register).map(|number| (number, scale));
    if insn.mnemonic() == Mnemonic::Xlatb {
        return Index::LowByte { number: RAX };
    }
    let bit_test =
        matches!(insn.mnemonic(), Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc);
    if bit_test && operand == 0 && insn.op1_kind() == OpKind::Register {
        let offset = insn.op1_register();
        return Index::BitOffset {
            number: gpr_number(offset).unwrap_or(RAX),
            operand_bytes: small(offset.size()),
            index: plain,
        };
    }
    match plain {
        Some((number, scale)) => Index::Gpr { number, scale },
        None if register.is_vector_register() => Index::Vector {
            number: small(register.number()),
            scale,
            element_bytes: small(vsib_bytes(insn)),
        },
        None => Index::None,
    }
}

fn segment(insn: &Instruction) -> Segment {
    match insn.memory_segment() {
        Register::FS => Segment::Fs,
        Register::GS => Segment::Gs,
        _ => Segment::None,
    }
}

/// An implicit reference relative to one register.
fn stack(write: bool, base: Gpr, displacement: i64, size: u32) -> Reference {
    Reference {
        write,
        size,
        base: Some(base),
        index: Index::None,
        displacement,
        segment: Segment::None,
        address32: false,
        operand: None,
        shape: Shape::Plain,
    }
}

/// A number that fits into a byte: of an operand or a register, a scale, a size.
fn small<T: TryInto<u8>>(number: T) -> u8 {
    number.try_into().unwrap_or(u8::MAX)
}

/// A size of an operand.
fn bytes(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

/// What the bit offset in a register adds to the address of `bt` and its kin, in bytes (see
/// [`Index::BitOffset`]).
#[allow(clippy::cast_possible_truncation, reason = "the operand's width says how much counts")]
pub fn bit_word_offset(bits: u64, operand_bytes: u8) -> u64 {
    let (signed, shift) = match operand_bytes {
        2 => (i64::from(bits as i16), 4),
        4 => (i64::from(bits as i32), 5),
        _ => (bits as i64, 6),
    };
    ((signed >> shift) as u64).wrapping_mul(u64::from(operand_bytes))
}

fn implicit_stack(insn: &Instruction, out: &mut Vec<Reference>) {
    use Mnemonic::*;
    let moved = insn.stack_pointer_increment();
    let slot = |bytes: i32, count: i32| (bytes / count).unsigned_abs();
    let (size, count) = match insn.mnemonic() {
        Ret => match insn.code() {
            Code::Retnw | Code::Retnw_imm16 => (2, 1),
            _ => (8, 1),
        },
        Retf => {
            let popped =
                moved - if insn.op_count() > 0 { i32::from(insn.immediate16()) } else { 0 };
            (slot(popped, 2), 2)
        }
        Iret | Iretd | Iretq => (slot(moved, 5), 5),
        Call if insn.is_call_far_indirect() => (slot(moved, 2), 2),
        Push | Pushf | Pushfd | Pushfq | Call | Pop | Popf | Popfd | Popfq => {
            (moved.unsigned_abs(), 1)
        }
        _ => return,
    };
    for i in 0..count {
        let offset = if moved < 0 { -(i + 1) } else { i } * i64::from(size);
        out.push(stack(moved < 0, RSP, offset, size));
    }
}

fn enter(insn: &Instruction, out: &mut Vec<Reference>) {
    let size = if insn.code() == Code::Enterw_imm16_imm8 { 2 } else { 8 };
    let step = i64::from(size);
    let level = i64::from(insn.immediate8_2nd() & 31);
    out.push(stack(true, RSP, -step, size));
    for i in 1..level {
        out.push(stack(false, RBP, -step * i, size));
        out.push(stack(true, RSP, -step * (i + 1), size));
    }
    if level > 0 {
        out.push(stack(true, RSP, -step * (level + 1), size));
    }
}

fn string(insn: &Instruction, out: &mut Vec<Reference>) {
    use Mnemonic::*;
    let shape = if insn.has_rep_prefix() || insn.has_repne_prefix() {
        Shape::Repeated
    } else {
        Shape::String
    };
    let at = |write: bool, base: Gpr| {
        let operand = (0..insn.op_count()).find(|&n| {
            let kind = insn.op_kind(n);
            match base {
                RSI => matches!(
                    kind,
                    OpKind::MemorySegSI | OpKind::MemorySegESI | OpKind::MemorySegRSI
                ),
                _ => matches!(kind, OpKind::MemoryESDI | OpKind::MemoryESEDI | OpKind::MemoryESRDI),
            }
        });
        let address32 = operand
            .is_some_and(|n| matches!(insn.op_kind(n), OpKind::MemorySegESI | OpKind::MemoryESEDI));
        let size = match insn.memory_size() {
            MemorySize::Unknown => 1,
            known => bytes(known.size()),
        };
        Reference {
            segment: if base == RSI { segment(insn) } else { Segment::None },
            address32,
            operand: operand.map(small),
            shape,
            ..stack(write, base, 0, size)
        }
    };
    match insn.mnemonic() {
        Movsb | Movsw | Movsd | Movsq => out.extend([at(false, RSI), at(true, RDI)]),
        Cmpsb | Cmpsw | Cmpsd | Cmpsq => out.extend([at(false, RSI), at(false, RDI)]),
        Stosb | Stosw | Stosd | Stosq | Insb | Insw | Insd => out.push(at(true, RDI)),
        Lodsb | Lodsw | Lodsd | Lodsq | Outsb | Outsw | Outsd => out.push(at(false, RSI)),
        Scasb | Scasw | Scasd | Scasq => out.push(at(false, RDI)),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
