//! Numbers that become smaller, each with the reason why it may.

/// A length or offset, as memory is indexed. This command is for x86-64, where both have 64 bits.
#[allow(clippy::cast_possible_truncation, reason = "asserted: a usize has 64 bits")]
pub const fn index(n: u64) -> usize {
    const { assert!(usize::BITS == u64::BITS) };
    n as usize
}

/// The low half of a word: of an address, what the tables of 4-byte entries keep.
#[allow(clippy::cast_possible_truncation, reason = "the low half is asked for")]
pub const fn low(n: u64) -> u32 {
    n as u32
}

/// A number of units, or a length of code or recipes. [`crate::layout::Places::check`] refuses what is
/// not near the image, long before there are so many.
#[allow(clippy::cast_possible_truncation, reason = "everything that is added is below 2 GiB")]
pub const fn short(n: usize) -> u32 {
    n as u32
}
