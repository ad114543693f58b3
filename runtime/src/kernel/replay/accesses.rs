//! Which memory the instruction that comes next references, for whoever steers a replay: by the rules of
//! `lifter::operands`, so that a listing of memory references has the same.

use crate::base::program::try_read_program_bytes;
use crate::logs::extent::extent;
use crate::thread::{Ranges, Thread};
use alloc::vec::Vec;
use iced_x86::{Decoder, DecoderOptions, Instruction, InstructionInfoFactory};
use lifter::operands::{references, Shape};

/// The longest instruction.
const LONGEST: usize = 15;
const DIRECTION_FLAG: u64 = 0x400;

/// How many references to one of `len` bytes at `address` the instruction at `pc` makes, with the registers in
/// the thread's block; of a repeated one, its next round.
pub fn count(thread: &Thread, pc: u64, address: u64, len: u64) -> u64 {
    let mut code = [0u8; LONGEST];
    let Ok(there) = try_read_program_bytes(pc, &mut code) else { return 0 };
    let mut decoder = Decoder::with_ip(64, &code[..there.min(LONGEST)], pc, DecoderOptions::NONE);
    let insn = decoder.decode();
    if insn.is_invalid() {
        return 0;
    }
    let mut all = Vec::new();
    references(&insn, &mut InstructionInfoFactory::new(), &mut all);
    let registers = &thread.block.registers;
    let down = registers.rflags & DIRECTION_FLAG != 0;
    let mut ranges = Ranges::new();
    let mut found = 0;
    for reference in &all {
        ranges.clear();
        // Masks do not count: an instruction is none that has one.
        extent(thread, &Instruction::default(), reference, &mut ranges);
        for &(start, extent) in &ranges {
            let size = u64::from(reference.size);
            let (start, extent) = match reference.shape {
                // All rounds: the next one is at the end where they begin.
                Shape::Repeated if down => (start.wrapping_add(extent).wrapping_sub(size), size),
                Shape::Repeated => (start, size),
                _ => (start, extent),
            };
            found += u64::from(meets(start, extent, address, len));
        }
    }
    found
}

/// Whether the ranges share a byte.
fn meets(a: u64, len_a: u64, b: u64, len_b: u64) -> bool {
    b.wrapping_sub(a) < len_a || a.wrapping_sub(b) < len_b
}

#[cfg(test)]
mod tests {
    use super::meets;

    #[test]
    fn ranges_meet_where_they_share_a_byte() {
        for (a, b, shared) in [
            ((100, 8), (107, 1), true),
            ((100, 8), (108, 1), false),
            ((100, 8), (92, 8), false),
            ((100, 8), (92, 9), true),
            ((100, 8), (90, 100), true),
            ((100, 0), (100, 0), false),
        ] {
            assert_eq!(meets(a.0, a.1, b.0, b.1), shared, "{a:?} {b:?}");
        }
    }
}
