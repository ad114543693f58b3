//! The hand that writes one unit: scratch registers, pointers, recipe entries, encoded instructions.
//!
//! It borrows what was decided (plan, liveness, manner) and a place to write, and decides nothing
//! but which register is free. What is written with it, and in which order, is the matter of
//! [`crate::weave`] and the modules that it calls.

use crate::block::Block;
use crate::dispatch::Dispatch;
use crate::emit::Code;
use crate::fragment::Fragment;
use crate::liveness::Live;
use crate::loose::LooseEnds;
use crate::manner::Manner;
use crate::operand::register64;
use crate::plan::UnitPlan;
use crate::recipe::{self, Kind};
use abi::ids::{CodeOff, Gpr, OrigAddr};
use abi::thread;
use iced_x86::{Code as Op, Encoder, Instruction, InstructionInfoFactory, MemoryOperand};
use lifter::regs::{GprSet, RAX, RCX, RSP};
use lifter::use_def::{use_def, UseDef};

/// A scratch register for a few instructions.
#[derive(Clone, Copy)]
pub(crate) struct Scratch {
    pub reg: Gpr,
    /// Offset in the thread block where the program's value waits.
    spilled: Option<i32>,
}

impl Scratch {
    /// The register if it is spilled, as a recipe names it.
    pub fn borrowed(self) -> Gpr {
        if self.spilled.is_some() {
            self.reg
        } else {
            recipe::NOT_BORROWED
        }
    }

    /// The register as the header of a recipe names it.
    pub fn in_header(self) -> recipe::Scratch {
        recipe::Scratch { register: self.reg, spilled: self.spilled.is_some() }
    }
}

/// What decodes and encodes; expensive to make, so it is made once.
pub(crate) struct Tools {
    pub factory: InstructionInfoFactory,
    pub encoder: Encoder,
}

impl Default for Tools {
    fn default() -> Tools {
        Tools { factory: InstructionInfoFactory::new(), encoder: Encoder::new(64) }
    }
}

/// A unit between its analysis and its code.
#[derive(Clone, Copy)]
pub(crate) struct Draft<'a> {
    pub block: &'a Block,
    pub plan: &'a UnitPlan,
    pub live: Live<'a>,
    pub insns: &'a [Instruction],
    /// The unit's original code.
    pub bytes: &'a [u8],
    /// The block that is emitted right behind, if control may fall into it.
    pub behind: Option<OrigAddr>,
    /// The jump at its end goes through a table that has slots.
    pub dispatch: Option<Dispatch>,
    /// Addresses of instructions that access memory of others', ascending.
    pub marked: &'a [u64],
}

pub(crate) struct Weaver<'a> {
    pub unit: Draft<'a>,
    pub manner: Manner,
    tools: &'a mut Tools,
    /// The place to write.
    pub out: &'a mut Fragment,
    pub ends: &'a mut LooseEnds,
    entry: CodeOff,
    writer: Option<recipe::Writer>,
    /// Register that holds the memory-stream pointer (behind the unit's own bytes).
    cached: Option<Gpr>,
    /// Bytes of the unit's memory records that have no place yet.
    left: i32,
    /// Records that have one.
    placed: usize,
    /// Records that the prologue has written, a bit for each.
    pub early: u32,
    /// Where the return at the unit's end is looked up, if that is ahead of it.
    pub ahead: Option<Ahead>,
    /// Behind an instruction that has loaded rcx from the thread block: there it still is.
    rcx_kept: Option<CodeOff>,
}

/// Bytes of the instruction that loads rcx from the thread block.
const LOADS_RCX: usize = 9;

/// Where a return is looked up, and with what.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    /// In front of this instruction of the unit.
    pub at: usize,
    /// Where the return address is from rsp on, there.
    pub distance: i32,
    /// Registers whose values nobody reads any more.
    pub index: Gpr,
    pub base: Option<Gpr>,
}

impl<'a> Weaver<'a> {
    pub fn new(
        unit: Draft<'a>,
        manner: Manner,
        tools: &'a mut Tools,
        out: &'a mut Fragment,
        ends: &'a mut LooseEnds,
    ) -> Self {
        let entry = out.code.here();
        let left = unit.plan.memory_bytes() as i32;
        let (writer, cached, ahead, rcx_kept) = (None, None, None, None);
        let (placed, early) = (0, 0);
        Weaver {
            unit,
            manner,
            tools,
            out,
            ends,
            entry,
            writer,
            cached,
            left,
            placed,
            early,
            ahead,
            rcx_kept,
        }
    }

    pub fn code(&mut self) -> &mut Code {
        &mut self.out.code
    }

    /// The address of what is emitted next.
    pub fn here(&self) -> u64 {
        self.out.code.address(self.out.code.here())
    }

    /// What instruction `i` does to registers.
    pub fn effect(&mut self, i: usize) -> UseDef {
        let known = self.unit.live.effect(i);
        known.unwrap_or_else(|| use_def(&self.unit.insns[i], &mut self.tools.factory))
    }

    /// Registers that instruction `i` reads or writes.
    pub fn touched(&mut self, i: usize) -> GprSet {
        let effect = self.effect(i);
        effect.used.union(effect.written).union(effect.defined)
    }

    /// Registers that any instruction of the unit reads or writes.
    fn unit_touched(&mut self) -> GprSet {
        (0..self.unit.insns.len()).fold(GprSet::EMPTY, |set, i| set.union(self.touched(i)))
    }

    /// What the operand rules of `insn` need.
    pub fn factory(&mut self) -> &mut InstructionInfoFactory {
        &mut self.tools.factory
    }

    // --- scratch registers ---

    /// A register that is dead here and not in `avoid`; if there is none, one that is not in
    /// `avoid` is spilled to slot `slot`.
    pub fn take(&mut self, live: GprSet, mut avoid: GprSet, slot: Slot) -> Scratch {
        avoid.insert(RSP);
        let dead = GprSet::ALL.minus(live).minus(avoid);
        // Where records follow, it may hold the pointer until then.
        let lasting = if self.left > 0 { dead.minus(self.unit_touched()) } else { dead };
        if let Some(reg) = lasting.iter().chain(dead.iter()).next() {
            self.forget_pointer_in(reg);
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
        let reg = free.iter().nth(nth).unwrap_or(RAX);
        let offset = slot.offset();
        self.code().store(offset, reg);
        Scratch { reg, spilled: Some(offset) }
    }

    pub fn give_back(&mut self, scratch: Scratch) {
        if let Some(offset) = scratch.spilled {
            self.code().load(scratch.reg, offset);
        }
    }

    /// Loads the program's rcx from the thread block. Nothing jumps right behind that.
    pub fn load_rcx(&mut self) {
        self.code().load(RCX, thread::SAVED_RCX);
        self.rcx_kept = Some(self.code().here());
    }

    /// Puts the program's rcx into the thread block, where it may be already. `is_used_up`: what follows does not
    /// need it, and no boundary is here, so it need not have been loaded.
    pub fn save_rcx(&mut self, is_used_up: bool) {
        let kept = self.rcx_kept.take() == Some(self.out.code.here());
        if kept && is_used_up {
            let length = self.out.code.bytes.len() - LOADS_RCX;
            self.out.code.bytes.truncate(length);
        }
        if !kept {
            self.code().store(thread::SAVED_RCX, RCX);
        }
    }

    // --- buffer pointers ---

    pub fn load_control_flow_pointer(&mut self, reg: Gpr) {
        match self.manner.pointer_vector() {
            Some(vector) => self.code().control_flow_pointer(reg, vector),
            None => self.code().load(reg, thread::POINTERS),
        }
    }

    pub fn load_memory_pointer(&mut self, reg: Gpr) {
        match self.manner.pointer_vector() {
            Some(vector) => self.code().memory_pointer(reg, vector),
            None => self.code().load(reg, thread::POINTERS + 8),
        }
    }

    /// A register that holds the memory-stream pointer.
    pub fn take_pointer(&mut self, live: GprSet, avoid: GprSet) -> Scratch {
        match self.cached.filter(|&c| !live.contains(c) && !avoid.contains(c)) {
            Some(reg) => Scratch { reg, spilled: None },
            None => {
                let scratch = self.take(live, avoid, Slot::First);
                self.load_memory_pointer(scratch.reg);
                self.keep_pointer(scratch);
                scratch
            }
        }
    }

    /// No register holds the memory-stream pointer any more.
    pub fn forget_pointer(&mut self) {
        self.cached = None;
    }

    /// The register holds something else now.
    pub fn forget_pointer_in(&mut self, reg: Gpr) {
        self.cached = self.cached.filter(|&cached| cached != reg);
    }

    /// Instruction `i` has been emitted.
    pub fn executed(&mut self, i: usize) {
        if let Some(reg) = self.cached {
            self.cached = (!self.effect(i).written.contains(reg)).then_some(reg);
        }
    }

    /// Bytes of memory records that have no place yet.
    pub fn memory_left(&self) -> i32 {
        self.left
    }

    /// Where the next record of `bytes` goes, behind the memory-stream pointer.
    pub fn place(&mut self, bytes: u32) -> i32 {
        let at = -self.left;
        self.left -= bytes as i32;
        self.placed += 1;
        at
    }

    /// Whether the prologue has written the record that gets its place next.
    pub fn is_early(&self) -> bool {
        self.placed < 32 && self.early >> self.placed & 1 == 1
    }

    /// The scratch register holds the memory-stream pointer.
    pub fn keep_pointer(&mut self, scratch: Scratch) {
        self.cached = scratch.spilled.is_none().then_some(scratch.reg);
    }

    // --- recipe ---

    /// The prologue is over.
    pub fn begin_recipe(&mut self, header: recipe::Header) {
        self.writer = Some(recipe::Writer::begin(&mut self.out.recipes, header));
    }

    /// Notes that original instruction `insn` starts here.
    pub fn boundary(&mut self, insn: &Instruction, kind: Kind, operands: &[u8]) {
        let at = self.out.code.here();
        self.boundary_at(at, insn.len(), kind, operands);
    }

    /// Notes that an instruction, or (`length` 0) a snippet that may fault in its place, starts at
    /// `at` in the code.
    pub fn boundary_at(&mut self, at: CodeOff, length: usize, kind: Kind, operands: &[u8]) {
        if let Some(writer) = &mut self.writer {
            writer.entry(&mut self.out.recipes, at.0 - self.entry.0, length, kind, operands);
        }
    }

    // --- encoded instructions ---

    /// Encodes `op reg, memory` at the current place.
    pub fn encode_with(&mut self, op: Op, reg: Gpr, memory: MemoryOperand) {
        let insn = Instruction::with2(op, register64(reg), memory);
        let encoded = insn.map(|insn| self.encode(&insn));
        debug_assert!(matches!(encoded, Ok(true)));
    }

    /// Encodes any instruction at the current place; false if it cannot be.
    pub fn encode(&mut self, insn: &Instruction) -> bool {
        let at = self.here();
        let ok = self.tools.encoder.encode(insn, at).is_ok();
        let mut bytes = self.tools.encoder.take_buffer();
        if ok {
            self.out.code.copy(&bytes);
        }
        bytes.clear();
        self.tools.encoder.set_buffer(bytes);
        ok
    }

    /// Hands an instruction that cannot be translated to the runtime, which says so and stops.
    pub fn refuse(&mut self, insn: &Instruction, why: u32) {
        self.boundary(insn, Kind::SavedRcx, &[]);
        self.code().refuse(insn.ip(), why);
    }
}

/// Where a scratch register's value waits: one that is taken while another one is, in the second.
#[derive(Clone, Copy)]
pub(crate) enum Slot {
    First,
    Second,
}

impl Slot {
    /// Offset in the thread block.
    pub const fn offset(self) -> i32 {
        match self {
            Slot::First => thread::SPILL,
            Slot::Second => thread::SPILL + 8,
        }
    }
}
