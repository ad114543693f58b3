//! Calls, returns, jumps and system calls of translated code.
//!
//! The stack of the program holds original return addresses, and every call is paired with a
//! hardware return all the same:
//!
//! * a call is a hardware `call` to a thunk behind the hot code; the thunk overwrites the low half
//!   of the return address with the original one (the high halves are equal: original and
//!   translated code share a 4 GiB window) and jumps to the callee;
//! * a return looks the original address up, puts the translated one in its place and executes
//!   `ret`, which the processor has predicted.
//!
//! An address outside the window provably misses. A return, an indirect call or a jump replaces the low half only, in xmm30, so
//! a wrong high half stays wrong: nothing is executable there but a landing page of the runtime,
//! which takes the way of a miss. Without vector registers they compare the
//! high half, without touching flags (`crc32` is a bijection, so zero means equal). The thread
//! block's `target` holds the whole original target of a call or jump, and the low half of a return's.
//!
//! Code outside of the window, which the program has generated, has another window of 4 GiB with a table of
//! its own ([`crate::block::FarWindow`]). Its translation lies in the program's window, so a return in there
//! compares the high half, too, and writes a whole address; the processor predicts it all the same. What
//! leads from there to the program's window is looked up behind the hot code.

use crate::block::Slots;
use crate::dispatch::Dispatch;
use crate::emit::{At, LookUp};
use crate::fragment::{Return, Slot, Table};
use crate::loose::{Cold, Pending, Size};
use crate::manner::Returns;
use crate::operand::{memory_operand, uses_gs};
use crate::plan::NOWHERE;
use crate::recipe::Kind;
use crate::refusal::refusal;
use crate::weaver::Weaver;
use abi::ids::{CodeOff, Gpr, OrigAddr, UnitId};
use abi::layout::{TableShape, WINDOW_SIZE};
use abi::tables::JumpTable;
use abi::thread::{self, refuse};
use abi::trace::bits;
use iced_x86::{Code as Op, Instruction, OpKind, Register};
use lifter::flow::Flow;
use lifter::regs::{gpr_number, GprSet, RCX, RSP};

impl Weaver<'_> {
    /// Emits instruction `i`, the transfer that ends the unit.
    pub fn transfer(&mut self, insn: &Instruction, i: usize) {
        if let Some(why) = refusal(insn) {
            return self.refuse(insn, why);
        }
        let next = OrigAddr(insn.next_ip());
        match Flow::of(insn) {
            Flow::Branch(target) if insn.is_jcc_short_or_near() => {
                let condition = condition_of(insn);
                if self.records_outcome() {
                    self.write_condition(condition, i);
                }
                self.boundary(insn, Kind::Plain, &[]);
                self.turn(insn);
                self.branch(Some(condition), target);
                self.go_on(next);
            }
            Flow::Branch(target) => self.loop_or_jrcxz(insn, target),
            Flow::Jump(target) => {
                self.boundary(insn, Kind::Plain, &[]);
                self.turn(insn);
                self.go_on(target);
            }
            Flow::Syscall => {
                self.boundary(insn, Kind::Plain, &[]);
                self.code().address_of(RCX, next.0);
                self.code().jump_gs(thread::STUB_SYSCALL);
            }
            Flow::Call(target) => {
                let kind = if self.manner.watches { Kind::SavedRcx } else { Kind::Plain };
                self.boundary(insn, kind, &[]);
                self.turn(insn);
                self.push_on_view(next);
                let (at, from) = (self.code().call(), self.from());
                self.ends.cold.push(Cold::Call { at, return_address: next, target, from });
                self.come_back(next);
            }
            Flow::IndirectCall => {
                self.indirect(insn, i);
                self.push_on_view(next);
                let at = self.code().call();
                self.ends.cold.push(Cold::IndirectCall { at, return_address: next });
                self.come_back(next);
            }
            Flow::IndirectJump => {
                self.by_slot(insn);
                self.by_table(insn);
                self.indirect(insn, i);
                self.code().jump_gs(thread::JUMP);
            }
            Flow::Return => self.ret(insn, i),
            _ => self.refuse(insn, refuse::FAR_TRANSFER),
        }
    }

    /// A direct branch to original address `target`: `jmp`, or `j<condition>`.
    fn branch(&mut self, condition: Option<u8>, target: OrigAddr) {
        let from = self.from();
        self.branch_from(from, condition, target);
    }

    /// The same, as if it came from unit `from`.
    fn branch_from(&mut self, from: UnitId, condition: Option<u8>, target: OrigAddr) {
        let (number, short) = self.ends.next_branch();
        if short {
            let at = self.code().branch_short(condition);
            return self.ends.pending.push(Pending { at, target, from, size: Size::Short });
        }
        let at = match condition {
            Some(condition) => {
                self.align(2);
                self.code().jcc(condition)
            }
            None => {
                self.align(1);
                self.code().jump()
            }
        };
        self.ends.pending.push(Pending { at, target, from, size: Size::Numbered(number) });
    }

    /// Where branches of the unit come from.
    fn from(&self) -> UnitId {
        self.unit.plan.from(self.unit.block.id)
    }

    fn pending(&mut self, at: CodeOff, target: OrigAddr, size: Size) {
        let from = self.from();
        self.ends.pending.push(Pending { at, target, from, size });
    }

    /// Pads so that a rel32 behind `opcode` more bytes stays within a cache line.
    fn align(&mut self, opcode: u64) {
        if !self.manner.placement.patchable {
            return;
        }
        match self.here().wrapping_add(opcode) % 64 {
            61 => self.code().nop(3),
            62 => self.code().nop(2),
            63 => self.code().nop(1),
            _ => {}
        }
    }

    /// Goes on at `address`: nothing to emit where that block is emitted right behind and may be
    /// entered from here.
    pub fn go_on(&mut self, address: OrigAddr) {
        if self.unit.behind != Some(address) {
            self.branch(None, address);
        }
    }

    /// Right behind a call, which returns to `address`. If that is translated elsewhere, the call can return to
    /// here all the same, where the processor expects it.
    fn come_back(&mut self, address: OrigAddr) {
        if !self.manner.comes_back {
            return self.go_on(address);
        }
        let at = self.code().here();
        self.out.returns.push(Return { address, at });
        if self.unit.behind == Some(address) {
            return;
        }
        // What was executed last is not known.
        self.branch_from(NOWHERE, None, address);
    }

    /// `loop`, `jrcxz` and their kin: the short branch goes to a jump of our own.
    fn loop_or_jrcxz(&mut self, insn: &Instruction, target: OrigAddr) {
        let records = self.records_outcome();
        self.boundary(insn, Kind::Plain, &[]);
        self.turn(insn);
        // Prefixes and opcode as they are; the distance comes last.
        let (from, len) = (self.offset_of(insn), insn.len());
        let taken = self.out.code.branch_as(&self.unit.bytes[from..from + len - 1]);
        let avoid = GprSet::of(RCX);
        if records {
            self.write_outcome(avoid, bits::NOT_TAKEN);
        }
        // The branch around it must not change its length.
        self.align(1);
        let at = self.code().jump();
        self.pending(at, OrigAddr(insn.next_ip()), Size::Long);
        self.code().bind_short(taken);
        if records {
            self.write_outcome(avoid, bits::TAKEN);
        }
        self.go_on(target);
    }

    /// rcx becomes zero if it equals the high half of the window.
    fn compare_high(&mut self) {
        if let Some(far) = self.manner.far {
            return self.code().lea(RCX, At(RCX, -(far.high as i32)));
        }
        match self.manner.placement.window_high {
            Some(0) => {}
            Some(high) => self.code().lea(RCX, At(RCX, -(high as i32))),
            None => self.code().crc_rcx(thread::WINDOW_HIGH),
        }
    }

    fn ret(&mut self, insn: &Instruction, i: usize) {
        if self.ahead.is_some() {
            return self.return_looked_up(insn);
        }
        self.compare_target(insn, i);
        let (merged, jumps) = match self.manner.returns {
            // Where it returns to nobody knows how far it popped.
            Returns::Merged(_) if self.manner.puts_back && popped_by(insn).is_some() => {
                (None, true)
            }
            Returns::Merged(table) => (Some(table), false),
            Returns::Whole => (None, false),
            Returns::Jump => (None, true),
        };
        if let Some(table) = merged {
            return match self.manner.has_scratch_vector() {
                true => self.merged_return(insn, table),
                false => self.merged_by_borrowing(insn, table),
            };
        }
        self.boundary(insn, Kind::SavedRcx, &[]);
        self.turn(insn);
        let (table, far) = (self.manner.table, self.manner.far);
        self.save_rcx(true);
        self.read_return(4);
        self.compare_high();
        let code = self.code();
        let near = code.jrcxz();
        let foreign = code.jump();
        code.bind_short(near);
        self.read_return(0);
        let code = self.code();
        match far {
            Some(far) => {
                code.look_up(LookUp::Whole, far.table);
                code.leave_if_nothing(foreign);
            }
            None => {
                code.store32(thread::TARGET, RCX);
                code.look_up_whole(table);
            }
        }
        let back = code.here();
        if jumps {
            // The processor may not predict it.
            let popped = 8 + popped_by(insn).map_or(0, i32::from);
            code.store(thread::JUMP, RCX);
            code.load(RCX, thread::SAVED_RCX);
            code.lea(RSP, At(RSP, popped));
            code.jump_gs(thread::JUMP);
        } else {
            code.write(At(RSP, 0), RCX);
            code.load(RCX, thread::SAVED_RCX);
            code.ret(popped_by(insn));
        }
        let pc = OrigAddr(insn.ip());
        self.ends.cold.push(Cold::ForeignReturn { at: foreign, back, pc });
    }

    /// A half of the return address, in rcx.
    fn read_return(&mut self, half: i8) {
        match self.manner.watches {
            true => self.return_on_view(half),
            false => self.code().read32(RCX, At(RSP, half.into())),
        }
    }

    /// The low half of the return address is replaced in one 8-byte store: behind one of 4 bytes the
    /// return's load would wait until that has reached the cache.
    fn merged_return(&mut self, insn: &Instruction, table: TableShape) {
        self.boundary(insn, Kind::SavedRcx, &[]);
        self.turn(insn);
        let puts_back = self.manner.puts_back;
        let code = self.code();
        code.store(thread::SAVED_RCX, RCX);
        code.read32(RCX, At(RSP, 0));
        code.store32(thread::TARGET, RCX);
        code.look_up(LookUp::LowHalfToVector, table);
        if puts_back {
            code.keep_return_address();
        }
        code.merge_high_half();
        code.load(RCX, thread::SAVED_RCX);
        code.write_merged();
        code.ret(popped_by(insn));
    }

    /// The same without a vector register that is not the program's: the high half is neither compared nor branched upon,
    /// and the table has half the size.
    fn merged_by_borrowing(&mut self, insn: &Instruction, table: TableShape) {
        self.boundary(insn, Kind::SavedVector, &[]);
        let code = self.code();
        code.store(thread::SAVED_RCX, RCX);
        code.save_xmm7();
        code.read32(RCX, At(RSP, 0));
        code.store32(thread::TARGET, RCX);
        code.look_up(LookUp::LowHalfToBorrowed, table);
        code.load(RCX, thread::SAVED_RCX);
        code.merge_borrowed();
        code.ret(popped_by(insn));
    }

    /// A jump through a word that does not change any more: one instruction, which leads to what the look-up
    /// behind it would find, or there.
    fn by_slot(&mut self, insn: &Instruction) {
        let Slots { start, end, room } = self.manner.placement.constant;
        let word = insn.memory_displacement64();
        let is_constant = insn.is_ip_rel_memory_operand()
            && insn.segment_prefix() == Register::None
            && insn.memory_size().size() == 8
            && start <= word
            && word + 8 <= end;
        let slots = &self.out.slots;
        let is_new = !slots.iter().any(|slot| slot.word.0 == word);
        // A watched thread's jump is one of what it sees.
        if self.manner.watches || !is_constant || !is_new || slots.len() >= room {
            return;
        }
        let at = self.out.code.here();
        self.boundary_at(at, 0, Kind::Plain, &[]);
        self.turn(insn);
        let slot = self.out.slots.len();
        self.code().jump_by(slot * 8);
        let slow = self.out.code.here();
        self.turn_is_taken_back();
        self.out.slots.push(Slot { word: OrigAddr(word), slow });
    }

    /// In front of the load of a jump's target from a table: leaves what the entry's slot has in `jump`.
    pub fn take_slot(&mut self) {
        let Some(dispatch) = self.unit.dispatch else { return };
        let at = self.out.code.here();
        self.boundary_at(at, 0, Kind::SavedRcx, &[]);
        self.code().store(thread::SAVED_RCX, RCX);
        let at = self.code().read_through(RCX, dispatch.register, dispatch.index);
        self.code().store(thread::JUMP, RCX);
        self.code().load(RCX, thread::SAVED_RCX);
        self.add_table(dispatch, at);
    }

    /// A jump through a table that has slots: to what the slot of its entry has. That is the look-up behind this, or
    /// what it would find; the first time, what lets the runtime see which.
    fn by_table(&mut self, insn: &Instruction) {
        let Some(dispatch) = self.unit.dispatch else { return };
        let at = self.out.code.here();
        self.boundary_at(at, 0, Kind::Plain, &[]);
        self.turn(insn);
        match dispatch.is_direct {
            false => self.code().jump_gs(thread::JUMP),
            true => {
                let at = self.code().jump_through(dispatch.register, dispatch.index);
                self.add_table(dispatch, at);
            }
        }
        let first = self.out.code.here();
        self.code().fill_slot(insn.ip());
        let slow = self.out.code.here();
        self.turn_is_taken_back();
        if let Some(table) = self.out.tables.last_mut() {
            (table.jump.first, table.jump.slow) = (first.0, slow.0);
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "addresses of an image have 32 bits")]
    fn add_table(&mut self, dispatch: Dispatch, at: CodeOff) {
        let Dispatch { base, table, entries, .. } = dispatch;
        let relative = if dispatch.is_relative { JumpTable::RELATIVE } else { 0 };
        let how = match dispatch.target {
            Some(target) => u32::from(target.0) | relative,
            None => u32::from(dispatch.index.0) | relative | JumpTable::READS,
        };
        let jump = JumpTable { table: table as u32, entries, how, ..JumpTable::default() };
        self.out.tables.push(Table { at, base, table, jump });
    }

    /// Looks the target of an indirect call or jump up and leaves its translation in `jump`.
    fn indirect(&mut self, insn: &Instruction, i: usize) {
        self.compare_target(insn, i);
        self.boundary(insn, Kind::SavedRcx, &[]);
        self.turn(insn);
        let uses_rcx = self.touched(i).contains(RCX);
        self.save_rcx(!uses_rcx);
        let mut from = RCX;
        if insn.op0_kind() == OpKind::Register {
            from = gpr_number(insn.op0_register()).unwrap_or(RCX);
        } else if self.manner.watches {
            self.target_on_view(insn, i);
        } else if uses_gs(insn) {
            let through = self.through_gs(insn, RCX);
            self.encode_with(Op::Mov_r64_rm64, RCX, memory_operand(&through));
        } else if insn.is_ip_rel_memory_operand() {
            let at = insn.ip_rel_memory_address();
            let next = self.here().wrapping_add(8);
            // A byte or two are given away: the prefixes are the instruction's own.
            if (at.wrapping_sub(next) as i64).unsigned_abs() < WINDOW_SIZE / 2 - 16 {
                let mut memory = memory_operand(insn);
                memory.base = Register::RIP;
                memory.displacement = at as i64;
                self.encode_with(Op::Mov_r64_rm64, RCX, memory);
            } else {
                self.code().constant(RCX, at);
                // The segment is the instruction's own, too.
                let mut memory = memory_operand(insn);
                (memory.base, memory.displacement, memory.displ_size) = (Register::RCX, 0, 0);
                self.encode_with(Op::Mov_r64_rm64, RCX, memory);
            }
        } else {
            self.encode_with(Op::Mov_r64_rm64, RCX, memory_operand(insn));
        }
        if let Some(table) = self.manner.merged_jumps() {
            let code = self.code();
            code.store(thread::TARGET, from);
            code.move32(RCX, from);
            code.look_up(LookUp::LowHalfToVector, table);
            code.merge_target();
            code.load(RCX, thread::SAVED_RCX);
            return;
        }
        let (look_up, table) = match (self.manner.returns, self.manner.placement.window_high) {
            // Addresses have a low half only: the smaller table serves jumps, too.
            (Returns::Merged(table), Some(0)) => (LookUp::LowHalf, table),
            _ => (LookUp::Whole, self.manner.table),
        };
        self.code().store(thread::TARGET, from);
        let foreign = match look_up.by(from, table) {
            _ if self.manner.far.is_some() => self.look_up_far(from),
            Some(by) => {
                match self.manner.placement.window_high {
                    // The other half does not matter to crc32.
                    None => self.code().high_half_of(from),
                    Some(_) => self.code().load32(RCX, thread::TARGET + 4),
                }
                let foreign = self.leave_if_foreign();
                let code = self.code();
                match look_up {
                    LookUp::Whole => code.load(RCX, thread::JUMP_ENTRIES),
                    _ => code.constant(RCX, table.base),
                }
                code.look_up_by(by);
                code.store(thread::JUMP, RCX);
                foreign
            }
            None => {
                // The look-up first, the check behind it: what it found is not used if the check fails.
                let code = self.code();
                code.move32(RCX, from);
                code.look_up(look_up, table);
                code.store(thread::JUMP, RCX);
                code.load32(RCX, thread::TARGET + 4);
                self.leave_if_foreign()
            }
        };
        let code = self.code();
        let back = code.here();
        code.load(RCX, thread::SAVED_RCX);
        let pc = OrigAddr(insn.ip());
        self.ends.cold.push(Cold::ForeignTarget { at: foreign, back, pc });
    }

    /// Leaves the translation of the target, which is in `from` and in the thread block, in `jump`, if it lies
    /// in the same far window and has one; else leaves by way of the jump that is returned.
    fn look_up_far(&mut self, from: Gpr) -> CodeOff {
        self.code().load32(RCX, thread::TARGET + 4);
        let foreign = self.leave_if_foreign();
        let Some(far) = self.manner.far else { return foreign };
        let code = self.code();
        match LookUp::Whole.by(from, far.table) {
            Some(by) => {
                let lacks = u64::from(far.high) << 32;
                code.constant(RCX, far.table.base.wrapping_sub(lacks.wrapping_mul(8)));
                code.look_up_by(by);
            }
            None => {
                code.load32(RCX, thread::TARGET);
                code.look_up(LookUp::Whole, far.table);
            }
        }
        code.leave_if_nothing(foreign);
        code.store(thread::JUMP, RCX);
        // As it is whenever translated code runs.
        code.store_imm(thread::TARGET + 4, far.program_high);
        foreign
    }

    /// Goes on if the target, whose high half is in rcx, lies in the window, else by way of the jump that is
    /// returned.
    fn leave_if_foreign(&mut self) -> CodeOff {
        self.compare_high();
        let code = self.code();
        let near = code.jrcxz();
        let foreign = code.jump();
        code.bind_short(near);
        foreign
    }
}

/// What a return takes off the stack besides its address.
pub(crate) fn popped_by(insn: &Instruction) -> Option<u16> {
    (insn.op_count() > 0).then(|| insn.immediate16())
}

/// Low nibble of the opcode of `jcc` and `setcc`.
fn condition_of(insn: &Instruction) -> u8 {
    // iced numbers the conditions as the processor does, from 1.
    (insn.condition_code() as u8).saturating_sub(1) & 15
}
