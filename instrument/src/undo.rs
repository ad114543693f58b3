//! What only the undo log inserts: old contents read ahead of a store, the lock around synchronising
//! instructions, the way to the runtime in front of a store whose extent is only known when it runs.
//!
//! Nothing here touches a flag. A read-ahead touches the very bytes that the store will write, so it
//! faults where the store would; its recipe entry says which registers it has borrowed.

use crate::emit::{At, RCX};
use crate::recipe::{Kind, NOT_BORROWED};
use crate::weave::{register64, Scratch, Weaver};
use abi::layout::{SYNC_COUNT, SYNC_LOCK};
use abi::thread;
use abi::unit::{Record, What};
use alloc::vec::Vec;
use iced_x86::{Code as Op, Instruction, MemoryOperand, Register};
use lifter::operands::{references, Index, Reference, Segment};
use lifter::regs::GprSet;
use lifter::stores::{at_run_time, stores, Stores};

impl Weaver<'_, '_, '_> {
    /// Whether the unit starts with a store that the runtime logs.
    pub(crate) fn stores_at_run_time(&mut self) -> bool {
        let undo = self.options().recording.undo();
        let first = self.insns.first().filter(|_| undo);
        first.is_some_and(|insn| at_run_time(insn, &mut self.t.factory, &mut Vec::new()))
    }

    /// In front of the unit: lets the runtime save what its first instruction overwrites.
    pub(crate) fn announce_store(&mut self) {
        let start = self.block.start;
        let code = self.code();
        code.store(thread::SAVED_RCX, RCX);
        code.address_of(RCX, start);
        code.store(thread::TARGET, RCX);
        // lea rcx, [behind]
        code.raw(&[0x48, 0x8d, 0x0d, 0, 0, 0, 0]);
        let at = code.here() - 4;
        code.store(thread::RESUME, RCX);
        code.load(RCX, thread::SAVED_RCX);
        code.jump_gs(thread::STUB_STORE);
        let behind = code.here();
        code.bind(at, behind);
    }

    /// Records registers in front of instruction `i`: at a call these are many, and there are no dead
    /// ones, so the pointer is not loaded again for each.
    pub(crate) fn registers(&mut self, insn: &Instruction, i: usize, records: &[Record]) {
        let live = self.t.liveness.before(self.first + i);
        if records.len() < 3 {
            return records.iter().for_each(|record| self.record(insn, i, live, record));
        }
        let avoid = self.touched(i);
        let pointer = self.take_pointer(live, avoid);
        let mut own = None;
        for record in records {
            let place = self.place(record.what.size());
            match record.what {
                What::Before(register) if register == pointer.reg => own = Some(place),
                What::Before(register) => self.code().write(At(pointer.reg, place), register),
                _ => {}
            }
        }
        self.give_back(pointer);
        if let Some(place) = own {
            let mut avoid = self.touched(i);
            avoid.insert(pointer.reg);
            let other = self.take_pointer(live, avoid);
            self.code().write(At(other.reg, place), pointer.reg);
            self.give_back(other);
        }
    }

    /// The one store of `insn`, as the plan has seen it.
    fn store_of(&mut self, insn: &Instruction) -> Option<Reference> {
        let mut refs = Vec::new();
        references(insn, &mut self.t.factory, &mut refs);
        match stores(insn, &refs) {
            Stores::One(reference) => Some(reference),
            _ => None,
        }
    }

    /// Records what `insn` is about to overwrite.
    pub(crate) fn read_ahead(&mut self, insn: &Instruction, i: usize) {
        let at = self.code().here();
        let (pointer, value) = self.old_bytes(insn, i);
        let both = pointer.borrowed() | value.borrowed() << 4;
        self.boundary_at(at, 0, Kind::ReadAhead, &[both]);
    }

    /// Copies what `insn` is about to overwrite to the memory stream; returns what it borrowed.
    fn old_bytes(&mut self, insn: &Instruction, i: usize) -> (Scratch, Scratch) {
        let live = self.t.liveness.before(self.first + i);
        let mut avoid = self.touched(i);
        let reference = self.store_of(insn);
        let size = reference.map_or(8, |r| r.size);
        let place = self.place(size.div_ceil(8) * 8);
        if let Some(r) = reference {
            r.base.into_iter().for_each(|register| avoid.insert(register));
        }
        let pointer = self.take_pointer(live, avoid);
        avoid.insert(pointer.reg);
        let value = self.take(live, avoid, 1);
        if let Some(r) = reference {
            for from in pieces(r.size) {
                self.read_piece(insn, &r, from, (r.size - from).min(8), value.reg);
                self.code().write(At(pointer.reg, place + from as i32), value.reg);
            }
        }
        self.give_back(value);
        self.give_back(pointer);
        (pointer, value)
    }

    /// Reads `len` bytes (1, 2, 4 or 8), `from` bytes into the operand, with zeros above them.
    fn read_piece(&mut self, insn: &Instruction, r: &Reference, from: u32, len: u32, to: u8) {
        let segment = match r.segment {
            Segment::None => Register::None,
            Segment::Fs => Register::FS,
            Segment::Gs => Register::GS,
        };
        let target = (r.displacement as u64).wrapping_add(u64::from(from));
        let relative = insn.is_ip_rel_memory_operand() && r.operand.is_some();
        let no_register = r.base.is_none() && r.index == Index::None;
        let here = self.out.code.address(self.out.code.here());
        const MARGIN: u64 = 256;
        let near = (target.wrapping_sub(here) as i64).unsigned_abs() < (1 << 31) - MARGIN;
        let operand = |base, index, scale, displacement: i64, size| {
            MemoryOperand::new(base, index, scale, displacement, size, false, segment)
        };
        let none = Register::None;
        let memory = if relative && near && r.segment == Segment::None {
            operand(Register::RIP, none, 1, target as i64, 8)
        } else if relative || (no_register && i32::try_from(target as i64).is_err()) {
            match relative {
                true => self.code().address_of(to, target),
                false => self.code().constant(to, target),
            }
            operand(register64(to), none, 1, 0, 0)
        } else {
            let name = |number| match r.address32 {
                true => register32(number),
                false => register64(number),
            };
            let (index, scale) = match r.index {
                Index::Gpr { number, scale } => (name(number), u32::from(scale)),
                _ => (none, 1),
            };
            // With the sign that the encoder expects.
            let displacement = if r.address32 { (target as i32).into() } else { target as i64 };
            let size = match displacement {
                0 if r.base.is_some() => 0,
                -128..=127 if r.base.is_some() => 1,
                _ if r.address32 => 4,
                _ => 8,
            };
            operand(r.base.map_or(none, name), index, scale, displacement, size)
        };
        let (op, register) = match len {
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
            self.code().raw(&[0x0f, 0x0b]);
        }
    }

    /// A synchronising instruction: its number, what it overwrites, and itself, under a lock of all
    /// threads, so that numbers and old contents are those of the order in which it happens.
    pub(crate) fn synchronising(&mut self, insn: &Instruction, i: usize, before: &[Record]) {
        let live = self.t.liveness.before(self.first + i);
        let ordered = before.iter().position(|r| r.what == What::Order).unwrap_or(before.len());
        for record in &before[..ordered] {
            self.record(insn, i, live, record);
        }
        let at = self.code().here();
        let code = self.code();
        code.store(thread::SAVED_RCX, RCX);
        code.lock_and_count(SYNC_LOCK, SYNC_COUNT, thread::THIS);
        code.store(thread::ORDER, RCX);
        code.store_imm(thread::SYNC_HELD, 1);
        code.load(RCX, thread::SAVED_RCX);
        self.order(i, live);
        let mut both = NOT_BORROWED | NOT_BORROWED << 4;
        if before[ordered..].iter().any(|r| matches!(r.what, What::Old(_))) {
            let (pointer, value) = self.old_bytes(insn, i);
            both = pointer.borrowed() | value.borrowed() << 4;
        }
        let far = insn.is_ip_rel_memory_operand().then(|| self.far_register(insn, i)).flatten();
        let snippet = self.code().here() - at;
        debug_assert!(snippet < 256);
        let operands = [both, snippet.min(255) as u8, far.unwrap_or(NOT_BORROWED)];
        self.boundary_at(at, insn.len(), Kind::Sync, &operands);
        if insn.is_ip_rel_memory_operand() {
            self.pc_relative(insn, far);
        } else {
            self.copy(insn);
        }
        let code = self.code();
        code.store_imm(thread::SYNC_HELD, 0);
        code.clear(SYNC_LOCK);
    }

    /// Records the number of a synchronising instruction.
    fn order(&mut self, i: usize, live: GprSet) {
        let place = self.place(What::Order.size());
        let mut avoid = self.touched(i);
        let pointer = self.take_pointer(live, avoid);
        avoid.insert(pointer.reg);
        let value = self.take(live, avoid, 1);
        self.code().load(value.reg, thread::ORDER);
        self.code().write(At(pointer.reg, place), value.reg);
        self.give_back(value);
        self.give_back(pointer);
    }
}

/// Where the pieces of an operand start: words, and what is left of a large one as a word that
/// overlaps the one before.
fn pieces(size: u32) -> impl Iterator<Item = u32> {
    let words = size / 8;
    let rest = (!size.is_multiple_of(8)).then_some(size.saturating_sub(8));
    (0..words).map(|n| 8 * n).chain(rest)
}

fn register32(number: u8) -> Register {
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
    NAMES[usize::from(number & 15)]
}
