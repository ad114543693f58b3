//! One region of original blocks in, one fragment of translated code out.
//!
//! The ahead-of-time path hands in whole functions, the run-time path chains of blocks; both call
//! [`Translator::translate`], and only the source of the bytes and the [`Placement`] differ.

use crate::emit::Code;
use crate::explore::LiveMap;
use crate::liveness::{Beyond, Liveness, Span};
use crate::plan::{PlanBlock, Planner, UnitPlan};
use crate::recipe;
use crate::weave::Weaver;
use abi::options::{ControlFlow, DeadRegisters, Options};
use abi::unit::{flags, UnitBody};
use alloc::vec::Vec;
use iced_x86::{Decoder, DecoderOptions, Encoder, Instruction, InstructionInfoFactory};
use lifter::flow::Flow;
use lifter::regs::GprSet;
use lifter::stores::at_run_time;

/// What is known about addresses when code is emitted.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    /// High half of the window, if known: 0 for a program at fixed addresses, any value at run
    /// time. `None`: position-independent code translated ahead of time, all of whose addresses
    /// are relative to the window.
    pub window_high: Option<u32>,
    /// Threads may run the code while it is changed: the distance of a direct branch never crosses
    /// a cache line, and each unit starts with [`GATE`], inside of 8 aligned bytes, which a jump can
    /// replace in one store (see [`gate_of`]).
    pub patchable: bool,
    /// The code belongs to a library, whose place in the window is not known: what depends on it is
    /// gathered in thunks of one size (see [`Translator::thunks`]).
    pub movable: bool,
    /// Faults of this code must show every register (it does not belong to an ELF module).
    pub exact_registers: bool,
}

/// `nop dword [rax + rax]`: nobody is ever in the midst of it.
pub const GATE: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

/// Where the gate of the unit with this entry (an address, or an offset from an aligned one) is. What
/// fills the room in front of it belongs to the unit: a call's return must lead right behind the call,
/// where the processor expects it.
pub fn gate_of(entry: u64) -> u64 {
    if entry % 8 + GATE.len() as u64 > 8 {
        entry.next_multiple_of(8)
    } else {
        entry
    }
}

/// A block to translate; it becomes one unit.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Original address.
    pub start: u64,
    /// Bytes of original code, whole instructions.
    pub len: u32,
    pub id: u32,
    /// Version of this address, for `full-pc` records (0: ahead of time).
    pub version: u16,
    /// It can be reached indirectly.
    pub wide: bool,
    /// It can be branched to from outside the region.
    pub open: bool,
}

/// Original code: `bytes[0]` is at `start`.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    pub start: u64,
    pub bytes: &'a [u8],
}

impl<'a> Source<'a> {
    pub fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.start) < self.bytes.len() as u64
    }

    /// The `len` bytes at `address`, as far as there are so many.
    pub fn slice(&self, address: u64, len: usize) -> &'a [u8] {
        let from = address.wrapping_sub(self.start).min(self.bytes.len() as u64) as usize;
        let end = from.saturating_add(len).min(self.bytes.len());
        &self.bytes[from..end]
    }
}

/// A translated unit.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Original address.
    pub start: u64,
    pub id: u32,
    pub version: u16,
    pub wide: bool,
    /// It relies on the units before it in its region: not to be entered from elsewhere.
    pub closed: bool,
    /// Its code in [`Fragment::code`], cold parts excluded.
    pub entry: u32,
    pub end: u32,
    /// Its recipe in [`Fragment::recipes`].
    pub recipe: u32,
    pub recipe_end: u32,
    pub body: UnitBody,
}

/// A direct branch out of the region: a rel32 that still has to be pointed somewhere.
#[derive(Clone, Copy, Debug)]
pub struct Branch {
    /// Offset of the rel32 in [`Fragment::code`].
    pub at: u32,
    /// Original address it goes to.
    pub target: u64,
    /// Unit that it leaves.
    pub from: u32,
}

/// Code and facts that [`Translator::translate`] appends to.
pub struct Fragment {
    pub code: Code,
    pub units: Vec<Unit>,
    pub branches: Vec<Branch>,
    pub recipes: Vec<u8>,
}

impl Fragment {
    /// An empty fragment whose first byte will be at `base`.
    pub fn new(base: u64) -> Fragment {
        Fragment {
            code: Code { bytes: Vec::new(), base },
            units: Vec::new(),
            branches: Vec::new(),
            recipes: Vec::new(),
        }
    }
}

/// A rel32 of the region that goes to an original address, decided when all blocks are placed.
#[derive(Clone, Copy)]
pub(crate) struct Pending {
    pub at: u32,
    pub target: u64,
    pub from: u32,
    /// Counts the branches of the region; `usize::MAX`: always long.
    pub number: usize,
    /// It is a rel8.
    pub short: bool,
}

/// Work that is emitted behind the region's hot code.
#[derive(Clone, Copy)]
pub(crate) enum Cold {
    /// Thunk of a direct call: `call` at `at` goes here.
    Call { at: u32, return_address: u64, target: u64, from: u32 },
    /// Thunk of an indirect call, whose translated target is in the thread block.
    IndirectCall { at: u32, return_address: u64 },
    /// An indirect call or jump out of the window: jump at `at` goes here, back to `back`.
    /// `pc`: the instruction's original address.
    ForeignTarget { at: u32, back: u32, pc: u64 },
    /// A return whose address is not in the window: jump at `at` goes here, back to `back`.
    ForeignReturn { at: u32, back: u32, pc: u64 },
}

/// Where the thunks of movable code are, see [`abi::library`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Thunks {
    /// Offset in the code.
    pub start: u32,
    pub direct: u32,
    pub indirect: u32,
}

/// Everything that a translation needs and that is worth keeping between translations.
pub struct Translator {
    pub options: Options,
    pub placement: Placement,
    pub(crate) factory: InstructionInfoFactory,
    pub(crate) encoder: Encoder,
    planner: Planner,
    pub(crate) liveness: Liveness,
    /// Live registers where control leaves a region.
    pub live_map: LiveMap,
    pub(crate) insns: Vec<Instruction>,
    spans: Vec<Span>,
    pub(crate) pending: Vec<Pending>,
    pub(crate) cold: Vec<Cold>,
    /// Thunks of movable code: of the region, and of all regions before.
    pub(crate) region_thunks: Vec<Cold>,
    pub(crate) thunks: Vec<Cold>,
    /// Branches that are known to be short, by number.
    pub(crate) short: Vec<bool>,
    /// Branches emitted so far.
    pub(crate) branches: usize,
}

impl Translator {
    pub fn new(options: Options, placement: Placement) -> Translator {
        Translator {
            options,
            placement,
            factory: InstructionInfoFactory::new(),
            encoder: Encoder::new(64),
            planner: Planner::default(),
            liveness: Liveness::default(),
            live_map: LiveMap::default(),
            insns: Vec::new(),
            spans: Vec::new(),
            pending: Vec::new(),
            cold: Vec::new(),
            region_thunks: Vec::new(),
            thunks: Vec::new(),
            short: Vec::new(),
            branches: 0,
        }
    }

    /// Decodes `blocks`, solves liveness and plans what is recorded.
    fn analyse(
        &mut self,
        blocks: &[Block],
        source: Source,
    ) -> (Vec<Instruction>, Vec<Span>, Vec<UnitPlan>) {
        self.decode(blocks, source);
        // Without records no scratch register is asked for.
        let everything = !self.options.recording.records()
            || self.placement.exact_registers
            || self.options.process.dead_registers == DeadRegisters::Preserve
            || self.options.process.torture & abi::options::torture::SPILL != 0;
        let insns = core::mem::take(&mut self.insns);
        let spans = core::mem::take(&mut self.spans);
        let mut beyond = Beyond { map: &mut self.live_map, source };
        self.liveness.solve(&spans, &insns, &mut self.factory, &mut beyond, everything);
        let plans = self.plan(blocks, &spans, &insns);
        (insns, spans, plans)
    }

    /// The analysis of a region without its code: for each block its instructions, the registers
    /// that are live before each of them, and the plan.
    pub fn inspect(&mut self, blocks: &[Block], source: Source) -> Vec<Inspected> {
        let (insns, spans, plans) = self.analyse(blocks, source);
        let inspected = spans.iter().zip(plans).map(|(span, plan)| {
            let list = span.first..span.first + span.count;
            Inspected {
                live: list.clone().map(|i| self.liveness.before(i)).collect(),
                insns: insns[list].to_vec(),
                plan,
            }
        });
        inspected.collect()
    }

    /// Whether the instruction must be the first one of its unit.
    pub fn starts_unit(&mut self, insn: &Instruction) -> bool {
        starts_unit(self.options, insn, &mut self.factory)
    }

    /// Translates `blocks` (ascending by address), which lie in `source`, and appends the result.
    pub fn translate(&mut self, blocks: &[Block], source: Source, out: &mut Fragment) {
        let (insns, spans, plans) = self.analyse(blocks, source);
        let region = Region { blocks, spans: &spans, insns: &insns, plans: &plans, source };
        let (code, recipes, units) = (out.code.bytes.len(), out.recipes.len(), out.units.len());
        self.short.clear();
        self.weave(&region, out);
        if !self.placement.patchable && self.find_short_branches(units, out) {
            // Once more: distances only shrink, so what was in reach of a byte still is.
            out.code.bytes.truncate(code);
            out.recipes.truncate(recipes);
            out.units.truncate(units);
            self.weave(&region, out);
        }
        self.bind(units, out);
        self.thunks.append(&mut self.region_thunks);
        self.insns = insns;
        self.spans = spans;
    }

    fn plan(&mut self, blocks: &[Block], spans: &[Span], insns: &[Instruction]) -> Vec<UnitPlan> {
        let options = self.options;
        let inside = |address: u64, from: &Block| {
            let i = blocks.binary_search_by_key(&address, |b| b.start).ok()?;
            may_enter(options, from.id, blocks[i].id, blocks[i].wide).then_some(i)
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
                PlanBlock { insns: list, open: block.open || block.wide, successors, leaves }
            })
            .collect();
        self.planner.plan(&plan_blocks, insns, options, &mut self.factory)
    }

    /// Emits the region; branches are left in `pending`.
    fn weave(&mut self, region: &Region, out: &mut Fragment) {
        self.pending.clear();
        self.cold.clear();
        self.region_thunks.clear();
        self.branches = 0;
        for (i, block) in region.blocks.iter().enumerate() {
            let span = &region.spans[i];
            let list = &region.insns[span.first..span.first + span.count];
            let body = UnitBody {
                code_len: block.len as u16,
                flags: if block.wide { flags::WIDE } else { 0 },
                records: region.plans[i].records.clone(),
            };
            let entry = out.code.here();
            let recipe = out.recipes.len() as u32;
            let bytes = region.source.slice(block.start, block.len as usize);
            Weaver::new(self, out, block, &body, list, bytes, span.first, i)
                .unit(region.blocks.get(i + 1));
            out.units.push(Unit {
                start: block.start,
                id: block.id,
                version: block.version,
                wide: block.wide,
                closed: region.plans[i].closed,
                entry,
                end: out.code.here(),
                recipe,
                recipe_end: out.recipes.len() as u32,
                body,
            });
        }
        self.cold_code(out);
    }

    /// Which branches of the region reach their targets with one byte, in the order in which they
    /// are emitted. True if there are any.
    fn find_short_branches(&mut self, first_unit: usize, out: &Fragment) -> bool {
        const REACH: i64 = 124;
        self.short.resize(self.branches, false);
        for p in self.pending.iter().filter(|p| p.number != usize::MAX) {
            let entry = self.entry_inside(p, &out.units[first_unit..]);
            let distance = entry.map(|entry| i64::from(entry) - i64::from(p.at));
            self.short[p.number] = distance.is_some_and(|d| d.abs() <= REACH);
        }
        self.short.contains(&true)
    }

    /// Where a pending branch goes inside the region.
    fn entry_inside(&self, p: &Pending, units: &[Unit]) -> Option<u32> {
        let unit = &units[units.binary_search_by_key(&p.target, |u| u.start).ok()?];
        may_enter(self.options, p.from, unit.id, unit.wide).then_some(unit.entry)
    }

    fn decode(&mut self, blocks: &[Block], source: Source) {
        self.insns.clear();
        self.spans.clear();
        for block in blocks {
            let bytes = source.slice(block.start, block.len as usize);
            let mut decoder = Decoder::with_ip(64, bytes, block.start, DecoderOptions::NONE);
            let first = self.insns.len();
            while decoder.can_decode() {
                let mut insn = decoder.decode();
                if insn.is_invalid() {
                    // Its bytes are executed as they are: the processor raises what it raises.
                    insn.set_len(bytes.len() - (insn.ip() - block.start) as usize);
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
        for p in &self.pending {
            match self.entry_inside(p, &out.units[first_unit..]) {
                Some(entry) if p.short => {
                    let distance = entry as i32 - (p.at as i32 + 1);
                    debug_assert!(i8::try_from(distance).is_ok());
                    out.code.bytes[p.at as usize] = distance as u8;
                }
                Some(entry) => out.code.bind(p.at, entry),
                None => out.branches.push(Branch { at: p.at, target: p.target, from: p.from }),
            }
        }
    }
}

/// What [`Translator::inspect`] says about a block.
pub struct Inspected {
    pub insns: Vec<Instruction>,
    pub live: Vec<GprSet>,
    pub plan: UnitPlan,
}

/// A region between its analysis and its code.
struct Region<'a> {
    blocks: &'a [Block],
    spans: &'a [Span],
    insns: &'a [Instruction],
    plans: &'a [UnitPlan],
    source: Source<'a>,
}

/// Whether an instruction must be the first one of its unit: in the undo log a store that the
/// runtime logs, whose position then is a boundary between units.
pub fn starts_unit(
    options: Options,
    insn: &Instruction,
    factory: &mut InstructionInfoFactory,
) -> bool {
    options.recording.undo() && at_run_time(insn, factory, &mut Vec::new())
}

/// Whether a unit may be entered by a direct branch from unit `from`: a narrow tag is only right
/// where the current window is the unit's own.
pub fn may_enter(options: Options, from: u32, id: u32, wide: bool) -> bool {
    wide || !options.recording.records()
        || options.recording.control_flow != ControlFlow::Tags
        || from >> 16 == id >> 16
}

/// Bytes that the unit adds to the control-flow stream.
pub fn control_flow_bytes(options: Options, wide: bool, last: Option<&Instruction>) -> u32 {
    if !options.recording.records() {
        return 0;
    }
    match options.recording.control_flow {
        ControlFlow::Tags if wide => 6,
        ControlFlow::Tags => 2,
        ControlFlow::FullPc => 8,
        ControlFlow::Bits => {
            let outcome = last.is_some_and(|last| Flow::of(last).is_conditional());
            u32::from(outcome) + if wide { 9 } else { 0 }
        }
    }
}

/// The recipe of `unit`, out of its fragment's bytes.
pub fn recipe_of<'a>(unit: &Unit, recipes: &'a [u8]) -> Option<recipe::Recipe<'a>> {
    recipe::Recipe::new(recipes.get(unit.recipe as usize..unit.recipe_end as usize)?)
}
