//! Repeated string instructions on the way to a moment: the processor would trap at each of their iterations,
//! of which there may be millions. All but the last one before the moment, or before the end, are carried
//! out at once. What is in any way special is left to the processor.

use crate::base::program::{read_program_bytes, write_bytes};
use crate::code::jit::{has_protected_pages, jit};
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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Does {
    Move,
    Store,
    Load,
    /// Goes on while the element is, or is not, equal to the accumulator.
    Scan {
        while_equal: bool,
    },
    /// The same of two elements in memory.
    Compare {
        while_equal: bool,
    },
}

/// A repeated instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Repeated {
    does: Does,
    /// Bytes of an element.
    size: u64,
}

impl Repeated {
    fn of(code: &[u8]) -> Option<Repeated> {
        let (mut while_equal, mut whole) = (None, 4);
        let mut rest = code;
        loop {
            let (&byte, behind) = rest.split_first()?;
            match byte {
                0xf2 | 0xf3 => while_equal = Some(byte == 0xf3),
                0x66 => whole = 2,
                _ => break,
            }
            rest = behind;
        }
        let while_equal = while_equal?;
        if let [rex @ 0x40..=0x4f, behind @ ..] = rest {
            whole = if rex & 8 != 0 { 8 } else { whole };
            rest = behind;
        }
        let opcode = *rest.first()?;
        let does = match opcode & !1 {
            0xa4 => Does::Move,
            0xa6 => Does::Compare { while_equal },
            0xaa => Does::Store,
            0xac => Does::Load,
            0xae => Does::Scan { while_equal },
            _ => return None,
        };
        Some(Repeated { does, size: if opcode & 1 == 0 { 1 } else { whole } })
    }

    fn uses(self) -> [bool; 2] {
        match self.does {
            Does::Move | Does::Compare { .. } => [true, true],
            Does::Load => [true, false],
            Does::Store | Does::Scan { .. } => [false, true],
        }
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
    let backwards = rflags & DIRECTION_FLAG != 0;
    let most = PIECE as u64 / repeated.size;
    if left < FEW {
        return;
    }
    while left > 0 {
        let count = left.min(most);
        let Some(done) = pass(repeated, gpr, count, backwards) else { return };
        let len = done * repeated.size;
        gpr[RCX] -= done;
        for (register, uses) in [RSI, RDI].into_iter().zip(repeated.uses()) {
            let moved = if uses { len } else { 0 };
            gpr[register] = match backwards {
                true => gpr[register].wrapping_sub(moved),
                false => gpr[register].wrapping_add(moved),
            };
        }
        if done < count {
            return;
        }
        left -= count;
    }
}

/// Carries out `count` iterations, no more than a piece has room for; or as many of them as the instruction does not
/// end with. `None`: they are left to the processor.
fn pass(repeated: Repeated, gpr: &[u64; 16], count: u64, backwards: bool) -> Option<u64> {
    let Repeated { does, size } = repeated;
    let len = (count * size) as usize;
    // Where the lowest element is.
    let lowest = |at: u64| match backwards {
        true => at.checked_sub((count - 1) * size),
        false => at.checked_add(len as u64).map(|_| at),
    };
    let mut pieces = [[0u8; PIECE]; 2];
    let [first, second] = &mut pieces;
    let (first, second) = (first.get_mut(..len)?, second.get_mut(..len)?);
    let read = |at: u64, part: &mut [u8]| read_program_bytes(at, part).then_some(());
    let target = lowest(gpr[RDI]);
    match does {
        Does::Move => {
            let (source, distance) = (lowest(gpr[RSI])?, gpr[RDI].wrapping_sub(gpr[RSI]));
            let apart = if backwards { distance.wrapping_neg() } else { distance };
            // Below that it reads again what it has stored, so that it repeats.
            match apart != 0 && apart < len as u64 {
                true if backwards || apart < size => return None,
                true => {
                    let (pattern, _) = second.split_at_mut(apart as usize);
                    read(source, pattern)?;
                    let bytes = pattern.iter().cycle();
                    first.iter_mut().zip(bytes).for_each(|(to, &from)| *to = from);
                }
                false => read(source, first)?,
            }
        }
        Does::Store => fill(first, gpr[RAX], size),
        Does::Load => read(lowest(gpr[RSI])?, first)?,
        Does::Scan { .. } => {
            fill(first, gpr[RAX], size);
            read(target?, second)?;
        }
        Does::Compare { .. } => {
            read(lowest(gpr[RSI])?, first)?;
            read(target?, second)?;
        }
    }
    match does {
        Does::Move | Does::Store => {
            let target = target?;
            let end = target + len as u64;
            // Whoever writes to translated code has to come by way of its fault.
            if has_protected_pages() && jit().protects(target, end) {
                return None;
            }
            // SAFETY: what the program's instruction stores.
            unsafe { write_bytes(target, first) }.then_some(count)
        }
        Does::Load => Some(count),
        Does::Scan { while_equal } | Does::Compare { while_equal } => {
            let size = size as usize;
            let pairs = first.chunks(size).zip(second.chunks(size));
            let ends = |(a, b): (&[u8], &[u8])| (a == b) != while_equal;
            let done = match backwards {
                true => pairs.rev().position(ends),
                false => pairs.into_iter().position(ends),
            };
            Some(done.map_or(count, |done| done as u64))
        }
    }
}

fn fill(piece: &mut [u8], value: u64, size: u64) {
    let element = value.to_le_bytes();
    let bytes = element.iter().take(size as usize).cycle();
    piece.iter_mut().zip(bytes).for_each(|(to, &from)| *to = from);
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

    const REP_MOVSQ: [u8; 3] = [0xf3, 0x48, 0xa5];
    const REPE_CMPSB: [u8; 2] = [0xf3, 0xa6];
    const REPNE_SCASW: [u8; 3] = [0x66, 0xf2, 0xaf];
    const REP_LODSD: [u8; 2] = [0xf3, 0xad];
    const ELSEWHERE: Moment = Moment { rip: 0, rcx: 0 };

    #[test]
    fn what_overlaps_repeats() {
        let mut memory: alloc::vec::Vec<u8> = (0..12).collect();
        memory.resize(20_000, 0);
        let at = memory.as_mut_ptr() as u64;
        let mut gpr = registers(0, 2000, at, at + 12);
        hurry(&mut gpr, 2, &REP_MOVSQ, 100, &ELSEWHERE);
        assert_eq!(gpr, registers(0, 1, at + 8 * 1999, at + 12 + 8 * 1999));
        assert!(memory[..12 + 8 * 1999]
            .iter()
            .enumerate()
            .all(|(i, &byte)| byte == (i % 12) as u8));
        assert_eq!(memory[12 + 8 * 1999..], [0; 3996]);
    }

    #[test]
    fn backwards_they_go_down() {
        const BACKWARDS: u64 = 0x402;
        let mut memory: alloc::vec::Vec<u8> = (0..20_000).map(|i| (i % 251) as u8).collect();
        let before = memory.clone();
        let at = memory.as_mut_ptr() as u64;
        // As memmove does it, to what lies higher and overlaps.
        let mut gpr = registers(0, 10_000, at + 9_999, at + 10_004);
        hurry(&mut gpr, BACKWARDS, &REP_MOVSB, 100, &ELSEWHERE);
        assert_eq!(gpr, registers(0, 1, at, at + 5));
        assert_eq!(memory[6..10_005], before[1..10_000]);
        assert_eq!(memory[..6], before[..6]);
        memory[77] = 255;
        let mut gpr = registers(255, 10_000, 3, at + 15_000);
        hurry(&mut gpr, BACKWARDS, &[0xf2, 0xae], 100, &ELSEWHERE);
        assert_eq!(gpr, registers(255, 1, 3, at + 5001), "it is not there");
        let mut gpr = registers(255, 16_000, 3, at + 15_000);
        hurry(&mut gpr, BACKWARDS, &[0xf2, 0xae], 100, &ELSEWHERE);
        assert_eq!(gpr, registers(255, 16_000 - 14_923, 3, at + 77));
    }

    #[test]
    fn comparisons_end_where_they_would() {
        let mut memory = vec![7u16; 10_000];
        memory[9000] = 8;
        let at = memory.as_mut_ptr() as u64;
        let mut gpr = registers(0x50008, 10_000, 3, at);
        hurry(&mut gpr, 2, &REPNE_SCASW, 100, &ELSEWHERE);
        assert_eq!(gpr, registers(0x50008, 1000, 3, at + 18_000));
        // The one that differs is the processor's: it sets the flags.
        let mut gpr = registers(0, 20_000, at, at + 2);
        hurry(&mut gpr, 2, &REPE_CMPSB, 100, &ELSEWHERE);
        assert_eq!(gpr, registers(0, 20_000 - 17_998, at + 17_998, at + 18_000));
        let mut gpr = registers(0, 5000, at, 1);
        hurry(&mut gpr, 2, &REP_LODSD, 100, &ELSEWHERE);
        assert_eq!(gpr, registers(0, 1, at + 4 * 4999, 1));
    }

    #[test]
    fn what_is_special_is_left_to_the_processor() {
        let mut memory = vec![1u8; 1000];
        let at = memory.as_mut_ptr() as u64;
        for (before, flags, code) in [
            // Elements that overlap, that overlap backwards, another address size, few, nothing there, not repeated.
            (registers(0, 100, at, at + 1), 2, &REP_MOVSQ[..]),
            (registers(0, 500, at + 500, at + 499), 0x402, &REP_MOVSB),
            (registers(0, 500, at, at + 500), 2, &[0x67, 0xf3, 0xa4]),
            (registers(0, 10, at, at + 500), 2, &REP_MOVSB),
            (registers(0, 500, 16, at), 2, &REP_MOVSB),
            (registers(0, 500, at, at + 500), 2, &[0x48, 0xa5, 0xf3]),
        ] {
            let mut gpr = before;
            hurry(&mut gpr, flags, code, 100, &ELSEWHERE);
            assert_eq!(gpr, before);
        }
    }
}
