//! Decides what the units of a region record ([`crate::plan`]).
//!
//! Of control flow each unit records what the format asks of it: `control_record` is the only
//! place that knows the formats.
//!
//! The memory stream gets, for each instruction that references memory, the values that the reader
//! could not know otherwise. In the `addresses` format that is the effective address of each
//! explicit operand. In the `registers` format it is each address register that is not *known*:
//! recorded earlier, or recomputable from known registers by the effects of
//! [`lifter::recompute`] — the very ones that the reader applies, so that both sides agree by
//! construction.
//!
//! Knownness crosses from unit to unit inside a region (partial redundancy elimination). A unit
//! that nothing outside the region branches to may rely on what its predecessors know; where only
//! some of them know a register that the unit is going to need, the others record it at their end.
//! So a pointer that a loop does not change is recorded once in front of the loop.
//!
//! One register is known everywhere: rsp ([`stack_is_known`]). The reader learns it wherever it learns
//! all registers (a thread's or a chunk's start, signals, whatever else an event tells), and from there
//! on follows it from instruction to instruction. So an instruction that changes rsp needs the registers
//! that the new value follows from, and where it follows from none, rsp is recorded behind it.
//!
//! The undo log ([`abi::options::Instrument::Undo`]) is another plan over the same ground: of the
//! references only stores, each followed by what it overwrites, and at each call all registers.
//!
//! Lattice: sets of known registers, ordered by inclusion, starting from all of them. Meet:
//! intersection, plus what is wanted and known to any predecessor. Transfer: the effects of the
//! unit's instructions and records. Facts about a unit that relies on its predecessors are only
//! right if it is entered from them: such a unit is *closed*.

use crate::block::Placement;
use crate::plan::{all_open, AtEnd, AtEntry, ControlRecord, Outside, PlanBlock, UnitPlan};
use crate::refusal::refusal;
use crate::silent;
use abi::ids::{Gpr, OrigAddr, UnitId};
use abi::options::{ControlFlow, Memory, Options, RecordingOptions, Turns};
use abi::selection::Selected;
use abi::trace::outside;
use abi::unit::{Record, What};
use alloc::vec::Vec;
use core::ops::Range;
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic};
use lifter::asks::asks;
use lifter::flow::Flow;
use lifter::needs::needs;
use lifter::operands::{references, Index, Reference, Segment, Shape};
use lifter::recompute::{effects, Effect, Known};
use lifter::regs::{gpr_number, GprSet, RSP};
use lifter::stores::{at_run_time, is_synchronising, stores, Stores};

/// What one instruction needs and does.
struct Compiled {
    needs: GprSet,
    /// Recorded whatever is known: before, and after the instruction.
    before: Vec<What>,
    after: Option<What>,
    effects: Range<usize>,
    written: GprSet,
    /// A store that the runtime logs in front of the unit.
    starts_unit: bool,
}

/// Plans regions; reuses its scratch memory.
#[derive(Default)]
pub struct Planner {
    references: Vec<Reference>,
    rest: Vec<Reference>,
    compiled: Vec<Compiled>,
    effects: Vec<Effect>,
    /// Known at the start of every unit.
    everywhere: GprSet,
}

/// The solution for one block.
#[derive(Clone, Copy)]
struct Facts {
    /// Registers that are certainly needed with the value they have at the block's start.
    wanted: GprSet,
    /// Never to be relied on at the block's start.
    banned: GprSet,
    written: GprSet,
    known_in: GprSet,
    known_out: GprSet,
    /// Recorded at the block's end, for a successor.
    late: GprSet,
}

impl Planner {
    /// The plans of the blocks of a region, whose instructions are `insns`. `silently`: units whose
    /// execution follows from other tags write none.
    pub fn plan(
        &mut self,
        blocks: &[PlanBlock],
        insns: &[Instruction],
        recording: RecordingOptions,
        silently: bool,
        factory: &mut InstructionInfoFactory,
    ) -> Vec<UnitPlan> {
        let mut plans = self.plan_each(blocks, insns, recording, factory);
        if silently {
            silent::choose(blocks, insns, &mut plans);
        }
        plans
    }

    fn plan_each(
        &mut self,
        blocks: &[PlanBlock],
        insns: &[Instruction],
        recording: RecordingOptions,
        factory: &mut InstructionInfoFactory,
    ) -> Vec<UnitPlan> {
        let control = |block: &PlanBlock| {
            control_record(recording, block.wide, insns[block.insns.clone()].last())
        };
        let of_outside = |block: &PlanBlock| Some(outside_plan(recording, block.outside?));
        if !recording.records_memory() && !recording.undo() {
            let plan = |block| UnitPlan { control: control(block), ..UnitPlan::default() };
            return blocks.iter().map(|b| of_outside(b).unwrap_or_else(|| plan(b))).collect();
        }
        self.compiled.clear();
        self.effects.clear();
        self.everywhere = match stack_is_known(recording) {
            true => GprSet::of(RSP),
            false => GprSet::EMPTY,
        };
        for insn in insns {
            self.compile(insn, recording, factory);
        }
        assert!(
            blocks.iter().all(|b| b.insns.clone().skip(1).all(|i| !self.compiled[i].starts_unit)),
            "a store that is logged at run time is not the first instruction of its unit"
        );
        let across = recording.memory == Memory::Registers && !all_open(recording);
        let facts = self.solve(blocks, across);
        blocks
            .iter()
            .zip(facts)
            .map(|(block, facts)| {
                of_outside(block).unwrap_or_else(|| UnitPlan {
                    control: control(block),
                    records: self.records(block, &facts, recording),
                    closed: !facts.known_in.minus(self.everywhere).is_empty(),
                    outside: false,
                    announces_store: self.compiled[block.insns.clone()]
                        .first()
                        .is_some_and(|first| first.starts_unit),
                    registers_together: recording.undo(),
                })
            })
            .collect()
    }

    fn compile(
        &mut self,
        insn: &Instruction,
        recording: RecordingOptions,
        factory: &mut InstructionInfoFactory,
    ) {
        self.references.clear();
        references(insn, factory, &mut self.references);
        let undo = recording.undo() && refusal(insn).is_none();
        let store = recording.undo().then(|| stores(insn, &self.references));
        let starts_unit = store == Some(Stores::AtRunTime);
        let store = store.map(|store| if undo { store } else { Stores::None });
        if let Some(store) = store {
            self.references.clear();
            if let Stores::One(reference) = store {
                self.references.push(reference);
            }
        }
        self.rest.clear();
        let mut addresses = 0u8;
        for reference in &self.references {
            match reference.operand {
                Some(n) if recording.memory == Memory::Addresses && has_address(reference) => {
                    addresses |= 1 << n;
                }
                _ => self.rest.push(*reference),
            }
        }
        let mut wanted = needs(insn, &self.rest);
        let mut before: Vec<What> =
            (0..4).filter(|n| addresses & 1 << n != 0).map(What::Address).collect();
        if undo && Flow::of(insn).is_call() {
            // Known or not: one routine writes them all ([`crate::undo`]).
            before.extend(GprSet::ALL.minus(self.everywhere).iter().map(What::Before));
            wanted.registers = GprSet::EMPTY;
        }
        let mut after = None;
        for what in wanted.always {
            match what {
                What::After(_) => after = Some(what),
                _ => before.push(what),
            }
        }
        if undo && is_synchronising(insn) {
            before.push(What::Order);
        }
        if let Some(Stores::One(reference)) = store {
            // At most 64 bytes.
            let words = u8::try_from(reference.size.div_ceil(8)).unwrap_or(8);
            before.push(What::Old(words));
        }
        let start = self.effects.len();
        let list = &mut self.effects;
        effects(insn, factory, &mut |effect| list.push(effect));
        let written =
            self.effects[start..].iter().fold(GprSet::EMPTY, |set, e| set.union(changed(e)));
        let effects = start..self.effects.len();
        let mut needs = wanted.registers;
        if self.everywhere.intersection(written).contains(RSP) {
            match stack_follows_from(&self.effects[effects.clone()], needs) {
                Some(registers) => needs = needs.union(registers),
                // Behind what leaves the unit nothing can be recorded, and rsp follows.
                None if Flow::of(insn).ends_unit() => {}
                None => after = Some(What::After(RSP)),
            }
        }
        self.compiled.push(Compiled { needs, before, after, effects, written, starts_unit });
    }

    // --- dataflow ---

    fn solve(&self, blocks: &[PlanBlock], across: bool) -> Vec<Facts> {
        let mut facts: Vec<Facts> = blocks.iter().map(|block| self.local(block)).collect();
        if !across || blocks.iter().all(|b| b.open) {
            return facts;
        }
        anticipate(blocks, &mut facts);
        let mut before: Vec<Vec<usize>> = blocks.iter().map(|_| Vec::new()).collect();
        for (i, block) in blocks.iter().enumerate() {
            for next in block.successors.into_iter().flatten() {
                before[next].push(i);
            }
        }
        loop {
            self.fixpoint(blocks, &before, &mut facts);
            if !self.place(blocks, &before, &mut facts) {
                return facts;
            }
        }
    }

    /// What a block wants, writes, and knows at its end if it knows nothing at its start.
    fn local(&self, block: &PlanBlock) -> Facts {
        if block.outside.is_some() {
            // Nothing is known of it, nor may anything be recorded for others in it.
            return Facts {
                wanted: GprSet::EMPTY,
                banned: GprSet::ALL,
                written: GprSet::ALL,
                known_in: GprSet::EMPTY,
                known_out: GprSet::EMPTY,
                late: GprSet::EMPTY,
            };
        }
        let mut wanted = GprSet::EMPTY;
        let mut unchanged = GprSet::ALL;
        let mut known = Known { known: self.everywhere, ..Known::default() };
        for compiled in &self.compiled[block.insns.clone()] {
            wanted =
                wanted.union(compiled.needs.minus(known.known).minus(GprSet::ALL.minus(unchanged)));
            self.advance(compiled, &mut known);
            unchanged = unchanged.minus(compiled.written);
        }
        Facts {
            wanted,
            banned: GprSet::EMPTY,
            written: GprSet::ALL.minus(unchanged),
            known_in: self.everywhere,
            known_out: known.known,
            late: GprSet::EMPTY,
        }
    }

    fn advance(&self, compiled: &Compiled, known: &mut Known) {
        known.known = known.known.union(compiled.needs);
        for what in &compiled.before {
            if let What::Before(register) = what {
                known.known.insert(*register);
            }
        }
        for effect in &self.effects[compiled.effects.clone()] {
            known.apply(effect);
        }
        if let Some(What::After(register)) = compiled.after {
            known.known.insert(register);
        }
    }

    fn known_out(&self, block: &PlanBlock, known_in: GprSet) -> GprSet {
        let mut known = Known { known: known_in, ..Known::default() };
        for compiled in &self.compiled[block.insns.clone()] {
            self.advance(compiled, &mut known);
        }
        known.known
    }

    /// The greatest solution.
    fn fixpoint(&self, blocks: &[PlanBlock], before: &[Vec<usize>], facts: &mut [Facts]) {
        for (i, block) in blocks.iter().enumerate() {
            let from_outside = before[i].iter().any(|&p| blocks[p].outside.is_some());
            let rely = !block.open && !before[i].is_empty() && !from_outside;
            facts[i].known_in =
                if rely { GprSet::ALL.minus(facts[i].banned) } else { self.everywhere };
            if block.outside.is_none() {
                facts[i].known_out = self.known_out(block, facts[i].known_in);
            }
        }
        loop {
            let mut changed = false;
            for i in 0..blocks.len() {
                if facts[i].known_in == self.everywhere {
                    continue;
                }
                let (mut all, mut any) = (GprSet::ALL, GprSet::EMPTY);
                for &p in &before[i] {
                    all = all.intersection(facts[p].known_out);
                    any = any.union(facts[p].known_out);
                }
                let known_in = all.union(any.intersection(facts[i].wanted)).minus(facts[i].banned);
                let known_in = known_in.union(self.everywhere);
                if known_in != facts[i].known_in {
                    facts[i].known_in = known_in;
                    let out = self.known_out(&blocks[i], known_in);
                    changed |= out != facts[i].known_out;
                    facts[i].known_out = out;
                }
            }
            if !changed {
                return;
            }
        }
    }

    /// Decides where the registers that a block relies on are recorded. True if something had to
    /// be banned: solve again.
    fn place(&self, blocks: &[PlanBlock], before: &[Vec<usize>], facts: &mut [Facts]) -> bool {
        for f in facts.iter_mut() {
            f.late = GprSet::EMPTY;
        }
        for i in 0..blocks.len() {
            for &p in &before[i] {
                let missing = facts[i].known_in.minus(facts[p].known_out).minus(self.everywhere);
                if let Some(register) = self.cannot_record(&blocks[p], facts[p].late.union(missing))
                {
                    facts[i].banned.insert(register);
                    return true;
                }
                facts[p].late = facts[p].late.union(missing);
            }
        }
        false
    }

    /// Of the registers to be recorded at the end of `block`, one that cannot be: the value behind
    /// the last instruction is only at hand if it does not transfer control, and once.
    fn cannot_record(&self, block: &PlanBlock, late: GprSet) -> Option<Gpr> {
        let Some(last) = self.compiled[block.insns.clone()].last() else {
            return late.iter().next();
        };
        let behind = late.intersection(last.written);
        let room =
            usize::from(last.after.is_none() && block.successors[1].is_none() && !block.leaves);
        behind.iter().nth(room)
    }

    // --- records ---

    fn records(
        &self,
        block: &PlanBlock,
        facts: &Facts,
        recording: RecordingOptions,
    ) -> Vec<Record> {
        let mut records = Vec::new();
        let mut known = Known { known: facts.known_in, ..Known::default() };
        let count = block.insns.len();
        for (i, compiled) in self.compiled[block.insns.clone()].iter().enumerate() {
            // Blocks have far fewer instructions than that.
            let insn = u8::try_from(i).unwrap_or(u8::MAX);
            let record = |what| Record { insn, what };
            let last = i + 1 == count;
            let mut wanted = compiled.needs;
            if recording.memory == Memory::Registers {
                wanted = wanted.minus(known.known);
            }
            if last {
                // A register that the instruction does not change is as good before it.
                wanted = wanted.union(facts.late.minus(compiled.written).minus(known.known));
            }
            records.extend(wanted.iter().map(|r| record(What::Before(r))));
            records.extend(compiled.before.iter().map(|&what| record(what)));
            records.extend(compiled.after.map(record));
            self.advance(compiled, &mut known);
            if last {
                let behind = facts.late.intersection(compiled.written).minus(known.known);
                records.extend(behind.iter().map(|r| record(What::After(r))));
            }
        }
        records
    }
}

/// Whether rsp is known at the start of every unit, whoever enters it. Code that is not selected tells
/// nobody what it does to rsp.
pub fn stack_is_known(recording: RecordingOptions) -> bool {
    recording.memory == Memory::Registers && !recording.selective
}

/// The registers that rsp behind an instruction follows from, besides rsp before it and those that are
/// `known` anyway, if it follows from any.
fn stack_follows_from(effects: &[Effect], known: GprSet) -> Option<GprSet> {
    let follows = |from: GprSet| {
        let known = known.union(from).union(GprSet::of(RSP));
        let mut known = Known { known, ..Known::default() };
        effects.iter().for_each(|effect| known.apply(effect));
        known.known.contains(RSP)
    };
    let makes_it = effects.iter().filter(|effect| changed(effect).contains(RSP));
    let from = makes_it.fold(GprSet::EMPTY, |set, effect| set.union(inputs(effect)));
    [GprSet::EMPTY, from].into_iter().find(|&from| follows(from))
}

/// What a unit whose last instruction is `last` writes to the control-flow stream.
fn control_record(
    recording: RecordingOptions,
    wide: bool,
    last: Option<&Instruction>,
) -> ControlRecord {
    let mut record = ControlRecord { entry: at_entry(recording, wide), end: AtEnd::Nothing };
    let tells_outcomes = recording.streams() && recording.control_flow == ControlFlow::Bits;
    if tells_outcomes && last.is_some_and(|last| Flow::of(last).is_conditional()) {
        record.end = AtEnd::Outcome;
    }
    record
}

fn at_entry(recording: RecordingOptions, wide: bool) -> AtEntry {
    match recording.control_flow {
        _ if !recording.streams() => AtEntry::Nothing,
        ControlFlow::Tags if wide => AtEntry::Wide,
        ControlFlow::Tags => AtEntry::Narrow,
        ControlFlow::FullPc => AtEntry::Address,
        ControlFlow::Bits if wide => AtEntry::Target,
        ControlFlow::Bits => AtEntry::Nothing,
    }
}

/// What the unselected block with these instructions has to tell; `behind`: the address behind it.
pub fn outside(insns: &[Instruction], behind: OrigAddr, selected: Selected) -> Outside {
    let mut found = Outside::default();
    let Some(last) = insns.last() else { return found };
    for (insn, i) in insns.iter().zip(0u8..) {
        if !writes_base(insn) || refusal(insn).is_some() {
            continue;
        }
        let register = insn.op0_register();
        found.base = gpr_number(register).map(|number| (i, number));
        found.mark = match (insn.mnemonic(), register.is_gpr32()) {
            (Mnemonic::Wrgsbase, _) => outside::GS_BASE,
            (_, true) => outside::FS_BASE | outside::LOW_HALF,
            (_, false) => outside::FS_BASE,
        };
    }
    let flow = Flow::of(last);
    if !flow.ends_block() {
        found.mark |= outside::FALLS;
    }
    let may_lead = |target: OrigAddr| selected.may_contain(target.0);
    let next = match flow.ends_unit() {
        true => flow.successors(behind),
        false => [Some(behind), None],
    };
    let leads = match flow {
        // What it records belongs to a place in the stream, and a chunk can end there.
        Flow::Syscall => true,
        flow if flow.is_old_syscall() => true,
        Flow::Return | Flow::IndirectCall | Flow::IndirectJump => selected.is_anything(),
        Flow::Call(target) => may_lead(target),
        _ => next.into_iter().flatten().any(may_lead),
    };
    found.marks = leads || found.base.is_some();
    found
}

/// The plan of a block that is not selected.
fn outside_plan(recording: RecordingOptions, block: Outside) -> UnitPlan {
    let mut plan = UnitPlan { outside: true, ..UnitPlan::default() };
    if !block.marks || !recording.streams() {
        return plan;
    }
    let mark = outside::FIRST + block.mark;
    plan.control.entry = match recording.control_flow {
        ControlFlow::FullPc => AtEntry::OutsideWord(mark),
        ControlFlow::Tags | ControlFlow::Bits => AtEntry::Outside(mark),
    };
    plan.records =
        block.base.map(|(insn, r)| Record { insn, what: What::Before(r) }).into_iter().collect();
    plan
}

/// Whether unit `id` may be entered by a direct branch from unit `from`, before either has a plan.
pub fn may_enter(recording: RecordingOptions, from: UnitId, id: UnitId, wide: bool) -> bool {
    let record = ControlRecord { entry: at_entry(recording, wide), end: AtEnd::Nothing };
    record.may_be_entered(from, id)
}

/// Whether the stream names a unit by its address and version, and not by its number.
pub fn names_versions(recording: RecordingOptions) -> bool {
    recording.streams() && recording.control_flow != ControlFlow::Tags
}

/// Whether units may be silent in code that goes to `placement`. Code that may be closed or dropped at
/// a unit's start may not: then something else is executed there.
pub fn may_be_silent(options: Options, placement: Placement) -> bool {
    let recording = options.recording;
    recording.control_flow == ControlFlow::Tags
        && recording.is_profile()
        && !recording.selective
        && options.turns() == Turns::NotCounted
        && !placement.patchable
}

/// Whether an instruction must be the first one of its unit: in the undo log a store that the
/// runtime logs, whose position then is a boundary between units.
pub fn starts_unit(
    recording: RecordingOptions,
    insn: &Instruction,
    factory: &mut InstructionInfoFactory,
) -> bool {
    recording.undo() && at_run_time(insn, factory, &mut Vec::new())
}

/// Whether an instruction must be the last one of its unit: the runtime answers in place of one that asks
/// the machine, and goes on at a boundary between units.
/// Code that is not selected tells of one new base of a segment in each unit.
pub fn ends_unit(options: Options, insn: &Instruction) -> bool {
    options.turns() != Turns::NotCounted && asks(insn)
        || options.recording.selective && writes_base(insn)
}

/// Whether it changes the fs or gs base.
fn writes_base(insn: &Instruction) -> bool {
    matches!(insn.mnemonic(), Mnemonic::Wrfsbase | Mnemonic::Wrgsbase)
}

/// Extends what blocks want by what all their successors want.
fn anticipate(blocks: &[PlanBlock], facts: &mut [Facts]) {
    loop {
        let mut changed = false;
        for (i, block) in blocks.iter().enumerate().rev() {
            if block.leaves {
                continue;
            }
            let all = block
                .successors
                .into_iter()
                .flatten()
                .map(|next| facts[next].wanted)
                .reduce(|a, b| a.intersection(b));
            let wanted = facts[i].wanted.union(all.unwrap_or_default().minus(facts[i].written));
            changed |= wanted != facts[i].wanted;
            facts[i].wanted = wanted;
        }
        if !changed {
            return;
        }
    }
}

/// Registers that a step changes.
fn changed(effect: &Effect) -> GprSet {
    match *effect {
        Effect::Forget(set) => set,
        Effect::Set { to, .. }
        | Effect::Lea { to, .. }
        | Effect::Binary { to, .. }
        | Effect::Immediate { to, .. }
        | Effect::Unary { to, .. } => GprSet::of(to),
        Effect::Swap { a, b, .. } => GprSet::of(a).union(GprSet::of(b)),
    }
}

/// Registers that a step computes with.
fn inputs(effect: &Effect) -> GprSet {
    match *effect {
        Effect::Forget(_) | Effect::Set { .. } => GprSet::EMPTY,
        Effect::Lea { base, index, .. } => {
            index.map_or(GprSet::EMPTY, |(index, _)| GprSet::of(index)).union(GprSet::of(base))
        }
        Effect::Binary { left, right, .. } => GprSet::of(left).union(GprSet::of(right)),
        Effect::Immediate { left, .. } => GprSet::of(left),
        Effect::Unary { from, .. } => GprSet::of(from),
        Effect::Swap { a, b, .. } => GprSet::of(a).union(GprSet::of(b)),
    }
}

/// Whether `lea` can compute the reference's address.
fn has_address(reference: &Reference) -> bool {
    matches!(reference.shape, Shape::Plain)
        && matches!(reference.index, Index::None | Index::Gpr { .. })
        && reference.segment == Segment::None
}
