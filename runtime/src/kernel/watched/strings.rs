//! String instructions, repeated or not.
//!
//! What one loads is compared with the view first, all of it, so that a replay is told of it in front of the
//! instruction; then it runs on the view.

use super::arithmetic::{sub, ALL, ZF};
use super::atomic::{get_register, put_register};
use super::{is_known, load, mend, store, Done, Fault, Outcome, LINE};
use crate::logs::inputs::view;
use crate::thread::Thread;
use abi::layout::{page_down, PAGE};
use alloc::vec::Vec;
use iced_x86::{Instruction, Mnemonic, Register};
use lifter::operands::{references, Segment};

const DIRECTION_FLAG: u64 = 0x400;
/// So many bytes are stored without the heap.
const FEW: usize = 256;

/// What the instruction does in each round.
#[derive(Clone, Copy, PartialEq)]
enum Round {
    Move,
    Store,
    Load,
    Compare,
    Scan,
}

pub fn carry_out(thread: &mut Thread, pc: u64, insn: &Instruction) -> Outcome {
    use Mnemonic::*;
    let round = match insn.mnemonic() {
        Movsb | Movsw | Movsd | Movsq => Round::Move,
        Stosb | Stosw | Stosd | Stosq => Round::Store,
        Lodsb | Lodsw | Lodsd | Lodsq => Round::Load,
        Cmpsb | Cmpsw | Cmpsd | Cmpsq => Round::Compare,
        Scasb | Scasw | Scasd | Scasq => Round::Scan,
        _ => return Ok(Done::No),
    };
    let all = &mut thread.references;
    all.clear();
    references(insn, &mut thread.factory, all);
    let Some(size) = all.first().map(|r| u64::from(r.size)) else { return Ok(Done::No) };
    if all.iter().any(|r| r.address32 || r.segment != Segment::None) {
        return Ok(Done::No);
    }
    let gpr = thread.block.registers.gpr;
    let repeated = insn.has_rep_prefix() || insn.has_repne_prefix();
    let count = if repeated { gpr[1] } else { 1 };
    if count == 0 {
        return Ok(Done::Yes);
    }
    let down = thread.block.registers.rflags & DIRECTION_FLAG != 0;
    let step = if down { size.wrapping_neg() } else { size };
    let string = String { pc, size, step, down, source: gpr[6], target: gpr[7] };
    let (done, fault) = match round {
        Round::Move | Round::Store => string.fill(thread, round, count),
        Round::Load | Round::Compare | Round::Scan => string.look(thread, insn, round, count),
    };
    let gpr = &mut thread.block.registers.gpr;
    let moved = done.wrapping_mul(step);
    if repeated {
        gpr[1] = count.wrapping_sub(done);
    }
    if matches!(round, Round::Move | Round::Load | Round::Compare) {
        gpr[6] = gpr[6].wrapping_add(moved);
    }
    if round != Round::Load {
        gpr[7] = gpr[7].wrapping_add(moved);
    }
    match fault {
        Some(fault) => Err(fault),
        None => Ok(Done::Yes),
    }
}

struct String {
    pc: u64,
    size: u64,
    step: u64,
    down: bool,
    source: u64,
    target: u64,
}

impl String {
    /// So many rounds from `at` on lie in its page, at least one.
    fn in_page(&self, at: u64) -> u64 {
        match self.down {
            true => 1,
            false => ((page_down(at) + PAGE - at) / self.size).max(1),
        }
    }

    /// `movs` and `stos`. Returns how many rounds were made, and what kept it from making more.
    fn fill(&self, thread: &mut Thread, round: Round, count: u64) -> (u64, Option<Fault>) {
        let mut fault = None;
        let mut loaded = 0;
        while round == Round::Move && loaded < count {
            let at = self.source.wrapping_add(loaded.wrapping_mul(self.step));
            let rounds = self.in_page(at).min(count - loaded);
            let len = rounds * self.size;
            let known = len <= LINE && is_known(thread, at, len);
            if !known {
                if let Err(other) = mend(thread, self.pc, at, len) {
                    fault = Some(other);
                    break;
                }
            }
            loaded += rounds;
        }
        let count = if round == Round::Move { loaded } else { count };
        let value = thread.block.registers.gpr[0].to_le_bytes();
        let value = value.get(..self.size as usize).unwrap_or_default();
        let mut done = 0;
        // As much as one step stores, at most.
        let longest = count.saturating_mul(self.size).min(PAGE.max(self.size));
        let (mut few, mut many) = ([0u8; FEW], Vec::new());
        let buffer = few.get_mut(..longest as usize).unwrap_or_else(|| {
            many.resize(longest as usize, 0u8);
            &mut many
        });
        if round == Round::Store {
            buffer
                .chunks_exact_mut(self.size as usize)
                .for_each(|chunk| chunk.copy_from_slice(value));
        }
        while done < count {
            let from = self.source.wrapping_add(done.wrapping_mul(self.step));
            let to = self.target.wrapping_add(done.wrapping_mul(self.step));
            let mut rounds = self.in_page(to).min(count - done);
            if round == Round::Move {
                rounds = rounds.min(PAGE / self.size);
                // Behind what it loads it stores what it loads later.
                if from < to && to < from.wrapping_add(rounds * self.size) {
                    rounds = ((to - from) / self.size).max(1);
                }
            }
            let len = rounds * self.size;
            let bytes = match round {
                Round::Move => {
                    let Some(bytes) = view::bytes(thread, from, len) else { break };
                    let part = buffer.get_mut(..len as usize).unwrap_or_default();
                    part.copy_from_slice(bytes);
                    &*part
                }
                _ => buffer.get(..len as usize).unwrap_or_default(),
            };
            if let Err(other) = store(thread, to, bytes) {
                return (done, Some(other));
            }
            done += rounds;
        }
        (done, fault)
    }

    /// `lods`, `cmps` and `scas`.
    fn look(
        &self,
        thread: &mut Thread,
        insn: &Instruction,
        round: Round,
        count: u64,
    ) -> (u64, Option<Fault>) {
        let a = [Register::AL, Register::AX, Register::EAX, Register::RAX];
        let a = a.get(self.size.trailing_zeros() as usize).copied().unwrap_or(Register::RAX);
        let mut done = 0;
        while done < count {
            let moved = done.wrapping_mul(self.step);
            let (from, to) = (self.source.wrapping_add(moved), self.target.wrapping_add(moved));
            let mut value = |at| load(thread, self.pc, at, self.size);
            let (left, right) = match round {
                Round::Load => (value(from), Ok(0)),
                Round::Compare => {
                    let left = value(from);
                    let right = value(to);
                    (left, right)
                }
                _ => (Ok(get_register(thread, a)), load(thread, self.pc, to, self.size)),
            };
            let (left, right) = match (left, right) {
                (Ok(left), Ok(right)) => (left, right),
                (Err(fault), _) | (_, Err(fault)) => return (done, Some(fault)),
            };
            done += 1;
            if round == Round::Load {
                put_register(thread, a, left);
                continue;
            }
            let (_, flags) = sub(left, right, 0, self.size);
            let registers = &mut thread.block.registers;
            registers.rflags = registers.rflags & !ALL | flags;
            let same = flags & ZF != 0;
            let ends = insn.has_repe_prefix() && !same || insn.has_repne_prefix() && same;
            if ends {
                break;
            }
        }
        (done, None)
    }
}
