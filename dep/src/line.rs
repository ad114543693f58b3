//! Lines of text that differ in one number only, of which there are more than of anything else.

use crate::row::{Number, Template};

/// No line is longer.
pub const MOST: usize = 64;

const BEFORE: usize = 40;
const BEHIND: usize = 8;
/// Digits that are written each time.
const LOW: usize = 8;

/// The number that the text has is of fewer digits than are written each time.
const SHORT: u64 = u64::MAX;

/// A line with a hole where a number in hexadecimal stands. It has the number of last time, because mostly only the
/// low half is another one. All is copied with room to spare: a copy of constant size costs less than one of a
/// few bytes.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    text: [u8; MOST],
    /// Where the last [`LOW`] digits are.
    low: u8,
    len: u8,
    /// Where the first digit is.
    before: u8,
    /// The high half of the number that the text has, or [`SHORT`].
    high: u64,
    behind: [u8; BEHIND],
    behind_len: u8,
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
        let len = |part: &[u8]| u8::try_from(part.len()).unwrap_or(u8::MAX);
        let mut line = Line {
            text: [0; MOST],
            low: 0,
            len: 0,
            before: len(before),
            high: SHORT,
            behind: [0; BEHIND],
            behind_len: len(behind),
        };
        line.text[..BEFORE][..before.len()].copy_from_slice(before);
        line.behind[..behind.len()].copy_from_slice(behind);
        line.fill(u64::MAX);
        line
    }

    /// Writes the line with this number; its length. `to` has room for [`MOST`] bytes.
    #[inline]
    pub fn write(&mut self, number: u64, to: &mut [u8]) -> usize {
        let Some(to) = to.first_chunk_mut::<MOST>() else { return 0 };
        if number >> 32 != self.high || is_short(number) {
            self.fill(number);
        }
        *to = self.text;
        if !is_short(number) {
            let at = usize::from(self.low).min(MOST - LOW);
            to[at..at + LOW].copy_from_slice(&half(number & 0xffff_ffff).to_le_bytes());
        }
        usize::from(self.len)
    }

    /// The text gets this number.
    fn fill(&mut self, number: u64) {
        let (digits, len) = digits(number);
        let at = usize::from(self.before).min(BEFORE);
        self.text[at..at + 16].copy_from_slice(&digits);
        let end = at + len;
        self.text[end..end + BEHIND].copy_from_slice(&self.behind);
        let [low, len] = [end.saturating_sub(LOW), end + usize::from(self.behind_len)];
        [self.low, self.len] = [low, len].map(|at| u8::try_from(at).unwrap_or(u8::MAX));
        self.high = if is_short(number) { SHORT } else { number >> 32 };
    }
}

/// Whether it has fewer digits than are written each time.
#[inline]
fn is_short(number: u64) -> bool {
    number >> (4 * (LOW - 1)) == 0
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
