//! Random regions and random ways through them: the tags say which way was taken.

use super::*;
use crate::plan::ControlRecord;
use abi::unit::{Record, What, MAX_SILENT};
use iced_x86::Code;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as usize % limit
    }
}

/// Each block is one instruction of this length.
const LENGTH: u64 = 6;
const START: u64 = 0x1000;
const ELSEWHERE: u64 = 0x9000;

fn address(block: usize) -> OrigAddr {
    OrigAddr(START + LENGTH * block as u64)
}

fn block_at(address: OrigAddr, count: usize) -> Option<usize> {
    (0..count).find(|&i| self::address(i) == address)
}

struct Case {
    insns: Vec<Instruction>,
    blocks: Vec<PlanBlock>,
    plans: Vec<UnitPlan>,
}

impl Case {
    fn random(random: &mut Random) -> Case {
        let count = 2 + random.below(12);
        let insns: Vec<Instruction> = (0..count)
            .map(|i| {
                let to = match random.below(8) {
                    0 => ELSEWHERE,
                    _ => address(random.below(count)).0,
                };
                let branch = |code| Instruction::with_branch(code, to).expect("a branch");
                let mut insn = match random.below(10) {
                    0 => Instruction::with(Code::Retnq),
                    1 => branch(Code::Jmp_rel32_64),
                    2 => branch(Code::Call_rel32_64),
                    3..=6 if i + 1 < count => branch(Code::Jne_rel32_64),
                    _ if i + 1 < count => Instruction::with(Code::Nopd),
                    _ => branch(Code::Jmp_rel32_64),
                };
                insn.set_len(LENGTH as usize);
                insn.set_ip(address(i).0);
                insn
            })
            .collect();
        let blocks = (0..count).map(|i| {
            let next = Flow::of(&insns[i]).successors(address(i + 1));
            let successors = next.map(|to| to.and_then(|to| block_at(to, count)));
            let stays =
                next.iter().zip(&successors).all(|(to, found)| to.is_some() == found.is_some());
            PlanBlock {
                insns: i..i + 1,
                wide: i == 0 || random.below(6) == 0,
                open: random.below(8) == 0,
                outside: None,
                successors,
                leaves: next == [None; 2] || !stays,
                is_linked: false,
            }
        });
        let mut blocks: Vec<PlanBlock> = blocks.collect();
        for i in 0..count {
            let has_unit = |to: OrigAddr| {
                block_at(to, count).is_none_or(|to| blocks[to].wide || blocks[to].open)
            };
            let may_be = match Flow::of(&insns[i]) {
                Flow::Call(to) => has_unit(to),
                flow => flow.target().is_some(),
            };
            blocks[i].is_linked = may_be && random.below(3) > 0;
        }
        let plans = blocks.iter().map(|block| {
            let entry = if block.wide { AtEntry::Wide } else { AtEntry::Narrow };
            let records = [0, 0, 1, 2, 40][random.below(5)];
            UnitPlan {
                control: ControlRecord { entry, ..ControlRecord::default() },
                records: vec![Record { insn: 0, what: What::Mask(1) }; records],
                ..UnitPlan::default()
            }
        });
        let mut plans: Vec<UnitPlan> = plans.collect();
        choose(&blocks, &insns, &mut plans);
        Case { insns, blocks, plans }
    }

    fn is_silent(&self, block: usize) -> bool {
        self.plans[block].control.entry == AtEntry::Silent
    }

    /// The addresses of executed units, the first and the last of which write tags.
    fn run(&self, random: &mut Random) -> Vec<OrigAddr> {
        let count = self.blocks.len();
        let anywhere: Vec<usize> =
            (0..count).filter(|&i| self.blocks[i].wide || self.blocks[i].open).collect();
        let mut way = vec![address(0)];
        loop {
            let here = way[way.len() - 1];
            let next =
                block_at(here, count).map_or([None; 2], |i| match Flow::of(&self.insns[i]) {
                    Flow::Call(to) if self.blocks[i].is_linked => [Some(to), None],
                    flow => flow.successors(address(i + 1)),
                });
            let next: Vec<OrigAddr> = next.into_iter().flatten().collect();
            let to = match next.len() {
                0 => address(anywhere[random.below(anywhere.len())]),
                ways => next[random.below(ways)],
            };
            way.push(to);
            if way.len() > 60 && block_at(to, count).is_none_or(|i| !self.is_silent(i)) {
                return way;
            }
        }
    }

    /// As a reader does: what is executed, by the tags alone.
    fn read(&self, tags: &[OrigAddr]) -> Vec<OrigAddr> {
        let count = self.blocks.len();
        let mut way: Vec<OrigAddr> = Vec::new();
        let mut silently = 0;
        for &tag in tags {
            while let Some(silent) = way.last().and_then(|&last| {
                let i = block_at(last, count)?;
                let next = Flow::of(&self.insns[i]).successors(address(i + 1));
                (0..2).find_map(|n| {
                    let to = next[n]
                        .filter(|&to| block_at(to, count).is_some_and(|i| self.is_silent(i)))?;
                    Some((to, next[1 - n]))
                })
            }) {
                let (to, other) = silent;
                if other == Some(tag) {
                    break;
                }
                silently += 1;
                assert!(silently <= MAX_SILENT, "too many in a row");
                way.push(to);
            }
            silently = 0;
            way.push(tag);
        }
        way
    }
}

#[test]
fn tags_say_which_way_was_taken() {
    let mut random = Random(7);
    let (mut units, mut silent, mut leaving) = (0, 0, 0);
    for _ in 0..4000 {
        let case = Case::random(&mut random);
        units += case.blocks.len();
        silent += (0..case.blocks.len()).filter(|&i| case.is_silent(i)).count();
        let leaves = |i: &usize| case.is_silent(*i) && case.blocks[*i].leaves;
        leaving += (0..case.blocks.len()).filter(leaves).count();
        for _ in 0..4 {
            let way = case.run(&mut random);
            let count = case.blocks.len();
            let tags: Vec<OrigAddr> = way
                .iter()
                .copied()
                .filter(|&at| block_at(at, count).is_none_or(|i| !case.is_silent(i)))
                .collect();
            assert_eq!(case.read(&tags), way, "{:?}", case.insns);
            let mut bytes = 0;
            for &at in &way {
                let Some(i) = block_at(at, count) else { continue };
                bytes = if case.is_silent(i) { bytes + case.plans[i].memory_bytes() } else { 0 };
                assert!(bytes <= MAX_SILENT_BYTES, "too much in a row");
            }
        }
        for (block, plan) in case.blocks.iter().zip(&case.plans) {
            assert!(
                plan.control.entry != AtEntry::Silent || plan.closed && !block.wide && !block.open
            );
        }
    }
    assert!(silent > units / 20, "{silent} of {units}");
    assert!(leaving > units / 100, "{leaving} of {units}");
}
