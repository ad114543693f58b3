//! A thread that is not watched has executed one instruction on memory that other processes may store to
//! ([`foreign`]): what of it was its own, and what has it seen?
//!
//! Between the look at the memory and the instruction, and behind it, others may have stored there.

use super::arithmetic::{mask, ZF};
use super::atomic::{accumulator, change, get_register, value_of};
use super::{extents, Extents};
use crate::kernel::ask::instruction;
use crate::logs::inputs::foreign::{self, Place};
use crate::thread::Thread;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// Nobody stores as often as that.
const MOST_TRIES: u32 = 1000;

/// The registers of the thread's block are those in front of the instruction at `place`, these are those behind it.
pub struct Behind<'a> {
    pub place: Place,
    pub gpr: &'a [u64; 16],
    pub rflags: u64,
}

/// Keeps what the instruction has left. False if it is to be executed once more, from the state in front of it: what it has
/// loaded may be what was there before others have stored, or behind that.
pub fn settle(thread: &mut Thread, behind: &Behind<'_>) -> bool {
    let insn = instruction(behind.place.pc);
    let Extents { loaded, stored } = extents(thread, &insn);
    let ours = |range: &&(u64, u64)| foreign::covers(range.0, range.1);
    if !stored.iter().any(|range| ours(&range)) {
        let has_changed =
            loaded.iter().filter(ours).any(|&(at, len)| foreign::has_changed(at, len));
        thread.foreign.tries += 1;
        return !has_changed || thread.foreign.tries >= MOST_TRIES;
    }
    for &(at, len) in stored.iter().filter(ours) {
        match seen_and_stored(thread, &insn, behind, at, len) {
            Some((seen, new)) => {
                let bytes = |value: u64| value.to_le_bytes();
                let (seen, new) = (seen.map(bytes), bytes(new));
                if let Some(seen) = seen.as_ref().and_then(|seen| seen.get(..len as usize)) {
                    foreign::saw(thread, &behind.place, at, seen);
                }
                foreign::leaves(at, new.get(..len as usize).unwrap_or_default());
            }
            None => foreign::leaves_all(at, len),
        }
    }
    true
}

/// What the instruction found at `at`, if that is other than was left there, and what it has stored. `None` if that is not
/// known.
fn seen_and_stored(
    thread: &Thread,
    insn: &Instruction,
    behind: &Behind<'_>,
    at: u64,
    size: u64,
) -> Option<(Option<u64>, u64)> {
    if !matches!(size, 1 | 2 | 4 | 8) {
        return None;
    }
    let left = foreign::left(at, size)?;
    let source = match insn.op0_kind() {
        OpKind::Register => insn.op0_register(),
        _ => insn.op1_register(),
    };
    let found = match insn.mnemonic() {
        Mnemonic::Mov => return Some((None, stored(thread, insn)? & mask(size))),
        // The register says it.
        Mnemonic::Xchg | Mnemonic::Xadd => value_of(behind.gpr, source) & mask(size),
        Mnemonic::Cmpxchg => {
            let register = accumulator(size)?;
            match behind.rflags & ZF != 0 {
                true => get_register(thread, register),
                false => value_of(behind.gpr, register),
            }
        }
        // What others have stored meanwhile may as well have come behind it.
        _ => left,
    };
    let new = change(thread, insn, found, size)?.new.unwrap_or(found);
    Some(((found != left).then_some(found), new))
}

/// The value that a `mov` has stored.
fn stored(thread: &Thread, insn: &Instruction) -> Option<u64> {
    match insn.op1_kind() {
        OpKind::Register if insn.op1_register().is_gpr() => {
            Some(get_register(thread, insn.op1_register()))
        }
        OpKind::Register => None,
        _ if insn.op1_register() != Register::None => None,
        _ => Some(insn.immediate(1)),
    }
}
