//! Compiles a unit into the steps that recovering one execution of it costs.
//!
//! The order within an instruction: take the values recorded before it, report its references,
//! apply its effect on known registers, let the values recorded after it take effect.

use abi::unit::What;
use iced_x86::{Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic};
use lifter::flow::Flow;
use lifter::operands::{self, Index, Reference, Segment, Shape};
use lifter::recompute::{self, Effect};
use lifter::regs::{gpr_number, RDI, RSI};
use lifter::stores::{stores, Stores};

use crate::units::{Origin, Unit};

/// A unit in executable form.
#[derive(Debug)]
pub struct Program {
    pub id: u32,
    pub address: u64,
    /// Address behind the last instruction.
    pub end: u64,
    pub origin: Origin,
    pub wide: bool,
    /// What one execution claims of the memory stream.
    pub memory_bytes: u32,
    pub steps: Vec<Step>,
    /// Offsets at which blocks start inside of the unit.
    pub inner_blocks: Vec<u16>,
    /// Where each instruction starts, and one more for the end.
    pub starts: Vec<Start>,
    pub exit: Exit,
    /// The last instruction transfers control, so that a block starts behind it.
    pub transfers: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Start {
    pub offset: u16,
    pub step: u32,
}

/// Where a unit leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    To(u64),
    /// A conditional branch (including `loop` and `jrcxz`).
    Branch {
        taken: u64,
        not_taken: u64,
    },
    /// A system call: behind it, unless an event says otherwise.
    System(u64),
    Anywhere,
}

/// A reference whose address is computed from registers.
#[derive(Clone, Copy, Debug)]
pub struct Simple {
    pub displacement: u64,
    /// Offset of the instruction in the unit.
    pub offset: u16,
    pub size: u16,
    /// 16 and above: none.
    pub base: u8,
    pub index: u8,
    pub scale: u8,
    pub write: bool,
    pub segment: Segment,
    pub address32: bool,
}

pub const NO_REGISTER: u8 = 16;

#[derive(Debug)]
pub enum Step {
    /// A block starts at this offset (only inside of units).
    Block(u16),
    /// The next recorded word is the value of a register.
    Take(u8),
    /// The next recorded word is an address.
    TakeAddress(u8),
    /// The next recorded word is the value of a register behind the instruction.
    Hold(u8),
    /// What [`Step::Hold`] held becomes the register's value.
    Release(u8),
    TakeVector(u8),
    TakeMask(u8),
    Effect(Effect),
    /// A segment base becomes the value of a register.
    Base {
        segment: Segment,
        from: u8,
        narrow: bool,
    },
    Plain(Simple),
    /// As recorded by [`Step::TakeAddress`].
    Recorded {
        operand: u8,
        offset: u16,
        size: u16,
        write: bool,
    },
    /// Up to two references once per iteration; `pointer` moved to the value held.
    Repeat {
        pointer: u8,
        first: Simple,
        second: Option<Simple>,
    },
    /// Undo log: the next recorded words are what the store overwrites.
    Old(Simple),
    /// The same, at the address of an operand that was recorded.
    OldRecorded {
        operand: u8,
        offset: u16,
        size: u16,
    },
    /// Undo log: the next recorded word is the instruction's number in the order of all threads.
    Order,
    /// Undo log: behind the instruction the order is not known exactly any more.
    Ordered,
    /// Undo log: a call with all registers; its target if the instruction says it.
    Enter {
        offset: u16,
        to: Option<u64>,
    },
    /// Anything rarer; the address (without index) may have been recorded.
    Rare {
        reference: Box<Reference>,
        offset: u16,
        recorded: bool,
    },
}

/// What a trace tells about memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tells {
    Nothing,
    References,
    /// What stores overwrite, and registers at calls.
    Stores,
}

/// Compiles `unit`; an error says why it cannot be one.
pub fn compile(unit: &Unit, tells: Tells) -> Result<Program, String> {
    Compiler { steps: Vec::new(), taken: 0, next_record: 0, tells }.run(unit)
}

struct Compiler {
    steps: Vec<Step>,
    taken: u32,
    next_record: usize,
    tells: Tells,
}

impl Compiler {
    fn run(mut self, unit: &Unit) -> Result<Program, String> {
        let mut factory = InstructionInfoFactory::new();
        let mut decoder = Decoder::with_ip(64, &unit.code, unit.address, DecoderOptions::NONE);
        let (mut starts, mut inner_blocks) = (Vec::new(), Vec::new());
        let mut refs = Vec::new();
        let mut last = Flow::Next;
        while decoder.can_decode() {
            let offset = decoder.position() as u16;
            let insn = decoder.decode();
            // A unit may end with bytes that are no instruction: executing them faults.
            let at_end = usize::from(offset) + insn.len() >= unit.code.len();
            if insn.is_invalid() && !at_end {
                return Err(format!("undecodable instruction at {:#x}", insn.ip()));
            }
            let inner_block = !starts.is_empty() && last.ends_block();
            starts.push(self.start(offset));
            if inner_block {
                self.steps.push(Step::Block(offset));
                inner_blocks.push(offset);
            }
            if !insn.is_invalid() {
                refs.clear();
                operands::references(&insn, &mut factory, &mut refs);
                self.instruction(unit, &insn, starts.len() - 1, &refs, &mut factory)?;
            }
            last = Flow::of(&insn);
        }
        if starts.is_empty() {
            return Err("it has no code".into());
        }
        if self.next_record != unit.body.records.len() {
            return Err("it records at instructions that it does not have".into());
        }
        let end = unit.address.wrapping_add(unit.code.len() as u64);
        starts.push(self.start(unit.code.len() as u16));
        Ok(Program {
            id: unit.id,
            address: unit.address,
            end,
            origin: unit.origin,
            wide: unit.body.flags & abi::unit::flags::WIDE != 0,
            memory_bytes: self.taken,
            steps: self.steps,
            inner_blocks,
            starts,
            exit: exit(last, end),
            transfers: last.ends_block(),
        })
    }

    fn start(&self, offset: u16) -> Start {
        Start { offset, step: self.steps.len() as u32 }
    }

    fn instruction(
        &mut self,
        unit: &Unit,
        insn: &Instruction,
        number: usize,
        refs: &[Reference],
        factory: &mut InstructionInfoFactory,
    ) -> Result<(), String> {
        let (mut recorded, mut held, mut ordered) = ([false; 4], None, false);
        while let Some(record) = unit.body.records.get(self.next_record) {
            match usize::from(record.insn).cmp(&number) {
                std::cmp::Ordering::Less => return Err("its records are out of order".into()),
                std::cmp::Ordering::Greater => break,
                std::cmp::Ordering::Equal => {}
            }
            self.steps.push(match record.what {
                What::Before(r) => Step::Take(r),
                What::After(r) if held.is_none() => {
                    held = Some(r);
                    Step::Hold(r)
                }
                What::After(_) => return Err("it records two results of an instruction".into()),
                What::Address(n) => {
                    recorded[usize::from(n & 3)] = true;
                    Step::TakeAddress(n)
                }
                What::Vector(v) => Step::TakeVector(v),
                What::Mask(k) => Step::TakeMask(k),
                What::Order | What::Old(_) if self.tells != Tells::Stores => {
                    return Err("it records stores, which the trace does not".into());
                }
                What::Order => {
                    ordered = true;
                    Step::Order
                }
                What::Old(words) => {
                    old(insn, refs, (insn.ip() - unit.address) as u16, words, recorded)?
                }
            });
            self.taken += record.what.size();
            self.next_record += 1;
        }
        let offset = (insn.ip() - unit.address) as u16;
        match self.tells {
            Tells::References => self.references(offset, refs, recorded, held)?,
            Tells::Stores if ordered => self.steps.push(Step::Ordered),
            Tells::Stores => {
                let flow = Flow::of(insn);
                if flow.is_call() {
                    let to = flow.target().map(|target| target.0);
                    self.steps.push(Step::Enter { offset, to });
                }
            }
            Tells::Nothing => {}
        }
        let segment = match insn.mnemonic() {
            Mnemonic::Wrfsbase => Segment::Fs,
            Mnemonic::Wrgsbase => Segment::Gs,
            _ => Segment::None,
        };
        if segment != Segment::None {
            let register = insn.op0_register();
            let from = gpr_number(register).unwrap_or(0);
            self.steps.push(Step::Base { segment, from, narrow: register.is_gpr32() });
        }
        let steps = &mut self.steps;
        recompute::effects(insn, factory, &mut |effect| steps.push(Step::Effect(effect)));
        if let Some(register) = held {
            self.steps.push(Step::Release(register));
        }
        Ok(())
    }

    fn references(
        &mut self,
        offset: u16,
        refs: &[Reference],
        recorded: [bool; 4],
        held: Option<u8>,
    ) -> Result<(), String> {
        if refs.first().is_some_and(|r| r.shape == Shape::Repeated) {
            let pointer = if refs.iter().any(|r| r.base == Some(RDI)) { RDI } else { RSI };
            if held != Some(pointer) {
                return Err("a repeated string instruction without its last pointer".into());
            }
            let simple =
                |r: &Reference| simple(r, offset).ok_or("a string instruction with an index");
            let first = simple(&refs[0])?;
            let second = refs.get(1).map(simple).transpose()?;
            self.steps.push(Step::Repeat { pointer, first, second });
            return Ok(());
        }
        for r in refs {
            let known = r.operand.filter(|&n| recorded[usize::from(n & 3)]);
            self.steps.push(match (known, simple(r, offset)) {
                (Some(operand), Some(s)) => {
                    Step::Recorded { operand, offset, size: s.size, write: s.write }
                }
                (None, Some(s)) => Step::Plain(s),
                (known, None) => {
                    Step::Rare { reference: Box::new(*r), offset, recorded: known.is_some() }
                }
            });
        }
        Ok(())
    }
}

/// The step for what the store of `insn` overwrites, which was recorded in this many words.
fn old(
    insn: &Instruction,
    refs: &[Reference],
    offset: u16,
    words: u8,
    recorded: [bool; 4],
) -> Result<Step, String> {
    let Stores::One(r) = stores(insn, refs) else {
        return Err("it records a store that it does not make".into());
    };
    if r.size.div_ceil(8) != u32::from(words) {
        return Err("it records a store of another size".into());
    }
    match r.operand.filter(|&n| recorded[usize::from(n & 3)]) {
        Some(operand) => Ok(Step::OldRecorded { operand, offset, size: r.size as u16 }),
        None => Ok(Step::Old(simple(&r, offset).ok_or("a store with an odd index")?)),
    }
}

/// The reference in its simple form, if it has one.
fn simple(r: &Reference, offset: u16) -> Option<Simple> {
    let (index, scale) = match r.index {
        Index::None => (NO_REGISTER, 0),
        Index::Gpr { number, scale } => (number, scale),
        _ => return None,
    };
    if matches!(r.shape, Shape::Gather { .. } | Shape::Xsave { .. }) {
        return None;
    }
    Some(Simple {
        displacement: r.displacement as u64,
        offset,
        size: r.size as u16,
        base: r.base.unwrap_or(NO_REGISTER),
        index,
        scale,
        write: r.write,
        segment: r.segment,
        address32: r.address32,
    })
}

fn exit(flow: Flow, end: u64) -> Exit {
    match flow {
        Flow::Next | Flow::Privileged | Flow::Halt => Exit::To(end),
        Flow::Jump(target) | Flow::Call(target) => Exit::To(target.0),
        Flow::Branch(target) => Exit::Branch { taken: target.0, not_taken: end },
        Flow::Syscall => Exit::System(end),
        _ => Exit::Anywhere,
    }
}
