//! Forms regions: where the blocks of a run of instructions end, ahead of time and at run time.
//!
//! [`block`] decides it for both. It is a function of the instructions, of the places where blocks
//! are known to start, and of [`Rules`], which hold everything that differs between the two.
//! [`chain`] finds the blocks that the run-time translator takes at once; ahead of time the places
//! come from [`crate::discover`], which has seen the whole program.

use crate::flow::Flow;
use abi::ids::OrigAddr;
use alloc::vec::Vec;
use iced_x86::{Decoder, DecoderOptions, Instruction};

/// When a block ends, besides where another one starts.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Most instructions of a block.
    pub insns: usize,
    /// Most bytes of a block.
    pub bytes: u32,
    /// Instructions behind which a block ends.
    pub ends: fn(Flow) -> bool,
}

impl Rules {
    /// Ahead of time a block also ends behind what faults: discovery does not know whether anything
    /// goes on there, and a start that a handler may resume at has to be found by its address.
    pub const AHEAD_OF_TIME: Rules =
        Rules { insns: 64, bytes: 512, ends: |flow| flow.end() != crate::flow::End::FallThrough };

    /// At run time a block ends where its unit does. It may have fewer instructions than ahead of
    /// time: the two limits were chosen apart. Each decides which code is emitted and how units are
    /// numbered, so neither follows the other without a reason.
    pub const AT_RUN_TIME: Rules = Rules { insns: 60, bytes: u32::MAX, ends: Flow::ends_unit };
}

/// One instruction of a run.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Its bytes.
    pub len: u32,
    /// What it does to control.
    pub flow: Flow,
}

/// How far a block goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Its bytes.
    pub len: u32,
    /// Its instructions.
    pub insns: usize,
    /// What the last of them does.
    pub last: Flow,
    /// A limit ends it: what follows starts another block.
    pub cut: bool,
}

/// The block that starts at `start`. `step` knows the instruction at an address (`None`: there is
/// none), `starts` the places where blocks start.
pub fn block(
    start: OrigAddr,
    rules: Rules,
    mut step: impl FnMut(OrigAddr) -> Option<Step>,
    mut starts: impl FnMut(OrigAddr) -> bool,
) -> Option<Extent> {
    let mut extent = Extent { len: 0, insns: 0, last: Flow::Next, cut: false };
    loop {
        let at = start.plus(u64::from(extent.len));
        if extent.insns != 0 && starts(at) {
            break;
        }
        let Some(step) = step(at) else { break };
        if extent.insns == rules.insns || extent.len + step.len > rules.bytes {
            extent.cut = true;
            break;
        }
        extent.len += step.len;
        extent.insns += 1;
        extent.last = step.flow;
        if (rules.ends)(step.flow) {
            break;
        }
    }
    (extent.insns != 0).then_some(extent)
}

/// Where a block ends at an instruction that does not end it by what it does to control.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// Nowhere.
    None,
    /// In front of it.
    Before,
    /// Behind it.
    Behind,
}

/// Most instructions that a chain has.
pub const CHAIN_INSNS: usize = 64;
/// A chain ends when this many starts of blocks are known.
const CHAIN_STARTS: usize = 8;

/// A block of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Where it starts.
    pub start: OrigAddr,
    /// Its bytes.
    pub len: u32,
    /// A call returns to it.
    pub indirect: bool,
}

/// The blocks that are translated together with the one at `start`, which is where `bytes` lie: what
/// lies behind it, as long as control can get there without leaving. `known`: addresses that have a
/// translation; `cuts`: where else a block ends, by the instructions in their order.
pub fn chain(
    start: OrigAddr,
    bytes: &[u8],
    mut known: impl FnMut(OrigAddr) -> bool,
    mut cuts: impl FnMut(&Instruction) -> Cut,
) -> Vec<Link> {
    let mut steps: Vec<Step> = Vec::new();
    let mut starts: Vec<OrigAddr> = Vec::new();
    let mut indirect: Vec<OrigAddr> = Vec::new();
    let mut decoder = Decoder::with_ip(64, bytes, start.0, DecoderOptions::NONE);
    let mut insn = Instruction::default();
    let mut reachable = true;
    while steps.len() < CHAIN_INSNS && starts.len() < CHAIN_STARTS && decoder.can_decode() {
        let at = OrigAddr(decoder.ip());
        if (!reachable && !starts.contains(&at)) || (at != start && known(at)) {
            break;
        }
        decoder.decode_out(&mut insn);
        let cut = cuts(&insn);
        if at != start && cut == Cut::Before {
            starts.push(at);
        }
        if insn.is_invalid() {
            if steps.is_empty() {
                // It is executed as it is, and faults.
                steps.push(Step { len: length(&insn).max(1), flow: Flow::Undefined });
            }
            break;
        }
        let (next, flow) = (OrigAddr(insn.next_ip()), Flow::of(&insn));
        steps.push(Step { len: length(&insn), flow });
        reachable = flow.may_go_on();
        if cut == Cut::Behind {
            starts.push(next);
        }
        if flow.comes_back() {
            starts.push(next);
            indirect.push(next);
        } else if let Flow::Jump(target) | Flow::Branch(target) = flow {
            starts.push(target);
        }
    }
    let mut links = Vec::new();
    let (mut from, mut rest) = (start, steps.as_slice());
    loop {
        let mut left = rest.iter();
        let step = |_| left.next().copied();
        let Some(extent) = block(from, Rules::AT_RUN_TIME, step, |at| starts.contains(&at)) else {
            return links;
        };
        links.push(Link { start: from, len: extent.len, indirect: indirect.contains(&from) });
        from = from.plus(u64::from(extent.len));
        rest = &rest[extent.insns..];
    }
}

/// Bytes of an instruction, at most 15.
pub(crate) fn length(insn: &Instruction) -> u32 {
    u32::try_from(insn.len()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: OrigAddr = OrigAddr(0x1000);

    fn links(code: &[u8]) -> Vec<(u64, u32, bool)> {
        let links = chain(START, code, |_| false, |_| Cut::None);
        links.iter().map(|l| (l.start.0 - START.0, l.len, l.indirect)).collect()
    }

    fn nops(count: usize, rules: Rules) -> Option<Extent> {
        let mut left = count;
        let step = |_| {
            left = left.checked_sub(1)?;
            Some(Step { len: 1, flow: Flow::Next })
        };
        block(START, rules, step, |_| false)
    }

    #[test]
    fn limits_cut_only_where_something_follows() {
        for rules in [Rules::AHEAD_OF_TIME, Rules::AT_RUN_TIME] {
            let most = rules.insns;
            assert_eq!(nops(0, rules), None);
            let whole = nops(most, rules).unwrap();
            assert_eq!((whole.insns, whole.cut), (most, false));
            let cut = nops(most + 1, rules).unwrap();
            assert_eq!((cut.insns, cut.cut), (most, true));
        }
    }

    #[test]
    fn bytes_are_limited_in_whole_instructions() {
        let step = |_| Some(Step { len: 15, flow: Flow::Next });
        let extent = block(START, Rules::AHEAD_OF_TIME, step, |_| false).unwrap();
        assert_eq!((extent.len, extent.cut), (510, true));
    }

    #[test]
    fn blocks_end_in_front_of_others_and_behind_transfers() {
        let flows = [Flow::Next, Flow::Next, Flow::Trap, Flow::Next, Flow::Return];
        let run = |rules, start: u64| {
            let step = |at: OrigAddr| {
                let n = usize::try_from(at.0 - START.0).unwrap();
                flows.get(n).map(|&flow| Step { len: 1, flow })
            };
            block(START, rules, step, |at| at == START.plus(start)).unwrap().len
        };
        assert_eq!(run(Rules::AHEAD_OF_TIME, 1), 1);
        assert_eq!(run(Rules::AHEAD_OF_TIME, 9), 3, "behind what faults");
        assert_eq!(run(Rules::AT_RUN_TIME, 9), 5, "a unit goes on behind it");
        assert_eq!(run(Rules::AT_RUN_TIME, 0), 5, "its own start is none");
    }

    #[test]
    fn chains_follow_branches_that_may_fall_through() {
        // je +1; nop; ret
        assert_eq!(
            links(&[0x74, 1, 0x90, 0xc3, 0x90]),
            [(0, 2, false), (2, 1, false), (3, 1, false)]
        );
        // jmp +1; nop; ret: nobody comes to the nop
        assert_eq!(links(&[0xeb, 1, 0x90, 0xc3]), [(0, 2, false)]);
        // nop; jmp -3: a branch back splits what it goes to the middle of
        assert_eq!(links(&[0x90, 0x90, 0xeb, 0xfd]), [(0, 1, false), (1, 3, false)]);
    }

    #[test]
    fn what_a_call_returns_to_is_reached_indirectly() {
        // call +0; nop; ret
        assert_eq!(links(&[0xe8, 0, 0, 0, 0, 0x90, 0xc3]), [(0, 5, false), (5, 2, true)]);
        // syscall; ret
        assert_eq!(links(&[0x0f, 0x05, 0xc3]), [(0, 2, false), (2, 1, true)]);
    }

    #[test]
    fn chains_stop_at_what_is_known_and_at_what_is_no_code() {
        let known = |at: OrigAddr| at == START.plus(1);
        assert_eq!(chain(START, &[0x90, 0x90, 0xc3], known, |_| Cut::None).len(), 1);
        assert_eq!(links(&[0x90, 0x06]), [(0, 1, false)]);
        assert_eq!(links(&[0x06]), [(0, 1, false)]);
        assert_eq!(links(&[]), []);
    }

    #[test]
    fn chains_are_limited() {
        assert_eq!(links(&[0x90; 200]), [(0, 60, false), (60, 4, false)]);
        // Each call adds a start; the eighth is the last.
        let calls: Vec<u8> = [0xe8, 0, 0, 0, 0].repeat(20);
        assert_eq!(links(&calls).len(), 8);
    }

    #[test]
    fn instructions_that_start_units_start_blocks() {
        let lengths = |cut| {
            let cuts = |insn: &Instruction| match insn.mnemonic() {
                iced_x86::Mnemonic::Cld => cut,
                _ => Cut::None,
            };
            let links = chain(START, &[0xfc, 0x90, 0xfc, 0xc3], |_| false, cuts);
            links.iter().map(|l| l.len).collect::<Vec<_>>()
        };
        assert_eq!(lengths(Cut::Before), [2, 2]);
        assert_eq!(lengths(Cut::Behind), [1, 2, 1]);
        assert_eq!(lengths(Cut::None), [4]);
    }
}
