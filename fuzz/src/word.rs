//! Little-endian numbers in byte arrays that may be too short for them.

use crate::Choices;

pub fn get(bytes: &[u8], at: usize, size: usize) -> u64 {
    let part = bytes.get(at..at.saturating_add(size)).unwrap_or_default();
    part.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

pub fn set(bytes: &mut [u8], at: usize, size: usize, value: u64) {
    if let Some(part) = bytes.get_mut(at..at.saturating_add(size)) {
        part.copy_from_slice(&value.to_le_bytes()[..size]);
    }
}

/// A number that is likely to be mistaken: small, huge, at a border, or near what was there.
pub fn strange(choices: &mut Choices, old: u64, len: usize) -> u64 {
    let near = (choices.below(17) as u64).wrapping_sub(8);
    let exact = near * u64::from(choices.one_in(2));
    match choices.below(8) {
        0 => choices.below(9) as u64,
        1 => u64::MAX.wrapping_sub(choices.below(9) as u64),
        2 => (1u64 << choices.below(64)).wrapping_add(exact),
        3 => (len as u64).wrapping_add(exact),
        4 => (4096 * choices.below(len / 4096 + 3) as u64).wrapping_add(exact),
        5 => old.wrapping_add(near),
        6 => old ^ 1 << choices.below(64),
        _ => choices.word() >> choices.below(64),
    }
}
