//! Which units of a region write nothing to the control-flow stream of `tags`: the reader knows all the
//! same that they are executed.
//!
//! A unit is *silent* if every way into it is a direct one out of its own region, and each of these either
//! leads nowhere else, or its other way leads to a unit that is not silent. So behind a unit the reader has
//! one silent unit to choose at most, and it chooses that unless the next tag in the stream is a unit at the
//! address of the other way. That is right if no tag that can come first behind the silent unit is of a unit
//! at that address, which is what [`choose`] sees to: all ways out of a silent unit, calls too, lead to places that
//! the code names, and there is a unit at each of them, which is entered without the runtime: one of the region, or one
//! beyond it that writes a tag. So these tags are known.
//!
//! Silent units in a row do not come back to the first one, and what they add to the memory stream is
//! limited: only a tag can meet a full buffer.

use crate::plan::{AtEntry, PlanBlock, UnitPlan};
use crate::refusal::refusal;
use abi::ids::OrigAddr;
use abi::unit::MAX_SILENT_BYTES;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;
use iced_x86::Instruction;
use lifter::flow::Flow;

/// Silent units that can be reached from one without a tag; a limit of the search.
const MOST: usize = 24;

/// Makes units of a region silent, as many as it finds. Those that record nothing come first: of these
/// nothing is left but the program's own instructions. Then come those of the fewest branches, as each branch
/// has one silent way at most, and of these the ones where most ways meet: behind `if (a) b;` is executed more often than
/// `b`. Those that leave the region come last: of two ways the one that calls is rarely taken.
pub fn choose(blocks: &[PlanBlock], insns: &[Instruction], plans: &mut [UnitPlan]) {
    let mut region = Region::new(blocks, insns, plans);
    let mut candidates: Vec<usize> =
        (0..blocks.len()).filter(|&i| region.may_be_silent(i)).collect();
    candidates.sort_by_key(|&i| {
        let ways = region.into[i].as_ref().map_or(0, Vec::len);
        (region.blocks[i].leaves, region.memory[i] != 0, region.choices(i), Reverse(ways))
    });
    for i in candidates {
        region.try_silent(i);
    }
    for (plan, silent) in plans.iter_mut().zip(region.silent) {
        if silent {
            plan.control.entry = AtEntry::Silent;
            // Whoever comes from elsewhere writes a tag.
            plan.closed = true;
        }
    }
}

/// A way from one unit to another.
#[derive(Clone, Copy)]
struct Way {
    from: usize,
    /// Where else the unit may lead to.
    other: Option<OrigAddr>,
}

struct Region<'a> {
    blocks: &'a [PlanBlock],
    starts: Vec<OrigAddr>,
    /// Places beyond the region to which each unit leads, calls included.
    beyond: Vec<[Option<OrigAddr>; 2]>,
    /// The ways into each unit; `None` if one of them is not of the kind that a reader can follow.
    into: Vec<Option<Vec<Way>>>,
    /// Whether a unit by itself could be silent.
    fit: Vec<bool>,
    memory: Vec<u32>,
    silent: Vec<bool>,
}

impl<'a> Region<'a> {
    fn new(blocks: &'a [PlanBlock], insns: &[Instruction], plans: &[UnitPlan]) -> Region<'a> {
        let count = blocks.len();
        let mut region = Region {
            blocks,
            starts: Vec::with_capacity(count),
            beyond: Vec::with_capacity(count),
            into: vec![Some(Vec::new()); count],
            fit: Vec::with_capacity(count),
            memory: plans.iter().map(UnitPlan::memory_bytes).collect(),
            silent: vec![false; count],
        };
        for block in blocks {
            let start = insns[block.insns.clone()].first().map_or(0, Instruction::ip);
            region.starts.push(OrigAddr(start));
        }
        for (i, (block, plan)) in blocks.iter().zip(plans).enumerate() {
            let code = &insns[block.insns.clone()];
            let followed = code.last().is_some_and(leads_where_it_says);
            let known = !block.leaves || block.is_linked;
            let inside = !block.wide && !block.open && known && block.outside.is_none();
            // What is refused, or logged in front of the unit, has a position of its own.
            let plain = !plan.announces_store && code.iter().all(|insn| refusal(insn).is_none());
            region.fit.push(followed && inside && plain && plan.control.entry == AtEntry::Narrow);
            let next = code
                .last()
                .map_or([None; 2], |last| Flow::of(last).successors(OrigAddr(last.next_ip())));
            let mut beyond = match code.last().map(Flow::of) {
                Some(Flow::Call(target)) => [Some(target), None],
                _ => next,
            };
            for (n, to) in block.successors.into_iter().enumerate() {
                let Some(to) = to else { continue };
                beyond[n] = None;
                let other = next[1 - n];
                let ways = &mut region.into[to];
                match (followed, ways.as_mut()) {
                    (true, Some(list)) if block.outside.is_none() => {
                        list.push(Way { from: i, other });
                    }
                    _ => *ways = None,
                }
            }
            region.beyond.push(beyond);
        }
        region
    }

    fn may_be_silent(&self, i: usize) -> bool {
        self.fit[i] && self.into[i].as_ref().is_some_and(|ways| !ways.is_empty())
    }

    /// How many branches may lead elsewhere instead.
    fn choices(&self, i: usize) -> usize {
        self.into[i].iter().flatten().filter(|way| way.other.is_some()).count()
    }

    fn try_silent(&mut self, i: usize) {
        self.silent[i] = true;
        if !self.is_sound(i) {
            self.silent[i] = false;
        }
    }

    /// Whether what holds of all silent units still holds, now that `i` is one.
    fn is_sound(&self, i: usize) -> bool {
        let Some(affected) = self.silent_before(i) else { return false };
        affected.into_iter().all(|unit| {
            let Some(first) = self.first_tags(unit) else { return false };
            let ways = self.into[unit].iter().flatten();
            ways.clone().all(|way| self.can_tell(unit, *way, &first))
        })
    }

    /// Whether the reader can tell the way into silent `unit` from the other one.
    fn can_tell(&self, unit: usize, way: Way, first: &[OrigAddr]) -> bool {
        let Some(other) = way.other else { return true };
        let also_silent = self.blocks[way.from]
            .successors
            .into_iter()
            .flatten()
            .any(|next| next != unit && self.silent[next]);
        !also_silent && self.starts[unit] != other && !first.contains(&other)
    }

    /// `i` and the silent units from which it is reached without a tag.
    fn silent_before(&self, i: usize) -> Option<Vec<usize>> {
        let mut found = vec![i];
        let mut at = 0;
        while let Some(&unit) = found.get(at) {
            at += 1;
            for way in self.into[unit].iter().flatten() {
                if self.silent[way.from] && !found.contains(&way.from) {
                    found.push(way.from);
                }
            }
            if found.len() > MOST {
                return None;
            }
        }
        Some(found)
    }

    /// Where the units are whose tags may come first behind silent `unit`. `None` if there are silent units in a
    /// circle, too many, or such that add too much to the memory stream.
    fn first_tags(&self, unit: usize) -> Option<Vec<OrigAddr>> {
        let (mut silent, mut first) = (vec![unit], Vec::new());
        let (mut at, mut bytes) = (0, 0);
        while let Some(&unit_here) = silent.get(at) {
            at += 1;
            bytes += self.memory[unit_here];
            first.extend(self.beyond[unit_here].into_iter().flatten());
            for next in self.blocks[unit_here].successors.into_iter().flatten() {
                match self.silent[next] {
                    _ if next == unit => return None,
                    true if !silent.contains(&next) => silent.push(next),
                    true => {}
                    false => first.push(self.starts[next]),
                }
            }
            if silent.len() > MOST || bytes > MAX_SILENT_BYTES {
                return None;
            }
        }
        Some(first)
    }
}

/// Whether control goes on where the instruction says, or behind it, and nowhere else: not by way of the
/// runtime, and not to a place that only registers or memory tell.
fn leads_where_it_says(last: &Instruction) -> bool {
    let flow = Flow::of(last);
    !flow.ends_unit() || matches!(flow, Flow::Jump(_) | Flow::Branch(_) | Flow::Call(_))
}

#[cfg(test)]
mod tests;
