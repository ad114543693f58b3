//! A thread that is not watched executes one instruction on memory that other processes may store to ([`foreign`]): what of it
//! was its own, and what has it seen?
//!
//! Between the look at the memory and the instruction, and behind it, others may store there. So what changes memory by what
//! is there is carried out here, where that is known; of what only loads or only stores the same follows from its registers, or
//! it is executed once more.
//!
//! An instruction that is marked comes here by itself, and memory may be open elsewhere ([`foreign::reach`]).

use super::arithmetic::{logic, mask, of_two, sub, ALL, CF, ZF};
use super::atomic::{change, get_register};
use super::{extents, Extents};
use crate::base::attempt;
use crate::base::program::{read_program_bytes, write_bytes};
use crate::kernel::ask::instruction;
use crate::logs::inputs::foreign::{self, Place};
use crate::thread::Thread;
use abi::layout::{page_down, PAGE};
use alloc::vec;
use alloc::vec::Vec;
use core::arch::asm;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// Nobody stores as often as that.
const MOST_TRIES: u32 = 1000;

/// Around the stack pointer, more than an instruction stores there.
const STACK: u64 = 64;

/// What an instruction has changed besides memory.
pub struct Carried {
    /// Flags, and which of them change.
    pub flags: u64,
    pub changed: u64,
    /// Registers that change, and to what.
    pub registers: [Option<(Register, u64)>; 3],
    /// It goes on with itself.
    pub repeats: bool,
}

impl Carried {
    const NOTHING: Carried = Carried { flags: 0, changed: 0, registers: [None; 3], repeats: false };
}

/// Whether the instruction is one of those that may be carried out.
pub fn may_be_carried_out(insn: &Instruction) -> bool {
    use Mnemonic::*;
    let is_general = |n: u32| match insn.op_kind(n) {
        OpKind::Register => insn.op_register(n).is_gpr(),
        _ => true,
    };
    match insn.mnemonic() {
        Mov | Movzx | Movsx | Movsxd | Cmp | Test | Add | Adc | Sub | Sbb | And | Or | Xor
        | Neg | Inc | Dec | Not | Xadd | Xchg | Cmpxchg | Bts | Btr | Btc => {
            (0..insn.op_count()).all(is_general)
                && (0..insn.op_count()).any(|n| insn.op_kind(n) == OpKind::Memory)
        }
        Cmpxchg8b | Cmpxchg16b => true,
        Movsb | Movsw | Movsd | Movsq | Stosb | Stosw | Stosd | Stosq => {
            insn.is_string_instruction()
        }
        _ => false,
    }
}

/// Carries it out, with the registers in the thread's block, on memory of which every page is open that is not the program's
/// alone. `None` if it cannot be: nothing has changed.
pub fn carry_out(thread: &mut Thread, place: &Place, insn: &Instruction) -> Option<Carried> {
    if insn.is_string_instruction() {
        return moves(thread, place, insn);
    }
    let Extents { loaded, stored } = extents(thread, insn);
    let loads_only = stored.is_empty();
    let [(at, size)] = *(if loads_only { loaded } else { stored }).as_slice() else { return None };
    if !foreign::covers(at, size) || page_down(at) != page_down(at + size - 1) {
        return None;
    }
    if matches!(insn.mnemonic(), Mnemonic::Cmpxchg8b | Mnemonic::Cmpxchg16b) {
        return exchanges_both(thread, place, at, size);
    }
    if !matches!(size, 1 | 2 | 4 | 8) {
        return None;
    }
    if insn.mnemonic() == Mnemonic::Mov && !loads_only {
        let value = source(thread, insn, 1);
        // SAFETY: memory of the program's, which is open; as the instruction would.
        unsafe { store(foreign::reach(at), size, value) };
        foreign::leaves(at, &bytes(value, size));
        return Some(Carried::NOTHING);
    }
    if loads_only {
        // SAFETY: memory of the program's, which is open.
        let value = unsafe { load(foreign::reach(at), size) };
        let carried = of_loaded(thread, insn, value, size)?;
        settles(thread, place, at, &bytes(value, size), &bytes(value, size));
        return Some(carried);
    }
    let there = foreign::reach(at);
    loop {
        // SAFETY: as above.
        let old = unsafe { load(there, size) };
        let change = change(thread, insn, old, size)?;
        let new = change.new?;
        if exchange(there, size, [old, 0], [new, 0])? {
            settles(thread, place, at, &bytes(old, size), &bytes(new, size));
            let (flags, changed) = (change.flags, change.changed);
            let registers = [change.register, None, None];
            return Some(Carried { flags, changed, registers, repeats: false });
        }
    }
}

/// The value of a general register or of a constant.
fn source(thread: &Thread, insn: &Instruction, operand: u32) -> u64 {
    match insn.op_kind(operand) {
        OpKind::Register => get_register(thread, insn.op_register(operand)),
        _ => insn.immediate(operand),
    }
}

/// What an instruction that only loads makes of the value.
fn of_loaded(thread: &Thread, insn: &Instruction, value: u64, size: u64) -> Option<Carried> {
    use Mnemonic::*;
    let is_first = insn.op0_kind() == OpKind::Memory;
    let other = source(thread, insn, u32::from(is_first));
    // The operands in their order.
    let (one, two) = if is_first { (value, other) } else { (other, value) };
    let carry = thread.block.registers.rflags & CF;
    let moved = |value| Some((None, value));
    let (flags, result) = match insn.mnemonic() {
        Mov | Movzx if !is_first => moved(value)?,
        Movsx | Movsxd => {
            let unused = 64 - 8 * size;
            moved(((value << unused) as i64 >> unused) as u64)?
        }
        Cmp => (Some(sub(one, two, 0, size).1), 0),
        Test => (Some(logic(one & two, size).1), 0),
        _ if is_first => return None,
        what => {
            let (result, flags) = of_two(what, one, two, carry, size)?;
            (Some(flags), result)
        }
    };
    let keeps = matches!(insn.mnemonic(), Cmp | Test);
    let register = (!keeps).then_some((insn.op0_register(), result));
    Some(Carried {
        flags: flags.unwrap_or(0),
        changed: if flags.is_some() { ALL } else { 0 },
        registers: [register, None, None],
        repeats: false,
    })
}

fn exchanges_both(thread: &mut Thread, place: &Place, at: u64, size: u64) -> Option<Carried> {
    let half = size / 2;
    if size == 16 && !at.is_multiple_of(16) {
        return None;
    }
    let [a, c, d, b, ..] = thread.block.registers.gpr;
    let registers = match half {
        4 => [Register::EAX, Register::EDX],
        _ => [Register::RAX, Register::RDX],
    };
    let words = |low: u64, high: u64| match half {
        4 => [low & mask(4) | high << 32, 0],
        _ => [low, high],
    };
    let place_of_both = foreign::reach(at);
    loop {
        let mut there = vec![0; size as usize];
        read_program_bytes(place_of_both, &mut there).then_some(())?;
        let old = [number(there.get(..half as usize)?), number(there.get(half as usize..)?)];
        let is_same = old == [a & mask(half), d & mask(half)];
        let new = if is_same { [b & mask(half), c & mask(half)] } else { old };
        if exchange(place_of_both, size, words(old[0], old[1]), words(new[0], new[1]))? {
            let stored: Vec<u8> = new.iter().flat_map(|&half_of| bytes(half_of, half)).collect();
            settles(thread, place, at, &there, &stored);
            let [low, high] = registers;
            let found = [Some((low, old[0])), Some((high, old[1])), None];
            return Some(Carried {
                flags: if is_same { ZF } else { 0 },
                changed: ZF,
                registers: if is_same { [None; 3] } else { found },
                repeats: false,
            });
        }
    }
}

/// `movs` and `stos`, as far as the page goes that is stored to, and the one that is loaded from.
fn moves(thread: &mut Thread, place: &Place, insn: &Instruction) -> Option<Carried> {
    const DIRECTION: u64 = 0x400;
    let loads = !matches!(
        insn.mnemonic(),
        Mnemonic::Stosb | Mnemonic::Stosw | Mnemonic::Stosd | Mnemonic::Stosq
    );
    let size = insn.memory_size().size() as u64;
    let repeated = insn.has_rep_prefix() || insn.has_repne_prefix();
    let [_, count, .., from, to] = thread.block.registers.gpr[..8] else { return None };
    let is_plain = insn.segment_prefix() == Register::None
        && insn.op0_kind() == OpKind::MemoryESRDI
        && (!loads || insn.op1_kind() == OpKind::MemorySegRSI);
    if !is_plain || thread.block.registers.rflags & DIRECTION != 0 {
        return None;
    }
    let in_page = |at: u64| (PAGE - at % PAGE) / size;
    let rounds = if repeated { count } else { 1 };
    let rounds = rounds.min(in_page(to)).min(if loads { in_page(from) } else { u64::MAX });
    let len = rounds * size;
    // What overlaps is loaded as it was stored.
    if rounds == 0 || loads && from < to && to < from + len {
        return None;
    }
    let mut moved = vec![0; len as usize];
    if !loads {
        let value = bytes(thread.block.registers.gpr[0], size);
        moved.chunks_exact_mut(size as usize).for_each(|chunk| chunk.copy_from_slice(&value));
    } else if foreign::covers(from, len)
        && (thread.foreign.pages.contains(&page_down(from)) || foreign::shows(thread, place, from))
    {
        // As the thread has seen it.
        foreign::put_left(from, &mut moved);
    } else if foreign::may_lie_in(from, from + len) || !read_program_bytes(from, &mut moved) {
        return None;
    }
    let is_ours = foreign::covers(to, len);
    if !is_ours && foreign::may_lie_in(to, to + len) {
        return None;
    }
    // SAFETY: as the instruction would.
    if !unsafe { write_bytes(if is_ours { foreign::reach(to) } else { to }, &moved) } {
        return None;
    }
    if is_ours {
        foreign::leaves(to, &moved);
    }
    let left = count.wrapping_sub(rounds);
    let end = |register, at: u64| Some((register, at.wrapping_add(len)));
    Some(Carried {
        registers: [
            repeated.then_some((Register::RCX, left)),
            end(Register::RDI, to),
            if loads { end(Register::RSI, from) } else { None },
        ],
        repeats: repeated && left != 0,
        ..Carried::NOTHING
    })
}

/// The thread has found one at `at`, and stored the other.
fn settles(thread: &mut Thread, place: &Place, at: u64, found: &[u8], stored: &[u8]) {
    let mut left = vec![0; found.len()];
    foreign::put_left(at, &mut left);
    if left != found {
        foreign::saw(thread, place, at, found);
    }
    foreign::leaves(at, stored);
}

fn exchange(at: u64, size: u64, old: [u64; 2], new: [u64; 2]) -> Option<bool> {
    // SAFETY: memory of the program's, which is open.
    match unsafe { attempt::exchange(at, size, &old, &new) } {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// Loads 1, 2, 4 or 8 bytes at once, wherever they lie.
///
/// # Safety
/// They can be read.
unsafe fn load(at: u64, size: u64) -> u64 {
    let value: u64;
    // SAFETY: as promised.
    unsafe {
        match size {
            1 => asm!("movzx {0:e}, byte ptr [{1}]", out(reg) value, in(reg) at, options(nostack)),
            2 => asm!("movzx {0:e}, word ptr [{1}]", out(reg) value, in(reg) at, options(nostack)),
            4 => asm!("mov {0:e}, [{1}]", out(reg) value, in(reg) at, options(nostack)),
            _ => asm!("mov {0}, [{1}]", out(reg) value, in(reg) at, options(nostack)),
        }
    }
    value
}

/// Stores as many, at once.
///
/// # Safety
/// It is memory of the program's, which can be written.
unsafe fn store(at: u64, size: u64, value: u64) {
    // SAFETY: as promised.
    unsafe {
        match size {
            1 => {
                asm!("mov byte ptr [{0}], {1}", in(reg) at, in(reg_byte) value as u8, options(nostack))
            }
            2 => asm!("mov [{0}], {1:x}", in(reg) at, in(reg) value, options(nostack)),
            4 => asm!("mov [{0}], {1:e}", in(reg) at, in(reg) value, options(nostack)),
            _ => asm!("mov [{0}], {1}", in(reg) at, in(reg) value, options(nostack)),
        }
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

fn bytes(value: u64, size: u64) -> Vec<u8> {
    value.to_le_bytes().get(..size as usize).unwrap_or_default().to_vec()
}

/// The registers of the thread's block are those in front of the instruction at `place`, which was executed. `vector` tells
/// what a vector register has.
///
/// Keeps what it has left. False if it is to be executed once more, from the state in front of it: what it has loaded may be
/// what was there before others have stored, or behind that.
pub fn settle(
    thread: &mut Thread,
    place: &Place,
    vector: impl Fn(Register) -> Option<[u8; 64]>,
) -> bool {
    let insn = instruction(place.pc);
    let stack = thread.block.registers.gpr[4].wrapping_sub(STACK / 2);
    if insn.is_stack_instruction() && foreign::may_lie_in(stack, stack.wrapping_add(STACK)) {
        // A stack is a thread's own; and a call is several instructions of the translation.
        let mut there = [0u8; STACK as usize];
        if read_program_bytes(stack, &mut there) {
            foreign::leaves(stack, &there);
        }
        return true;
    }
    let Extents { loaded, stored } = extents(thread, &insn);
    let ours = |range: &&(u64, u64)| foreign::covers(range.0, range.1);
    if !stored.iter().any(|range| ours(&range)) {
        let mut loaded = loaded.iter().filter(ours);
        let has_changed = loaded.any(|&(at, len)| foreign::has_changed(at, len));
        thread.foreign.tries += 1;
        return !has_changed || thread.foreign.tries >= MOST_TRIES;
    }
    for &(at, len) in stored.iter().filter(ours) {
        let value = stores(thread, &insn, vector(insn.op1_register()));
        match value.as_ref().and_then(|value| value.get(..len as usize)) {
            Some(value) => foreign::leaves(at, value),
            None => foreign::leaves_all(at, len),
        }
    }
    true
}

/// What the instruction stores, if that is a register or a constant: so many bytes of it.
fn stores(thread: &Thread, insn: &Instruction, vector: Option<[u8; 64]>) -> Option<Vec<u8>> {
    use Mnemonic::*;
    let source = insn.op1_register();
    match insn.mnemonic() {
        Mov | Movnti if insn.op1_kind() == OpKind::Register && source.is_gpr() => {
            Some(get_register(thread, source).to_le_bytes().to_vec())
        }
        // It lies where the stack ended.
        Pop => {
            let mut value = vec![0; 8];
            let rsp = thread.block.registers.gpr[4];
            read_program_bytes(rsp, &mut value).then_some(value)
        }
        Mov if insn.op1_kind() != OpKind::Register && insn.op_count() == 2 => {
            Some(insn.immediate(1).to_le_bytes().to_vec())
        }
        Movups | Movaps | Movupd | Movapd | Movdqu | Movdqa | Movntdq | Movntps | Movq | Movd
        | Movss | Movsd | Movlps | Movlpd | Vmovups | Vmovaps | Vmovupd | Vmovapd | Vmovdqu
        | Vmovdqa | Vmovdqu8 | Vmovdqu16 | Vmovdqu32 | Vmovdqu64 | Vmovdqa32 | Vmovdqa64
        | Vmovntdq | Vmovntps | Vmovq | Vmovd | Vmovss | Vmovsd | Vmovlps | Vmovlpd
            if !insn.has_op_mask() =>
        {
            vector.map(|value| value.to_vec())
        }
        _ => None,
    }
}
