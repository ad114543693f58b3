//! Which blocks are translated together, and what becomes of their code.

use crate::base::facts::facts;
use crate::code::jit::{ExecRange, Exit, Jit, Life, Site, Unit, LONGEST_INSN};
use crate::code::statics;
use crate::code::table::For;
use crate::recording::trace_file::trace;
use abi::layout::{page_down, PAGE};
use abi::options::ControlFlow;
use abi::unit::{unit_id, JitReason, JitUnit, TAGS_PER_WINDOW};
use alloc::vec::Vec;
use iced_x86::{Decoder, DecoderOptions, FlowControl};
use instrument::translate::{Block, Fragment, Source, Translator};

const MAX_BLOCKS: usize = 8;
pub(super) const MAX_INSNS: usize = 64;
const MAX_BLOCK_INSNS: usize = 60;

impl Jit {
    pub(super) fn translate(&mut self, target: u64, wide: bool, range: ExecRange) -> u64 {
        self.make_room();
        // Of what is protected, the page with the first instruction and what it may reach into.
        let end = match range.writable && !range.shared {
            true => (page_down(target + LONGEST_INSN - 1) + PAGE).min(range.end),
            false => range.end,
        };
        self.protect(target, end, range);
        // SAFETY: the program has this memory mapped, executable and so readable; its bytes stay
        // as they are (it is not writable, or write-protected by `protect`).
        let bytes = unsafe {
            let len = (end - range.start) as usize;
            core::slice::from_raw_parts(range.start as *const u8, len)
        };
        let source = Source { start: range.start, bytes };
        let mut blocks = self.chain(target, source, wide);
        if range.shared {
            blocks.truncate(1);
        }
        let base = self.arena.live(self.arena.used());
        let mut out = Fragment::new(base);
        let translator = self.translator();
        // Code that is generated or written may be closed or dropped at any instruction.
        translator.placement.exact_registers = !range.file || range.writable || range.shared;
        translator.translate(&blocks, source, &mut out);
        self.describe(&out, source, range);
        let first = self.units.len();
        let offset = self.arena.used();
        self.units.reserve(out.units.len());
        for unit in &out.units {
            let number = self.units.len() as u32;
            if !unit.closed {
                self.map.set(unit.start, number);
            }
            let len = u32::from(unit.body.code_len);
            for page in unit.start / PAGE..=(unit.start + u64::from(len.max(1)) - 1) / PAGE {
                self.by_page.entry(page).or_default().push(number);
            }
            let original = self.originals.len() as u32;
            self.originals.extend_from_slice(source.slice(unit.start, len as usize));
            self.units.push(Unit {
                start: unit.start,
                len,
                id: unit.id,
                wide: unit.wide,
                state: Life::Open,
                stub: 0,
                original,
                entry: offset + unit.entry,
                end: offset + unit.end,
                recipe: self.recipes.len() as u32 + unit.recipe,
                recipe_end: self.recipes.len() as u32 + unit.recipe_end,
            });
        }
        self.recipes.extend_from_slice(&out.recipes);
        self.link_new(&mut out);
        self.arena.append(&out.code.bytes);
        if !range.file {
            // Where there may be no room for them any more, units must still close.
            (first..self.units.len()).for_each(|i| self.make_stub(i));
        }
        // What is entered indirectly behind the first unit is where calls return to.
        for i in first + 1..self.units.len() {
            let unit = self.units[i];
            if unit.wide && !range.shared {
                self.tables.set(For::Return, unit.start, self.arena.live(unit.entry));
            }
        }
        self.arena.live(self.units[first].entry)
    }

    fn translator(&mut self) -> &mut Translator {
        let (options, placement) = (self.options, self.placement);
        self.translator.get_or_insert_with(|| Translator::new(options, placement))
    }

    /// Points the branches of a new fragment at what exists, or at exits behind it.
    fn link_new(&mut self, out: &mut Fragment) {
        use abi::thread::{EXIT_ID, STUB_EXIT};
        let offset = self.arena.used();
        for branch in core::mem::take(&mut out.branches) {
            let known = self.enterable(branch.target, branch.from);
            if known.is_some_and(|code| out.code.patch_rel32(branch.at, code)) {
                continue;
            }
            let id = self.exits.len() as u32;
            self.exits.push(Exit {
                at: Site::Branch(offset + branch.at),
                target: branch.target,
                from: branch.from,
            });
            let stub = out.code.here();
            out.code.bind(branch.at, stub);
            out.code.store_imm(EXIT_ID, id);
            out.code.jump_gs(STUB_EXIT);
        }
    }

    /// Publishes the units in the trace, before they run.
    fn describe(&mut self, out: &Fragment, source: Source, range: ExecRange) {
        if !self.options.records() {
            return;
        }
        let Some(first) = out.units.first() else { return };
        let reason = self.reason(first.start, range);
        self.encoded.clear();
        for unit in &out.units {
            let code = source.slice(unit.start, usize::from(unit.body.code_len)).to_vec();
            JitUnit {
                id: unit.id,
                address: unit.start,
                version: unit.version,
                reason,
                body: unit.body.clone(),
                code,
            }
            .encode(&mut self.encoded);
        }
        trace().add_units(&self.encoded);
    }

    fn reason(&self, target: u64, range: ExecRange) -> JitReason {
        let (header, window) = (&facts().header, facts().window);
        let image = window + header.image_start..window + header.image_end;
        if !range.file {
            JitReason::Anonymous
        } else if statics::module_of(target).is_some() {
            JitReason::Missed
        } else if !image.contains(&target) {
            JitReason::Library
        } else if header.flags & abi::image::flags::DYNAMIC != 0 {
            JitReason::Dynamic
        } else if statics::has_program() {
            JitReason::Modified
        } else {
            JitReason::Processor
        }
    }

    /// The blocks that are translated together with the one at `start`: what lies behind it,
    /// as long as control can get there without leaving.
    fn chain(&mut self, start: u64, source: Source, wide: bool) -> Vec<Block> {
        let mut ends: Vec<(u64, bool)> = Vec::new(); // (end of instruction, ends a block)
        let mut leaders: Vec<u64> = Vec::new();
        let mut indirect: Vec<u64> = Vec::new();
        let bytes = source.slice(start, usize::MAX);
        let mut decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
        let mut reachable = true;
        while ends.len() < MAX_INSNS && leaders.len() < MAX_BLOCKS && decoder.can_decode() {
            let at = decoder.ip();
            if !reachable && !leaders.contains(&at) {
                break;
            }
            if at != start && self.map.get(at).is_some() {
                break;
            }
            reachable = true;
            let insn = decoder.decode();
            if self.translator().starts_unit(&insn) && at != start {
                leaders.push(at);
            }
            if insn.is_invalid() {
                if ends.is_empty() {
                    ends.push((at + insn.len().max(1) as u64, true));
                }
                break;
            }
            let next = insn.next_ip();
            let transfer = instrument::transfer::is_transfer(&insn);
            ends.push((next, transfer));
            match insn.flow_control() {
                FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                    leaders.push(insn.near_branch_target());
                    reachable = insn.flow_control() == FlowControl::ConditionalBranch;
                }
                FlowControl::Call | FlowControl::IndirectCall if transfer => {
                    leaders.push(next);
                    indirect.push(next);
                }
                FlowControl::Next => {}
                FlowControl::Interrupt => {}
                _ => reachable = false,
            }
        }
        self.cut(start, wide, &ends, &leaders, &indirect)
    }

    fn cut(
        &mut self,
        start: u64,
        wide: bool,
        ends: &[(u64, bool)],
        leaders: &[u64],
        indirect: &[u64],
    ) -> Vec<Block> {
        let mut blocks = Vec::new();
        let (mut from, mut insns) = (start, 0);
        for (i, &(end, transfer)) in ends.iter().enumerate() {
            insns += 1;
            let last = i + 1 == ends.len();
            if transfer || last || insns == MAX_BLOCK_INSNS || leaders.contains(&end) {
                let n = self.count;
                self.count += 1;
                let all_wide = n >= TAGS_PER_WINDOW - 256;
                blocks.push(Block {
                    start: from,
                    len: (end - from) as u32,
                    id: unit_id(facts().header.jit_window as u32, n),
                    version: self.next_version(from),
                    wide: all_wide || (from == start && wide) || indirect.contains(&from),
                    // What `bits` does not announce must be the only one at its address: it may
                    // be entered from everywhere, so that nobody translates it again.
                    open: from == start || self.options.control_flow == ControlFlow::Bits,
                });
                (from, insns) = (end, 0);
            }
        }
        blocks
    }

    /// Each translation of an address has a version of its own, from 1.
    fn next_version(&mut self, address: u64) -> u16 {
        let version = self.versions.get(address).map_or(1, |v| v as u16 + 1).max(1);
        self.versions.set(address, u32::from(version));
        version
    }
}
