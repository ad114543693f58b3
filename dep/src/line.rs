//! Lines of text that differ in one number only, of which there are more than of anything else.

use crate::row::{Number, Template};

/// No line is longer.
pub const MOST: usize = 80;

const BEFORE: usize = 48;
const BEHIND: usize = 8;

/// A line with a hole where a number in hexadecimal stands. What is around it is copied with room to spare,
/// because a copy of constant size costs less than one of a few bytes.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    before: [u8; BEFORE],
    behind: [u8; BEHIND],
    lens: [u8; 2],
}

impl Line {
    /// The line that `template` writes with `numbers`, of which the one at `hole` is zero in hexadecimal and
    /// is to be another one each time.
    pub fn new<const HOLES: usize>(
        template: &Template<HOLES>,
        numbers: [Number; HOLES],
        hole: usize,
    ) -> Line {
        let mut text = Vec::new();
        let digit = template.append_noting(numbers, hole, &mut text);
        let (before, rest) = text.split_at(digit);
        let behind = &rest[1..];
        let mut line = Line { before: [0; BEFORE], behind: [0; BEHIND], lens: [0; 2] };
        line.before[..before.len()].copy_from_slice(before);
        line.behind[..behind.len()].copy_from_slice(behind);
        line.lens = [before.len(), behind.len()].map(|len| u8::try_from(len).unwrap_or(u8::MAX));
        line
    }

    /// Writes the line with this number; its length. `to` has room for [`MOST`] bytes.
    #[inline]
    pub fn write(&self, number: u64, to: &mut [u8]) -> usize {
        let Some(to) = to.first_chunk_mut::<MOST>() else { return 0 };
        let [before, behind] = self.lens.map(usize::from);
        to[..BEFORE].copy_from_slice(&self.before);
        let (digits, len) = digits(number);
        let mut at = before.min(BEFORE);
        to[at..at + 16].copy_from_slice(&digits);
        at += len;
        to[at..at + BEHIND].copy_from_slice(&self.behind);
        at + behind
    }
}

/// The number in hexadecimal, and how many digits that has.
#[inline]
fn digits(number: u64) -> ([u8; 16], usize) {
    let len = 16 - (number | 1).leading_zeros() as usize / 4;
    let (high, low) = (half(number >> 32), half(number & 0xffff_ffff));
    // In memory the first digit is that of the lowest byte.
    let all = u128::from(low) << 64 | u128::from(high);
    ((all >> (8 * (16 - len))).to_le_bytes(), len)
}

/// Eight digits of a number of 32 bits, the first one in the lowest byte.
#[inline]
fn half(number: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let mut digits = number;
    digits = (digits | digits << 16) & 0x0000_ffff_0000_ffff;
    digits = (digits | digits << 8) & 0x00ff_00ff_00ff_00ff;
    digits = (digits | digits << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    let letters = (digits + 6 * EACH) >> 4 & EACH;
    (digits + u64::from(b'0') * EACH + letters * u64::from(b'a' - b'0' - 10)).swap_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_of_the_library() {
        let mut number = 0x0123_4567_89ab_cdef_u64;
        for bits in (0..64).cycle().take(4096) {
            number = number.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            for number in [number >> bits, 1 << bits, (1 << bits) - 1] {
                let (text, len) = digits(number);
                assert_eq!(String::from_utf8_lossy(&text[..len]), format!("{number:x}"));
            }
        }
        assert_eq!(digits(u64::MAX), ([b'f'; 16], 16));
    }
}
