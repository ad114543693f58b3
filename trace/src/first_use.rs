//! What a thread does first with a register: reads or overwrites it.
//!
//! Units borrow registers that are dead, and what they leave there is not the program's value. Where a chunk starts, those
//! registers are left out that are dead as far as that unit's translation looked ahead. The unit in front may have been
//! translated with more code in view, and have borrowed a register that seems live there. So it holds another value than
//! the program's, and is overwritten before it is read, whatever follows.

use abi::ids::{Gpr, LiveAddr};
use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory};
use lifter::flow::Flow;
use lifter::use_def::use_def;

use crate::compile::CompiledUnit;
use crate::open::{Thread, Trace};
use crate::units::Units;
use crate::walk::{Sink, Walker};

/// Whether the thread overwrites `register` from chunk `seq` on before anything reads it. False if it is not known.
pub fn is_overwritten(trace: &Trace, thread: &Thread, seq: u32, register: Gpr) -> bool {
    let mut walker = Walker::new(trace);
    let factory = InstructionInfoFactory::new();
    let mut first = FirstUse { units: &trace.units, register, factory, overwrites: None };
    let behind = thread.chunks.partition_point(|chunk| chunk.frame.header.seq < seq);
    for number in behind..thread.chunks.len() {
        let walked = walker.walk(thread, number, &mut first);
        if let Some(overwrites) = first.overwrites {
            return overwrites;
        }
        if walked.is_err() {
            break;
        }
    }
    false
}

struct FirstUse<'t> {
    units: &'t Units,
    register: Gpr,
    factory: InstructionInfoFactory,
    /// Once that is known.
    overwrites: Option<bool>,
}

impl Sink for FirstUse<'_> {
    const REFERENCES: bool = false;

    fn executed(&mut self, unit: &CompiledUnit, count: usize) {
        if self.overwrites.is_some() {
            return;
        }
        let Some(described) = self.units.get(unit.id) else {
            self.overwrites = Some(false);
            return;
        };
        let LiveAddr(start) = unit.address;
        let decoder = Decoder::with_ip(64, &described.code, start, DecoderOptions::NONE);
        for insn in decoder.into_iter().take(count) {
            let effect = use_def(&insn, &mut self.factory);
            // Calls of the kernel, and what faults, show all registers.
            let shows = !matches!(
                Flow::of(&insn),
                Flow::Next
                    | Flow::Jump(_)
                    | Flow::Branch(_)
                    | Flow::IndirectJump
                    | Flow::Call(_)
                    | Flow::IndirectCall
                    | Flow::Return
            );
            if shows || effect.used.contains(self.register) {
                self.overwrites = Some(false);
                return;
            }
            if effect.defined.contains(self.register) {
                self.overwrites = Some(true);
                return;
            }
        }
    }

    /// What is not recorded may read it.
    fn outside(&mut self) {
        self.overwrites.get_or_insert(false);
    }

    fn go_on(&mut self) -> bool {
        self.overwrites.is_none()
    }
}
