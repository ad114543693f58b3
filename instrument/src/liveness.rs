//! Which general-purpose registers are live where, over one region.
//!
//! Lattice: sets of registers ordered by inclusion. Meet: union. Transfer of an instruction:
//! `live_before = (live_after - defined) + used`. Where control leaves the region (calls, returns,
//! indirect jumps, system calls) every register is live: conventions are not trusted. Where it
//! leaves by a direct branch, [`crate::explore`] looks further. A write of 8 or 16 bits and a
//! conditional write define nothing.

use crate::block::Source;
use crate::explore::LiveMap;
use crate::flags::Flags;
use abi::ids::OrigAddr;
use alloc::vec::Vec;
use iced_x86::{Instruction, InstructionInfoFactory};
use lifter::flow::Flow;
use lifter::regs::GprSet;
use lifter::use_def::{use_def, UseDef};

/// Code outside the region.
pub struct Beyond<'a> {
    pub map: &'a mut LiveMap,
    pub source: Source<'a>,
}

/// A block as liveness sees it.
pub struct Span {
    /// Where its original code starts.
    pub start: OrigAddr,
    /// Its instructions, as a range of the region's list.
    pub first: usize,
    pub count: usize,
}

/// Liveness of one block.
#[derive(Clone, Copy)]
pub struct Live<'a> {
    region: &'a Liveness,
    block: usize,
    first: usize,
    count: usize,
}

impl Live<'_> {
    /// Live registers before the block's `i`-th instruction.
    pub fn before(&self, i: usize) -> GprSet {
        self.region.before[self.first + i]
    }

    /// Live registers behind the `i`-th instruction.
    pub fn after(&self, i: usize) -> GprSet {
        if i + 1 < self.count {
            self.before(i + 1)
        } else {
            self.at_end()
        }
    }

    /// Live registers where the block is entered; in front of none all are.
    pub fn at_entry(&self) -> GprSet {
        match self.count {
            0 => GprSet::ALL,
            _ => self.before(0),
        }
    }

    /// Live registers behind the last instruction.
    pub fn at_end(&self) -> GprSet {
        self.region.block_out[self.block]
    }

    /// Whether an arithmetic flag may be live before the `i`-th instruction.
    pub fn flags_before(&self, i: usize) -> bool {
        self.region.flags.live_before(self.first + i)
    }

    /// What the `i`-th instruction does to registers, if the region was solved.
    pub fn effect(&self, i: usize) -> Option<UseDef> {
        self.region.effects.get(self.first + i).copied()
    }
}

/// Live registers before each instruction of a region.
#[derive(Default)]
pub struct Liveness {
    before: Vec<GprSet>,
    /// Behind the last instruction of each block.
    block_out: Vec<GprSet>,
    effects: Vec<UseDef>,
    /// The blocks of the region that follow each block.
    inside: Vec<[Option<usize>; 2]>,
    /// Live behind each block where control leaves the region.
    leaving: Vec<GprSet>,
    flags: Flags,
}

impl Liveness {
    /// Which flags are live, too; `known`: else all of them everywhere.
    pub fn solve_flags(&mut self, spans: &[Span], insns: &[Instruction], known: bool) {
        match known {
            true => self.flags.solve(spans, insns),
            false => self.flags.unknown(),
        }
    }

    /// What is known about one block, whose instructions are `span` of the region's list.
    pub fn of_block(&self, block: usize, span: &Span) -> Live<'_> {
        Live { region: self, block, first: span.first, count: span.count }
    }

    /// Solves the region. `spans` are ascending by address; `everything` makes all registers live
    /// everywhere (torture, and code whose faults must be exact).
    pub fn solve(
        &mut self,
        spans: &[Span],
        insns: &[Instruction],
        factory: &mut InstructionInfoFactory,
        beyond: &mut Beyond,
        everything: bool,
    ) {
        self.effects.clear();
        self.before.clear();
        self.before.resize(insns.len(), if everything { GprSet::ALL } else { GprSet::EMPTY });
        self.block_out.clear();
        self.block_out.resize(spans.len(), GprSet::ALL);
        if everything {
            return;
        }
        self.effects.extend(insns.iter().map(|insn| use_def(insn, factory)));
        self.inside.clear();
        self.leaving.clear();
        for span in spans {
            let next = successors(insns, span);
            self.inside.push(next.map(|next| next.and_then(|next| inside(spans, next))));
            self.leaving.push(leaving(spans, next, factory, beyond));
        }
        loop {
            let mut changed = false;
            for block in (0..spans.len()).rev() {
                let span = &spans[block];
                let mut live = self.leaving[block];
                for next in self.inside[block].into_iter().flatten() {
                    live = live.union(self.before[spans[next].first]);
                }
                self.block_out[block] = live;
                for index in (span.first..span.first + span.count).rev() {
                    let effect = self.effects[index];
                    live = live.minus(effect.defined).union(effect.used);
                    changed |= self.before[index] != live;
                    self.before[index] = live;
                }
            }
            if !changed {
                return;
            }
        }
    }
}

/// Where control goes behind `span`, as far as that is known.
pub fn successors(insns: &[Instruction], span: &Span) -> [Option<OrigAddr>; 2] {
    let Some(last) = insns[span.first..span.first + span.count].last() else { return [None; 2] };
    Flow::of(last).successors(OrigAddr(last.next_ip()))
}

/// The block of the region that starts at `address`.
pub fn inside(spans: &[Span], address: OrigAddr) -> Option<usize> {
    spans.binary_search_by_key(&address, |s| s.start).ok().filter(|&i| spans[i].count > 0)
}

/// What is live where control leaves the region, of a block that goes on at `next`.
fn leaving(
    spans: &[Span],
    next: [Option<OrigAddr>; 2],
    factory: &mut InstructionInfoFactory,
    beyond: &mut Beyond,
) -> GprSet {
    if next == [None; 2] {
        return GprSet::ALL;
    }
    next.into_iter()
        .flatten()
        .filter(|&address| inside(spans, address).is_none())
        .fold(GprSet::EMPTY, |live, address| {
            live.union(beyond.map.at(address, beyond.source, factory))
        })
}
