//! Executes the steps of a compiled unit: takes recorded values, computes addresses.

use std::ops::ControlFlow::{self, Break, Continue};

use abi::ids::{Gpr, LiveAddr};
use abi::trace::RegisterState;
use lifter::operands::{bit_word_offset, xsave_size, GatherMask, Index, Reference, Segment, Shape};
use lifter::recompute::Known;
use lifter::regs::{GprSet, RAX, RDX, RSP};

use super::sink::{Entered, MemoryReference, Overwritten, Sink};
use crate::compile::{CompiledUnit, Simple, Step, NO_REGISTER};
use crate::open::Xsave;

/// More bytes than this are not believed to have been referenced by one string instruction.
const MAX_REPEATED: u64 = 1 << 38;
/// Iterations between questions to the sink.
const REPEATS_AT_ONCE: u64 = 1 << 20;

/// The state of a walk through the memory stream of one chunk.
pub(super) struct Cursor<'a> {
    pub known: Known,
    pub fs_base: u64,
    pub gs_base: u64,
    pub memory: &'a [u8],
    pub memory_at: usize,
    held: u64,
    addresses: [LiveAddr; 4],
    masks: [u64; 8],
    vectors: Box<[[u8; 64]; 32]>,
    xsave: Option<&'a Xsave>,
    /// The last unit ended with an indirect call, whose target is the next unit.
    pub entered: Option<Entered>,
}

impl<'a> Cursor<'a> {
    /// At the start of a chunk.
    pub fn new(state: &RegisterState, memory: &'a [u8], xsave: Option<&'a Xsave>) -> Cursor<'a> {
        let mut cursor = Cursor {
            known: Known::default(),
            fs_base: 0,
            gs_base: 0,
            memory,
            memory_at: 0,
            held: 0,
            addresses: [LiveAddr(0); 4],
            masks: [0; 8],
            vectors: Box::new([[0; 64]; 32]),
            xsave,
            entered: None,
        };
        cursor.set(state);
        cursor
    }

    /// The thread goes on with these registers.
    pub fn set(&mut self, state: &RegisterState) {
        let known = GprSet((state.valid & 0xffff) as u16);
        self.known = Known { values: state.gpr, known };
        self.fs_base = state.fs_base;
        self.gs_base = state.gs_base;
    }

    /// Runs `steps`, whose recorded values the memory stream has been checked to hold, for a sink
    /// that wants references.
    #[inline]
    pub fn run<S: Sink>(
        &mut self,
        unit: &CompiledUnit,
        steps: &[Step],
        sink: &mut S,
    ) -> Result<ControlFlow<()>, String> {
        let pc = |offset: u16| unit.address.plus(u64::from(offset));
        for step in steps {
            match step {
                Step::Effect(effect) => self.known.apply(effect),
                Step::Base { segment, from, narrow } => {
                    // Unknown only if memory references are not recorded, which need no base.
                    let value = self.known.get(*from).unwrap_or(0);
                    let value = if *narrow { value & 0xffff_ffff } else { value };
                    match segment {
                        Segment::Gs => self.gs_base = value,
                        _ => self.fs_base = value,
                    }
                }
                Step::Take(register) => {
                    let value = self.take();
                    self.known.set(*register, value);
                }
                Step::Plain(simple) => {
                    let address = self.address(simple, unit)?;
                    sink.reference(MemoryReference {
                        pc: pc(simple.offset),
                        address,
                        size: u32::from(simple.size),
                        write: simple.write,
                    });
                }
                Step::Recorded { operand, offset, size, write } => {
                    sink.reference(MemoryReference {
                        pc: pc(*offset),
                        address: self.addresses[usize::from(operand & 3)],
                        size: u32::from(*size),
                        write: *write,
                    });
                }
                Step::Old(simple) => {
                    let address = self.address(simple, unit)?;
                    let old = self.old(simple.size);
                    sink.store(Overwritten { pc: pc(simple.offset), address, old });
                }
                Step::OldRecorded { operand, offset, size } => {
                    let address = self.addresses[usize::from(operand & 3)];
                    let old = self.old(*size);
                    sink.store(Overwritten { pc: pc(*offset), address, old });
                }
                Step::Order => {
                    let number = self.take();
                    sink.order(number, true);
                }
                Step::Ordered => sink.ordered(),
                Step::Enter { offset, to } => self.enter(unit, *offset, *to, sink)?,
                Step::Block(offset) => sink.block(pc(*offset), false),
                Step::TakeAddress(n) => self.addresses[usize::from(n & 3)] = LiveAddr(self.take()),
                Step::Hold(_) => self.held = self.take(),
                Step::Release(register) => self.known.set(*register, self.held),
                Step::TakeMask(k) => self.masks[usize::from(k & 7)] = self.take(),
                Step::TakeVector(v) => {
                    let bytes = &self.memory[self.memory_at..self.memory_at + 64];
                    self.vectors[usize::from(v & 31)].copy_from_slice(bytes);
                    self.memory_at += 64;
                }
                Step::Repeat { pointer, first, second } => {
                    let second = second.as_ref();
                    if self.repeat(unit, *pointer, first, second, sink)?.is_break() {
                        return Ok(Break(()));
                    }
                }
                Step::Rare { reference, offset, recorded } => {
                    self.rare(unit, reference, *offset, *recorded, sink)?;
                }
            }
        }
        Ok(Continue(()))
    }

    /// What instruction `number`, which did not come to its end, had done when the program's
    /// registers were `state`: the completed iterations of a repeated string instruction.
    pub fn run_interrupted<S: Sink>(
        &mut self,
        unit: &CompiledUnit,
        number: usize,
        state: &RegisterState,
        sink: &mut S,
    ) -> Result<ControlFlow<()>, String> {
        let first = unit.starts[number].step as usize;
        let behind = unit.starts[number + 1].step as usize;
        let steps = &unit.steps[first..behind];
        let repeat = steps.iter().position(|step| matches!(step, Step::Repeat { .. }));
        let Some(repeat) = repeat else { return Ok(Continue(())) };
        let Step::Repeat { pointer, first, second } = &steps[repeat] else {
            return Ok(Continue(()));
        };
        if state.valid >> pointer.0 & 1 == 0 {
            return Ok(Continue(()));
        }
        for step in &steps[..repeat] {
            match step {
                Step::Take(register) => {
                    let value = self.take();
                    self.known.set(*register, value);
                }
                // Not written: the instruction did not come to its end.
                Step::Hold(_) => drop(self.take()),
                _ => {}
            }
        }
        self.held = state.gpr[pointer.index()];
        self.repeat(unit, *pointer, first, second.as_ref(), sink)
    }

    /// The next recorded word, if there is one.
    pub fn word(&mut self) -> Option<u64> {
        let word = self.memory.get(self.memory_at..)?.first_chunk()?;
        self.memory_at += 8;
        Some(u64::from_le_bytes(*word))
    }

    #[inline]
    fn take(&mut self) -> u64 {
        let word = self.memory.get(self.memory_at..self.memory_at + 8);
        self.memory_at += 8;
        word.and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
    }

    /// The bytes of a store, which are padded to words.
    #[inline]
    fn old(&mut self, size: u16) -> &[u8] {
        let from = self.memory_at;
        self.memory_at += usize::from(size).next_multiple_of(8);
        self.memory.get(from..from + usize::from(size)).unwrap_or_default()
    }

    fn enter<S: Sink>(
        &mut self,
        unit: &CompiledUnit,
        offset: u16,
        to: Option<LiveAddr>,
        sink: &mut S,
    ) -> Result<(), String> {
        let mut registers = [0; 16];
        for (register, slot) in (0..).map(Gpr).zip(&mut registers) {
            *slot = self.register(register, unit, offset)?;
        }
        registers[RSP.index()] = registers[RSP.index()].wrapping_sub(8);
        let pc = unit.address.plus(u64::from(offset));
        match to {
            Some(to) => sink.enter(Entered { pc, to, registers }),
            None => self.entered = Some(Entered { pc, to: LiveAddr(0), registers }),
        }
        Ok(())
    }

    #[inline]
    fn register(&self, register: Gpr, unit: &CompiledUnit, offset: u16) -> Result<u64, String> {
        self.known.get(register).ok_or_else(|| unknown(unit, offset, register))
    }

    #[inline]
    fn segment(&self, segment: Segment) -> u64 {
        match segment {
            Segment::None => 0,
            Segment::Fs => self.fs_base,
            Segment::Gs => self.gs_base,
        }
    }

    #[inline]
    fn address(&self, simple: &Simple, unit: &CompiledUnit) -> Result<LiveAddr, String> {
        let mut sum = simple.displacement;
        if simple.base < NO_REGISTER {
            sum = sum.wrapping_add(self.register(simple.base, unit, simple.offset)?);
        }
        if simple.index < NO_REGISTER {
            let index = self.register(simple.index, unit, simple.offset)?;
            sum = sum.wrapping_add(index.wrapping_mul(u64::from(simple.scale)));
        }
        if simple.address32 {
            sum &= 0xffff_ffff;
        }
        Ok(LiveAddr(sum.wrapping_add(self.segment(simple.segment))))
    }

    fn repeat<S: Sink>(
        &mut self,
        unit: &CompiledUnit,
        pointer: Gpr,
        first: &Simple,
        second: Option<&Simple>,
        sink: &mut S,
    ) -> Result<ControlFlow<()>, String> {
        let before = self.register(pointer, unit, first.offset)?;
        let distance = self.held.wrapping_sub(before);
        let moved = match first.address32 {
            true => i64::from(low(distance).cast_signed()),
            false => distance.cast_signed(),
        };
        let size = first.size.max(1);
        let bytes = moved.unsigned_abs();
        if !bytes.is_multiple_of(u64::from(size)) || bytes > MAX_REPEATED {
            return Err(format!(
                "a string instruction at {} moved its pointer by {moved}",
                unit.address.plus(u64::from(first.offset))
            ));
        }
        let step = match moved < 0 {
            true => u64::from(size).wrapping_neg(),
            false => u64::from(size),
        };
        let mut at = [self.address(first, unit)?, LiveAddr(0)];
        if let Some(second) = second {
            at[1] = self.address(second, unit)?;
        }
        let pc = unit.address.plus(u64::from(first.offset));
        let (mut left, sides) = (bytes / u64::from(size), 1 + u64::from(second.is_some()));
        while left > 0 {
            let now = left.min(REPEATS_AT_ONCE);
            let from = at;
            let operands = [Some(first), second];
            let all = (0..now).flat_map(|iteration| {
                let moved = step.wrapping_mul(iteration);
                let both = operands.iter().zip(from);
                both.filter_map(move |(operand, from)| {
                    let write = (*operand)?.write;
                    let address = from.plus(moved);
                    Some(MemoryReference { pc, address, size: u32::from(size), write })
                })
            });
            sink.references(all, now * sides);
            at = at.map(|address| address.plus(step.wrapping_mul(now)));
            left -= now;
            if left > 0 && !sink.go_on() {
                return Ok(Break(()));
            }
        }
        Ok(Continue(()))
    }

    fn rare<S: Sink>(
        &mut self,
        unit: &CompiledUnit,
        r: &Reference,
        offset: u16,
        recorded: bool,
        sink: &mut S,
    ) -> Result<(), String> {
        let get = |register: Gpr| self.register(register, unit, offset);
        let mut sum = r.displacement.cast_unsigned();
        if recorded {
            // The address with its segment, but without what a bit offset adds.
            sum = self.addresses[usize::from(r.operand.unwrap_or(0) & 3)].0;
        } else if let Some(base) = r.base {
            sum = sum.wrapping_add(get(base)?);
        }
        let scaled = |(number, scale): (Gpr, u8)| {
            get(number).map(|value| value.wrapping_mul(u64::from(scale)))
        };
        match r.index {
            Index::LowByte { number } if !recorded => sum = sum.wrapping_add(get(number)? & 0xff),
            Index::Gpr { number, scale } if !recorded => {
                sum = sum.wrapping_add(scaled((number, scale))?);
            }
            Index::BitOffset { number, operand_bytes, index } => {
                if let Some(index) = index.filter(|_| !recorded) {
                    sum = sum.wrapping_add(scaled(index)?);
                }
                sum = sum.wrapping_add(bit_word_offset(get(number)?, operand_bytes));
            }
            _ => {}
        }
        let segment = if recorded { 0 } else { self.segment(r.segment) };
        let finish = |sum: u64| {
            let sum = if r.address32 && !recorded { sum & 0xffff_ffff } else { sum };
            LiveAddr(sum.wrapping_add(segment))
        };
        let pc = unit.address.plus(u64::from(offset));
        let mut tell = |address: LiveAddr, size: u32| {
            sink.reference(MemoryReference { pc, address, size, write: r.write });
        };
        match (r.shape, r.index) {
            (Shape::Gather { elements, mask }, Index::Vector { number, scale, element_bytes }) => {
                let indices = &self.vectors[usize::from(number & 31)];
                for element in 0..usize::from(elements) {
                    let enabled = match mask {
                        GatherMask::Bits(k) => self.masks[usize::from(k & 7)] >> element & 1 == 1,
                        GatherMask::Signs(v) => {
                            let last = (element + 1) * r.size as usize - 1;
                            self.vectors[usize::from(v & 31)]
                                .get(last)
                                .is_some_and(|b| b & 0x80 != 0)
                        }
                    };
                    if enabled {
                        let index = signed_element(indices, element, usize::from(element_bytes));
                        let index = index.wrapping_mul(u64::from(scale));
                        tell(finish(sum.wrapping_add(index)), r.size);
                    }
                }
            }
            (Shape::Xsave { compacted }, _) => {
                let requested = (get(RDX)? << 32) | (get(RAX)? & 0xffff_ffff);
                let xsave = self.xsave.ok_or("the trace does not say how large saved state is")?;
                let size = xsave_size(compacted, requested, xsave.xcr0, &xsave.components);
                tell(finish(sum), size);
            }
            _ => tell(finish(sum), r.size),
        }
        Ok(())
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the low half is asked for")]
fn low(word: u64) -> u32 {
    word as u32
}

fn signed_element(vector: &[u8; 64], element: usize, bytes: usize) -> u64 {
    let at = element * bytes;
    match vector.get(at..at + bytes) {
        Some(&[a, b, c, d]) => i64::from(i32::from_le_bytes([a, b, c, d])).cast_unsigned(),
        Some(&[a, b, c, d, e, f, g, h]) => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => 0,
    }
}

#[cold]
fn unknown(unit: &CompiledUnit, offset: u16, register: Gpr) -> String {
    format!(
        "register {register} is not known at {} (unit {})",
        unit.address.plus(u64::from(offset)),
        unit.id
    )
}
