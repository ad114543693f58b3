//! What moves between the stack, memory and registers in a way of its own.

use super::atomic::{get_register, put_register};
use super::{extents, load, store, Done, Extents, Outcome};
use crate::logs::extent::vector;
use crate::thread::Thread;
use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};

/// Flags that `popf` changes: all that are the program's, but for the trap flag.
const POPPED: u64 = 0x24_4cd5;
const TRAP_FLAG: u64 = 0x100;
/// What `pushf` does not show.
const HIDDEN: u64 = 0x3_0000;

/// What has loaded a register, and no more, is carried out again.
pub fn load_register(thread: &mut Thread, pc: u64, insn: &Instruction) -> Result<(), super::Fault> {
    let Some((from, size)) = extents(thread, insn).loaded.first().copied() else { return Ok(()) };
    let value = load(thread, pc, from, size)?;
    let value = match (insn.mnemonic(), size) {
        (Mnemonic::Movsx, 1) => i64::from(value as i8) as u64,
        (Mnemonic::Movsx, _) => i64::from(value as i16) as u64,
        (Mnemonic::Movsxd, _) => i64::from(value as i32) as u64,
        _ => value,
    };
    if insn.mnemonic() == Mnemonic::Pop {
        let rsp = thread.block.registers.gpr[4];
        thread.block.registers.gpr[4] = rsp.wrapping_add(size);
    }
    put_register(thread, insn.op0_register(), value);
    Ok(())
}

pub fn carry_out(thread: &mut Thread, pc: u64, insn: &Instruction, extents: &Extents) -> Outcome {
    let loaded = extents.loaded.first().copied();
    let stored = extents.stored.first().copied();
    let rsp = thread.block.registers.gpr[4];
    if matches!(insn.mnemonic(), Mnemonic::Maskmovq | Mnemonic::Maskmovdqu | Mnemonic::Vmaskmovdqu)
    {
        return store_masked(thread, insn, extents);
    }
    match (insn.mnemonic(), loaded, stored) {
        (Mnemonic::Push, loaded, Some((to, size))) => {
            let value = match (insn.op0_kind(), loaded) {
                (OpKind::Memory, Some((from, size))) => load(thread, pc, from, size)?,
                (OpKind::Register, _) if insn.op0_register().is_gpr() => {
                    get_register(thread, insn.op0_register())
                }
                (OpKind::Register, _) => return Ok(Done::No),
                _ => insn.immediate(0),
            };
            put(thread, to, value, size)?;
            thread.block.registers.gpr[4] = rsp.wrapping_sub(size);
        }
        (Mnemonic::Pop, Some((from, size)), stored) => {
            let is_gpr = insn.op0_kind() == OpKind::Register && insn.op0_register().is_gpr();
            let value = load(thread, pc, from, size)?;
            match stored {
                Some((to, size)) => put(thread, to, value, size)?,
                None if is_gpr => {}
                None => return Ok(Done::No),
            }
            thread.block.registers.gpr[4] = rsp.wrapping_add(size);
            if is_gpr {
                put_register(thread, insn.op0_register(), value);
            }
        }
        (Mnemonic::Pushfq, None, Some((to, size))) => {
            let flags = thread.block.registers.rflags & !HIDDEN;
            put(thread, to, flags, size)?;
            thread.block.registers.gpr[4] = rsp.wrapping_sub(size);
        }
        (Mnemonic::Popfq, Some((from, size)), None) => {
            let flags = load(thread, pc, from, size)?;
            let old = thread.block.registers.rflags;
            if (flags | old) & TRAP_FLAG != 0 {
                return Ok(Done::No);
            }
            thread.block.registers.rflags = old & !POPPED | flags & POPPED;
            thread.block.registers.gpr[4] = rsp.wrapping_add(size);
        }
        (Mnemonic::Enter, None, Some((to, 8))) if insn.immediate8_2nd() & 31 == 0 => {
            let rbp = thread.block.registers.gpr[5];
            put(thread, to, rbp, 8)?;
            let frame = rsp.wrapping_sub(8);
            thread.block.registers.gpr[5] = frame;
            thread.block.registers.gpr[4] = frame.wrapping_sub(insn.immediate16().into());
        }
        (Mnemonic::Xlatb, Some((from, 1)), None) => {
            let value = load(thread, pc, from, 1)?;
            put_register(thread, Register::AL, value);
        }
        (Mnemonic::Mov, Some((from, size)), None) if is_moved(insn) => {
            let value = load(thread, pc, from, size)?;
            put_register(thread, insn.op0_register(), value);
        }
        (Mnemonic::Mov, None, Some((to, size))) if is_moved(insn) => {
            put(thread, to, get_register(thread, insn.op1_register()), size)?;
        }
        _ => return Ok(Done::No),
    }
    Ok(Done::Yes)
}

/// Stores to rdi what the bytes of a mask let through, in pieces.
fn store_masked(thread: &mut Thread, insn: &Instruction, extents: &Extents) -> Outcome {
    let rdi = thread.block.registers.gpr[7];
    let start = match insn.op0_kind() {
        OpKind::MemorySegRDI if insn.memory_segment() != Register::FS => rdi,
        OpKind::MemorySegEDI if insn.memory_segment() != Register::FS => rdi & 0xffff_ffff,
        _ => return Ok(Done::No),
    };
    let bytes = vector(thread, insn.op1_register());
    for &(at, len) in &extents.stored {
        let from = at.wrapping_sub(start) as usize;
        let Some(piece) = bytes.get(from..from + len as usize) else { return Ok(Done::No) };
        store(thread, at, piece)?;
    }
    Ok(Done::Yes)
}

fn is_moved(insn: &Instruction) -> bool {
    matches!(
        insn.code(),
        Code::Mov_AL_moffs8
            | Code::Mov_AX_moffs16
            | Code::Mov_EAX_moffs32
            | Code::Mov_RAX_moffs64
            | Code::Mov_moffs8_AL
            | Code::Mov_moffs16_AX
            | Code::Mov_moffs32_EAX
            | Code::Mov_moffs64_RAX
    )
}

fn put(thread: &mut Thread, at: u64, value: u64, size: u64) -> Result<(), super::Fault> {
    store(thread, at, value.to_le_bytes().get(..size as usize).unwrap_or_default())
}
