//! The loads of a window, with their values: a replay is stepped through it.

use std::collections::BTreeMap;

use abi::ids::LiveAddr;
use abi::steer::{Hits, Stop, Why};
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, InstructionInfoFactory};
use lifter::operands::{references, Index, Reference, Segment, Shape};
use trace::Error;

use super::coder::{Coder, Counts};
use crate::debug::machine::{Goal, Machine, Points};
use crate::debug::process::Steered;
use crate::replay::Ready;

/// Sizes of the dictionary. The first one is that of the log.
pub const SIZES: [usize; 7] = [64, 8, 16, 32, 128, 256, 1024];

/// What the threads' logs come to.
#[derive(Clone, Debug, Default)]
pub struct Logs {
    /// For each of [`SIZES`].
    pub counts: Vec<Counts>,
    /// Steps: instructions, and iterations of repeated ones.
    pub steps: u64,
    /// Instructions whose references are not known here (gathers, xsave): they are left out.
    pub left_out: u64,
    pub threads: usize,
}

/// A reference of the instruction that is about to be executed.
struct Touched {
    address: u64,
    size: u32,
    write: bool,
}

struct Stepper {
    machine: Steered,
    factory: InstructionInfoFactory,
    coders: BTreeMap<u64, Vec<Coder>>,
    logs: Logs,
}

/// Steps a replay from behind `turn` turns, and there from the instruction at `from`, to its end.
pub fn logs(ready: &Ready, from: Option<LiveAddr>, turn: u64) -> Result<Logs, Error> {
    let output = ready.output_with("none", &["--translate", "dynamic"])?;
    let mut machine = Steered::start(ready, &output)?;
    let none = Points::default();
    if turn > 0 {
        machine.run(Goal::Turn(turn), Hits::Ignore, &none)?;
    }
    let is_there =
        |stop: &Stop, from: LiveAddr| stop.position.pc == from.0 && stop.position.turns == turn;
    while let Some(from) = from.filter(|&from| !is_there(machine.stop(), from)) {
        let passed = machine.stop().position.turns > turn;
        if passed || matches!(machine.stop().why, Why::End | Why::Failed | Why::Refused) {
            return Err(Error(format!("a replay does not come to {from} behind {turn} turns")));
        }
        machine.step(&none)?;
    }
    let (factory, coders) = (InstructionInfoFactory::new(), BTreeMap::new());
    let mut stepper = Stepper { machine, factory, coders, logs: Logs::default() };
    while stepper.step()? {}
    Ok(stepper.finish())
}

impl Stepper {
    /// One step; false: it was the last.
    fn step(&mut self) -> Result<bool, Error> {
        let before = *self.machine.stop();
        let (insn, touched) = self.about_to_do(&before);
        let values: Vec<Vec<(u64, Option<u32>)>> =
            touched.iter().map(|touched| self.words(touched)).collect();
        self.machine.step(&Points::default())?;
        let after = self.machine.stop().why;
        if matches!(after, Why::Failed | Why::Refused) {
            return Err(Error("the replay ended before the window did".into()));
        }
        // What raises a signal is not executed.
        if after == Why::End || after == Why::Signal {
            self.coders.values_mut().flatten().for_each(Coder::ends);
            return Ok(after != Why::End);
        }
        self.logs.steps += 1;
        self.count(before.tid, &insn, &touched, &values);
        Ok(true)
    }

    fn count(
        &mut self,
        tid: u64,
        insn: &Instruction,
        touched: &[Touched],
        values: &[Vec<(u64, Option<u32>)>],
    ) {
        let new = || SIZES.map(Coder::new).to_vec();
        let own = self.coders.entry(tid).or_insert_with(new);
        own.iter_mut().for_each(Coder::instruction);
        for (touched, words) in touched.iter().zip(values) {
            for &(word, value) in words {
                let whole = touched.address <= word
                    && touched.address.saturating_add(u64::from(touched.size)) >= word + 4;
                let own = self.coders.get_mut(&tid).into_iter().flatten();
                match (touched.write, value) {
                    (false, Some(value)) => own.for_each(|coder| coder.loads(word, value)),
                    (false, None) => {}
                    (true, _) => {
                        own.filter(|_| whole).for_each(|coder| coder.stores(word));
                        let others = self.coders.iter_mut().filter(|(other, _)| **other != tid);
                        let others = others.flat_map(|(_, coders)| coders);
                        others.for_each(|coder| coder.changed(word));
                    }
                }
            }
        }
        if insn.code() == Code::Syscall {
            self.coders.get_mut(&tid).into_iter().flatten().for_each(Coder::ends);
        }
    }

    /// The instruction that comes next, and its references; of a repeated one, those of one iteration.
    fn about_to_do(&mut self, stop: &Stop) -> (Instruction, Vec<Touched>) {
        let pc = stop.position.pc;
        let mut bytes = [0; 15];
        let len = self.machine.read(pc, &mut bytes);
        let insn = Decoder::with_ip(64, &bytes[..len], pc, DecoderOptions::NONE).decode();
        let mut all = Vec::new();
        if !insn.is_invalid() {
            references(&insn, &mut self.factory, &mut all);
        }
        let known = |r: &Reference| touched(r, stop);
        let touched: Option<Vec<Touched>> = all.iter().map(known).collect();
        self.logs.left_out += u64::from(touched.is_none());
        let none_left = stop.gpr[1] == 0 && all.iter().any(|r| r.shape == Shape::Repeated);
        (insn, touched.filter(|_| !none_left).unwrap_or_default())
    }

    /// The words of a reference, with their values.
    fn words(&self, touched: &Touched) -> Vec<(u64, Option<u32>)> {
        let end = touched.address.saturating_add(u64::from(touched.size));
        let words = (touched.address & !3..end).step_by(4);
        words
            .map(|word| {
                let mut bytes = [0; 4];
                let there = !touched.write && self.machine.read(word, &mut bytes) == 4;
                (word, there.then(|| u32::from_le_bytes(bytes)))
            })
            .collect()
    }

    fn finish(self) -> Logs {
        let mut logs = self.logs;
        logs.threads = self.coders.len();
        logs.counts = vec![Counts::default(); SIZES.len()];
        for coders in self.coders.values() {
            for (sum, coder) in logs.counts.iter_mut().zip(coders) {
                sum.add(&coder.counts());
            }
        }
        logs
    }
}

/// Where a reference leads; `None`: that is not in the general registers alone.
fn touched(r: &Reference, stop: &Stop) -> Option<Touched> {
    if matches!(r.shape, Shape::Gather { .. } | Shape::Xsave { .. }) {
        return None;
    }
    let register = |number: abi::ids::Gpr| stop.gpr[usize::from(number.0 & 15)];
    let index = match r.index {
        Index::None => 0,
        Index::Gpr { number, scale } => register(number).wrapping_mul(u64::from(scale)),
        _ => return None,
    };
    let offset = r.base.map_or(0, register).wrapping_add(index);
    let offset = offset.wrapping_add(r.displacement.cast_unsigned());
    let offset = if r.address32 { offset & 0xffff_ffff } else { offset };
    let base = match r.segment {
        Segment::None => 0,
        Segment::Fs => stop.fs_base,
        Segment::Gs => stop.gs_base,
    };
    Some(Touched { address: base.wrapping_add(offset), size: r.size, write: r.write })
}
