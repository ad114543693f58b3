//! The effect of one executed instruction on registers whose values are known.
//!
//! Whether a result is known depends only on the instruction and on which inputs are known, never
//! on values: the planner asks with dummy values what the reader will know. What is not computed
//! here becomes unknown, conditional writes included. Flags and memory are not followed.

use abi::ids::Gpr;
use iced_x86::{Code, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

use crate::regs::{gpr_number, GprSet, R11, RAX, RBP, RCX, RDX, RSP};

/// One step of an instruction's effect. `narrow` effects compute in
/// 32 bits and zero-extend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// These become unknown.
    Forget(GprSet),
    /// `to = value`
    Set {
        /// The register that changes.
        to: Gpr,
        /// Its new value.
        value: u64,
    },
    /// `to = base + index * scale + displacement`: mov, lea, add, stack pointer moves.
    Lea {
        /// The register that changes.
        to: Gpr,
        /// The base register.
        base: Gpr,
        /// Register and scale.
        index: Option<(Gpr, u8)>,
        /// What is added.
        displacement: u64,
        /// See [`Effect`].
        narrow: bool,
    },
    /// `to = left operation right`
    Binary {
        /// The register that changes.
        to: Gpr,
        /// A register.
        left: Gpr,
        /// A register.
        right: Gpr,
        /// What is computed.
        operation: Binary,
        /// See [`Effect`].
        narrow: bool,
    },
    /// `to = left operation constant`
    Immediate {
        /// The register that changes.
        to: Gpr,
        /// A register.
        left: Gpr,
        /// The constant.
        right: u64,
        /// What is computed.
        operation: Binary,
        /// See [`Effect`].
        narrow: bool,
    },
    /// `to = operation from`
    Unary {
        /// The register that changes.
        to: Gpr,
        /// A register.
        from: Gpr,
        /// What is computed.
        operation: Unary,
        /// See [`Effect`].
        narrow: bool,
    },
    /// Two registers exchange their values.
    Swap {
        /// One of them.
        a: Gpr,
        /// The other one.
        b: Gpr,
        /// See [`Effect`].
        narrow: bool,
    },
}

/// What is computed of two values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Binary {
    /// Left minus right.
    Subtract,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// The low half of the product.
    Multiply,
    /// Left, by as many bits as right says.
    ShiftLeft,
    /// Right, with zeros.
    ShiftRight,
    /// Right, with the sign.
    ShiftRightSigned,
}

/// What is computed of one value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unary {
    /// Two's complement.
    Negate,
    /// One's complement.
    Not,
    /// Bytes in the other order.
    SwapBytes,
    /// All bits are the sign bit (cdq, cqo).
    Sign,
    /// The lowest byte, zero-extended.
    Zero8,
    /// The second lowest byte (ah .. bh).
    ZeroHigh8,
    /// The two lowest bytes, zero-extended.
    Zero16,
    /// The lowest byte, sign-extended.
    Sign8,
    /// The second lowest byte, sign-extended.
    SignHigh8,
    /// The two lowest bytes, sign-extended.
    Sign16,
    /// The low half, sign-extended.
    Sign32,
}

/// Register values of which some are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Known {
    /// By register; of those that are not known, anything.
    pub values: [u64; 16],
    /// Which are known.
    pub known: GprSet,
}

impl Known {
    /// The register's value, if it is known.
    #[inline]
    pub fn get(&self, register: Gpr) -> Option<u64> {
        self.known.contains(register).then(|| self.values[register.index()])
    }

    /// The register becomes known.
    #[inline]
    pub fn set(&mut self, register: Gpr, value: u64) {
        self.values[register.index()] = value;
        self.known.insert(register);
    }

    /// Applies one step.
    #[inline]
    pub fn apply(&mut self, effect: &Effect) {
        let value = |register: Gpr| self.values[register.index()];
        let (to, result, inputs, narrow) = match *effect {
            Effect::Lea { to, base, index, displacement, narrow } => {
                let sum = value(base).wrapping_add(displacement);
                match index {
                    None => (to, sum, GprSet::of(base), narrow),
                    Some((number, scale)) => (
                        to,
                        sum.wrapping_add(value(number).wrapping_mul(u64::from(scale))),
                        GprSet::of(base).union(GprSet::of(number)),
                        narrow,
                    ),
                }
            }
            Effect::Set { to, value } => (to, value, GprSet::EMPTY, false),
            Effect::Binary { to, left, right, operation, narrow } => (
                to,
                operation.compute(value(left), value(right), narrow),
                GprSet::of(left).union(GprSet::of(right)),
                narrow,
            ),
            Effect::Immediate { to, left, right, operation, narrow } => {
                (to, operation.compute(value(left), right, narrow), GprSet::of(left), narrow)
            }
            Effect::Unary { to, from, operation, narrow } => {
                (to, operation.compute(value(from), narrow), GprSet::of(from), narrow)
            }
            Effect::Forget(set) => {
                self.known = self.known.minus(set);
                return;
            }
            Effect::Swap { a, b, narrow } => {
                let (old_a, old_b) = (self.get(a), self.get(b));
                self.put(a, old_b, narrow);
                self.put(b, old_a, narrow);
                return;
            }
        };
        let result = if narrow { result & 0xffff_ffff } else { result };
        self.values[to.index()] = result;
        if inputs.minus(self.known).is_empty() {
            self.known.insert(to);
        } else {
            self.known.remove(to);
        }
    }

    fn put(&mut self, register: Gpr, value: Option<u64>, narrow: bool) {
        match value {
            Some(value) => self.set(register, if narrow { value & 0xffff_ffff } else { value }),
            None => self.known.remove(register),
        }
    }
}

impl Binary {
    /// The result. A narrow one may have more than 32 bits, which do not count.
    #[inline]
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "narrow effects compute in 32 bits")]
    pub fn compute(self, left: u64, right: u64, narrow: bool) -> u64 {
        let count = right as u32 & if narrow { 31 } else { 63 };
        match self {
            Binary::Subtract => left.wrapping_sub(right),
            Binary::And => left & right,
            Binary::Or => left | right,
            Binary::Xor => left ^ right,
            Binary::Multiply => left.wrapping_mul(right),
            Binary::ShiftLeft => left << count,
            Binary::ShiftRight if narrow => u64::from(left as u32 >> count),
            Binary::ShiftRight => left >> count,
            Binary::ShiftRightSigned if narrow => (left as i32 >> count) as u64,
            Binary::ShiftRightSigned => (left as i64 >> count) as u64,
        }
    }
}

impl Unary {
    /// The result. A narrow one may have more than 32 bits, which do not count.
    #[inline]
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "the low parts are asked for")]
    pub fn compute(self, from: u64, narrow: bool) -> u64 {
        match self {
            Unary::Negate => from.wrapping_neg(),
            Unary::Not => !from,
            Unary::SwapBytes if narrow => u64::from((from as u32).swap_bytes()),
            Unary::SwapBytes => from.swap_bytes(),
            Unary::Sign if narrow => (from as i32 >> 31) as u64,
            Unary::Sign => (from as i64 >> 63) as u64,
            Unary::Zero8 => from & 0xff,
            Unary::ZeroHigh8 => from >> 8 & 0xff,
            Unary::Zero16 => from & 0xffff,
            Unary::Sign8 => from as i8 as u64,
            Unary::SignHigh8 => (from >> 8) as i8 as u64,
            Unary::Sign16 => from as i16 as u64,
            Unary::Sign32 => from as i32 as u64,
        }
    }
}

/// Passes the steps of the instruction's effect to `emit`, in order.
pub fn effects(
    insn: &Instruction,
    factory: &mut InstructionInfoFactory,
    emit: &mut impl FnMut(Effect),
) {
    if let Some(effect) = arithmetic(insn) {
        return emit(effect);
    }
    if stack(insn, emit) {
        return;
    }
    match insn.mnemonic() {
        Mnemonic::Syscall => {
            emit(Effect::Set { to: RCX, value: insn.next_ip() });
            return emit(Effect::Forget([RAX, R11].into_iter().collect()));
        }
        // The kernel answers in rax, which no decoder knows.
        Mnemonic::Int => emit(Effect::Forget(GprSet::of(RAX))),
        _ => {}
    }
    let written = written(insn, factory);
    if !written.is_empty() {
        emit(Effect::Forget(written));
    }
}

/// All general-purpose registers that the instruction may write, even in part.
fn written(insn: &Instruction, factory: &mut InstructionInfoFactory) -> GprSet {
    factory
        .info(insn)
        .used_registers()
        .iter()
        .filter(|used| {
            matches!(
                used.access(),
                OpAccess::Write
                    | OpAccess::CondWrite
                    | OpAccess::ReadWrite
                    | OpAccess::ReadCondWrite
            )
        })
        .filter_map(|used| gpr_number(used.register()))
        .collect()
}

/// Number and narrowness of a 32- or 64-bit register.
fn wide(register: Register) -> Option<(Gpr, bool)> {
    let narrow = register.is_gpr32();
    (narrow || register.is_gpr64()).then(|| gpr_number(register).map(|n| (n, narrow)))?
}

fn moved(to: Gpr, from: Gpr, add: u64, narrow: bool) -> Effect {
    Effect::Lea { to, base: from, index: None, displacement: add, narrow }
}

/// The effect of an instruction that only computes on 32- and 64-bit registers, if it is one that
/// is followed.
fn arithmetic(insn: &Instruction) -> Option<Effect> {
    match insn.mnemonic() {
        Mnemonic::Cdqe => {
            return Some(Effect::Unary {
                to: RAX,
                from: RAX,
                operation: Unary::Sign32,
                narrow: false,
            })
        }
        Mnemonic::Cwde => {
            return Some(Effect::Unary {
                to: RAX,
                from: RAX,
                operation: Unary::Sign16,
                narrow: true,
            })
        }
        Mnemonic::Cdq => {
            return Some(Effect::Unary { to: RDX, from: RAX, operation: Unary::Sign, narrow: true })
        }
        Mnemonic::Cqo => {
            return Some(Effect::Unary {
                to: RDX,
                from: RAX,
                operation: Unary::Sign,
                narrow: false,
            })
        }
        _ => {}
    }
    if insn.op0_kind() != OpKind::Register {
        return None;
    }
    let (to, narrow) = wide(insn.op0_register())?;
    let register = match insn.op_count() {
        2.. if insn.op1_kind() == OpKind::Register => Some(insn.op1_register()),
        _ => None,
    };
    let source = register.and_then(wide).map(|(number, _)| number);
    let immediate = if insn.op_count() == 2 { insn.try_immediate(1).ok() } else { None };
    let of = |operation| match (source, immediate) {
        (Some(right), _) => Some(Effect::Binary { to, left: to, right, operation, narrow }),
        (_, Some(right)) => Some(Effect::Immediate { to, left: to, right, operation, narrow }),
        _ => None,
    };
    let unary = |operation| Some(Effect::Unary { to, from: to, operation, narrow });
    let shift = |operation| {
        let right = immediate.filter(|count| count & if narrow { 31 } else { 63 } != 0)?;
        Some(Effect::Immediate { to, left: to, right, operation, narrow })
    };
    match insn.mnemonic() {
        Mnemonic::Mov => match (source, immediate) {
            (Some(from), _) => Some(moved(to, from, 0, narrow)),
            (_, Some(value)) => {
                Some(Effect::Set { to, value: if narrow { value & 0xffff_ffff } else { value } })
            }
            _ => None,
        },
        Mnemonic::Lea => lea(insn, to, narrow),
        Mnemonic::Add => match (source, immediate) {
            (Some(from), _) => {
                Some(Effect::Lea { to, base: to, index: Some((from, 1)), displacement: 0, narrow })
            }
            (_, Some(value)) => Some(moved(to, to, value, narrow)),
            _ => None,
        },
        Mnemonic::Sub | Mnemonic::Xor if source == Some(to) => Some(Effect::Set { to, value: 0 }),
        Mnemonic::Sub => match immediate {
            Some(value) => Some(moved(to, to, value.wrapping_neg(), narrow)),
            None => of(Binary::Subtract),
        },
        Mnemonic::Inc => Some(moved(to, to, 1, narrow)),
        Mnemonic::Dec => Some(moved(to, to, 1u64.wrapping_neg(), narrow)),
        Mnemonic::And => of(Binary::And),
        Mnemonic::Or => of(Binary::Or),
        Mnemonic::Xor => of(Binary::Xor),
        Mnemonic::Imul if insn.op_count() == 3 => Some(Effect::Immediate {
            to,
            left: source?,
            right: insn.try_immediate(2).ok()?,
            operation: Binary::Multiply,
            narrow,
        }),
        Mnemonic::Imul if insn.op_count() == 2 => of(Binary::Multiply),
        Mnemonic::Shl | Mnemonic::Sal => shift(Binary::ShiftLeft),
        Mnemonic::Shr => shift(Binary::ShiftRight),
        Mnemonic::Sar => shift(Binary::ShiftRightSigned),
        Mnemonic::Neg => unary(Unary::Negate),
        Mnemonic::Not => unary(Unary::Not),
        Mnemonic::Bswap => unary(Unary::SwapBytes),
        Mnemonic::Movzx => {
            extend(to, narrow, register?, [Unary::Zero8, Unary::ZeroHigh8, Unary::Zero16])
        }
        Mnemonic::Movsx => {
            extend(to, narrow, register?, [Unary::Sign8, Unary::SignHigh8, Unary::Sign16])
        }
        Mnemonic::Movsxd => {
            Some(Effect::Unary { to, from: source?, operation: Unary::Sign32, narrow })
        }
        Mnemonic::Xchg => Some(Effect::Swap { a: to, b: source?, narrow }),
        _ => None,
    }
}

fn extend(to: Gpr, narrow: bool, from: Register, [low, high, word]: [Unary; 3]) -> Option<Effect> {
    let operation = match from {
        Register::AH | Register::CH | Register::DH | Register::BH => high,
        _ if from.is_gpr8() => low,
        _ if from.is_gpr16() => word,
        _ => return None,
    };
    Some(Effect::Unary { to, from: gpr_number(from)?, operation, narrow })
}

fn lea(insn: &Instruction, to: Gpr, narrow: bool) -> Option<Effect> {
    let displacement = insn.memory_displacement64();
    let (base, index) = (insn.memory_base(), insn.memory_index());
    let address32 = base.is_gpr32() || index.is_gpr32() || base == Register::EIP;
    let narrow = narrow || address32;
    let index = gpr_number(index)
        .map(|number| (number, u8::try_from(insn.memory_index_scale()).unwrap_or(1)));
    match (gpr_number(base), index) {
        (Some(base), index) => Some(Effect::Lea { to, base, index, displacement, narrow }),
        // One register times a scale: as base plus the rest.
        (None, Some((number, 1))) => Some(moved(to, number, displacement, narrow)),
        (None, Some((number, scale))) => Some(Effect::Lea {
            to,
            base: number,
            index: Some((number, scale - 1)),
            displacement,
            narrow,
        }),
        (None, None) => {
            let value = if narrow { displacement & 0xffff_ffff } else { displacement };
            Some(Effect::Set { to, value })
        }
    }
}

/// Emits the effect of an instruction that moves the stack pointer by itself.
fn stack(insn: &Instruction, emit: &mut impl FnMut(Effect)) -> bool {
    let increment = i64::from(insn.stack_pointer_increment()) as u64;
    match insn.mnemonic() {
        Mnemonic::Push
        | Mnemonic::Pushf
        | Mnemonic::Pushfq
        | Mnemonic::Popf
        | Mnemonic::Popfq
        | Mnemonic::Call
        | Mnemonic::Ret
        | Mnemonic::Retf => emit(moved(RSP, RSP, increment, false)),
        Mnemonic::Pop => {
            emit(moved(RSP, RSP, increment, false));
            if insn.op0_kind() == OpKind::Register {
                if let Some(number) = gpr_number(insn.op0_register()) {
                    emit(Effect::Forget(GprSet::of(number)));
                }
            }
        }
        Mnemonic::Leave if insn.code() == Code::Leaveq => {
            emit(moved(RSP, RBP, 8, false));
            emit(Effect::Forget(GprSet::of(RBP)));
        }
        Mnemonic::Enter if insn.code() == Code::Enterq_imm16_imm8 => {
            let level = u64::from(insn.immediate8_2nd() & 31);
            emit(moved(RBP, RSP, 8u64.wrapping_neg(), false));
            let frame = 8 * level + u64::from(insn.immediate16());
            emit(moved(RSP, RBP, frame.wrapping_neg(), false));
        }
        _ => return false,
    }
    true
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "numbers of a test")]
mod tests;
