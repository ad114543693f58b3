//! Where no arithmetic flag is live: what comes there may change them.
//!
//! The same dataflow as for registers ([`crate::liveness`]), over one region; behind all that leaves it every
//! flag is live. A flag that an instruction leaves undefined, or changes under a condition, keeps its life.

use crate::liveness::{inside, successors, Span};
use alloc::vec::Vec;
use iced_x86::{Instruction, Mnemonic, OpKind, RflagsBits};
use lifter::flow::Flow;

/// The flags that arithmetic changes.
const ARITHMETIC: u32 = RflagsBits::OF
    | RflagsBits::SF
    | RflagsBits::ZF
    | RflagsBits::AF
    | RflagsBits::CF
    | RflagsBits::PF;

/// Whether arithmetic flags are live, for each instruction of a region.
#[derive(Default)]
pub struct Flags {
    /// Those that are live before it.
    before: Vec<u32>,
}

impl Flags {
    /// Whether one may be live before the instruction of this number.
    pub fn live_before(&self, index: usize) -> bool {
        self.before.get(index).is_none_or(|&live| live != 0)
    }

    /// All are live everywhere.
    pub fn unknown(&mut self) {
        self.before.clear();
    }

    /// Solves the region. `spans` are ascending by address.
    pub fn solve(&mut self, spans: &[Span], insns: &[Instruction]) {
        let effects: Vec<_> = insns.iter().map(effect).collect();
        self.before.clear();
        self.before.resize(insns.len(), 0);
        loop {
            let mut changed = false;
            for span in spans.iter().rev() {
                let next = successors(insns, span);
                let mut live = if next == [None; 2] { ARITHMETIC } else { 0 };
                for next in next.into_iter().flatten() {
                    live |= match inside(spans, next) {
                        Some(block) => self.before[spans[block].first],
                        None => ARITHMETIC,
                    };
                }
                for index in (span.first..span.first + span.count).rev() {
                    let (used, defined) = effects[index];
                    live = live & !defined | used;
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

/// The flags that an instruction uses, and those that it certainly sets to what does not depend on them.
fn effect(insn: &Instruction) -> (u32, u32) {
    let flow = Flow::of(insn);
    let is_branch = matches!(flow, Flow::Branch(_) | Flow::Jump(_));
    if insn.is_invalid() || flow.ends_unit() && !is_branch {
        return (ARITHMETIC, 0);
    }
    let set = insn.rflags_written() | insn.rflags_cleared() | insn.rflags_set();
    let defined = match keeps_sometimes(insn) {
        true => 0,
        false => set & !insn.rflags_undefined() & ARITHMETIC,
    };
    (insn.rflags_read() & ARITHMETIC, defined)
}

/// Whether the flags stay as they are with some operands.
fn keeps_sometimes(insn: &Instruction) -> bool {
    use Mnemonic::*;
    let counts =
        matches!(insn.mnemonic(), Shl | Shr | Sal | Sar | Rol | Ror | Rcl | Rcr | Shld | Shrd);
    if !counts {
        return insn.is_string_instruction();
    }
    let last = insn.op_count().saturating_sub(1);
    match insn.op_kind(last) {
        OpKind::Immediate8 => insn.immediate8() & 31 == 0,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::ids::OrigAddr;
    use iced_x86::{Decoder, DecoderOptions};

    /// Whether flags are live in front of each instruction of a block that leaves the region.
    fn live(code: &[u8]) -> Vec<bool> {
        let insns: Vec<_> =
            Decoder::with_ip(64, code, 0x1000, DecoderOptions::NONE).into_iter().collect();
        let spans = [Span { start: OrigAddr(0x1000), first: 0, count: insns.len() }];
        let mut flags = Flags::default();
        flags.solve(&spans, &insns);
        (0..insns.len()).map(|i| flags.live_before(i)).collect()
    }

    #[test]
    fn flags_live_from_where_they_are_set_to_where_they_are_used() {
        // mov rax,[rdi]; cmp rax,rsi; mov rax,[rdi]; jne 0x1000
        let code = [0x48, 0x8b, 7, 0x48, 0x39, 0xf0, 0x48, 0x8b, 7, 0x75, 0xf5];
        // Behind the branch all are live, and in front of the comparison none.
        assert_eq!(live(&code), [false, false, true, true]);
    }

    #[test]
    fn what_may_keep_a_flag_does_not_end_its_life() {
        // inc eax; ret: the carry is what it was
        assert!(live(&[0xff, 0xc0, 0xc3])[0]);
        // shl eax,cl; ret
        assert!(live(&[0xd3, 0xe0, 0xc3])[0]);
        // shl eax,32; ret
        assert!(live(&[0xc1, 0xe0, 32, 0xc3])[0]);
        // repe cmpsb; ret
        assert!(live(&[0xf3, 0xa6, 0xc3])[0]);
        // add eax,esi; ret
        assert!(!live(&[0x01, 0xf0, 0xc3])[0]);
        // adc eax,esi; ret
        assert!(live(&[0x11, 0xf0, 0xc3])[0]);
        // imul eax,esi; ret: all but two are undefined
        assert!(live(&[0x0f, 0xaf, 0xc6, 0xc3])[0]);
    }
}
