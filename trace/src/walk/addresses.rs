//! Executes the steps of a program: takes recorded values, computes addresses.

use std::ops::ControlFlow::{self, Break, Continue};

use abi::trace::RegisterState;
use lifter::operands::{bit_word_offset, xsave_size, GatherMask, Index, Reference, Segment, Shape};
use lifter::regs::{RAX, RDX, RSP};

use super::{Cursor, Entered, MemoryReference, Overwritten, Sink};
use crate::program::{Program, Simple, Step, NO_REGISTER};

/// More bytes than this are not believed to have been referenced by one string instruction.
const MAX_REPEATED: u64 = 1 << 38;
/// Iterations between questions to the sink.
const REPEATS_AT_ONCE: u64 = 1 << 20;

impl Cursor<'_> {
    /// Runs `steps` (of a sink that wants references), whose recorded values the memory stream has been checked to hold.
    #[inline]
    pub(super) fn run<S: Sink>(
        &mut self,
        program: &Program,
        steps: &[Step],
        sink: &mut S,
    ) -> Result<ControlFlow<()>, String> {
        let pc = |offset: u16| program.address.wrapping_add(u64::from(offset));
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
                    let address = self.address(simple, program)?;
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
                    let address = self.address(simple, program)?;
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
                Step::Enter { offset, to } => self.enter(program, *offset, *to, sink)?,
                Step::Block(offset) => sink.block(pc(*offset), false),
                Step::TakeAddress(n) => self.addresses[usize::from(n & 3)] = self.take(),
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
                    if self.repeat(program, *pointer, first, second, sink)?.is_break() {
                        return Ok(Break(()));
                    }
                }
                Step::Rare { reference, offset, recorded } => {
                    self.rare(program, reference, *offset, *recorded, sink)?;
                }
            }
        }
        Ok(Continue(()))
    }

    /// What instruction `number`, which did not come to its end, had done when the program's
    /// registers were `state`: the completed iterations of a repeated string instruction.
    pub(super) fn run_interrupted<S: Sink>(
        &mut self,
        program: &Program,
        number: usize,
        state: &RegisterState,
        sink: &mut S,
    ) -> Result<ControlFlow<()>, String> {
        let first = program.starts[number].step as usize;
        let behind = program.starts[number + 1].step as usize;
        let steps = &program.steps[first..behind];
        let repeat = steps.iter().position(|step| matches!(step, Step::Repeat { .. }));
        let Some(repeat) = repeat else { return Ok(Continue(())) };
        let Step::Repeat { pointer, first, second } = &steps[repeat] else {
            return Ok(Continue(()));
        };
        if state.valid >> pointer & 1 == 0 {
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
        self.held = state.gpr[usize::from(*pointer)];
        self.repeat(program, *pointer, first, second.as_ref(), sink)
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
        program: &Program,
        offset: u16,
        to: Option<u64>,
        sink: &mut S,
    ) -> Result<(), String> {
        let mut registers = [0; 16];
        for (number, slot) in registers.iter_mut().enumerate() {
            *slot = self.register(number as u8, program, offset)?;
        }
        registers[usize::from(RSP)] = registers[usize::from(RSP)].wrapping_sub(8);
        let pc = program.address.wrapping_add(u64::from(offset));
        match to {
            Some(to) => sink.enter(Entered { pc, to, registers }),
            None => self.entered = Some(Entered { pc, to: 0, registers }),
        }
        Ok(())
    }

    #[inline]
    fn register(&self, number: u8, program: &Program, offset: u16) -> Result<u64, String> {
        self.known.get(number).ok_or_else(|| unknown(program, offset, number))
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
    fn address(&self, simple: &Simple, program: &Program) -> Result<u64, String> {
        let mut sum = simple.displacement;
        if simple.base < NO_REGISTER {
            sum = sum.wrapping_add(self.register(simple.base, program, simple.offset)?);
        }
        if simple.index < NO_REGISTER {
            let index = self.register(simple.index, program, simple.offset)?;
            sum = sum.wrapping_add(index.wrapping_mul(u64::from(simple.scale)));
        }
        if simple.address32 {
            sum &= 0xffff_ffff;
        }
        Ok(sum.wrapping_add(self.segment(simple.segment)))
    }

    fn repeat<S: Sink>(
        &mut self,
        program: &Program,
        pointer: u8,
        first: &Simple,
        second: Option<&Simple>,
        sink: &mut S,
    ) -> Result<ControlFlow<()>, String> {
        let before = self.register(pointer, program, first.offset)?;
        let mut moved = self.held.wrapping_sub(before) as i64;
        if first.address32 {
            moved = i64::from(moved as i32);
        }
        let size = u64::from(first.size.max(1));
        let bytes = moved.unsigned_abs();
        if !bytes.is_multiple_of(size) || bytes > MAX_REPEATED {
            return Err(format!(
                "a string instruction at {:#x} moved its pointer by {moved}",
                program.address.wrapping_add(u64::from(first.offset))
            ));
        }
        let step = if moved < 0 { size.wrapping_neg() } else { size };
        let mut at = [self.address(first, program)?, 0];
        if let Some(second) = second {
            at[1] = self.address(second, program)?;
        }
        let pc = program.address.wrapping_add(u64::from(first.offset));
        let (mut left, sides) = (bytes / size, 1 + u64::from(second.is_some()));
        while left > 0 {
            let now = left.min(REPEATS_AT_ONCE);
            let from = at;
            let operands = [Some(first), second];
            let all = (0..now).flat_map(|iteration| {
                let moved = step.wrapping_mul(iteration);
                let both = operands.iter().zip(from);
                both.filter_map(move |(operand, from)| {
                    let write = (*operand)?.write;
                    let address = from.wrapping_add(moved);
                    Some(MemoryReference { pc, address, size: size as u32, write })
                })
            });
            sink.references(all, now * sides);
            at = at.map(|address| address.wrapping_add(step.wrapping_mul(now)));
            left -= now;
            if left > 0 && !sink.go_on() {
                return Ok(Break(()));
            }
        }
        Ok(Continue(()))
    }

    fn rare<S: Sink>(
        &mut self,
        program: &Program,
        r: &Reference,
        offset: u16,
        recorded: bool,
        sink: &mut S,
    ) -> Result<(), String> {
        let get = |number: u8| self.register(number, program, offset);
        let mut sum = r.displacement as u64;
        if recorded {
            // The address with its segment, but without what a bit offset adds.
            sum = self.addresses[usize::from(r.operand.unwrap_or(0) & 3)];
        } else if let Some(base) = r.base {
            sum = sum.wrapping_add(get(base)?);
        }
        let scaled = |(number, scale): (u8, u8)| {
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
            sum.wrapping_add(segment)
        };
        let pc = program.address.wrapping_add(u64::from(offset));
        let mut tell = |address: u64, size: u32| {
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
                let (xcr0, components) =
                    self.xsave.ok_or("the trace does not say how large saved state is")?;
                tell(finish(sum), xsave_size(compacted, requested, *xcr0, components));
            }
            _ => tell(finish(sum), r.size),
        }
        Ok(())
    }
}

fn signed_element(vector: &[u8; 64], element: usize, bytes: usize) -> u64 {
    let at = element * bytes;
    match vector.get(at..at + bytes) {
        Some(&[a, b, c, d]) => i32::from_le_bytes([a, b, c, d]) as u64,
        Some(&[a, b, c, d, e, f, g, h]) => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => 0,
    }
}

#[cold]
fn unknown(program: &Program, offset: u16, number: u8) -> String {
    format!(
        "register {number} is not known at {:#x} (unit {:#x})",
        program.address.wrapping_add(u64::from(offset)),
        program.id
    )
}
