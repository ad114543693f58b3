//! Records: what a unit writes to the two streams, as its plan says.

use crate::emit::At;
use crate::operand::memory_operand;
use crate::plan::{AtEnd, AtEntry};
use crate::recipe;
use crate::weaver::{Scratch, Slot, Weaver};
use abi::ids::Gpr;
use abi::options::Pointers;
use abi::thread::{self, CF_LENGTHS, MEM_STEPS};
use abi::trace::{bits, tags};
use abi::unit::{Record, What};
use iced_x86::{Code as Op, EncodingKind, Instruction, Mnemonic, Register};
use lifter::regs::{GprSet, RAX, RSP};

/// Of a unit's first records so many may be written early.
const MOST_EARLY: usize = 8;

/// Records that are written in the prologue.
#[derive(Default)]
struct Early {
    /// A bit for each, by their numbers.
    numbers: u32,
    registers: GprSet,
}

impl Early {
    fn add(&mut self, number: usize, register: Gpr) {
        self.numbers |= 1 << number;
        self.registers.insert(register);
    }

    fn has(&self, number: usize) -> bool {
        number < MOST_EARLY && self.numbers >> number & 1 == 1
    }

    fn is_empty(&self) -> bool {
        self.numbers == 0
    }
}

/// Whether there is a register that is none of these.
fn has_free(mut live: GprSet) -> bool {
    live.insert(RSP);
    !GprSet::ALL.minus(live).is_empty()
}

impl Weaver<'_> {
    /// The control-flow record and the new pointers; begins the recipe.
    pub fn prologue(&mut self) {
        let control = self.unit.plan.control;
        let memory = self.memory_left();
        let live_in = self.unit.live.at_entry();
        let mut header = recipe::Header {
            scratch: [None; 2],
            live_in,
            live_out: self.unit.live.at_end(),
            outside: self.unit.plan.outside,
            silent: control.entry == AtEntry::Silent,
        };
        let early = self.find_early();
        if header.silent && early.is_empty() && (memory == 0 || self.manner.claims_vectors()) {
            // No register is needed.
            if memory > 0 {
                self.bump(RAX, 0, memory);
            }
        } else if control.bytes() > 0 || memory > 0 {
            let pointer = self.take(live_in, early.registers, Slot::First);
            let second = matches!(control.entry, AtEntry::Address | AtEntry::Target)
                .then(|| self.take(live_in, GprSet::of(pointer.reg), Slot::Second));
            for (slot, scratch) in header.scratch.iter_mut().zip([Some(pointer), second]) {
                *slot = scratch.map(Scratch::in_header);
            }
            if !header.silent {
                self.load_control_flow_pointer(pointer.reg);
                self.control_flow_record(pointer.reg, second.map(|s| s.reg));
            }
            self.bump(pointer.reg, control.bytes(), memory);
            if let Some(second) = second {
                self.give_back(second);
            }
            self.write_early(pointer, &early);
            self.give_back(pointer);
        }
        self.early = early.numbers;
        self.begin_recipe(header);
    }

    /// Records that are written in the prologue, because the registers are then what they are later, and a register for
    /// the pointer is at hand: all that can be if one is dead there. If one is spilled, those for which one would be
    /// spilled again.
    fn find_early(&mut self) -> Early {
        let plan = self.unit.plan;
        let mut early = Early::default();
        if plan.registers_together || plan.outside {
            return early;
        }
        let (mut spilling, mut changed) = (Early::default(), GprSet::EMPTY);
        let mut next = 0;
        for (n, record) in plan.records.iter().enumerate().take(MOST_EARLY) {
            while next < usize::from(record.insn) {
                let effect = self.effect(next);
                changed = changed.union(effect.written).union(effect.defined);
                next += 1;
            }
            let What::Before(register) = record.what else { continue };
            if changed.contains(register) {
                continue;
            }
            early.add(n, register);
            let live = self.unit.live.before(next).union(self.touched(next));
            if !has_free(live) {
                spilling.add(n, register);
            }
        }
        let all = early.numbers.count_ones() as usize == plan.records.len();
        let silent = plan.control.entry == AtEntry::Silent;
        match has_free(self.unit.live.at_entry()) {
            true => early,
            false if all && (!silent || !spilling.is_empty()) => early,
            false => spilling,
        }
    }

    /// Writes them: the pointers have advanced, and `pointer` is free.
    fn write_early(&mut self, pointer: Scratch, early: &Early) {
        if early.is_empty() {
            return;
        }
        self.load_memory_pointer(pointer.reg);
        let mut at = -self.memory_left();
        for (n, record) in self.unit.plan.records.iter().enumerate() {
            if let (true, What::Before(register)) = (early.has(n), record.what) {
                self.code().write(At(pointer.reg, at), register);
            }
            at += record.what.size() as i32;
        }
        self.keep_pointer(pointer);
    }

    /// Writes what the plan has at the unit's entry, at the pointer in `p`. `second`: a register for
    /// what is too long for an immediate.
    fn control_flow_record(&mut self, p: Gpr, second: Option<Gpr>) {
        let (id, control) = (self.unit.block.id, self.unit.plan.control);
        let last = i32::from(control.bytes()) - 1;
        match (control.entry, second) {
            (AtEntry::Narrow, _) => self.code().write_imm(At(p, 0), id.0 & 0xffff),
            (AtEntry::Wide, _) => self.code().write_imm(At(p, 0), tags::wide(id)),
            (AtEntry::Outside(mark), _) => self.code().write_imm(At(p, 0), mark.into()),
            (AtEntry::OutsideWord(mark), _) => {
                self.code().write_imm(At(p, 4), 0);
                self.code().write_imm(At(p, 0), mark.into());
            }
            (AtEntry::Address, Some(q)) => {
                self.whole_address(q);
                self.code().write(At(p, 0), q);
            }
            (AtEntry::Target, Some(q)) => {
                if control.end == AtEnd::Outcome {
                    // Room for the outcome, which is written at the branch.
                    self.code().read_byte(q, At(p, last));
                }
                self.whole_address(q);
                self.code().write(At(p, 1), q);
                self.code().write_imm_byte(At(p, 0), bits::TARGET);
            }
            // At most an outcome, written at the branch: see that there is room. If nothing is
            // written the chunk may be full all the same.
            _ => self.code().read_byte(p, At(p, last.max(0))),
        }
    }

    /// The unit's address, with its version, in `reg`.
    fn whole_address(&mut self, reg: Gpr) {
        let (start, version) = (self.unit.block.start.0, u64::from(self.unit.block.version) << 48);
        if version == 0 {
            self.code().address_of(reg, start);
        } else {
            self.code().constant(reg, start | version);
        }
    }

    fn bump(&mut self, scratch: Gpr, cf_len: u8, memory: i32) {
        let cf_index = CF_LENGTHS.iter().position(|&l| l == u64::from(cf_len)).unwrap_or(0);
        let Some(vector) = self.manner.pointer_vector() else {
            for (offset, by) in
                [(thread::POINTERS, i32::from(cf_len)), (thread::POINTERS + 8, memory)]
            {
                if by > 0 {
                    self.code().load(scratch, offset);
                    self.code().lea(scratch, At(scratch, by));
                    self.code().store(offset, scratch);
                }
            }
            return;
        };
        let mut words = memory as usize / 8;
        // All but the last step move the memory pointer only; a fault cannot happen between them.
        while words >= MEM_STEPS {
            self.code().bump(vector, thread::increment_offset(0, MEM_STEPS - 1));
            words -= MEM_STEPS - 1;
        }
        match self.manner.increment_vector(cf_len, words) {
            Some(addend) => self.code().bump_by(addend),
            None => self.code().bump(vector, thread::increment_offset(cf_index, words)),
        }
    }

    /// Writes one record of `insn`, at a point where the registers in `live` are the program's. What
    /// a store overwrites, and the order of threads, are written elsewhere.
    pub fn record(&mut self, insn: &Instruction, i: usize, live: GprSet, record: &Record) {
        let is_early = self.is_early();
        let at = self.place(record.what.size());
        if is_early {
            return;
        }
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
                    && self.manner.pointers != Pointers::Vector
                    && insn.encoding() != EncodingKind::EVEX;
                self.code().write_vector(place, v, narrow);
            }
            What::Mask(k) => self.code().write_mask(place, k),
            What::Order | What::Old(_) => {}
            What::Address(_) => {
                avoid.insert(pointer.reg);
                let value = self.take(live, avoid, Slot::Second);
                self.lea_operand(insn, value.reg);
                self.code().write(place, value.reg);
                self.give_back(value);
            }
        }
        self.give_back(pointer);
    }

    /// `lea reg, <the instruction's memory operand>`, of which it has one.
    pub fn lea_operand(&mut self, insn: &Instruction, reg: Gpr) {
        if insn.is_ip_rel_memory_operand() {
            return self.code().address_of(reg, insn.ip_rel_memory_address());
        }
        let mut memory = memory_operand(insn);
        memory.segment_prefix = Register::None;
        memory.is_broadcast = false;
        if insn.mnemonic() == Mnemonic::Pop && memory.base.full_register() == Register::RSP {
            // Its destination is addressed with the incremented rsp.
            memory.displacement += i64::from(insn.stack_pointer_increment());
            memory.displ_size = if memory.base.size() == 4 { 4 } else { 8 };
        }
        self.encode_with(Op::Lea_r64_m, reg, memory);
    }

    /// Records registers in front of instruction `i`, each by itself or all in a row.
    pub fn registers(&mut self, insn: &Instruction, i: usize, records: &[Record]) {
        let live = self.unit.live.before(i);
        if records.len() < 3 || !self.unit.plan.registers_together {
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

    /// Writes the outcome of the unit's branch where only one is possible.
    pub fn write_outcome(&mut self, avoid: GprSet, outcome: u8) {
        let pointer = self.take(GprSet::ALL, avoid, Slot::First);
        self.load_control_flow_pointer(pointer.reg);
        self.code().write_imm_byte(At(pointer.reg, -1), outcome);
        self.give_back(pointer);
    }

    /// Writes the outcome of instruction `i`, a jump on `condition`, before it is taken; its flags
    /// stay as they are.
    pub fn write_condition(&mut self, condition: u8, i: usize) {
        let live = self.unit.live.before(i);
        let pointer = self.take(live, GprSet::EMPTY, Slot::First);
        let value = self.take(live, GprSet::of(pointer.reg), Slot::Second);
        self.load_control_flow_pointer(pointer.reg);
        self.code().setcc(condition, value.reg);
        self.code().lea32(value.reg, At(value.reg, i32::from(bits::NOT_TAKEN)));
        self.code().write_byte(At(pointer.reg, -1), value.reg);
        self.give_back(value);
        self.give_back(pointer);
    }

    /// Whether the unit's last instruction records which way it goes.
    pub fn records_outcome(&self) -> bool {
        self.unit.plan.control.end == AtEnd::Outcome
    }
}
