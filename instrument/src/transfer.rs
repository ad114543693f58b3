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
//! An address outside the window provably misses. A return replaces the low half only, in xmm30, so
//! a wrong high half stays wrong: nothing is executable there but a landing page of the runtime,
//! which takes the way of a miss. Calls and jumps (and all, without vector registers) compare the
//! high half, without touching flags (`crc32` is a bijection, so zero means equal); the thread
//! block's `target` then holds the whole original target.

use crate::emit::{At, LookUp, RCX, RSP};
use crate::recipe::Kind;
use crate::refusal::refusal;
use crate::translate::{Branch, Cold, Fragment, Pending, Thunks, Translator};
use crate::weave::{memory_operand, Weaver};
use abi::layout::{TableShape, WINDOW_SIZE};
use abi::library;
use abi::options::{ControlFlow, Instrument};
use abi::thread::{self, refuse};
use abi::trace::bits;
use iced_x86::{Code as Op, Instruction, OpKind, Register};
use lifter::flow::Flow;
use lifter::regs::{gpr_number, GprSet};

impl Weaver<'_, '_, '_> {
    /// Emits the transfer that ends the unit; `next`: original address of the block behind.
    pub(crate) fn transfer(&mut self, insn: &Instruction, i: usize, next: Option<u64>) {
        if let Some(why) = refusal(insn) {
            self.boundary(insn, Kind::SavedRcx, &[]);
            return self.refuse(insn, why);
        }
        match Flow::of(insn) {
            Flow::Branch(target) if insn.is_jcc_short_or_near() => {
                self.outcome_of_jcc(insn, i);
                self.boundary(insn, Kind::Plain, &[]);
                self.branch(Some(condition_of(insn)), target.0);
                self.fall_through(insn.next_ip(), next);
            }
            Flow::Branch(_) => self.loop_or_jrcxz(insn, next),
            Flow::Jump(target) => {
                self.boundary(insn, Kind::Plain, &[]);
                self.fall_through(target.0, next);
            }
            Flow::Syscall => {
                self.boundary(insn, Kind::Plain, &[]);
                let next_ip = insn.next_ip();
                self.code().address_of(RCX, next_ip);
                self.code().jump_gs(thread::STUB_SYSCALL);
            }
            Flow::Call(_) => self.direct_call(insn, next),
            Flow::IndirectCall => {
                self.indirect(insn);
                let at = self.code().call();
                self.t.cold.push(Cold::IndirectCall { at, return_address: insn.next_ip() });
                self.fall_through(insn.next_ip(), next);
            }
            Flow::IndirectJump => {
                self.indirect(insn);
                self.code().jump_gs(thread::JUMP);
            }
            Flow::Return => self.ret(insn),
            _ => {
                self.boundary(insn, Kind::SavedRcx, &[]);
                self.refuse(insn, refuse::FAR_TRANSFER);
            }
        }
    }

    /// A direct branch to original address `target`: `jmp`, or `j<condition>`.
    fn branch(&mut self, condition: Option<u8>, target: u64) {
        let number = self.t.branches;
        self.t.branches += 1;
        let short = self.t.short.get(number).copied().unwrap_or(false);
        let at = if short {
            self.code().raw(&[condition.map_or(0xeb, |c| 0x70 | c), 0]);
            self.code().here() - 1
        } else if let Some(condition) = condition {
            self.align(2);
            self.code().jcc(condition)
        } else {
            self.align(1);
            self.code().jump()
        };
        self.t.pending.push(Pending { at, target, from: self.block.id, number, short });
    }

    /// Pads so that a rel32 behind `opcode` more bytes stays within a cache line.
    fn align(&mut self, opcode: u64) {
        if !self.t.placement.patchable {
            return;
        }
        let at = self.out.code.address(self.out.code.here()) + opcode;
        match at % 64 {
            61 => self.code().raw(&[0x0f, 0x1f, 0x00]),
            62 => self.code().raw(&[0x66, 0x90]),
            63 => self.code().raw(&[0x90]),
            _ => {}
        }
    }

    /// Goes on at `address`: nothing to emit where that block is the `next` one emitted and may be
    /// entered from here.
    pub(crate) fn fall_through(&mut self, address: u64, next: Option<u64>) {
        if next == Some(address) && !self.next_needs_branch {
            return;
        }
        self.branch(None, address);
    }

    fn direct_call(&mut self, insn: &Instruction, next: Option<u64>) {
        self.boundary(insn, Kind::Plain, &[]);
        let at = self.code().call();
        self.t.cold.push(Cold::Call {
            at,
            return_address: insn.next_ip(),
            target: insn.near_branch_target(),
            from: self.block.id,
        });
        self.fall_through(insn.next_ip(), next);
    }

    /// `loop`, `jrcxz` and their kin: the short branch goes to a jump of our own.
    fn loop_or_jrcxz(&mut self, insn: &Instruction, next: Option<u64>) {
        let records = self.records_outcomes();
        self.boundary(insn, Kind::Plain, &[]);
        // Prefixes and opcode as they are; the distance comes last.
        let short = self.bytes[(insn.ip() - self.block.start) as usize..].to_vec();
        let len = insn.len();
        self.code().raw(&short[..len - 1]);
        self.code().raw(&[0]);
        let taken = self.code().here() - 1;
        let mut avoid = GprSet::EMPTY;
        avoid.insert(RCX);
        if records {
            self.write_outcome(avoid, bits::NOT_TAKEN);
        }
        let (count, short) = (self.t.branches, core::mem::take(&mut self.t.short));
        self.branch(None, insn.next_ip());
        (self.t.branches, self.t.short) = (count, short);
        if let Some(long) = self.t.pending.last_mut() {
            // The branch around it must not change its length.
            long.number = usize::MAX;
        }
        self.code().bind_short(taken);
        if records {
            self.write_outcome(avoid, bits::TAKEN);
        }
        self.fall_through(insn.near_branch_target(), next);
    }

    fn records_outcomes(&self) -> bool {
        self.options().recording.instrument != Instrument::None
            && self.options().recording.control_flow == ControlFlow::Bits
    }

    fn write_outcome(&mut self, avoid: GprSet, outcome: u8) {
        let pointer = self.take(GprSet::ALL, avoid, 0);
        self.load_control_flow_pointer(pointer.reg);
        self.code().write_imm_byte(At(pointer.reg, -1), outcome);
        self.give_back(pointer);
    }

    /// `bits`: the outcome of a conditional branch, before it is taken; its flags stay as they are.
    fn outcome_of_jcc(&mut self, insn: &Instruction, i: usize) {
        if !self.records_outcomes() {
            return;
        }
        let live = self.t.liveness.before(self.first + i);
        let pointer = self.take(live, GprSet::EMPTY, 0);
        let mut avoid = GprSet::EMPTY;
        avoid.insert(pointer.reg);
        let value = self.take(live, avoid, 1);
        self.load_control_flow_pointer(pointer.reg);
        self.code().setcc(condition_of(insn), value.reg);
        self.code().lea32(value.reg, At(value.reg, i32::from(bits::NOT_TAKEN)));
        self.code().write_byte(At(pointer.reg, -1), value.reg);
        self.give_back(value);
        self.give_back(pointer);
    }

    /// rcx becomes zero if it equals the high half of the window.
    fn compare_high(&mut self) {
        match self.t.placement.window_high {
            Some(0) => {}
            Some(high) => self.code().lea(RCX, At(RCX, -(high as i32))),
            None => self.code().crc_rcx(thread::WINDOW_HIGH),
        }
    }

    fn ret(&mut self, insn: &Instruction) {
        self.boundary(insn, Kind::SavedRcx, &[]);
        if let Some(table) = self.options().return_table() {
            return self.merged_return(insn, table);
        }
        let (undo, table) = (self.options().recording.undo(), self.options().jump_table());
        let popped = 8 + if insn.op_count() > 0 { i32::from(insn.immediate16()) } else { 0 };
        let code = self.code();
        code.store(thread::SAVED_RCX, RCX);
        code.read32(RCX, At(RSP, 4));
        self.compare_high();
        let code = self.code();
        let near = code.jrcxz();
        let foreign = code.jump();
        code.bind_short(near);
        code.read32(RCX, At(RSP, 0));
        code.store32(thread::TARGET, RCX);
        code.look_up(LookUp::Whole, table);
        let back = code.here();
        if undo {
            // Memory stays as it is: the return is a jump, which the processor may not predict.
            code.store(thread::JUMP, RCX);
            code.load(RCX, thread::SAVED_RCX);
            code.lea(RSP, At(RSP, popped));
            code.jump_gs(thread::JUMP);
            self.t.cold.push(Cold::ForeignReturn { at: foreign, back, pc: insn.ip() });
            return;
        }
        code.write(At(RSP, 0), RCX);
        code.load(RCX, thread::SAVED_RCX);
        self.hardware_return(insn);
        self.t.cold.push(Cold::ForeignReturn { at: foreign, back, pc: insn.ip() });
    }

    /// The low half of the return address is replaced in one 8-byte store: behind one of 4 bytes the
    /// return's load would wait until that has reached the cache.
    fn merged_return(&mut self, insn: &Instruction, table: TableShape) {
        let code = self.code();
        code.store(thread::SAVED_RCX, RCX);
        code.read32(RCX, At(RSP, 0));
        code.store32(thread::TARGET, RCX);
        code.look_up(LookUp::LowHalfToVector, table);
        code.merge_high_half();
        code.load(RCX, thread::SAVED_RCX);
        code.write_merged();
        self.hardware_return(insn);
    }

    fn hardware_return(&mut self, insn: &Instruction) {
        if insn.op_count() > 0 {
            let [low, high] = insn.immediate16().to_le_bytes();
            self.code().raw(&[0xc2, low, high]);
        } else {
            self.code().raw(&[0xc3]);
        }
    }

    /// Looks the target of an indirect call or jump up and leaves its translation in `jump`.
    fn indirect(&mut self, insn: &Instruction) {
        self.boundary(insn, Kind::SavedRcx, &[]);
        self.code().store(thread::SAVED_RCX, RCX);
        let mut from = RCX;
        if insn.op0_kind() == OpKind::Register {
            from = gpr_number(insn.op0_register()).unwrap_or(RCX);
        } else if insn.is_ip_rel_memory_operand() {
            let at = insn.ip_rel_memory_address();
            let next = self.out.code.address(self.out.code.here() + 8);
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
        // The look-up first, the check behind it: what it found is not used if the check fails.
        let code = self.code();
        code.store(thread::TARGET, from);
        code.move32(RCX, from);
        match self.options().return_table().filter(|_| self.t.placement.window_high == Some(0)) {
            // Addresses have a low half only: the smaller table serves jumps, too.
            Some(table) => self.code().look_up(LookUp::LowHalf, table),
            None => {
                let table = self.options().jump_table();
                self.code().look_up(LookUp::Whole, table)
            }
        }
        let code = self.code();
        code.store(thread::JUMP, RCX);
        self.code().load32(RCX, thread::TARGET + 4);
        self.compare_high();
        let code = self.code();
        let near = code.jrcxz();
        let foreign = code.jump();
        code.bind_short(near);
        let back = code.here();
        code.load(RCX, thread::SAVED_RCX);
        self.t.cold.push(Cold::ForeignTarget { at: foreign, back, pc: insn.ip() });
    }
}

/// A direct branch to original code that has no translation yet: by way of a miss.
pub fn exit_to(code: &mut crate::emit::Code, target: u64) {
    code.store(thread::SAVED_RCX, RCX);
    code.address_of(RCX, target);
    code.store(thread::TARGET, RCX);
    code.load(RCX, thread::SAVED_RCX);
    code.jump_gs(thread::STUB_MISS);
}

impl Translator {
    /// Emits what the hot code of the region left for later.
    pub(crate) fn cold_code(&mut self, out: &mut Fragment) {
        for cold in core::mem::take(&mut self.cold) {
            let here = out.code.here();
            match cold {
                Cold::Call { .. } | Cold::IndirectCall { .. } if self.placement.movable => {
                    self.region_thunks.push(cold);
                }
                Cold::Call { at, return_address, target, from } => {
                    out.code.bind(at, here);
                    self.put_return_address(out, return_address);
                    if self.placement.patchable {
                        while (out.code.address(out.code.here()) + 1) % 64 > 60 {
                            out.code.raw(&[0x90]);
                        }
                    }
                    let at = out.code.jump();
                    self.pending.push(Pending {
                        at,
                        target,
                        from,
                        number: usize::MAX,
                        short: false,
                    });
                }
                Cold::IndirectCall { at, return_address } => {
                    out.code.bind(at, here);
                    self.put_return_address(out, return_address);
                    out.code.jump_gs(thread::JUMP);
                }
                Cold::ForeignTarget { at, back, pc } => {
                    out.code.bind(at, here);
                    out.code.address_of(RCX, pc);
                    out.code.store(thread::EXIT_ID, RCX);
                    out.code.load(RCX, thread::STUB_MISS);
                    out.code.store(thread::JUMP, RCX);
                    let at = out.code.jump();
                    out.code.bind(at, back);
                }
                Cold::ForeignReturn { at, back, pc } => {
                    out.code.bind(at, here);
                    out.code.address_of(RCX, pc);
                    out.code.store(thread::EXIT_ID, RCX);
                    out.code.read(RCX, At(RSP, 0));
                    out.code.store(thread::TARGET, RCX);
                    out.code.load(RCX, thread::STUB_MISS);
                    let at = out.code.jump();
                    out.code.bind(at, back);
                }
            }
        }
    }

    /// Emits the thunks of all calls so far, in the shape of [`abi::library`]: direct calls first.
    /// What they branch to is left in `out.branches`. Returns where they start.
    pub fn thunks(&mut self, out: &mut Fragment) -> Thunks {
        while !out.code.here().is_multiple_of(16) {
            out.code.raw(&[0xcc]);
        }
        let start = out.code.here();
        let all = core::mem::take(&mut self.thunks);
        let mut direct = 0;
        for thunk in &all {
            let Cold::Call { at, return_address, target, from } = *thunk else { continue };
            out.code.bind(at, out.code.here());
            self.put_return_address(out, return_address);
            let at = out.code.jump();
            out.branches.push(Branch { at, target, from });
            direct += 1;
            debug_assert_eq!(out.code.here(), start + direct * library::DIRECT_THUNK);
        }
        let first_indirect = out.code.here();
        let mut indirect = 0;
        for thunk in &all {
            let Cold::IndirectCall { at, return_address } = *thunk else { continue };
            out.code.bind(at, out.code.here());
            self.put_return_address(out, return_address);
            out.code.jump_gs(thread::JUMP);
            indirect += 1;
            debug_assert_eq!(out.code.here(), first_indirect + indirect * library::INDIRECT_THUNK);
        }
        Thunks { start, direct, indirect }
    }

    /// Overwrites the return address that a hardware call just pushed.
    fn put_return_address(&self, out: &mut Fragment, original: u64) {
        out.code.write_imm(At(RSP, 0), original as u32);
        // Code outside the window (generated by the program, vdso) differs in both halves.
        let high = (original >> 32) as u32;
        if (out.code.base >> 32) as u32 != high {
            out.code.write_imm(At(RSP, 4), high);
        }
    }
}

/// Low nibble of the opcode of `jcc` and `setcc`.
fn condition_of(insn: &Instruction) -> u8 {
    // iced numbers the conditions as the processor does, from 1.
    (insn.condition_code() as u8).saturating_sub(1) & 15
}
