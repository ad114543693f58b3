//! Units in the form in which most executions of them cost least: every address, and every register behind
//! the unit, as a sum of what is known in front of it.
//!
//! Made from the [steps](crate::compile::Step) of a unit that does nothing but take recorded words, compute
//! and refer to memory. Any other unit, and every execution that an event cuts short, is run step by step;
//! so is one whose addresses need a register that is not known, because that says what is wrong.

use std::collections::hash_map::{Entry, HashMap};

use abi::ids::Gpr;
use lifter::operands::Segment;
use lifter::recompute::{Binary, Effect, Unary};
use lifter::regs::GprSet;

use crate::compile::{Simple, Step, NO_REGISTER};
use crate::walk::LANES;

/// Values that a unit computes with: registers in front of it, [`ZERO`], segment bases, what is computed on
/// the way, recorded words.
pub(crate) type Slots = [u64; 256];

const ZERO: u8 = 16;
/// The base of the segment.
pub(crate) const FS: u8 = 17;
/// The same.
pub(crate) const GS: u8 = 18;
const FIRST_COMPUTED: u8 = 19;
const FIRST_WORD: u8 = 128;
const MOST_WORDS: usize = 128;

/// What a reference of a unit is every time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Referred {
    /// Of the instruction in the unit.
    pub offset: u16,
    /// Bytes.
    pub size: u16,
    /// It writes.
    pub write: bool,
}

/// `base + index * scale + displacement`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sum {
    displacement: u64,
    base: u8,
    index: u8,
    scale: u8,
    /// Of a register behind the unit: which.
    to: u8,
}

impl Sum {
    const fn of(slot: u8) -> Sum {
        Sum { displacement: 0, base: slot, index: ZERO, scale: 0, to: 0 }
    }

    #[inline(always)]
    fn value(&self, slots: &Slots) -> u64 {
        slots[usize::from(self.base)]
            .wrapping_add(slots[usize::from(self.index)].wrapping_mul(u64::from(self.scale)))
            .wrapping_add(self.displacement)
    }

    fn slot(&self) -> Option<u8> {
        (self.index == ZERO && self.displacement == 0).then_some(self.base)
    }

    fn reads(&self, slot: u8) -> bool {
        self.base == slot || self.index == slot
    }
}

/// Addresses side by side: each is what a slot has, and its displacement. What has an index is computed in front, once for
/// all addresses that have the same.
#[derive(Clone, Copy, Debug)]
struct Lane {
    displacements: [u64; LANES],
    slots: [u8; LANES],
}

impl Lane {
    fn all(sums: &[Sum]) -> Box<[Lane]> {
        let lane = |sums: &[Sum]| {
            let mut lane = Lane { displacements: [0; LANES], slots: [ZERO; LANES] };
            for (n, sum) in sums.iter().enumerate() {
                (lane.displacements[n], lane.slots[n]) = (sum.displacement, sum.base);
            }
            lane
        };
        sums.chunks(LANES).map(lane).collect()
    }

    #[inline(always)]
    fn values(&self, slots: &Slots) -> [u64; LANES] {
        std::array::from_fn(|n| {
            slots[usize::from(self.slots[n])].wrapping_add(self.displacements[n])
        })
    }
}

/// What a slot is computed of. `narrow`: only the low half counts.
#[derive(Clone, Debug)]
struct Computed {
    sum: Sum,
    narrow: bool,
    of: Of,
}

/// What is done with a sum.
#[derive(Clone, Debug)]
enum Of {
    /// It is all.
    Sum,
    /// It is what is right of the operation, and the slot is left of it.
    Binary(Binary, u8),
    /// The operation has nothing else.
    Unary(Unary),
}

/// A unit, as sums.
#[derive(Debug)]
pub struct Plain {
    /// Registers that its addresses need.
    pub(crate) needs: GprSet,
    /// In their order; what each computes.
    computed: Box<[(u8, Computed)]>,
    /// Addresses.
    addresses: Box<[Lane]>,
    /// Registers that change.
    registers: Box<[Sum]>,
    /// The references, in their order.
    pub references: Box<[Referred]>,
    /// Registers that are known behind it if they were in front of it.
    keeps: GprSet,
    /// Registers that are known behind it.
    sets: GprSet,
    /// Registers that are known behind it if these all were.
    passes: Box<[(GprSet, GprSet)]>,
}

impl Plain {
    /// One execution with these recorded `words`: the registers change. If it is `wanted`, `addresses` get what it
    /// refers to, in front; it grows if that is too short, and has whole lanes.
    #[inline(always)]
    pub(crate) fn execute(
        &self,
        words: &[u8],
        slots: &mut Slots,
        known: &mut GprSet,
        addresses: &mut Vec<u64>,
        wanted: bool,
    ) {
        for (slot, word) in slots[usize::from(FIRST_WORD)..].iter_mut().zip(words.chunks_exact(8)) {
            *slot = word.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        }
        for (to, computed) in &self.computed {
            slots[usize::from(*to)] = computed.value(slots);
        }
        if wanted {
            let room = self.addresses.len() * LANES;
            if addresses.len() < room {
                addresses.resize(room.next_multiple_of(64), 0);
            }
            let (places, _) = addresses.as_chunks_mut::<LANES>();
            for (place, lane) in places.iter_mut().zip(&self.addresses) {
                *place = lane.values(slots);
            }
        }
        for sum in &self.registers {
            slots[usize::from(sum.to)] = sum.value(slots);
        }
        let before = *known;
        *known = before.intersection(self.keeps).union(self.sets);
        for (register, of) in &self.passes {
            if of.minus(before).is_empty() {
                *known = known.union(*register);
            }
        }
    }
}

impl Computed {
    #[inline(always)]
    fn value(&self, slots: &Slots) -> u64 {
        let sum = self.sum.value(slots);
        let value = match self.of {
            Of::Sum => sum,
            Of::Binary(operation, left) => {
                operation.compute(slots[usize::from(left)], sum, self.narrow)
            }
            Of::Unary(operation) => operation.compute(sum, self.narrow),
        };
        if self.narrow {
            value & 0xffff_ffff
        } else {
            value
        }
    }
}

/// What is known of a register: its value, and the registers in front of the unit on which it depends.
/// `None`: it is not known, whatever was.
type Value = Option<(Sum, GprSet)>;

struct Maker {
    registers: [Value; 16],
    /// Operands whose addresses were recorded.
    addresses: [Option<Sum>; 4],
    held: Option<Sum>,
    words: usize,
    computed: Vec<(u8, Computed)>,
    needs: GprSet,
    sums: Vec<Sum>,
    references: Vec<Referred>,
}

/// The unit as sums, or units one after another, if they have that form.
pub(crate) fn plain<'s>(steps: impl IntoIterator<Item = &'s Step>) -> Option<Plain> {
    let registers = std::array::from_fn(|n| {
        let n = u8::try_from(n).unwrap_or(ZERO);
        Some((Sum::of(n), GprSet::of(Gpr(n))))
    });
    let mut maker = Maker {
        registers,
        addresses: [None; 4],
        held: None,
        words: 0,
        computed: Vec::new(),
        needs: GprSet::EMPTY,
        sums: Vec::new(),
        references: Vec::new(),
    };
    steps.into_iter().try_for_each(|step| maker.step(step))?;
    maker.finish()
}

impl Maker {
    fn word(&mut self) -> Option<Sum> {
        let number = self.words;
        self.words += 1;
        (number < MOST_WORDS).then_some(())?;
        Some(Sum::of(FIRST_WORD + u8::try_from(number).ok()?))
    }

    fn compute(&mut self, of: Of, sum: Sum, narrow: bool) -> Option<u8> {
        let slot = FIRST_COMPUTED + u8::try_from(self.computed.len()).ok()?.min(FIRST_WORD);
        (slot < FIRST_WORD).then_some(())?;
        self.computed.push((slot, Computed { sum, narrow, of }));
        Some(slot)
    }

    /// A slot with this value.
    fn slot(&mut self, sum: Sum) -> Option<u8> {
        match sum.slot() {
            Some(slot) => Some(slot),
            None => self.compute(Of::Sum, sum, false),
        }
    }

    fn narrow(&mut self, sum: Sum) -> Option<Sum> {
        self.compute(Of::Sum, sum, true).map(Sum::of)
    }

    /// `left + right * scale`
    fn add(&mut self, left: Sum, right: Sum, scale: u8) -> Option<Sum> {
        let displacement = right.displacement.wrapping_mul(u64::from(scale));
        let mut sum = left;
        sum.displacement = sum.displacement.wrapping_add(displacement);
        let (right, scale) = match (right.base, right.index) {
            (ZERO, ZERO) => return Some(sum),
            (base, ZERO) => (base, scale),
            _ => {
                sum = left;
                (self.slot(right)?, scale)
            }
        };
        if sum.index != ZERO {
            let displacement = std::mem::take(&mut sum.displacement);
            sum = Sum::of(self.slot(sum)?);
            sum.displacement = displacement;
        }
        (sum.index, sum.scale) = (right, scale);
        Some(sum)
    }

    fn get(&self, register: Gpr) -> Value {
        self.registers[register.index()]
    }

    fn step(&mut self, step: &Step) -> Option<()> {
        match step {
            Step::Block(_) => {}
            Step::Take(register) => {
                let word = self.word()?;
                self.registers[register.index()] = Some((word, GprSet::EMPTY));
            }
            Step::TakeAddress(n) => self.addresses[usize::from(n & 3)] = Some(self.word()?),
            Step::Hold(_) => self.held = Some(self.word()?),
            Step::Release(register) => {
                self.registers[register.index()] = Some((self.held?, GprSet::EMPTY));
            }
            Step::Effect(effect) => self.effect(effect)?,
            Step::Plain(simple) => {
                let sum = self.address(simple)?;
                self.refer(sum, simple.offset, simple.size, simple.write);
            }
            Step::Recorded { operand, offset, size, write } => {
                let sum = self.addresses[usize::from(operand & 3)]?;
                self.refer(sum, *offset, *size, *write);
            }
            _ => return None,
        }
        Some(())
    }

    fn refer(&mut self, sum: Sum, offset: u16, size: u16, write: bool) {
        self.sums.push(sum);
        self.references.push(Referred { offset, size, write });
    }

    fn address(&mut self, simple: &Simple) -> Option<Sum> {
        let mut sum = Sum { displacement: simple.displacement, ..Sum::of(ZERO) };
        if simple.base < NO_REGISTER {
            let (base, of) = self.get(simple.base)?;
            self.needs = self.needs.union(of);
            sum = base;
            sum.displacement = sum.displacement.wrapping_add(simple.displacement);
        }
        if simple.index < NO_REGISTER {
            let (index, of) = self.get(simple.index)?;
            self.needs = self.needs.union(of);
            sum = self.add(sum, index, simple.scale)?;
        }
        if simple.address32 {
            sum = self.narrow(sum)?;
        }
        match simple.segment {
            Segment::None => Some(sum),
            Segment::Fs => self.add(sum, Sum::of(FS), 1),
            Segment::Gs => self.add(sum, Sum::of(GS), 1),
        }
    }

    fn effect(&mut self, effect: &Effect) -> Option<()> {
        match *effect {
            Effect::Forget(set) => {
                set.iter().for_each(|register| self.registers[register.index()] = None);
            }
            Effect::Set { to, value } => {
                let sum = Sum { displacement: value, ..Sum::of(ZERO) };
                self.registers[to.index()] = Some((sum, GprSet::EMPTY));
            }
            Effect::Lea { to, base, index, displacement, narrow } => {
                let mut value = self.get(base);
                if let Some((sum, _)) = &mut value {
                    sum.displacement = sum.displacement.wrapping_add(displacement);
                }
                if let Some((register, scale)) = index {
                    value = match (value, self.get(register)) {
                        (Some((sum, of)), Some((index, index_of))) => {
                            Some((self.add(sum, index, scale)?, of.union(index_of)))
                        }
                        _ => None,
                    };
                }
                if let (Some((sum, _)), true) = (&mut value, narrow) {
                    *sum = self.narrow(*sum)?;
                }
                self.registers[to.index()] = value;
            }
            Effect::Binary { to, left, right, operation, narrow } => {
                let right = self.get(right);
                self.binary((to, narrow), operation, left, right)?;
            }
            Effect::Immediate { to, left, right, operation, narrow } => {
                let right = (Sum { displacement: right, ..Sum::of(ZERO) }, GprSet::EMPTY);
                self.binary((to, narrow), operation, left, Some(right))?;
            }
            Effect::Unary { to, from, operation, narrow } => {
                self.registers[to.index()] = match self.get(from) {
                    Some((sum, of)) => {
                        let slot = self.compute(Of::Unary(operation), sum, narrow)?;
                        Some((Sum::of(slot), of))
                    }
                    None => None,
                };
            }
            Effect::Swap { a, b, narrow } => {
                let mut both = [self.get(b), self.get(a)];
                for (sum, _) in both.iter_mut().flatten().filter(|_| narrow) {
                    *sum = self.narrow(*sum)?;
                }
                [self.registers[a.index()], self.registers[b.index()]] = both;
            }
        }
        Some(())
    }

    fn binary(
        &mut self,
        (to, narrow): (Gpr, bool),
        operation: Binary,
        left: Gpr,
        right: Value,
    ) -> Option<()> {
        self.registers[to.index()] = match (self.get(left), right) {
            (Some((left, of)), Some((right, right_of))) => {
                let left = self.slot(left)?;
                let slot = self.compute(Of::Binary(operation, left), right, narrow)?;
                Some((Sum::of(slot), of.union(right_of)))
            }
            _ => None,
        };
        Some(())
    }

    /// The addresses, each a slot and a displacement.
    fn without_index(&mut self) -> Option<Vec<Sum>> {
        let mut known = HashMap::new();
        let sums = std::mem::take(&mut self.sums);
        let without = sums.into_iter().map(|sum| {
            if sum.index == ZERO {
                return Some(sum);
            }
            let slot = match known.entry((sum.base, sum.index, sum.scale)) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(new) => {
                    let sum = Sum { displacement: 0, ..sum };
                    *new.insert(self.compute(Of::Sum, sum, false)?)
                }
            };
            Some(Sum { displacement: sum.displacement, ..Sum::of(slot) })
        });
        without.collect()
    }

    fn finish(mut self) -> Option<Plain> {
        let (mut keeps, mut sets) = (GprSet::EMPTY, GprSet::EMPTY);
        let mut passes = Vec::new();
        let (mut pending, mut registers) = (Vec::<Sum>::new(), Vec::new());
        for register in (0..16).map(Gpr) {
            let Some((mut sum, of)) = self.get(register) else { continue };
            let own = GprSet::of(register);
            // What it needs is known, or it is not run in this form.
            match of.minus(self.needs) {
                rest if rest.is_empty() => sets = sets.union(own),
                rest if rest == own => keeps = keeps.union(own),
                rest => passes.push((own, rest)),
            }
            if sum != Sum::of(register.0) {
                sum.to = register.0;
                pending.push(sum);
            }
        }
        // A register changes when no other sum needs what it was.
        while !pending.is_empty() {
            let is_free =
                |sum: &Sum| pending.iter().all(|other| other.to == sum.to || !other.reads(sum.to));
            match pending.iter().position(is_free) {
                Some(at) => registers.push(pending.swap_remove(at)),
                None => {
                    // They wait for each other: one that still reads registers is computed ahead.
                    let waits = |sum: &&mut Sum| sum.base < ZERO || sum.index < ZERO;
                    let sum = pending.iter_mut().find(waits)?;
                    let slot = self.compute(Of::Sum, *sum, false)?;
                    *sum = Sum { to: sum.to, ..Sum::of(slot) };
                }
            }
        }
        let addresses = self.without_index()?;
        let sums = || addresses.iter().chain(&registers);
        Some(Plain {
            needs: self.needs,
            computed: needed(self.computed, sums()),
            addresses: Lane::all(&addresses),
            registers: registers.into(),
            references: self.references.into(),
            keeps,
            sets,
            passes: passes.into(),
        })
    }
}

/// What `sums` need of what is computed.
fn needed<'a>(
    computed: Vec<(u8, Computed)>,
    sums: impl Iterator<Item = &'a Sum>,
) -> Box<[(u8, Computed)]> {
    let mut wanted = [false; 256];
    for slot in sums.flat_map(|sum| [sum.base, sum.index]) {
        wanted[usize::from(slot)] = true;
    }
    let mut kept = Vec::new();
    for (slot, computed) in computed.into_iter().rev() {
        if wanted[usize::from(slot)] {
            let left = match computed.of {
                Of::Binary(_, left) => left,
                Of::Sum | Of::Unary(_) => ZERO,
            };
            for slot in [computed.sum.base, computed.sum.index, left] {
                wanted[usize::from(slot)] = true;
            }
            kept.push((slot, computed));
        }
    }
    kept.reverse();
    kept.into()
}
