//! Jumps through tables: what is proven of them, so that they can take a translated table.
//!
//! A jump through an entry of a table takes the place of that entry in a table of slots beside it
//! ([`abi::tables::Tables::jump_tables`]). For that the register that counts entries has to be below a
//! bound, wherever the jump is reached from, and the table has to be at a known address. Both is read from
//! the unit itself, and from the units in front of it where nobody else leads to it: a unit that is neither
//! *wide* nor *open* is entered by direct branches of its region only. What the bound is does not matter to
//! correctness: a slot stands for the word at its place, and is looked up if that leads nowhere.

use crate::block::Block;
use crate::liveness::{successors, Span};
use abi::ids::{Gpr, OrigAddr};
use alloc::vec::Vec;
use iced_x86::{Code as Op, ConditionCode, Instruction, InstructionInfoFactory, Mnemonic};
use iced_x86::{OpKind, Register};
use lifter::flow::Flow;
use lifter::regs::{gpr_number, RSP};
use lifter::use_def::use_def;

/// Most entries of a table that has slots.
const MOST: u64 = 4096;
/// Units in front that are looked at, one behind the other.
const DEPTH: u32 = 4;
/// Most units that lead to one, if they are looked at.
const PREDECESSORS: usize = 8;

/// A jump through a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Dispatch {
    /// The instruction of the unit that reads the entry: the jump itself, or one in front of it.
    pub load: usize,
    /// The register that an entry's address counts from: it is `base` then.
    pub register: Option<Gpr>,
    /// See there; 0 without a register.
    pub base: u64,
    /// Counts entries, below `entries`.
    pub index: Gpr,
    /// Address of the first entry.
    pub table: u64,
    pub entries: u32,
    /// Entries are 4-byte distances from `table`, not addresses.
    pub is_relative: bool,
    /// The register that the jump leads to the contents of; none if it reads the entry itself.
    pub target: Option<Gpr>,
    /// The slot is read by the jump itself: the registers are as they were in front of the load.
    pub is_direct: bool,
}

/// A region, to look for such jumps.
pub(crate) struct Search<'a> {
    blocks: &'a [Block],
    spans: &'a [Span],
    insns: &'a [Instruction],
    factory: &'a mut InstructionInfoFactory,
    /// Which block leads where, by direct branches and behind its end.
    leads: Vec<(OrigAddr, usize)>,
}

/// The low `bits` of `register`, all else zero, is what is looked for.
#[derive(Clone, Copy)]
struct Want {
    register: Gpr,
    bits: u32,
}

/// What is known of the numbers that the register may have.
#[derive(Clone, Copy)]
struct Facts {
    /// The branch that was taken says that the last comparison found its first operand below its second one
    /// (`true`: or equal).
    below: Option<bool>,
    /// Its low bits are below a number.
    compared: Option<(u64, u32)>,
}

const NOTHING: Facts = Facts { below: None, compared: None };

impl<'a> Search<'a> {
    pub fn new(
        blocks: &'a [Block],
        spans: &'a [Span],
        insns: &'a [Instruction],
        factory: &'a mut InstructionInfoFactory,
    ) -> Search<'a> {
        let mut leads: Vec<_> = spans
            .iter()
            .enumerate()
            .flat_map(|(i, span)| {
                successors(insns, span).into_iter().flatten().map(move |to| (to, i))
            })
            .collect();
        leads.sort_unstable();
        leads.dedup();
        Search { blocks, spans, insns, factory, leads }
    }

    fn unit(&self, block: usize) -> &'a [Instruction] {
        let Span { first, count, .. } = self.spans[block];
        &self.insns[first..first + count]
    }

    /// The jump through a table that the block ends with, if there is one. `absolute`: addresses in the code are
    /// those of the process.
    pub fn dispatch(&mut self, block: usize, absolute: bool) -> Option<Dispatch> {
        let insns = self.unit(block);
        let end = insns.len().checked_sub(1)?;
        let jump = &insns[end];
        if Flow::of(jump) != Flow::IndirectJump {
            return None;
        }
        if jump.op0_kind() == OpKind::Memory {
            return self.entry_of(block, end, false, None, absolute);
        }
        let target = whole(jump.op0_register())?;
        let mut sum: Option<[Gpr; 2]> = None;
        for i in (0..end).rev() {
            let insn = &insns[i];
            let written = use_def(insn, self.factory).written;
            let touches = match sum {
                None => written.contains(target),
                Some([a, b]) => written.contains(a) || written.contains(b),
            };
            if !touches {
                continue;
            }
            match (insn.code(), sum) {
                (Op::Mov_r64_rm64, None) if insn.op1_kind() == OpKind::Memory => {
                    return self.entry_of(block, i, false, Some(target), absolute);
                }
                (Op::Add_r64_rm64 | Op::Add_rm64_r64, None)
                    if insn.op0_kind() == OpKind::Register
                        && insn.op1_kind() == OpKind::Register =>
                {
                    sum = Some([whole(insn.op0_register())?, whole(insn.op1_register())?]);
                }
                (Op::Movsxd_r64_rm32, Some([a, b])) if insn.op1_kind() == OpKind::Memory => {
                    let loaded = whole(insn.op0_register())?;
                    let base = if loaded == a { b } else { a };
                    if a == b || whole(insn.memory_base()) != Some(base) {
                        return None;
                    }
                    return self.entry_of(block, i, true, Some(target), absolute);
                }
                _ => return None,
            }
        }
        None
    }

    /// What is proven of the entry that instruction `load` of the block reads.
    fn entry_of(
        &mut self,
        block: usize,
        load: usize,
        is_relative: bool,
        target: Option<Gpr>,
        absolute: bool,
    ) -> Option<Dispatch> {
        let insn = &self.unit(block)[load];
        let scale = if is_relative { 4 } else { 8 };
        let index = whole(insn.memory_index()).filter(|&index| index != RSP)?;
        // (DS means nothing, or that the target needs no landing mark.)
        let is_flat = matches!(insn.segment_prefix(), Register::None | Register::DS);
        if insn.memory_index_scale() != scale || !is_flat {
            return None;
        }
        let displacement = insn.memory_displacement64();
        let (register, base) = match insn.memory_base() {
            Register::None if absolute => (None, 0),
            register => {
                let register = whole(register)?;
                (Some(register), self.constant(block, load, register, DEPTH)?)
            }
        };
        if is_relative && displacement != 0 {
            return None;
        }
        let want = Want { register: index, bits: 64 };
        let entries = self.bound(block, load, want, NOTHING, DEPTH)?;
        let entries =
            u32::try_from(entries).ok().filter(|n| (1..=MOST).contains(&u64::from(*n)))?;
        let table = base.wrapping_add(displacement);
        let unit = self.unit(block);
        let is_direct = unit[load..].iter().all(|insn| {
            let written = use_def(insn, self.factory).written;
            !written.contains(index) && !register.is_some_and(|base| written.contains(base))
        });
        Some(Dispatch {
            load,
            register,
            base,
            index,
            table,
            entries,
            is_relative,
            target,
            is_direct,
        })
    }

    /// The blocks that lead to a block, if nothing else does.
    fn predecessors(&self, block: usize) -> Option<Vec<usize>> {
        let Block { start, wide, open, .. } = self.blocks[block];
        if wide || open {
            return None;
        }
        let first = self.leads.partition_point(|(to, _)| *to < start);
        let all =
            self.leads[first..].iter().take_while(|(to, _)| *to == start).map(|(_, from)| *from);
        let all: Vec<usize> = all.take(PREDECESSORS + 1).collect();
        (1..=PREDECESSORS).contains(&all.len()).then_some(all)
    }

    /// The address in `register` in front of instruction `end` of the block.
    fn constant(&mut self, block: usize, end: usize, register: Gpr, depth: u32) -> Option<u64> {
        for i in (0..end).rev() {
            let insn = &self.unit(block)[i];
            if !use_def(insn, self.factory).written.contains(register) {
                continue;
            }
            return match insn.code() {
                Op::Lea_r64_m if insn.is_ip_rel_memory_operand() => {
                    Some(insn.ip_rel_memory_address())
                }
                Op::Mov_r64_rm64 | Op::Mov_rm64_r64 if is_move(insn) => {
                    self.constant(block, i, whole(insn.op1_register())?, depth)
                }
                _ => None,
            };
        }
        let depth = depth.checked_sub(1)?;
        let mut found = None;
        for from in self.predecessors(block)? {
            let address = self.constant(from, self.spans[from].count, register, depth)?;
            if *found.get_or_insert(address) != address {
                return None;
            }
        }
        found
    }

    /// A number that what is looked for is below, in front of instruction `end` of the block.
    fn bound(
        &mut self,
        block: usize,
        end: usize,
        want: Want,
        mut facts: Facts,
        depth: u32,
    ) -> Option<u64> {
        for i in (0..end).rev() {
            let insn = &self.unit(block)[i];
            if let Some(or_equal) = facts.below.filter(|_| insn.rflags_modified() != 0) {
                // This is what the branch has looked at.
                facts.below = None;
                if let Some((bound, bits)) = compared(insn, want.register, or_equal) {
                    if bits >= want.bits {
                        return Some(bound);
                    }
                    facts.compared = Some((bound, bits));
                }
            }
            if !use_def(insn, self.factory).written.contains(want.register) {
                continue;
            }
            // All of the register is a number of so many bits: was all of it compared?
            let holds = |bits: u32| facts.compared.and_then(|(n, of)| (of >= bits).then_some(n));
            return match effect(insn, want.register) {
                Effect::Copy { from, bits } => match holds(bits) {
                    Some(bound) => Some(bound),
                    None => {
                        let want = Want { register: from, bits: bits.min(want.bits) };
                        let found = match facts.compared {
                            // What was compared is not all of it.
                            Some(_) => None,
                            None => self.bound(block, i, want, facts, depth),
                        };
                        let own = (bits < 32).then(|| 1 << bits);
                        match (found, own) {
                            (Some(a), Some(b)) => Some(a.min(b)),
                            (a, b) => a.or(b),
                        }
                    }
                },
                Effect::Below(bound) => match facts.compared {
                    Some((n, bits)) if bits >= 64 || bound <= 1 << bits => Some(n.min(bound)),
                    _ => Some(bound),
                },
                Effect::Low32 => holds(32),
                Effect::Other => None,
            };
        }
        let depth = depth.checked_sub(1)?;
        let mut most = None;
        for from in self.predecessors(block)? {
            let count = self.spans[from].count;
            let mut facts = facts;
            if facts.below.is_none() && facts.compared.is_none() {
                let last = self.unit(from).last();
                facts.below = last.and_then(|last| below(last, self.blocks[block].start));
            }
            let bound = self.bound(from, count, want, facts, depth)?;
            most = most.max(Some(bound));
        }
        most
    }
}

/// What an instruction leaves in a register that it writes.
enum Effect {
    /// The low bits of another one, the rest zero.
    Copy {
        from: Gpr,
        bits: u32,
    },
    /// A number below this one.
    Below(u64),
    /// A number of 32 bits.
    Low32,
    Other,
}

fn effect(insn: &Instruction, register: Gpr) -> Effect {
    let to = insn.op0_register();
    let is_whole =
        insn.op0_kind() == OpKind::Register && gpr_number(to) == Some(register) && to.size() >= 4;
    if !is_whole {
        return Effect::Other;
    }
    let from_register = insn.op_count() == 2 && insn.op1_kind() == OpKind::Register;
    let bits = match insn.op1_kind() {
        OpKind::Memory => bits_of(insn.memory_size().size()),
        OpKind::Register => bits_of(insn.op1_register().size()),
        _ => 0,
    };
    match insn.mnemonic() {
        Mnemonic::Mov if from_register => match copied(insn.op1_register()) {
            Some(from) => Effect::Copy { from, bits },
            None => Effect::Other,
        },
        Mnemonic::Movzx if from_register => match copied(insn.op1_register()) {
            Some(from) => Effect::Copy { from, bits },
            None if bits < 32 => Effect::Below(1 << bits),
            None => Effect::Other,
        },
        Mnemonic::Movzx if matches!(bits, 8 | 16) => Effect::Below(1 << bits),
        Mnemonic::And if is_immediate(insn) => {
            let mask = insn.immediate(1) & mask(bits_of(to.size()));
            Effect::Below(mask.saturating_add(1))
        }
        // Others that write 32 bits, all of them, and so all 64.
        Mnemonic::Mov
        | Mnemonic::Lea
        | Mnemonic::Add
        | Mnemonic::Sub
        | Mnemonic::Or
        | Mnemonic::Xor
        | Mnemonic::And
        | Mnemonic::Movsx
            if to.size() == 4 =>
        {
            Effect::Low32
        }
        _ => Effect::Other,
    }
}

/// The register whose low bits a move takes; none of those whose second byte it takes.
fn copied(register: Register) -> Option<Gpr> {
    let is_second = matches!(register, Register::AH | Register::BH | Register::CH | Register::DH);
    gpr_number(register).filter(|_| !is_second)
}

fn is_move(insn: &Instruction) -> bool {
    insn.op0_kind() == OpKind::Register && insn.op1_kind() == OpKind::Register
}

fn is_immediate(insn: &Instruction) -> bool {
    matches!(
        insn.op1_kind(),
        OpKind::Immediate8
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate8to16
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64
    )
}

#[allow(clippy::cast_possible_truncation, reason = "operands have at most 64 bytes")]
fn bits_of(bytes: usize) -> u32 {
    bytes as u32 * 8
}

const fn mask(bits: u32) -> u64 {
    u64::MAX >> (64 - bits)
}

/// The number that `insn` compares the register with, if it does, and how many bits of it.
fn compared(insn: &Instruction, register: Gpr, or_equal: bool) -> Option<(u64, u32)> {
    let is_it = insn.mnemonic() == Mnemonic::Cmp
        && insn.op0_kind() == OpKind::Register
        && is_immediate(insn)
        && copied(insn.op0_register()) == Some(register);
    let bits = bits_of(insn.op0_register().size());
    let number = is_it.then(|| insn.immediate(1) & mask(bits))?;
    number.checked_add(u64::from(or_equal)).map(|bound| (bound, bits))
}

/// What the branch says if it leads to `to`, see [`Facts::below`].
fn below(branch: &Instruction, to: OrigAddr) -> Option<bool> {
    if !branch.is_jcc_short_or_near() {
        return None;
    }
    let taken = branch.near_branch_target() == to.0;
    if taken == (branch.next_ip() == to.0) {
        return None;
    }
    match (branch.condition_code(), taken) {
        (ConditionCode::be, true) | (ConditionCode::a, false) => Some(true),
        (ConditionCode::b, true) | (ConditionCode::ae, false) => Some(false),
        _ => None,
    }
}

/// The number of a register, if it is all of it that is named.
fn whole(register: Register) -> Option<Gpr> {
    gpr_number(register).filter(|_| register.size() == 8)
}

#[cfg(test)]
mod tests;
