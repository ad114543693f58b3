//! A digest of bytes: whether two runs had the same in memory. Nobody tries to deceive it, and it is fast: a
//! multiplication for 16 bytes, three of them at a time.

/// Odd numbers without a pattern.
const KEYS: [u64; 4] =
    [0xa076_1d64_78bd_642f, 0xe703_7ed1_a0b4_28db, 0x8ebc_6af0_9c88_c6e3, 0x5899_65cc_7537_4cc3];

/// Bytes of a block.
const BLOCK: usize = 48;

/// Of pieces of memory, in their order.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Digest {
    /// Bytes in all.
    pub bytes: u64,
    /// Their digest.
    pub value: u64,
}

fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

fn absorb(lanes: &mut [u64; 3], block: &[u8]) {
    let (words, _) = block.as_chunks::<16>();
    for ((lane, key), pair) in lanes.iter_mut().zip(KEYS).zip(words) {
        let pair = u128::from_le_bytes(*pair);
        *lane = mix(pair as u64 ^ key, (pair >> 64) as u64 ^ *lane);
    }
}

impl Digest {
    /// Adds a piece. Where it ends counts, too.
    pub fn add(&mut self, bytes: &[u8]) {
        // No lane is zero at first: a factor of zero would forget the other one.
        let [_, first, second, third] = KEYS;
        let mut lanes = [first, second, third].map(|key| self.value ^ key);
        let blocks = bytes.chunks_exact(BLOCK);
        let rest = blocks.remainder();
        blocks.for_each(|block| absorb(&mut lanes, block));
        if !rest.is_empty() {
            let mut last = [0; BLOCK];
            last[..rest.len()].copy_from_slice(rest);
            absorb(&mut lanes, &last);
        }
        let [a, b, c] = lanes;
        self.value =
            mix(a ^ b.rotate_left(21) ^ c.rotate_left(42) ^ KEYS[3], bytes.len() as u64 ^ KEYS[0]);
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_macros, reason = "tests have a heap and may panic")]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec;

    fn of(pieces: &[&[u8]]) -> Digest {
        let mut digest = Digest::default();
        pieces.iter().for_each(|piece| digest.add(piece));
        digest
    }

    #[test]
    fn each_bit_the_length_and_the_pieces_count() {
        let mut seen = BTreeSet::new();
        let mut count = 0;
        for len in [0, 1, 7, 16, 47, 48, 49, 96, 1000] {
            let mut bytes = vec![0u8; len];
            count += 1;
            seen.insert(of(&[&bytes]).value);
            for bit in 0..8 * len {
                bytes[bit / 8] ^= 1 << (bit % 8);
                count += 1;
                seen.insert(of(&[&bytes]).value);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
        let halves: [&[&[u8]]; 4] = [&[b"ab", b"c"], &[b"a", b"bc"], &[b"abc"], &[b"c", b"ab"]];
        count += halves.len();
        seen.extend(halves.map(|pieces| of(pieces).value));
        assert_eq!(seen.len(), count);
        assert!(halves.iter().all(|pieces| of(pieces).bytes == 3));
    }
}
