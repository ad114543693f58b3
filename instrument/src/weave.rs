//! One unit: prologue, records, moved instructions.
//!
//! Prologue (only if something is recorded): write the control-flow record, then advance both
//! pointers in one instruction. Behind a full control-flow stream the record faults before the
//! pointers move, so the runtime can switch chunks and start the unit again: every chunk is cut at
//! a unit boundary, and nothing has to be undone. The memory stream needs no check: it may overrun
//! its end by what one unit adds, into an overflow area whose first use makes the runtime end the
//! chunk at the next unit.

use crate::emit::{At, Code, RSP};
use crate::liveness::{use_def, UseDef};
use crate::recipe::{self, Kind};
use crate::refusal::refusal;
use crate::translate::{control_flow_bytes, gate_of, may_enter, Block, Fragment, Translator, GATE};
use abi::options::{ControlFlow, Options, Pointers};
use abi::thread::{self, CF_LENGTHS, MEM_STEPS};
use abi::trace::{bits, tags};
use abi::unit::{Record, UnitBody, What};
use iced_x86::{Code as Op, EncodingKind, Instruction, MemoryOperand, Mnemonic, OpKind, Register};
use lifter::flow::Flow;
use lifter::regs::GprSet;

/// A scratch register for a few instructions.
#[derive(Clone, Copy)]
pub(crate) struct Scratch {
    pub reg: u8,
    /// Offset in the thread block where the program's value waits.
    spilled: Option<i32>,
}

impl Scratch {
    /// The register if it is spilled, as a recipe names it.
    pub fn borrowed(self) -> u8 {
        if self.spilled.is_some() {
            self.reg
        } else {
            recipe::NOT_BORROWED
        }
    }
}

pub(crate) struct Weaver<'t, 'o, 'b> {
    pub t: &'t mut Translator,
    pub out: &'o mut Fragment,
    pub block: &'b Block,
    pub body: &'b UnitBody,
    pub insns: &'b [Instruction],
    /// The unit's original code.
    pub bytes: &'b [u8],
    /// Index of the unit's first instruction in the region's list, and of the block.
    pub first: usize,
    pub index: usize,
    /// The block emitted right behind cannot be entered by falling into it.
    pub next_needs_branch: bool,
    entry: u32,
    writer: Option<recipe::Writer>,
    /// Register that holds the memory-stream pointer (behind the unit's own bytes).
    pub(crate) cached: Option<u8>,
    /// Bytes of the unit's memory records that are not written yet.
    left: i32,
}

impl<'t, 'o, 'b> Weaver<'t, 'o, 'b> {
    // One parameter for each thing that a unit is made of; a struct would only name them again.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        t: &'t mut Translator,
        out: &'o mut Fragment,
        block: &'b Block,
        body: &'b UnitBody,
        insns: &'b [Instruction],
        bytes: &'b [u8],
        first: usize,
        index: usize,
    ) -> Self {
        let entry = out.code.here();
        let left = body.memory_bytes() as i32;
        Weaver {
            t,
            out,
            block,
            body,
            insns,
            bytes,
            first,
            index,
            next_needs_branch: false,
            entry,
            writer: None,
            cached: None,
            left,
        }
    }

    pub fn options(&self) -> Options {
        self.t.options
    }

    pub fn code(&mut self) -> &mut Code {
        &mut self.out.code
    }

    /// Emits the unit. `next`: the block that is emitted right behind.
    pub fn unit(mut self, next: Option<&Block>) {
        let options = self.options();
        self.next_needs_branch =
            next.is_some_and(|next| !may_enter(options, self.block.id, next.id, next.wide));
        let next = next.map(|next| next.start);
        if self.t.placement.patchable {
            let entry = self.out.code.address(self.entry);
            let room = gate_of(entry) - entry;
            if room > 0 {
                self.code().nop(room as usize);
            }
            self.code().raw(&GATE);
        }
        self.prologue();
        let mut records = self.body.records.as_slice();
        for i in 0..self.insns.len() {
            let insn = self.insns[i];
            let here = records.iter().take_while(|r| usize::from(r.insn) == i).count();
            let (mine, rest) = records.split_at(here);
            records = rest;
            let after = mine.iter().position(|r| matches!(r.what, What::After(_)));
            let (before, after) = mine.split_at(after.unwrap_or(mine.len()));
            if self.options().recording.undo() && before.iter().any(|r| r.what == What::Order) {
                self.synchronising(&insn, i, before);
            } else if self.instruction(&insn, i, before, next) {
                return;
            }
            if let Some(reg) = self.cached {
                self.cached = (!self.effect(i).written.contains(reg)).then_some(reg);
            }
            for record in after {
                let live = self.live_after(i);
                self.record(&insn, i, live, record);
            }
        }
        let end = self.block.start + u64::from(self.block.len);
        self.fall_through(end, next);
    }

    /// Emits instruction `i` with the records in front of it; true if it ends the unit.
    fn instruction(
        &mut self,
        insn: &Instruction,
        i: usize,
        before: &[Record],
        next: Option<u64>,
    ) -> bool {
        let needs_own = self.claims_vectors() && uses_claimed_vector(insn);
        let mut own_vectors = [None; 2];
        let registers = before.iter().take_while(|r| matches!(r.what, What::Before(_))).count();
        let (registers, before) =
            before.split_at(if self.options().recording.undo() { registers } else { 0 });
        self.registers(insn, i, registers);
        for record in before {
            match record.what {
                What::Vector(v @ 30..=31) if needs_own => {
                    own_vectors[usize::from(v - 30)] = Some(self.place(record.what.size()));
                }
                _ => self.record(insn, i, self.t.liveness.before(self.first + i), record),
            }
        }
        if i + 1 == self.insns.len() && Flow::of(insn).ends_unit() {
            self.transfer(insn, i, next);
            return true;
        }
        if needs_own {
            self.with_own_vectors(insn, i, own_vectors);
        } else {
            self.moved(insn, i);
        }
        false
    }

    pub(crate) fn live_after(&self, i: usize) -> GprSet {
        if i + 1 < self.insns.len() {
            self.t.liveness.before(self.first + i + 1)
        } else {
            self.t.liveness.block_out(self.index)
        }
    }

    fn effect(&mut self, i: usize) -> UseDef {
        let known = self.t.liveness.effect(self.first + i);
        known.unwrap_or_else(|| use_def(&self.insns[i], &mut self.t.factory))
    }

    /// Registers that instruction `i` reads or writes.
    pub fn touched(&mut self, i: usize) -> GprSet {
        let effect = self.effect(i);
        effect.used.union(effect.written).union(effect.defined)
    }

    /// Registers that any instruction of the unit reads or writes.
    fn unit_touched(&mut self) -> GprSet {
        (0..self.insns.len()).fold(GprSet::EMPTY, |set, i| set.union(self.touched(i)))
    }

    /// Whether xmm30 and xmm31 are not the program's while translated code runs.
    fn claims_vectors(&self) -> bool {
        self.options().process.pointers == Pointers::Vector
    }

    // --- prologue ---

    fn prologue(&mut self) {
        let options = self.options();
        let cf_len = control_flow_bytes(options, self.block.wide, self.insns.last());
        let memory = self.left;
        if self.stores_at_run_time() {
            self.announce_store();
        }
        let live_in = match self.insns.is_empty() {
            true => GprSet::ALL,
            false => self.t.liveness.before(self.first),
        };
        let mut header = recipe::Header {
            scratch: [recipe::NO_SCRATCH; 2],
            live_in,
            live_out: self.t.liveness.block_out(self.index),
        };
        if cf_len > 0 || memory > 0 {
            let pointer = self.take(live_in, GprSet::EMPTY, 0);
            let second = (options.recording.control_flow == ControlFlow::FullPc
                || options.recording.control_flow == ControlFlow::Bits && self.block.wide)
                .then(|| {
                    let mut avoid = GprSet::EMPTY;
                    avoid.insert(pointer.reg);
                    self.take(live_in, avoid, 1)
                });
            for (slot, scratch) in header.scratch.iter_mut().zip([Some(pointer), second]) {
                if let Some(s) = scratch {
                    *slot = s.reg | if s.spilled.is_some() { recipe::SPILLED } else { 0 };
                }
            }
            self.load_control_flow_pointer(pointer.reg);
            if cf_len > 0 {
                self.control_flow_record(pointer.reg, second.map(|s| s.reg), cf_len);
            } else {
                // Nothing to write, but the chunk may be full.
                self.code().read_byte(pointer.reg, At(pointer.reg, 0));
            }
            self.bump(pointer.reg, cf_len, memory);
            if let Some(second) = second {
                self.give_back(second);
            }
            self.give_back(pointer);
        }
        self.writer = Some(recipe::Writer::begin(&mut self.out.recipes, header));
    }

    fn control_flow_record(&mut self, p: u8, second: Option<u8>, cf_len: u32) {
        let (id, wide, word) =
            (self.block.id, self.block.wide, u64::from(self.block.version) << 48);
        let start = self.block.start;
        match (self.options().recording.control_flow, second) {
            (ControlFlow::Tags, _) if wide => {
                // The high part first: until the first word is there, the stream ends here.
                self.code().write_imm(At(p, 4), id >> 16);
                self.code().write_imm(At(p, 0), u32::from(tags::WIDE) | id << 16);
            }
            (ControlFlow::Tags, _) => self.code().write_imm(At(p, 0), id & 0xffff),
            (ControlFlow::FullPc, Some(q)) => {
                self.full_address(q, start, word);
                self.code().write(At(p, 0), q);
            }
            (ControlFlow::Bits, Some(q)) => {
                if cf_len > 9 {
                    // Room for the outcome, which is written at the branch.
                    self.code().read_byte(q, At(p, cf_len as i32 - 1));
                }
                self.full_address(q, start, word);
                self.code().write(At(p, 1), q);
                self.code().write_imm_byte(At(p, 0), bits::TARGET);
            }
            // Only an outcome, written at the branch: see that there is room.
            _ => self.code().read_byte(p, At(p, cf_len as i32 - 1)),
        }
    }

    fn full_address(&mut self, reg: u8, start: u64, version: u64) {
        if version == 0 {
            self.code().address_of(reg, start);
        } else {
            self.code().constant(reg, start | version);
        }
    }

    fn bump(&mut self, scratch: u8, cf_len: u32, memory: i32) {
        let cf_index = CF_LENGTHS.iter().position(|&l| l == u64::from(cf_len)).unwrap_or(0);
        if !self.claims_vectors() {
            for (offset, by) in [(thread::POINTERS, cf_len as i32), (thread::POINTERS + 8, memory)]
            {
                if by > 0 {
                    self.code().load(scratch, offset);
                    self.code().lea(scratch, At(scratch, by));
                    self.code().store(offset, scratch);
                }
            }
            return;
        }
        let mut words = memory as usize / 8;
        // All but the last step move the memory pointer only; a fault cannot happen between them.
        while words >= MEM_STEPS {
            self.code().bump(thread::increment_offset(0, MEM_STEPS - 1));
            words -= MEM_STEPS - 1;
        }
        self.code().bump(thread::increment_offset(cf_index, words));
    }

    pub fn load_control_flow_pointer(&mut self, reg: u8) {
        match self.claims_vectors() {
            true => self.code().control_flow_pointer(reg),
            false => self.code().load(reg, thread::POINTERS),
        }
    }

    fn load_memory_pointer(&mut self, reg: u8) {
        match self.claims_vectors() {
            true => self.code().memory_pointer(reg),
            false => self.code().load(reg, thread::POINTERS + 8),
        }
    }

    // --- records ---

    /// Writes one record of `insn`, at a point where the registers in `live` are the program's.
    pub(crate) fn record(&mut self, insn: &Instruction, i: usize, live: GprSet, record: &Record) {
        if let What::Old(_) = record.what {
            return self.read_ahead(insn, i);
        }
        let at = self.place(record.what.size());
        let mut avoid = self.touched(i);
        if let What::Before(reg) | What::After(reg) = record.what {
            avoid.insert(reg);
        }
        let pointer = self.take_pointer(live, avoid);
        let place = At(pointer.reg, at);
        match record.what {
            What::Before(reg) | What::After(reg) => self.code().write(place, reg),
            What::Vector(v) => {
                // The processor may lack AVX-512, unless the instruction itself needs it.
                let narrow = v < 16
                    && self.options().process.pointers == Pointers::ThreadBlock
                    && insn.encoding() != EncodingKind::EVEX;
                self.code().write_vector(place, v, narrow);
            }
            What::Mask(k) => self.code().write_mask(place, k, false),
            // Written where the instruction is.
            What::Order | What::Old(_) => {}
            What::Address(n) => {
                avoid.insert(pointer.reg);
                let value = self.take(live, avoid, 1);
                self.lea_operand(insn, n, value.reg);
                self.code().write(place, value.reg);
                self.give_back(value);
            }
        }
        self.give_back(pointer);
    }

    /// A register that holds the memory-stream pointer.
    pub(crate) fn take_pointer(&mut self, live: GprSet, avoid: GprSet) -> Scratch {
        match self.cached.filter(|&c| !live.contains(c) && !avoid.contains(c)) {
            Some(reg) => Scratch { reg, spilled: None },
            None => {
                let scratch = self.take(live, avoid, 0);
                self.load_memory_pointer(scratch.reg);
                self.cached = scratch.spilled.is_none().then_some(scratch.reg);
                scratch
            }
        }
    }

    /// Where the next record of `bytes` goes, behind the memory-stream pointer.
    pub(crate) fn place(&mut self, bytes: u32) -> i32 {
        let at = -self.left;
        self.left -= bytes as i32;
        at
    }

    /// `lea reg, <the instruction's memory operand>`
    fn lea_operand(&mut self, insn: &Instruction, _operand: u8, reg: u8) {
        if insn.is_ip_rel_memory_operand() {
            return self.code().address_of(reg, insn.ip_rel_memory_address());
        }
        let mut memory = memory_operand(insn);
        memory.segment_prefix = Register::None;
        memory.is_broadcast = false;
        if insn.mnemonic() == Mnemonic::Pop && memory.base.full_register() == Register::RSP {
            // Its destination is addressed with the incremented rsp.
            memory.displacement += i64::from(insn.stack_pointer_increment());
            memory.displ_size = memory.base.size() as u32;
        }
        self.encode_with(Op::Lea_r64_m, reg, memory);
    }

    /// Encodes `op reg, memory` at the current place.
    pub fn encode_with(&mut self, op: Op, reg: u8, memory: MemoryOperand) {
        let insn = Instruction::with2(op, register64(reg), memory);
        let encoded = insn.map(|insn| self.encode(&insn));
        debug_assert!(matches!(encoded, Ok(true)));
    }

    /// Encodes any instruction at the current place; false if it cannot be.
    pub fn encode(&mut self, insn: &Instruction) -> bool {
        let at = self.out.code.address(self.out.code.here());
        let ok = self.t.encoder.encode(insn, at).is_ok();
        let bytes = self.t.encoder.take_buffer();
        if ok {
            self.out.code.raw(&bytes);
        }
        let mut bytes = bytes;
        bytes.clear();
        self.t.encoder.set_buffer(bytes);
        ok
    }

    // --- scratch registers ---

    /// A register that is dead here and not in `avoid`; if there is none, one that is not in
    /// `avoid` is spilled to slot `slot`.
    pub fn take(&mut self, live: GprSet, mut avoid: GprSet, slot: usize) -> Scratch {
        avoid.insert(RSP);
        if let Some(reg) = GprSet::ALL.minus(live).minus(avoid).iter().next() {
            if Some(reg) == self.cached {
                self.cached = None;
            }
            return Scratch { reg, spilled: None };
        }
        if let Some(cached) = self.cached {
            avoid.insert(cached);
        }
        // Best one that the unit does not use, and a different one each time: a spill makes the
        // register wait for memory.
        let idle = GprSet::ALL.minus(avoid).minus(self.unit_touched());
        let free = if idle.is_empty() { GprSet::ALL.minus(avoid) } else { idle };
        let nth = self.out.recipes.len() % free.iter().count().max(1);
        let reg = free.iter().nth(nth).unwrap_or(0);
        let offset = thread::SPILL + 8 * slot as i32;
        self.code().store(offset, reg);
        Scratch { reg, spilled: Some(offset) }
    }

    pub fn give_back(&mut self, scratch: Scratch) {
        if let Some(offset) = scratch.spilled {
            self.code().load(scratch.reg, offset);
        }
    }

    // --- moved instructions ---

    /// Notes that original instruction `i` starts here.
    pub fn boundary(&mut self, insn: &Instruction, kind: Kind, operands: &[u8]) {
        let at = self.out.code.here();
        self.boundary_at(at, insn.len(), kind, operands);
    }

    /// Notes that an instruction, or (`length` 0) a snippet that may fault in its place, starts at
    /// `at` in the code.
    pub fn boundary_at(&mut self, at: u32, length: usize, kind: Kind, operands: &[u8]) {
        if let Some(writer) = &mut self.writer {
            writer.entry(&mut self.out.recipes, at - self.entry, length, kind, operands);
        }
    }

    fn original(&self, insn: &Instruction, bytes: &mut [u8; 15]) -> usize {
        let len = insn.len().min(15);
        let from = (insn.ip() - self.block.start) as usize;
        bytes[..len].copy_from_slice(&self.bytes[from..from + len]);
        len
    }

    fn moved(&mut self, insn: &Instruction, i: usize) {
        if let Some(why) = refusal(insn) {
            self.boundary(insn, Kind::SavedRcx, &[]);
            return self.refuse(insn, why);
        }
        if !insn.is_ip_rel_memory_operand() {
            self.boundary(insn, Kind::Plain, &[]);
            return self.copy(insn);
        }
        self.moved_pc_relative(insn, i);
    }

    pub(crate) fn copy(&mut self, insn: &Instruction) {
        if insn.is_invalid() {
            // What the decoder does not know is not run: it raises what the processor raises.
            return self.code().raw(&[0x0f, 0x0b]);
        }
        let mut bytes = [0; 15];
        let len = self.original(insn, &mut bytes);
        self.code().raw(&bytes[..len]);
    }

    fn moved_pc_relative(&mut self, insn: &Instruction, i: usize) {
        let far = self.far_register(insn, i);
        match far {
            None => self.boundary(insn, Kind::Plain, &[]),
            Some(reg) => self.boundary(insn, Kind::Scratch, &[reg]),
        }
        self.pc_relative(insn, far);
    }

    /// A register to address a pc-relative operand through, if it is out of reach from here.
    pub(crate) fn far_register(&mut self, insn: &Instruction, i: usize) -> Option<u8> {
        const MARGIN: u64 = 256;
        let here = self.out.code.address(self.out.code.here());
        let distance = insn.ip_rel_memory_address().wrapping_sub(here) as i64;
        (distance.unsigned_abs() > (1 << 31) - MARGIN)
            .then(|| GprSet::ALL.minus(self.touched(i)).iter().find(|&r| r != RSP).unwrap_or(0))
    }

    /// Emits an instruction with a pc-relative operand; `far`: through this register, whose value
    /// waits in the thread block meanwhile.
    pub(crate) fn pc_relative(&mut self, insn: &Instruction, far: Option<u8>) {
        let target = insn.ip_rel_memory_address();
        let Some(reg) = far else {
            let mut bytes = [0; 15];
            let len = self.original(insn, &mut bytes);
            let next = self.out.code.address(self.out.code.here() + len as u32);
            let distance = target.wrapping_sub(next) as u32;
            if let Some(at) = displacement_offset(insn, &bytes[..len]) {
                bytes[at..at + 4].copy_from_slice(&distance.to_le_bytes());
            }
            return self.code().raw(&bytes[..len]);
        };
        self.code().store(thread::SPILL + 8, reg);
        self.code().constant(reg, target);
        let mut through = *insn;
        through.set_memory_base(register64(reg));
        through.set_memory_displacement64(0);
        through.set_memory_displ_size(0);
        if !self.encode(&through) {
            // Never seen; traps rather than doing something else.
            self.code().raw(&[0x0f, 0x0b]);
        }
        self.code().load(reg, thread::SPILL + 8);
        self.cached = self.cached.filter(|&cached| cached != reg);
    }

    /// Runs an instruction with the program's own zmm30 and zmm31 in place; `record_at`: where they
    /// are recorded before.
    fn with_own_vectors(&mut self, insn: &Instruction, i: usize, record_at: [Option<i32>; 2]) {
        let far = insn.is_ip_rel_memory_operand().then(|| self.far_register(insn, i)).flatten();
        // The boundary lies before all that is borrowed; a fault inside puts the pointers back.
        match far {
            None => self.boundary(insn, Kind::Pointers, &[]),
            Some(reg) => self.boundary(insn, Kind::PointersScratch, &[reg]),
        }
        let pointer = record_at.iter().any(Option::is_some).then(|| {
            let live = self.t.liveness.before(self.first + i);
            let touched = self.touched(i);
            let scratch = self.take(live, touched, 0);
            self.load_memory_pointer(scratch.reg);
            scratch
        });
        self.code().save_pointers(thread::POINTERS);
        self.code().load_vector(thread::PROGRAM_ZMM31, 31);
        self.code().load_vector(thread::PROGRAM_ZMM30, 30);
        if let Some(pointer) = pointer {
            for (vector, at) in (30..).zip(record_at) {
                if let Some(at) = at {
                    self.code().write_vector(At(pointer.reg, at), vector, false);
                }
            }
            self.give_back(pointer);
            self.cached = None;
        }
        if insn.is_ip_rel_memory_operand() {
            self.pc_relative(insn, far);
        } else {
            self.copy(insn);
        }
        self.code().save_vector(thread::PROGRAM_ZMM30, 30);
        self.code().save_vector(thread::PROGRAM_ZMM31, 31);
        self.code().load_pointers(thread::POINTERS);
    }

    /// Hands an instruction that cannot be translated to the runtime, which says so and stops.
    pub fn refuse(&mut self, insn: &Instruction, why: u32) {
        let code = &mut self.out.code;
        code.store(thread::SAVED_RCX, crate::emit::RCX);
        code.address_of(crate::emit::RCX, insn.ip());
        code.store(thread::TARGET, crate::emit::RCX);
        code.load(crate::emit::RCX, thread::SAVED_RCX);
        code.store_imm(thread::EXIT_ID, why);
        code.jump_gs(thread::STUB_REFUSE);
    }
}

/// Where the 4-byte displacement of a pc-relative operand lies in the instruction's bytes.
fn displacement_offset(insn: &Instruction, bytes: &[u8]) -> Option<usize> {
    let mut decoder =
        iced_x86::Decoder::with_ip(64, bytes, insn.ip(), iced_x86::DecoderOptions::NONE);
    let again = decoder.decode();
    let offsets = decoder.get_constant_offsets(&again);
    (offsets.has_displacement() && offsets.displacement_size() == 4)
        .then(|| offsets.displacement_offset())
}

/// The displacement of a memory operand, with the sign that it has: what is added to it may not exceed 32 bits.
fn displacement(insn: &Instruction) -> i64 {
    let register = |r: Register| r != Register::None && r.size() == 4;
    match register(insn.memory_base()) || register(insn.memory_index()) {
        true => i64::from(insn.memory_displacement32() as i32),
        false => insn.memory_displacement64() as i64,
    }
}

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

pub(crate) fn register64(number: u8) -> Register {
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
    NAMES[usize::from(number & 15)]
}

/// Whether the instruction reads or writes vector register 30 or 31, or all of them.
fn uses_claimed_vector(insn: &Instruction) -> bool {
    use iced_x86::Mnemonic::*;
    let claimed = |r: Register| r.is_vector_register() && r.number() >= 30;
    (0..insn.op_count())
        .any(|i| insn.op_kind(i) == OpKind::Register && claimed(insn.op_register(i)))
        || claimed(insn.memory_index())
        || matches!(
            insn.mnemonic(),
            Xsave | Xsave64 | Xsavec | Xsavec64 | Xsaveopt | Xsaveopt64 | Xrstor | Xrstor64
        )
}
