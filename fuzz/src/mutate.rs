//! Changes that need to know nothing about the format.

use crate::word::{get, set, strange};
use crate::Choices;

/// One change somewhere in `range` of the bytes, which keeps their number.
pub fn in_place(choices: &mut Choices, bytes: &mut [u8], range: std::ops::Range<usize>) {
    let range = range.start.min(bytes.len())..range.end.min(bytes.len());
    if range.is_empty() {
        return;
    }
    let len = bytes.len();
    let at = range.start + choices.below(range.len());
    match choices.below(5) {
        0 => bytes[at] ^= 1 << choices.below(8),
        1 => bytes[at] = choices.word() as u8,
        2 => {
            let size = *choices.pick(&[1, 2, 4, 8]);
            let at = at - at % size;
            let value = strange(choices, get(bytes, at, size), len);
            set(bytes, at, size, value);
        }
        3 => {
            let count = (1 + choices.below(16)).min(range.end - at);
            let byte = *choices.pick(&[0, 0xff, 0x80, 1]);
            bytes[at..at + count].fill(byte);
        }
        _ => {
            let count = (1 + choices.below(32)).min(range.end - at);
            let from = choices.below(len - count + 1);
            bytes.copy_within(from..from + count, at);
        }
    }
}

/// A change of the length: something cut off, left out, or there twice.
pub fn length(choices: &mut Choices, bytes: &mut Vec<u8>) {
    let at = choices.below(bytes.len());
    let at = if choices.one_in(2) { at & !4095 } else { at };
    let most = 1 + (1 << choices.below(14));
    let count = choices.below((bytes.len() - at).min(most));
    match choices.below(3) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(at..at + count)),
        _ if bytes.len() < 1 << 20 => {
            let again = bytes[at..at + count].to_vec();
            bytes.splice(at..at, again);
        }
        _ => {}
    }
}

/// Part of another input in the place of part of this one.
pub fn splice(choices: &mut Choices, bytes: &mut [u8], corpus: &[Vec<u8>]) {
    let other = choices.pick(corpus);
    let count = 1 + choices.below(other.len().min(bytes.len()).min(8192));
    if count > other.len() || count > bytes.len() {
        return;
    }
    let from = choices.below(other.len() - count + 1);
    let at = if choices.one_in(2) {
        from.min(bytes.len() - count)
    } else {
        choices.below(bytes.len() - count + 1)
    };
    bytes[at..at + count].copy_from_slice(&other[from..from + count]);
}
