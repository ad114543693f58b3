//! Compiles a unit into the steps that recovering one execution of it costs.
//!
//! The order within an instruction: take the values recorded before it, report its references,
//! apply its effect on known registers, let the values recorded after it take effect.

use abi::ids::{Gpr, LiveAddr, OrigAddr, UnitId};
use abi::unit::What;
use iced_x86::{Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpKind};
use lifter::flow::Flow;
use lifter::operands::{self, Index, Reference, Segment, Shape};
use lifter::recompute::{self, Effect};
use lifter::regs::{gpr_number, RAX, RDI, RSI};
use lifter::stores::{is_masked, stores, Stores};

use crate::units::{DescribedUnit, Origin};

/// A unit in executable form.
#[derive(Debug)]
pub struct CompiledUnit {
    /// Its number.
    pub id: UnitId,
    /// Where it starts.
    pub address: LiveAddr,
    /// Where its description and code came from.
    pub origin: Origin,
    /// What one execution claims of the memory stream.
    pub memory_bytes: u32,
    /// What an execution does, in order.
    pub steps: Vec<Step>,
    /// Offsets at which blocks start inside of the unit.
    pub inner_blocks: Vec<u16>,
    /// Where each instruction starts, and one more for the end.
    pub starts: Vec<Start>,
    /// Where it leads.
    pub exit: Exit,
    /// The last instruction transfers control, so that a block starts behind it.
    pub transfers: bool,
    /// The last instruction is a turn ([`Flow::is_turn`]).
    pub turns: bool,
    /// Offsets of the instructions that read and write memory at once (locked ones).
    pub atomic: Vec<u16>,
    /// Offsets of the instructions of whose references a mask chooses the elements, and their bytes.
    pub masked: Vec<(u16, u8)>,
    /// What may follow without a tag.
    pub silent: Option<Silent>,
}

/// A unit that writes no tag, as what follows another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Silent {
    /// Its number.
    pub id: UnitId,
    /// It does not follow if the stream goes on with a unit here.
    pub other: Option<LiveAddr>,
}

/// Where an instruction starts.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// In the code of the unit.
    pub offset: u16,
    /// In the steps of the unit.
    pub step: u32,
}

/// Where a unit leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// Always to this address.
    To(LiveAddr),
    /// A conditional branch (including `loop` and `jrcxz`).
    Branch {
        /// Where the branch leads.
        taken: LiveAddr,
        /// Behind the branch.
        not_taken: LiveAddr,
    },
    /// A system call: behind it, unless an event says otherwise.
    System(LiveAddr),
    /// What it leads to is not in the code.
    Anywhere,
}

/// A reference whose address is computed from registers.
#[derive(Clone, Copy, Debug)]
pub struct Simple {
    /// Constant part of the address.
    pub displacement: u64,
    /// Offset of the instruction in the unit.
    pub offset: u16,
    /// Bytes.
    pub size: u16,
    /// Or [`NO_REGISTER`].
    pub base: Gpr,
    /// The same, of the register that is scaled.
    pub index: Gpr,
    /// Factor of the index.
    pub scale: u8,
    /// It writes.
    pub write: bool,
    /// Whose base is added.
    pub segment: Segment,
    /// The address without its base has 32 bits.
    pub address32: bool,
}

/// [`Simple::base`], [`Simple::index`]: no register.
pub const NO_REGISTER: Gpr = Gpr(16);

/// Part of what recovering one execution of a unit costs.
#[derive(Debug)]
pub enum Step {
    /// A block starts at this offset (only inside of units).
    Block(u16),
    /// The next recorded word is the value of a register.
    Take(Gpr),
    /// The next recorded word is an address.
    TakeAddress(u8),
    /// The next recorded word is the value of a register behind the instruction.
    Hold(Gpr),
    /// What [`Step::Hold`] held becomes the register's value.
    Release(Gpr),
    /// The next 64 recorded bytes are the value of a vector register.
    TakeVector(u8),
    /// The next recorded word is the value of a mask register.
    TakeMask(u8),
    /// The instruction changes registers in a way that follows.
    Effect(Effect),
    /// A segment base becomes the value of a register.
    Base {
        /// Which.
        segment: Segment,
        /// From which register.
        from: Gpr,
        /// Only its low half.
        narrow: bool,
    },
    /// A reference.
    Plain(Simple),
    /// As recorded by [`Step::TakeAddress`].
    Recorded {
        /// Which recorded address.
        operand: u8,
        /// Of the instruction in the unit.
        offset: u16,
        /// Bytes.
        size: u16,
        /// It writes.
        write: bool,
    },
    /// Up to two references once per iteration; `pointer` moved to the value held.
    Repeat {
        /// The register that moves.
        pointer: Gpr,
        /// Made first.
        first: Simple,
        /// Made behind it.
        second: Option<Simple>,
    },
    /// Undo log: the next recorded words are what the store overwrites.
    Old(Simple),
    /// The same, at the address of an operand that was recorded.
    OldRecorded {
        /// Which recorded address.
        operand: u8,
        /// Of the instruction in the unit.
        offset: u16,
        /// Bytes.
        size: u16,
    },
    /// Undo log: the next recorded word is the instruction's number in the order of all threads.
    Order,
    /// Undo log: behind the instruction the order is not known exactly any more.
    Ordered,
    /// Undo log: a call with all registers; its target if the instruction says it.
    Enter {
        /// Of the instruction in the unit.
        offset: u16,
        /// The procedure.
        to: Option<LiveAddr>,
    },
    /// Anything rarer; the address (without index) may have been recorded.
    Rare {
        /// As the instruction makes it.
        reference: Box<Reference>,
        /// Of the instruction in the unit.
        offset: u16,
        /// Its address was recorded.
        recorded: bool,
    },
}

/// What a trace tells about memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tells {
    /// No memory references.
    Nothing,
    /// All of them.
    References,
    /// What stores overwrite, and registers at calls.
    Stores,
}

/// Compiles `unit`; an error says why it cannot be one.
pub fn compile(unit: &DescribedUnit, tells: Tells) -> Result<CompiledUnit, String> {
    Compiler { steps: Vec::new(), taken: 0, next_record: 0, tells }.run(unit)
}

struct Compiler {
    steps: Vec<Step>,
    taken: u32,
    next_record: usize,
    tells: Tells,
}

impl Compiler {
    fn run(mut self, unit: &DescribedUnit) -> Result<CompiledUnit, String> {
        let mut factory = InstructionInfoFactory::new();
        let mut decoder = Decoder::with_ip(64, &unit.code, unit.address.0, DecoderOptions::NONE);
        let (mut starts, mut inner_blocks) = (Vec::new(), Vec::new());
        let mut refs = Vec::new();
        let (mut last, mut turns) = (Flow::Next, false);
        let (mut atomic, mut masked) = (Vec::new(), Vec::new());
        while decoder.can_decode() {
            let offset = u16::try_from(decoder.position()).map_err(|_| "it is too long")?;
            let insn = decoder.decode();
            // A unit may end with bytes that are no instruction: executing them faults.
            let at_end = usize::from(offset) + insn.len() >= unit.code.len();
            if insn.is_invalid() && !at_end {
                return Err(format!("undecodable instruction at {:#x}", insn.ip()));
            }
            let inner_block = !starts.is_empty() && last.ends_block();
            starts.push(self.start(offset)?);
            if inner_block {
                self.steps.push(Step::Block(offset));
                inner_blocks.push(offset);
            }
            if !insn.is_invalid() {
                refs.clear();
                operands::references(&insn, &mut factory, &mut refs);
                self.instruction(unit, &insn, (starts.len() - 1, offset), &refs, &mut factory)?;
            }
            if is_atomic(&insn) {
                atomic.push(offset);
            }
            // Of a gather the elements are listed one by one.
            let is_gather = |r: &Reference| matches!(r.shape, Shape::Gather { .. });
            if !refs.is_empty() && is_masked(&insn) && !refs.iter().any(is_gather) {
                let element = insn.memory_size().element_size();
                masked.push((offset, u8::try_from(element).unwrap_or(1).max(1)));
            }
            last = Flow::of(&insn);
            turns = last.is_turn(OrigAddr(insn.ip()));
        }
        if starts.is_empty() {
            return Err("it has no code".into());
        }
        if self.next_record != unit.body.records.len() {
            return Err("it records at instructions that it does not have".into());
        }
        let len = u16::try_from(unit.code.len()).map_err(|_| "it is too long")?;
        let end = unit.address.plus(u64::from(len));
        starts.push(self.start(len)?);
        Ok(CompiledUnit {
            id: unit.id,
            address: unit.address,
            origin: unit.origin,
            memory_bytes: self.taken,
            steps: self.steps,
            inner_blocks,
            starts,
            exit: exit(last, end),
            transfers: last.ends_block(),
            turns,
            atomic,
            masked,
            silent: None,
        })
    }

    fn start(&self, offset: u16) -> Result<Start, &'static str> {
        let step = u32::try_from(self.steps.len()).map_err(|_| "it has too many steps")?;
        Ok(Start { offset, step })
    }

    fn instruction(
        &mut self,
        unit: &DescribedUnit,
        insn: &Instruction,
        (number, offset): (usize, u16),
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
                What::Old(words) => old(insn, refs, offset, words, recorded)?,
            });
            self.taken += record.what.size();
            self.next_record += 1;
        }
        match self.tells {
            Tells::References => self.references(offset, refs, recorded, held)?,
            Tells::Stores if ordered => self.steps.push(Step::Ordered),
            Tells::Stores => {
                let flow = Flow::of(insn);
                if flow.is_call() {
                    self.steps.push(Step::Enter { offset, to: flow.target().map(live) });
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
            let from = gpr_number(register).unwrap_or(RAX);
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
        held: Option<Gpr>,
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
        Some(operand) => {
            let size = u16::try_from(r.size).map_err(|_| "a store that is too large")?;
            Ok(Step::OldRecorded { operand, offset, size })
        }
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
        displacement: r.displacement.cast_unsigned(),
        offset,
        size: u16::try_from(r.size).ok()?,
        base: r.base.unwrap_or(NO_REGISTER),
        index,
        scale,
        write: r.write,
        segment: r.segment,
        address32: r.address32,
    })
}

/// Whether the instruction reads and writes memory with nobody in between.
fn is_atomic(insn: &Instruction) -> bool {
    let memory = (0..insn.op_count()).any(|op| insn.op_kind(op) == OpKind::Memory);
    insn.has_lock_prefix() || insn.mnemonic() == Mnemonic::Xchg && memory
}

/// A unit is decoded at its live address, so that this is what its instructions name.
fn live(target: OrigAddr) -> LiveAddr {
    LiveAddr(target.0)
}

fn exit(flow: Flow, end: LiveAddr) -> Exit {
    match flow {
        Flow::Next | Flow::Privileged | Flow::Halt => Exit::To(end),
        Flow::Jump(target) | Flow::Call(target) => Exit::To(live(target)),
        Flow::Branch(target) => Exit::Branch { taken: live(target), not_taken: end },
        Flow::Syscall => Exit::System(end),
        flow if flow.is_old_syscall() => Exit::System(end),
        _ => Exit::Anywhere,
    }
}
