//! What a unit records: data, no bytes.
//!
//! The memory stream gets, for each instruction that references memory, the values that the reader
//! could not know otherwise. In the `registers` format that is each address register that is not
//! already known: recorded earlier in the unit, or recomputable from known registers by
//! [`lifter::recompute::step`] — the very function that the reader runs, so that both sides agree
//! by construction. In the `addresses` format it is the effective address of each explicit operand.

use abi::options::{Memory, Options};
use abi::unit::{Record, What};
use alloc::vec::Vec;
use iced_x86::{Instruction, InstructionInfoFactory};
use lifter::needs::needs;
use lifter::operands::{references, Index, Reference, Segment, Shape};
use lifter::recompute::step;

/// Plans the units of a region; reuses its scratch memory.
#[derive(Default)]
pub struct Planner {
    references: Vec<Reference>,
    rest: Vec<Reference>,
}

impl Planner {
    /// The records of a unit whose instructions are `insns`, in stream order.
    pub fn plan(
        &mut self,
        insns: &[Instruction],
        options: Options,
        factory: &mut InstructionInfoFactory,
    ) -> Vec<Record> {
        let mut records = Vec::new();
        if !options.records_memory() {
            return records;
        }
        // Knownness only: the values are dummies.
        let mut known: [Option<u64>; 16] = [None; 16];
        for (i, insn) in insns.iter().enumerate() {
            let record = |what| Record { insn: i as u8, what };
            self.references.clear();
            references(insn, factory, &mut self.references);
            self.rest.clear();
            let mut addresses = 0u8;
            for reference in &self.references {
                match reference.operand {
                    Some(n) if options.memory == Memory::Addresses && has_address(reference) => {
                        addresses |= 1 << n;
                    }
                    _ => self.rest.push(*reference),
                }
            }
            let wanted = needs(insn, factory, &self.rest);
            let forget = options.memory == Memory::Addresses;
            for register in wanted.registers.iter() {
                let slot = &mut known[usize::from(register)];
                if forget || slot.is_none() {
                    *slot = Some(0);
                    records.push(record(What::Before(register)));
                }
            }
            for n in 0..4 {
                if addresses & 1 << n != 0 {
                    records.push(record(What::Address(n)));
                }
            }
            let (after, before): (Vec<What>, Vec<What>) =
                wanted.always.iter().copied().partition(|w| matches!(w, What::After(_)));
            records.extend(before.into_iter().map(record));
            if !forget {
                step(insn, factory, &mut known);
            }
            for what in after {
                if let What::After(register) = what {
                    known[usize::from(register)] = Some(0);
                }
                records.push(record(what));
            }
        }
        records
    }
}

/// Whether `lea` can compute the reference's address.
fn has_address(reference: &Reference) -> bool {
    matches!(reference.shape, Shape::Plain)
        && matches!(reference.index, Index::None | Index::Gpr { .. })
        && reference.segment == Segment::None
}
