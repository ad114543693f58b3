//! Repeated moves and stores on the way to a moment: the processor would trap at each of their iterations,
//! of which there may be millions. All but the last one before the moment, or before the end, are carried
//! out at once. What is in any way special is left to the processor.

use crate::base::program::{read_program_bytes, write_bytes};
use crate::code::jit::has_protected_pages;
use crate::thread::seek::Moment;

const DIRECTION_FLAG: u64 = 0x400;
const RAX: usize = 0;
const RCX: usize = 1;
const RSI: usize = 6;
const RDI: usize = 7;
/// Fewer iterations are stepped.
const FEW: u64 = 16;
/// Bytes at once.
const PIECE: usize = 4096;

/// A repeated instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Repeated {
    /// It reads what it stores from memory.
    moves: bool,
    /// Bytes of an element.
    size: u64,
}

impl Repeated {
    fn of(code: &[u8]) -> Option<Repeated> {
        let (prefixed, code) = match code {
            [0xf3, prefix @ (0x48 | 0x66), rest @ ..] => (*prefix, rest),
            [0xf3, rest @ ..] => (0, rest),
            _ => return None,
        };
        let whole = match prefixed {
            0x48 => 8,
            0x66 => 2,
            _ => 4,
        };
        let (moves, size) = match code.first()? {
            0xa4 => (true, 1),
            0xa5 => (true, whole),
            0xaa => (false, 1),
            0xab => (false, whole),
            _ => return None,
        };
        Some(Repeated { moves, size })
    }
}

/// The thread is about to execute `code`, the instruction at `rip`, a step at a time: as many iterations as
/// can be are carried out at once. `moment`: where it is to stop.
pub fn hurry(gpr: &mut [u64; 16], rflags: u64, code: &[u8], rip: u64, moment: &Moment) {
    let Some(repeated) = Repeated::of(code) else { return };
    let stop = match moment.rip == rip && moment.rcx < gpr[RCX] {
        true => moment.rcx,
        false => 0,
    };
    let mut left = (gpr[RCX] - stop).saturating_sub(1);
    if left < FEW || rflags & DIRECTION_FLAG != 0 || has_protected_pages() {
        return;
    }
    let (source, target) = (gpr[RSI], gpr[RDI]);
    let len = left.saturating_mul(repeated.size);
    let reads_what_it_stored = target > source && target - source < len;
    if repeated.moves && reads_what_it_stored || target.checked_add(len).is_none() {
        return;
    }
    let mut piece = [0u8; PIECE];
    if !repeated.moves {
        let element = gpr[RAX].to_le_bytes();
        for (i, byte) in piece.iter_mut().enumerate() {
            *byte = element[i % repeated.size as usize];
        }
    }
    while left > 0 {
        let count = left.min(PIECE as u64 / repeated.size);
        let part = &mut piece[..(count * repeated.size) as usize];
        if repeated.moves && !read_program_bytes(gpr[RSI], part) {
            return;
        }
        // SAFETY: what the program's instruction stores.
        if !unsafe { write_bytes(gpr[RDI], part) } {
            return;
        }
        let len = part.len() as u64;
        gpr[RCX] -= count;
        gpr[RDI] += len;
        if repeated.moves {
            gpr[RSI] += len;
        }
        left -= count;
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_macros, reason = "tests have a heap and may panic")]
mod tests {
    use super::*;
    use alloc::vec;

    const REP_MOVSB: [u8; 2] = [0xf3, 0xa4];
    const REP_STOSD: [u8; 2] = [0xf3, 0xab];

    fn registers(rax: u64, rcx: u64, rsi: u64, rdi: u64) -> [u64; 16] {
        let mut gpr = [0; 16];
        (gpr[RAX], gpr[RCX], gpr[RSI], gpr[RDI]) = (rax, rcx, rsi, rdi);
        gpr
    }

    #[test]
    fn all_but_the_last_iteration_are_done() {
        let from: alloc::vec::Vec<u8> = (0..10_000).map(|i| i as u8).collect();
        let mut to = vec![0u8; from.len()];
        let (source, target) = (from.as_ptr() as u64, to.as_mut_ptr() as u64);
        let mut gpr = registers(0, 10_000, source, target);
        hurry(&mut gpr, 2, &REP_MOVSB, 100, &Moment { rip: 100, rcx: 3000 });
        assert_eq!(gpr, registers(0, 3001, source + 6999, target + 6999));
        hurry(&mut gpr, 2, &REP_MOVSB, 100, &Moment { rip: 200, rcx: 3000 });
        assert_eq!(gpr, registers(0, 1, source + 9999, target + 9999));
        assert_eq!(to[..9999], from[..9999]);
        assert_eq!(to[9999], 0);
    }

    #[test]
    fn stores_repeat_their_element() {
        let mut to = vec![0u32; 3000];
        let target = to.as_mut_ptr() as u64;
        let mut gpr = registers(0x1122_3344_5566_7788, 3000, 5, target);
        hurry(&mut gpr, 2, &REP_STOSD, 100, &Moment { rip: 200, rcx: 0 });
        assert_eq!((gpr[RCX], gpr[RSI], gpr[RDI]), (1, 5, target + 4 * 2999));
        assert!(to[..2999].iter().all(|&word| word == 0x5566_7788));
        assert_eq!(to[2999], 0);
    }

    #[test]
    fn what_is_special_is_left_to_the_processor() {
        let mut memory = vec![1u8; 1000];
        let at = memory.as_mut_ptr() as u64;
        let moment = Moment { rip: 0, rcx: 0 };
        for (before, flags, code) in [
            // Overlapping, backwards, another instruction, few, nothing there.
            (registers(0, 500, at, at + 1), 2, &REP_MOVSB[..]),
            (registers(0, 500, at, at + 500), 0x402, &REP_MOVSB),
            (registers(0, 500, at, at + 500), 2, &[0xf3, 0xa6]),
            (registers(0, 10, at, at + 500), 2, &REP_MOVSB),
            (registers(0, 500, 16, at), 2, &REP_MOVSB),
        ] {
            let mut gpr = before;
            hurry(&mut gpr, flags, code, 100, &moment);
            assert_eq!(gpr, before);
        }
    }
}
