//! Recognises jumps through tables from the instructions in front of them, and reads the tables.
//!
//! Only a straight run of instructions is looked at; whatever is not understood is a miss, which
//! costs time when the program runs and nothing else.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// Instructions remembered in front of a jump.
const MEMORY: usize = 32;

/// What a table holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// 4-byte distances from the table's start.
    Relative,
    /// 8-byte addresses.
    Absolute,
}

/// A jump that goes through a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dispatch {
    pub kind: Kind,
    /// Address of the table, where the run shows it.
    pub table: Option<u64>,
    /// Number of entries, where the run shows the comparison.
    pub entries: Option<u32>,
}

/// The last instructions of a run.
#[derive(Default)]
pub struct History {
    ring: [Instruction; MEMORY],
    len: usize,
}

impl History {
    pub fn clear(&mut self) {
        self.len = 0;
    }

    pub fn push(&mut self, insn: &Instruction) {
        self.ring[self.len % MEMORY] = *insn;
        self.len += 1;
    }

    /// Latest first.
    fn backwards(&self) -> impl Iterator<Item = &Instruction> + Clone {
        (self.len.saturating_sub(MEMORY)..self.len).rev().map(|i| &self.ring[i % MEMORY])
    }

    /// What is known of the indirect jump that was pushed last.
    pub fn dispatch(&self) -> Option<Dispatch> {
        let mut before = self.backwards();
        let jump = before.next()?;
        if jump.op0_kind() == OpKind::Memory {
            return absolute(jump, before);
        }
        let mut sum = jump.op0_register().full_register();
        let mut base = Register::None;
        while let Some(insn) = before.next() {
            if !writes(insn, sum) && !writes(insn, base) {
                continue;
            }
            let source = insn.op1_register().full_register();
            match insn.mnemonic() {
                Mnemonic::Add if insn.op1_kind() == OpKind::Register && base == Register::None => {
                    base = source;
                }
                Mnemonic::Add if insn.op1_kind() == OpKind::Memory && base == Register::None => {
                    // add T, [T + i*4] does not occur with 4-byte entries
                    return None;
                }
                Mnemonic::Movsxd if insn.op1_kind() == OpKind::Memory => {
                    if base == Register::None || insn.memory_index_scale() != 4 {
                        return None;
                    }
                    let other = if writes(insn, sum) { base } else { sum };
                    let table = constant(other, before.clone())
                        .or_else(|| constant(insn.memory_base(), before.clone()));
                    let entries = bound(insn.memory_index(), before);
                    return Some(Dispatch { kind: Kind::Relative, table, entries });
                }
                Mnemonic::Mov if insn.op1_kind() == OpKind::Memory => {
                    return if base == Register::None { absolute(insn, before) } else { None };
                }
                Mnemonic::Mov if insn.op1_kind() == OpKind::Register => {
                    *if writes(insn, sum) { &mut sum } else { &mut base } = source;
                }
                Mnemonic::Lea if base != Register::None && insn.is_ip_rel_memory_operand() => {
                    // The base is set between the load and the addition.
                    let table = Some(insn.ip_rel_memory_address());
                    let load = before
                        .clone()
                        .find(|i| i.mnemonic() == Mnemonic::Movsxd && i.memory_index_scale() == 4);
                    let entries = load.and_then(|i| bound(i.memory_index(), before));
                    return Some(Dispatch { kind: Kind::Relative, table, entries });
                }
                _ => return None,
            }
        }
        None
    }
}

/// A load (or jump) from `[base + index*8 + displacement]`.
fn absolute<'a>(
    load: &Instruction,
    before: impl Iterator<Item = &'a Instruction> + Clone,
) -> Option<Dispatch> {
    if load.memory_index() == Register::None || load.memory_index_scale() != 8 {
        return None;
    }
    let displacement = load.memory_displacement64();
    let table = match load.memory_base() {
        Register::None => Some(displacement),
        base => constant(base, before.clone()).map(|t| t.wrapping_add(displacement)),
    };
    let entries = bound(load.memory_index(), before);
    Some(Dispatch { kind: Kind::Absolute, table, entries })
}

fn writes(insn: &Instruction, register: Register) -> bool {
    register != Register::None
        && insn.op0_kind() == OpKind::Register
        && insn.op0_register().full_register() == register
        && !matches!(insn.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push)
}

/// The address that `register` holds, where its last write is a pc-relative `lea`.
fn constant<'a>(
    register: Register,
    mut before: impl Iterator<Item = &'a Instruction>,
) -> Option<u64> {
    let insn = before.find(|i| writes(i, register.full_register()))?;
    (insn.mnemonic() == Mnemonic::Lea && insn.is_ip_rel_memory_operand())
        .then(|| insn.ip_rel_memory_address())
}

/// The number of values that a comparison lets `index` take.
fn bound<'a>(index: Register, before: impl Iterator<Item = &'a Instruction>) -> Option<u32> {
    let mut index = index.full_register();
    let mut above = None;
    for insn in before {
        match insn.mnemonic() {
            Mnemonic::Ja | Mnemonic::Jbe => above = Some(1),
            Mnemonic::Jae | Mnemonic::Jb => above = Some(0),
            Mnemonic::Cmp
                if insn.op0_kind() == OpKind::Register
                    && insn.op0_register().full_register() == index
                    && is_immediate(insn.op1_kind()) =>
            {
                let count = insn.immediate(1).checked_add(above?)?;
                return u32::try_from(count).ok().filter(|n| (1..=0x1_0000).contains(n));
            }
            Mnemonic::Mov | Mnemonic::Movzx
                if writes(insn, index) && insn.op1_kind() == OpKind::Register =>
            {
                index = insn.op1_register().full_register();
            }
            _ if writes(insn, index) => return None,
            _ => {}
        }
    }
    None
}

fn is_immediate(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Immediate8
            | OpKind::Immediate32
            | OpKind::Immediate16
            | OpKind::Immediate8to16
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64
    )
}

/// The targets of a table, as far as its bytes go.
pub fn targets(kind: Kind, table: u64, bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let size = if kind == Kind::Relative { 4 } else { 8 };
    bytes.chunks_exact(size).map(move |entry| match kind {
        Kind::Relative => {
            let distance = i32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
            table.wrapping_add_signed(i64::from(distance))
        }
        Kind::Absolute => entry.iter().rev().fold(0, |word, b| word << 8 | u64::from(*b)),
    })
}
