//! One region of original blocks in, one fragment of translated code out.
//!
//! The ahead-of-time path hands in whole functions, the run-time path chains of blocks; both call
//! [`Translator::translate`], and only the source of the bytes and the [`Placement`] differ.

use crate::block::{Block, FarWindow, Placement, Source};
use crate::cold;
use crate::dispatch::{Dispatch, Search};
use crate::explore::LiveMap;
use crate::fragment::{Branch, Fragment, Thunks, Unit};
use crate::liveness::{Beyond, Liveness, Span};
use crate::loose::{Cold, LooseEnds, Pending, Size};
use crate::manner::Manner;
use crate::plan::{AtEntry, PlanBlock, UnitPlan, NOWHERE};
use crate::planner::{ends_unit, may_be_silent, may_enter, outside, starts_unit, Planner};
use crate::weave;
use crate::weaver::{Draft, Tools, Weaver};
use abi::ids::{CodeOff, OrigAddr};
use abi::options::{torture, DeadRegisters, Options};
use abi::unit::{flags, UnitBody};
use alloc::vec::Vec;
use iced_x86::{Decoder, DecoderOptions, Instruction};
use lifter::flow::Flow;
use lifter::region::Cut;
use lifter::regs::GprSet;

/// Everything that a translation needs and that is worth keeping between translations.
pub struct Translator {
    options: Options,
    /// What is known about addresses.
    pub placement: Placement,
    /// The window of what is translated, if it is not the program's.
    pub far: Option<FarWindow>,
    /// Where there may be tables whose jumps take slots: from, to.
    pub tables: Vec<[u64; 2]>,
    /// Addresses of instructions that may access memory that others store to, and that is closed: ascending.
    pub marked: Vec<u64>,
    tools: Tools,
    planner: Planner,
    liveness: Liveness,
    /// Live registers where control leaves a region.
    pub live_map: LiveMap,
    insns: Vec<Instruction>,
    spans: Vec<Span>,
    ends: LooseEnds,
    /// Thunks of movable code: of the region, and of all regions before.
    region_thunks: Vec<Cold>,
    thunks: Vec<Cold>,
}

impl Translator {
    /// A translator of code for `options` that goes to `placement`.
    pub fn new(options: Options, placement: Placement) -> Translator {
        Translator {
            options,
            placement,
            far: None,
            tables: Vec::new(),
            marked: Vec::new(),
            tools: Tools::default(),
            planner: Planner::default(),
            liveness: Liveness::default(),
            live_map: LiveMap::default(),
            insns: Vec::new(),
            spans: Vec::new(),
            ends: LooseEnds::default(),
            region_thunks: Vec::new(),
            thunks: Vec::new(),
        }
    }

    /// Decodes `blocks`, solves liveness and plans what is recorded.
    fn analyse(
        &mut self,
        blocks: &[Block],
        source: Source,
    ) -> (Vec<Instruction>, Vec<Span>, Vec<UnitPlan>) {
        self.decode(blocks, source);
        let process = self.options.process;
        // Without records no scratch register is asked for.
        let everything = !self.options.recording.streams()
            || self.placement.exact_registers
            || process.dead_registers == DeadRegisters::Preserve
            || process.torture & torture::SPILL != 0;
        let insns = core::mem::take(&mut self.insns);
        let spans = core::mem::take(&mut self.spans);
        let mut beyond = Beyond { map: &mut self.live_map, source };
        self.liveness.solve(&spans, &insns, &mut self.tools.factory, &mut beyond, everything);
        let flags = self.options.recording.watches()
            && !self.placement.exact_registers
            && process.torture & torture::SPILL == 0;
        self.liveness.solve_flags(&spans, &insns, flags);
        let plans = self.plan(blocks, source, &spans, &insns);
        (insns, spans, plans)
    }

    /// The analysis of a region without its code: for each block its instructions, the registers
    /// that are live before each of them, and the plan.
    pub fn inspect(&mut self, blocks: &[Block], source: Source) -> Vec<Inspected> {
        let (insns, spans, plans) = self.analyse(blocks, source);
        let inspected = spans.iter().zip(plans).enumerate().map(|(i, (span, plan))| {
            let live = self.liveness.of_block(i, span);
            Inspected {
                live: (0..span.count).map(|i| live.before(i)).collect(),
                insns: insns[span.first..span.first + span.count].to_vec(),
                plan,
            }
        });
        inspected.collect()
    }

    /// Whether the instruction must be the first or the last one of its unit.
    pub fn cuts(&mut self, insn: &Instruction) -> Cut {
        if ends_unit(self.options, insn) {
            return Cut::Behind;
        }
        match starts_unit(self.options.recording, insn, &mut self.tools.factory) {
            true => Cut::Before,
            false => Cut::None,
        }
    }

    /// Translates `blocks` (ascending by address), which lie in `source`, and appends the result.
    pub fn translate(&mut self, blocks: &[Block], source: Source, out: &mut Fragment) {
        let (insns, spans, plans) = self.analyse(blocks, source);
        let dispatches = self.dispatches(blocks, &spans, &insns);
        let dispatches = &dispatches;
        let region =
            Region { blocks, spans: &spans, insns: &insns, plans: &plans, source, dispatches };
        let (code, recipes, units) = (out.code.bytes.len(), out.recipes.len(), out.units.len());
        let (slots, tables) = (out.slots.len(), out.tables.len());
        self.ends.short.clear();
        self.weave(&region, out);
        if !self.placement.patchable && self.find_short_branches(&out.units[units..]) {
            // Once more: distances only shrink, so what was in reach of a byte still is.
            out.code.bytes.truncate(code);
            out.recipes.truncate(recipes);
            out.units.truncate(units);
            out.slots.truncate(slots);
            out.tables.truncate(tables);
            self.weave(&region, out);
        }
        self.bind(units, out);
        self.thunks.append(&mut self.region_thunks);
        self.insns = insns;
        self.spans = spans;
    }

    /// Emits the thunks of all calls of movable code so far, see [`abi::library`]. What they branch
    /// to is left in `out.branches`. Returns where they start.
    pub fn thunks(&mut self, out: &mut Fragment) -> Thunks {
        cold::thunks(&core::mem::take(&mut self.thunks), out)
    }

    fn plan(
        &mut self,
        blocks: &[Block],
        source: Source,
        spans: &[Span],
        insns: &[Instruction],
    ) -> Vec<UnitPlan> {
        let recording = self.options.recording;
        let is_outside =
            |block: &Block| recording.selective && !source.selected.contains(block.start.0);
        let inside = |address: OrigAddr, from: &Block| {
            let i = blocks.binary_search_by_key(&address, |b| b.start).ok()?;
            let to = &blocks[i];
            let id = if is_outside(from) { NOWHERE } else { from.id };
            (is_outside(to) || may_enter(recording, id, to.id, to.wide)).then_some(i)
        };
        let plan_blocks: Vec<PlanBlock> = blocks
            .iter()
            .zip(spans)
            .map(|(block, span)| {
                let list = span.first..span.first + span.count;
                let next = crate::liveness::successors(insns, span);
                let successors = next.map(|address| address.and_then(|a| inside(a, block)));
                let leaves = next == [None; 2]
                    || next.iter().zip(&successors).any(|(n, s)| n.is_some() && s.is_none());
                let (wide, open) = (block.wide, block.open || block.wide);
                let is_linked = block.is_linked;
                let outside = is_outside(block)
                    .then(|| outside(&insns[list.clone()], block.behind(), source.selected));
                PlanBlock { insns: list, wide, open, outside, successors, leaves, is_linked }
            })
            .collect();
        let silently = may_be_silent(self.options, self.placement);
        self.planner.plan(&plan_blocks, insns, recording, silently, &mut self.tools.factory)
    }

    /// The jumps of a region that take slots of tables, by the blocks that they end.
    fn dispatches(
        &mut self,
        blocks: &[Block],
        spans: &[Span],
        insns: &[Instruction],
    ) -> Vec<(usize, Dispatch)> {
        let ends = |span: &Span| insns[span.first..span.first + span.count].last();
        let jumps =
            |span: &Span| ends(span).is_some_and(|last| Flow::of(last) == Flow::IndirectJump);
        if self.tables.is_empty() || !spans.iter().any(jumps) {
            return Vec::new();
        }
        // Addresses are the process's where the window is known, and the code moves nowhere.
        let absolute = self.placement.window_high == Some(0) && !self.placement.movable;
        let mut search = Search::new(blocks, spans, insns, &mut self.tools.factory);
        let found = (0..blocks.len()).filter_map(|i| Some((i, search.dispatch(i, absolute)?)));
        let lies_in = |found: &Dispatch, range: &[u64; 2]| {
            let size = if found.is_relative { 4 } else { 8 };
            let end = found.table.checked_add(u64::from(found.entries) * size);
            range[0] <= found.table && end.is_some_and(|end| end <= range[1])
        };
        found.filter(|(_, found)| self.tables.iter().any(|range| lies_in(found, range))).collect()
    }

    /// Emits the region; its branches are left pending.
    fn weave(&mut self, region: &Region, out: &mut Fragment) {
        let manner = Manner::new(self.options, self.placement, self.far);
        self.ends.restart();
        self.region_thunks.clear();
        for (i, block) in region.blocks.iter().enumerate() {
            let (span, plan) = (&region.spans[i], &region.plans[i]);
            if manner.puts_back && block.wide {
                out.code.put_back();
            }
            // A call's return leads right behind it, where the address is put back; others go on
            // behind that.
            let insns = &region.insns[span.first..span.first + span.count];
            let is_call = insns.last().is_some_and(|last| Flow::of(last).is_call());
            let behind = region.blocks.get(i + 1).filter(|next| {
                let falls = is_call || !(manner.puts_back && next.wide);
                falls && region.plans[i + 1].control.may_be_entered(plan.from(block.id), next.id)
            });
            let draft = Draft {
                block,
                plan,
                live: self.liveness.of_block(i, span),
                insns,
                bytes: region.source.slice(block.start, block.len as usize),
                behind: behind.map(|next| next.start),
                dispatch: self.dispatch_of(region, i),
                marked: marked_in(&self.marked, block.start.0, block.len),
            };
            let (entry, recipe) = (out.code.here(), out.next_recipe());
            weave::unit(Weaver::new(draft, manner, &mut self.tools, out, &mut self.ends));
            out.units.push(Unit {
                start: block.start,
                id: block.id,
                version: block.version,
                wide: block.wide,
                closed: plan.closed,
                control: plan.control,
                entry,
                end: out.code.here(),
                recipe,
                recipe_end: out.next_recipe(),
                body: body(block, plan),
            });
        }
        cold::emit(&mut self.ends, &mut self.region_thunks, &manner, self.options, &mut out.code);
    }

    fn dispatch_of(&self, region: &Region, block: usize) -> Option<Dispatch> {
        let found = region.dispatches.binary_search_by_key(&block, |(of, _)| *of);
        found.ok().map(|found| region.dispatches[found].1)
    }

    /// Which branches of the region reach their targets with one byte, in the order in which they
    /// are emitted. True if there are any.
    fn find_short_branches(&mut self, units: &[Unit]) -> bool {
        const REACH: i64 = 124;
        let LooseEnds { pending, short, branches, .. } = &mut self.ends;
        short.resize(*branches, false);
        for p in pending {
            let Size::Numbered(number) = p.size else { continue };
            let distance = entry_inside(p, units).map(|e| i64::from(e.0) - i64::from(p.at.0));
            short[number] = distance.is_some_and(|d| d.abs() <= REACH);
        }
        short.contains(&true)
    }

    fn decode(&mut self, blocks: &[Block], source: Source) {
        self.insns.clear();
        self.spans.clear();
        for block in blocks {
            let bytes = source.slice(block.start, block.len as usize);
            let mut decoder = Decoder::with_ip(64, bytes, block.start.0, DecoderOptions::NONE);
            let first = self.insns.len();
            while decoder.can_decode() {
                let at = decoder.position();
                let mut insn = decoder.decode();
                if insn.is_invalid() {
                    // Its bytes are executed as they are: the processor raises what it raises.
                    insn.set_len(bytes.len() - at);
                    self.insns.push(insn);
                    break;
                }
                self.insns.push(insn);
            }
            self.spans.push(Span { start: block.start, first, count: self.insns.len() - first });
        }
    }

    /// Points branches at units of the region; the others are left to the caller.
    fn bind(&mut self, first_unit: usize, out: &mut Fragment) {
        for p in &self.ends.pending {
            match entry_inside(p, &out.units[first_unit..]) {
                Some(entry) if p.size == Size::Short => out.code.bind_byte(p.at, entry),
                Some(entry) => out.code.bind(p.at, entry),
                None => out.branches.push(Branch { at: p.at, target: p.target, from: p.from }),
            }
        }
    }
}

/// Those of `marked` that lie in a block of so many bytes.
fn marked_in(marked: &[u64], start: u64, len: u32) -> &[u64] {
    let place = |address: u64| marked.partition_point(|&at| at < address);
    &marked[place(start)..place(start + u64::from(len))]
}

/// Where a pending branch goes inside the region, whose units are these.
fn entry_inside(p: &Pending, units: &[Unit]) -> Option<CodeOff> {
    let unit = &units[units.binary_search_by_key(&p.target, |u| u.start).ok()?];
    unit.control.may_be_entered(p.from, unit.id).then_some(unit.entry)
}

/// What the reader is told about the unit.
#[allow(clippy::cast_possible_truncation, reason = "blocks are smaller than 64 KiB")]
fn body(block: &Block, plan: &UnitPlan) -> UnitBody {
    let flag = |flag, is_set| if is_set { flag } else { 0 };
    UnitBody {
        code_len: block.len as u16,
        flags: flag(flags::OUTSIDE, plan.outside)
            | flag(flags::WIDE, block.wide)
            | flag(flags::SILENT, plan.control.entry == AtEntry::Silent),
        records: plan.records.clone(),
    }
}

/// What [`Translator::inspect`] says about a block.
pub struct Inspected {
    /// Its instructions.
    pub insns: Vec<Instruction>,
    /// Live registers before each of them.
    pub live: Vec<GprSet>,
    /// What it records.
    pub plan: UnitPlan,
}

/// A region between its analysis and its code.
struct Region<'a> {
    blocks: &'a [Block],
    spans: &'a [Span],
    insns: &'a [Instruction],
    plans: &'a [UnitPlan],
    source: Source<'a>,
    /// See [`Translator::dispatches`].
    dispatches: &'a [(usize, Dispatch)],
}
