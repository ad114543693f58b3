//! What a walk finds, and who is told.

use abi::event::Loss;
use abi::ids::LiveAddr;

use super::passage::Passed;
use crate::compile::CompiledUnit;
use crate::events::Event;
use crate::plain::Referred;

/// A memory reference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryReference {
    /// The instruction that makes it.
    pub pc: LiveAddr,
    /// Its first byte.
    pub address: LiveAddr,
    /// Its bytes.
    pub size: u32,
    /// It writes.
    pub write: bool,
}

/// What something is about to overwrite.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Overwritten<'a> {
    /// Who does it.
    pub pc: LiveAddr,
    /// The first byte.
    pub address: LiveAddr,
    /// What is there.
    pub old: &'a [u8],
}

/// Registers at the first instruction of a procedure that was called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entered {
    /// The call.
    pub pc: LiveAddr,
    /// The procedure; 0 if nothing was recorded of it.
    pub to: LiveAddr,
    /// By their hardware numbers.
    pub registers: [u64; 16],
}

/// What is done with what a walk finds.
pub trait Sink {
    /// Whether references are wanted at all.
    const REFERENCES: bool;
    /// Whether it matters where they lead, or only that they are known. If not, [`Sink::plain`] and
    /// [`Sink::passage`] get no addresses.
    const ADDRESSES: bool = Self::REFERENCES;
    /// A unit starts to execute. `partial`: it may have stopped anywhere (end of an open chunk).
    fn unit(&mut self, _unit: &CompiledUnit, _partial: bool) {}
    /// So many of the unit's instructions were executed.
    fn executed(&mut self, _unit: &CompiledUnit, _count: usize) {}
    /// Something happened, behind what was told before.
    fn event(&mut self, _event: &Event) {}
    /// A block starts. `uncertain`: at the start of a chunk it may continue the last block of the
    /// previous one, see [`ChunkEnd::falls`](super::ChunkEnd::falls).
    fn block(&mut self, _pc: LiveAddr, _uncertain: bool) {}
    /// Code that is not selected ran, behind the last unit (or event) and before the next one.
    fn outside(&mut self) {}
    /// Memory is referenced.
    fn reference(&mut self, _reference: MemoryReference) {}
    /// Many references of one instruction. A sink that only counts need not look at each.
    fn references(&mut self, all: impl Iterator<Item = MemoryReference>, _count: u64) {
        all.for_each(|reference| self.reference(reference));
    }
    /// All references of a unit that is executed whole, and the blocks that start inside of it. `number`:
    /// that of the unit in this walk, dense; `references` are the same for every execution.
    fn plain(
        &mut self,
        _number: u32,
        unit: &CompiledUnit,
        references: &[Referred],
        addresses: &[u64],
    ) {
        let mut inner = unit.inner_blocks.iter().copied().peekable();
        for (referred, &address) in references.iter().zip(addresses) {
            while let Some(at) = inner.next_if(|&at| at <= referred.offset) {
                self.block(unit.address.plus(u64::from(at)), false);
            }
            self.reference(MemoryReference {
                pc: unit.address.plus(u64::from(referred.offset)),
                address: LiveAddr(address),
                size: u32::from(referred.size),
                write: referred.write,
            });
        }
        inner.for_each(|at| self.block(unit.address.plus(u64::from(at)), false));
    }
    /// Many whole units, one after another, with nothing in between.
    fn passage(&mut self, passed: &Passed<'_>)
    where
        Self: Sized,
    {
        unit_by_unit(passed, self);
    }
    /// Undo log: something is about to be overwritten.
    fn store(&mut self, _store: Overwritten<'_>) {}
    /// Undo log: registers at the entry of a procedure.
    fn enter(&mut self, _entry: Entered) {}
    /// Undo log: a moment in the order of all threads. `exact`: what follows, up to
    /// [`Sink::ordered`], happens at that very moment, not behind it.
    fn order(&mut self, _number: u64, _exact: bool) {}
    /// Undo log: the instruction that [`Sink::order`] announced is done.
    fn ordered(&mut self) {}
    /// Undo log: contents were dropped (length 0: nobody knows where).
    fn lost(&mut self, _pc: LiveAddr, _start: LiveAddr, _len: u64, _why: &[u8]) {}
    /// Recording stopped here.
    fn stopped(&mut self, _reason: Loss) {}
    /// Asked now and then: whether to go on.
    fn go_on(&mut self) -> bool {
        true
    }
}

/// Tells the units one by one.
pub fn unit_by_unit<S: Sink>(passed: &Passed<'_>, sink: &mut S) {
    for one in passed.each() {
        let unit = one.unit;
        sink.unit(unit, false);
        if one.begins {
            sink.block(unit.address, false);
        }
        if S::REFERENCES {
            sink.plain(one.number, unit, one.references, one.addresses);
        } else {
            for &at in &unit.inner_blocks {
                sink.block(unit.address.plus(u64::from(at)), false);
            }
        }
        sink.executed(unit, unit.starts.len() - 1);
    }
}

/// Listens to nothing.
pub(super) struct Nobody;

impl Sink for Nobody {
    const REFERENCES: bool = false;
}
