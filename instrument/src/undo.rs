//! What only the undo log inserts: old contents read ahead of a store, all registers at a call, and the
//! lock around synchronising instructions.
//!
//! Nothing here touches a flag. A read-ahead touches the very bytes that the store will write, so it
//! faults where the store would; its recipe entry says which registers it has borrowed.

use crate::emit::At;
use crate::operand::{displacement_size, register32, register64};
use crate::recipe::{pair, Kind, NOT_BORROWED};
use crate::weaver::{Slot, Weaver};
use abi::ids::Gpr;
use abi::thread;
use abi::unit::{Record, What};
use alloc::vec::Vec;
use iced_x86::{Code as Op, Instruction, MemoryOperand, Register};
use lifter::operands::{references, Index, Reference, Segment};
use lifter::regs::{GprSet, RSP};
use lifter::stores::{stores, Stores};

impl Weaver<'_> {
    /// The one store of `insn`, as the plan has seen it.
    fn store_of(&mut self, insn: &Instruction) -> Option<Reference> {
        let mut refs = Vec::new();
        references(insn, self.factory(), &mut refs);
        match stores(insn, &refs) {
            Stores::One(reference) => Some(reference),
            _ => None,
        }
    }

    /// Records what `insn` is about to overwrite.
    pub fn read_ahead(&mut self, insn: &Instruction, i: usize) {
        let at = self.code().here();
        let both = self.old_bytes(insn, i);
        self.boundary_at(at, 0, Kind::ReadAhead, &[both]);
    }

    /// Whether these records, in front of a call, are what one routine for all calls writes.
    pub fn is_logged_call(&self, before: &[Record]) -> bool {
        /// Bytes of all registers but rsp, and of a return address.
        const RECORDED: i32 = 16 * 8;
        let registers = GprSet::ALL.minus(GprSet::of(RSP));
        let all = registers.iter().map(What::Before).chain([What::Old(1)]);
        self.manner.spares_registers
            && self.memory_left() == RECORDED
            && before.iter().map(|record| record.what).eq(all)
    }

    /// Has them written by it: in line they take more than half of the code of a program. It may fault where the call
    /// would.
    pub fn log_call(&mut self, before: &[Record]) {
        let at = self.code().here();
        self.boundary_at(at, 0, Kind::ReadAhead, &[pair(NOT_BORROWED, NOT_BORROWED)]);
        for record in before {
            self.place(record.what.size());
        }
        self.code().call_log();
    }

    /// Copies what `insn` is about to overwrite to the memory stream; returns what it borrowed, as a recipe says it.
    fn old_bytes(&mut self, insn: &Instruction, i: usize) -> u8 {
        let live = self.unit.live.before(i);
        let mut avoid = self.touched(i);
        let reference = self.store_of(insn);
        let size = reference.map_or(8, |r| r.size);
        let place = self.place(size.div_ceil(8) * 8);
        if let Some(r) = reference {
            r.base.into_iter().for_each(|register| avoid.insert(register));
        }
        let pointer = self.take_pointer(live, avoid);
        avoid.insert(pointer.reg);
        let by_vector = reference.is_some_and(|r| self.goes_by_vector(insn, &r, live, avoid));
        if let Some(r) = reference.filter(|_| by_vector) {
            self.copy_by_vector(insn, &r, At(pointer.reg, place));
            self.give_back(pointer);
            return pair(pointer.borrowed(), NOT_BORROWED);
        }
        let value = self.take(live, avoid, Slot::Second);
        if let Some(r) = reference {
            for from in pieces(r.size) {
                self.read_piece(insn, &r, from, value.reg);
                self.code().write(At(pointer.reg, place + from), value.reg);
            }
        }
        self.give_back(value);
        self.give_back(pointer);
        pair(pointer.borrowed(), value.borrowed())
    }

    /// Whether what the operand refers to goes by way of xmm30: where no register is free, or it takes fewer instructions.
    fn goes_by_vector(
        &self,
        insn: &Instruction,
        r: &Reference,
        live: GprSet,
        avoid: GprSet,
    ) -> bool {
        let is_free = !GprSet::ALL.minus(live.union(avoid).union(GprSet::of(RSP))).is_empty();
        let fits = match r.size {
            4 | 8 => !is_free,
            16 | 32 | 64 => true,
            _ => false,
        };
        self.manner.spares_registers && fits && self.is_in_reach(insn, r, r.displacement as u64)
    }

    /// Copies what the operand refers to, with zeros up to a whole word.
    fn copy_by_vector(&mut self, insn: &Instruction, r: &Reference, At(base, place): At) {
        let (read, vector, write) = match r.size {
            4 => (Op::EVEX_Vmovd_xmm_rm32, Register::XMM30, Op::EVEX_Vmovq_xmmm64_xmm),
            8 => (Op::EVEX_Vmovq_xmm_xmmm64, Register::XMM30, Op::EVEX_Vmovq_xmmm64_xmm),
            16 => (
                Op::EVEX_Vmovdqu64_xmm_k1z_xmmm128,
                Register::XMM30,
                Op::EVEX_Vmovdqu64_xmmm128_k1z_xmm,
            ),
            32 => (
                Op::EVEX_Vmovdqu64_ymm_k1z_ymmm256,
                Register::YMM30,
                Op::EVEX_Vmovdqu64_ymmm256_k1z_ymm,
            ),
            _ => (
                Op::EVEX_Vmovdqu64_zmm_k1z_zmmm512,
                Register::ZMM30,
                Op::EVEX_Vmovdqu64_zmmm512_k1z_zmm,
            ),
        };
        // (`base` would be overwritten only if no operand reached.)
        let from = self.piece(insn, r, 0, base);
        let displacement = i64::from(place);
        let size = displacement_size(displacement);
        let to = MemoryOperand::with_base_displ_size(register64(base), displacement, size);
        let read = Instruction::with2(read, vector, from);
        let write = Instruction::with2(write, to, vector);
        for insn in [read, write].into_iter().flatten() {
            self.encode_or_trap(&insn);
        }
    }

    /// Whether an operand with the registers of the instruction, and this displacement or target, needs no other one.
    fn is_in_reach(&self, insn: &Instruction, r: &Reference, target: u64) -> bool {
        let has_register = r.base.is_some() || r.index != Index::None;
        match is_relative(insn, r) {
            true => r.segment == Segment::None && self.reaches(target),
            false => {
                r.segment != Segment::Gs && (has_register || i32::try_from(target as i64).is_ok())
            }
        }
    }

    /// Reads the piece of the operand that starts `from` bytes into it, with zeros above.
    fn read_piece(&mut self, insn: &Instruction, r: &Reference, from: i32, to: Gpr) {
        let memory = self.piece(insn, r, from, to);
        let (op, register) = match r.size - from.unsigned_abs() {
            1 => (Op::Movzx_r32_rm8, register32(to)),
            2 => (Op::Movzx_r32_rm16, register32(to)),
            4 => (Op::Mov_r32_rm32, register32(to)),
            _ => (Op::Mov_r64_rm64, register64(to)),
        };
        let read = Instruction::with2(op, register, memory);
        let encoded = read.is_ok_and(|read| self.encode(&read));
        debug_assert!(encoded, "{:x} {r:?}", insn.ip());
        if !encoded {
            // Never seen; traps rather than losing what is overwritten.
            self.code().ud2();
        }
    }

    /// The memory operand of such a piece; `to` holds its address if no operand reaches it.
    fn piece(&mut self, insn: &Instruction, r: &Reference, from: i32, to: Gpr) -> MemoryOperand {
        let segment = match r.segment {
            Segment::None | Segment::Gs => Register::None,
            Segment::Fs => Register::FS,
        };
        let target = (r.displacement as u64).wrapping_add(i64::from(from) as u64);
        let relative = is_relative(insn, r);
        let operand = |base, index, scale, displacement: i64, size| {
            MemoryOperand::new(base, index, scale, displacement, size, false, segment)
        };
        let none = Register::None;
        if r.segment == Segment::Gs {
            let index = match r.index {
                Index::Gpr { number, scale } => Some((number, u32::from(scale))),
                _ => None,
            };
            self.gs_base_and(to, index);
            let displacement = target as i64;
            let size = displacement_size(displacement);
            return match r.base {
                Some(base) => operand(register64(base), register64(to), 1, displacement, size),
                None => operand(register64(to), none, 1, displacement, size),
            };
        }
        let is_in_reach = self.is_in_reach(insn, r, target);
        if relative && is_in_reach {
            return operand(Register::RIP, none, 1, target as i64, 8);
        }
        if !is_in_reach {
            match relative {
                true => self.code().address_of(to, target),
                false => self.code().constant(to, target),
            }
            return operand(register64(to), none, 1, 0, 0);
        }
        let name = |register: Gpr| match r.address32 {
            true => register32(register),
            false => register64(register),
        };
        let (index, scale) = match r.index {
            Index::Gpr { number, scale } => (name(number), u32::from(scale)),
            _ => (none, 1),
        };
        // With the sign that the encoder expects.
        let displacement = if r.address32 { low_half(target) } else { target as i64 };
        let size = match displacement {
            0 if r.base.is_some() => 0,
            -128..=127 if r.base.is_some() => 1,
            _ if r.address32 => 4,
            _ => 8,
        };
        operand(r.base.map_or(none, name), index, scale, displacement, size)
    }

    /// A synchronising instruction: its number, what it overwrites, and itself, under a lock of all
    /// threads, so that numbers and old contents are those of the order in which it happens.
    pub fn synchronising(&mut self, insn: &Instruction, i: usize, before: &[Record]) {
        let live = self.unit.live.before(i);
        let ordered = before.iter().position(|r| r.what == What::Order).unwrap_or(before.len());
        for record in &before[..ordered] {
            self.record(insn, i, live, record);
        }
        let at = self.code().here();
        self.code().enter_order();
        self.order(i, live);
        let mut both = pair(NOT_BORROWED, NOT_BORROWED);
        if before[ordered..].iter().any(|r| matches!(r.what, What::Old(_))) {
            both = self.old_bytes(insn, i);
        }
        let far = self.far_register(insn, i);
        let snippet = u8::try_from(self.code().here().0 - at.0);
        debug_assert!(snippet.is_ok());
        let operands = [both, snippet.unwrap_or(u8::MAX), far.unwrap_or(NOT_BORROWED).0];
        self.boundary_at(at, insn.len(), Kind::Sync, &operands);
        self.copy_or_reach(insn, far);
        self.code().leave_order();
    }

    /// Records the number of a synchronising instruction.
    fn order(&mut self, i: usize, live: GprSet) {
        let place = self.place(What::Order.size());
        let mut avoid = self.touched(i);
        let pointer = self.take_pointer(live, avoid);
        avoid.insert(pointer.reg);
        let value = self.take(live, avoid, Slot::Second);
        self.code().load(value.reg, thread::ORDER);
        self.code().write(At(pointer.reg, place), value.reg);
        self.give_back(value);
        self.give_back(pointer);
    }
}

/// Where the pieces of an operand start: words, and what is left of a large one as a word that
/// overlaps the one before.
pub(crate) fn pieces(size: u32) -> impl Iterator<Item = i32> {
    let size = size as i32;
    let words = size / 8;
    let rest = (size % 8 != 0).then_some((size - 8).max(0));
    (0..words).map(|n| 8 * n).chain(rest)
}

/// Whether the reference is named by its distance from the instruction.
fn is_relative(insn: &Instruction, r: &Reference) -> bool {
    insn.is_ip_rel_memory_operand() && r.operand.is_some()
}

/// The low half, with the sign that it has.
#[allow(clippy::cast_possible_truncation, reason = "the low half is asked for")]
fn low_half(value: u64) -> i64 {
    i64::from(value as i32)
}
