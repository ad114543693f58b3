//! Liveness beyond the region: which registers are live at an address that control goes to.
//!
//! Follows direct branches and what lies behind calls from the address asked for, within one piece
//! of code and up to a bound, and solves the same dataflow as `liveness` over what it
//! found. What lies beyond the bound, behind indirect transfers and behind returns is all live. The
//! answers are facts about the code's bytes, and are kept.

use crate::block::Source;
use abi::ids::OrigAddr;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory};
use lifter::flow::Flow;
use lifter::regs::GprSet;
use lifter::use_def::use_def;

const MOST_BLOCKS: usize = 300;
const MOST_INSNS: usize = 2500;

struct Node {
    start: OrigAddr,
    used: GprSet,
    defined: GprSet,
    /// Original addresses; `None`: all registers are live there.
    next: [Option<OrigAddr>; 2],
    all: bool,
    live_in: GprSet,
}

/// Live registers by address, as far as anybody has asked.
#[derive(Default)]
pub struct LiveMap {
    known: BTreeMap<OrigAddr, GprSet>,
    nodes: Vec<Node>,
    found: BTreeMap<OrigAddr, usize>,
    queue: Vec<OrigAddr>,
}

impl LiveMap {
    /// Registers that are live where `address` is executed.
    pub fn at(
        &mut self,
        address: OrigAddr,
        source: Source,
        factory: &mut InstructionInfoFactory,
    ) -> GprSet {
        if let Some(live) = self.known.get(&address) {
            return *live;
        }
        if !source.contains(address) {
            return GprSet::ALL;
        }
        self.collect(address, source, factory);
        self.solve();
        for node in self.nodes.drain(..) {
            self.known.insert(node.start, node.live_in);
        }
        self.known.get(&address).copied().unwrap_or(GprSet::ALL)
    }

    /// The code has changed.
    pub fn forget(&mut self) {
        self.known.clear();
    }

    fn collect(&mut self, address: OrigAddr, source: Source, factory: &mut InstructionInfoFactory) {
        self.nodes.clear();
        self.found.clear();
        self.queue.clear();
        self.queue.push(address);
        let mut insns = 0;
        while let Some(start) = self.queue.pop() {
            let done = self.found.contains_key(&start) || self.known.contains_key(&start);
            if done || !source.contains(start) {
                continue;
            }
            if self.nodes.len() >= MOST_BLOCKS || insns >= MOST_INSNS {
                break;
            }
            self.found.insert(start, self.nodes.len());
            let node = block(start, source, factory, &mut insns, &mut self.queue);
            self.nodes.push(node);
        }
    }

    fn solve(&mut self) {
        loop {
            let mut changed = false;
            for i in (0..self.nodes.len()).rev() {
                let node = &self.nodes[i];
                let mut live = if node.all { GprSet::ALL } else { GprSet::EMPTY };
                for next in node.next.into_iter().flatten() {
                    live = live.union(match (self.found.get(&next), self.known.get(&next)) {
                        (Some(&n), _) => self.nodes[n].live_in,
                        (None, Some(&known)) => known,
                        (None, None) => GprSet::ALL,
                    });
                }
                let node = &mut self.nodes[i];
                let live_in = live.minus(node.defined).union(node.used);
                changed |= node.live_in != live_in;
                node.live_in = live_in;
            }
            if !changed {
                return;
            }
        }
    }
}

/// Decodes the block at `start` and queues what follows it.
fn block(
    start: OrigAddr,
    source: Source,
    factory: &mut InstructionInfoFactory,
    insns: &mut usize,
    queue: &mut Vec<OrigAddr>,
) -> Node {
    let mut node = Node {
        start,
        used: GprSet::EMPTY,
        defined: GprSet::EMPTY,
        next: [None; 2],
        all: true,
        live_in: GprSet::EMPTY,
    };
    let bytes = source.slice(start, usize::MAX);
    let mut decoder = Decoder::with_ip(64, bytes, start.0, DecoderOptions::NONE);
    for _ in 0..100 {
        if !decoder.can_decode() {
            break;
        }
        let insn = decoder.decode();
        if insn.is_invalid() {
            break;
        }
        *insns += 1;
        let effect = use_def(&insn, factory);
        node.used = node.used.union(effect.used.minus(node.defined));
        node.defined = node.defined.union(effect.defined);
        let (flow, next) = (Flow::of(&insn), OrigAddr(insn.next_ip()));
        if !flow.ends_unit() {
            continue;
        }
        if flow.comes_back() {
            queue.push(next);
        }
        node.next = flow.successors(next);
        node.all = node.next == [None; 2];
        // What follows a branch is looked at before what it goes to.
        queue.extend(node.next.into_iter().rev().flatten());
        break;
    }
    node
}
