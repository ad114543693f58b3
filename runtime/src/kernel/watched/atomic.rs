//! Atomic instructions, and others that change memory by a register's bits.
//!
//! Memory is compared with the view, the new value follows from what is there, and is stored if that still is
//! there: else once more.

use super::arithmetic::{add, mask, of_two, sub, ALL, CF, ZF};
use super::{load, load_bytes, Done, Extents, Fault, Outcome};
use crate::base::attempt;
use crate::code::writing::written;
use crate::logs::inputs::{stamps, view};
use crate::thread::Thread;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use lifter::regs::gpr_number;

/// What an instruction makes of a value.
pub struct Change {
    /// What is stored, if anything.
    pub new: Option<u64>,
    pub flags: u64,
    /// Flags that change.
    pub changed: u64,
    /// A register that changes, and to what.
    pub register: Option<(Register, u64)>,
}

pub(super) fn carry_out(
    thread: &mut Thread,
    pc: u64,
    insn: &Instruction,
    extents: &Extents,
) -> Outcome {
    let is_atomic = insn.has_lock_prefix() || insn.mnemonic() == Mnemonic::Xchg;
    let (true, [(at, _)]) = (is_atomic, extents.stored.as_slice()) else {
        return change_memory(thread, pc, insn, extents);
    };
    let at = *at;
    let begun = stamps::before_atomic(thread, pc, at);
    let done = change_memory(thread, pc, insn, extents);
    stamps::behind_atomic(thread, pc, at, begun);
    done
}

fn change_memory(
    thread: &mut Thread,
    pc: u64,
    insn: &Instruction,
    Extents { loaded, stored }: &Extents,
) -> Outcome {
    // `bt` only loads.
    let changed = if stored.is_empty() { loaded } else { stored };
    let [(at, size)] = *changed.as_slice() else { return Ok(Done::No) };
    if matches!(insn.mnemonic(), Mnemonic::Cmpxchg8b | Mnemonic::Cmpxchg16b) {
        return both(thread, pc, insn, at, size);
    }
    if !matches!(size, 1 | 2 | 4 | 8) {
        return Ok(Done::No);
    }
    loop {
        let old = load(thread, pc, at, size).map_err(stores)?;
        let Some(change) = change(thread, insn, old, size) else { return Ok(Done::No) };
        if let Some(new) = change.new {
            if !exchange(at, size, &[old, 0], &[new, 0])? {
                continue;
            }
            view::put(thread, at, new.to_le_bytes().get(..size as usize).unwrap_or_default());
        }
        let registers = &mut thread.block.registers;
        registers.rflags = registers.rflags & !change.changed | change.flags & change.changed;
        if let Some((register, value)) = change.register {
            put_register(thread, register, value);
        }
        return Ok(Done::Yes);
    }
}

/// What the instruction, with the registers in the thread's block, makes of a value of so many bytes.
pub fn change(thread: &Thread, insn: &Instruction, old: u64, size: u64) -> Option<Change> {
    use Mnemonic::*;
    let carry = thread.block.registers.rflags & CF;
    let other = match (insn.op0_kind(), insn.op1_kind(), insn.op_count()) {
        (OpKind::Register, ..) => get_register(thread, insn.op0_register()),
        (_, OpKind::Register, 2..) => get_register(thread, insn.op1_register()),
        (_, OpKind::Memory, _) | (_, _, ..=1) => 0,
        _ => insn.immediate(1),
    };
    let arithmetic = |(new, flags): (u64, u64)| {
        Some(Change { new: Some(new), flags, changed: ALL, register: None })
    };
    match insn.mnemonic() {
        Add | Adc | Sub | Sbb | And | Or | Xor => {
            arithmetic(of_two(insn.mnemonic(), old, other, carry, size)?)
        }
        Neg => arithmetic(sub(0, old, 0, size)),
        Inc | Dec => {
            let (new, flags) = match insn.mnemonic() {
                Inc => add(old, 1, 0, size),
                _ => sub(old, 1, 0, size),
            };
            Some(Change { new: Some(new), flags, changed: ALL & !CF, register: None })
        }
        Not => Some(Change { new: Some(!old & mask(size)), flags: 0, changed: 0, register: None }),
        Xadd => {
            let (new, flags) = add(old, other, 0, size);
            let register = Some((insn.op1_register(), old));
            Some(Change { new: Some(new), flags, changed: ALL, register })
        }
        Xchg => {
            let register = match insn.op0_kind() {
                OpKind::Register => insn.op0_register(),
                _ => insn.op1_register(),
            };
            let new = Some(get_register(thread, register) & mask(size));
            Some(Change { new, flags: 0, changed: 0, register: Some((register, old)) })
        }
        Cmpxchg => {
            let a = [Register::AL, Register::AX, Register::EAX, Register::RAX];
            let a = *a.get(size.trailing_zeros() as usize)?;
            let wanted = get_register(thread, a);
            let (_, flags) = sub(wanted, old, 0, size);
            let same = flags & ZF != 0;
            // It stores in any case, and needs the right to.
            let new = Some(match same {
                true => get_register(thread, insn.op1_register()) & mask(size),
                false => old,
            });
            // Where it is the same, nothing becomes of the register.
            let register = (!same).then_some((a, old));
            Some(Change { new, flags, changed: ALL, register })
        }
        Bt | Bts | Btr | Btc => {
            let bit = 1u64 << (other & (8 * size - 1));
            let new = match insn.mnemonic() {
                Bts => Some(old | bit),
                Btr => Some(old & !bit),
                Btc => Some(old ^ bit),
                _ => None,
            };
            let flags = if old & bit != 0 { CF } else { 0 };
            Some(Change { new, flags, changed: CF, register: None })
        }
        _ => None,
    }
}

/// Puts `new` at `at` if `old` is there, at once: whether it was.
fn exchange(at: u64, size: u64, old: &[u64; 2], new: &[u64; 2]) -> Result<bool, Fault> {
    const REFUSED: u64 = 2;
    // SAFETY: memory of the program's.
    let mut came = unsafe { attempt::exchange(at, size, old, new) };
    // There may be code of its that is write-protected.
    let could = came != REFUSED
        || written(at, at.saturating_add(size), || {
            // SAFETY: as above.
            came = unsafe { attempt::exchange(at, size, old, new) };
            came != REFUSED
        });
    match could {
        true => Ok(came == 1),
        false => Err(Fault { address: at, write: true }),
    }
}

/// The processor looks whether it can be written first.
fn stores(fault: Fault) -> Fault {
    Fault { write: true, ..fault }
}

/// `cmpxchg8b` and `cmpxchg16b`.
fn both(thread: &mut Thread, pc: u64, insn: &Instruction, at: u64, size: u64) -> Outcome {
    let wide = insn.mnemonic() == Mnemonic::Cmpxchg16b;
    let half = if wide { 8 } else { 4 };
    if wide && !at.is_multiple_of(16) {
        return Ok(Done::No);
    }
    loop {
        let mut bytes = [0u8; 16];
        let seen = bytes.get_mut(..size as usize).unwrap_or_default();
        load_bytes(thread, pc, at, seen).map_err(stores)?;
        let whole = u128::from_le_bytes(bytes);
        let bits = 8 * half;
        let old = [whole as u64 & mask(half), (whole >> bits) as u64 & mask(half)];
        let [a, c, d, b, ..] = thread.block.registers.gpr;
        let same = old == [a & mask(half), d & mask(half)];
        // It stores in any case, and needs the right to.
        let new = if same { [b & mask(half), c & mask(half)] } else { old };
        let join = |[low, high]: [u64; 2]| u128::from(low) | u128::from(high) << bits;
        let words = |value: u128| [value as u64, (value >> 64) as u64];
        let (there, new) = (words(join(old)), join(new));
        if !exchange(at, size, &there, &words(new))? {
            continue;
        }
        view::put(thread, at, new.to_le_bytes().get(..size as usize).unwrap_or_default());
        let registers = &mut thread.block.registers;
        match same {
            true => registers.rflags |= ZF,
            false => {
                (registers.gpr[0], registers.gpr[2]) = (old[0], old[1]);
                registers.rflags &= !ZF;
            }
        }
        return Ok(Done::Yes);
    }
}

/// The value of a general-purpose register, or of a part of one.
pub fn get_register(thread: &Thread, register: Register) -> u64 {
    let Some(number) = gpr_number(register) else { return 0 };
    let whole = thread.block.registers.gpr.get(number.index()).copied().unwrap_or(0);
    match is_high(register) {
        true => whole >> 8 & 0xff,
        false => whole & mask(register.size() as u64),
    }
}

/// Changes it as an instruction does.
pub fn put_register(thread: &mut Thread, register: Register, value: u64) {
    put_in(&mut thread.block.registers.gpr, register, value);
}

/// The same, of these registers.
pub fn put_in(gpr: &mut [u64; 16], register: Register, value: u64) {
    let Some(number) = gpr_number(register) else { return };
    let Some(whole) = gpr.get_mut(number.index()) else { return };
    *whole = match register.size() {
        1 if is_high(register) => *whole & !0xff00 | (value & 0xff) << 8,
        1 => *whole & !0xff | value & 0xff,
        2 => *whole & !0xffff | value & 0xffff,
        4 => value & 0xffff_ffff,
        _ => value,
    };
}

fn is_high(register: Register) -> bool {
    matches!(register, Register::AH | Register::BH | Register::CH | Register::DH)
}
