//! The checksum of a chunk ([`abi::trace::Checksum`]), as fast as the processor can.

use abi::trace::crc32c;

const LANES: usize = 4;
/// Words of each lane that are put side by side.
const WORDS: usize = 256;

/// The same as [`abi::trace::Checksum`], of what it is given part by part.
pub struct Lanes {
    lanes: [u32; LANES],
    next: usize,
}

impl Default for Lanes {
    fn default() -> Lanes {
        Lanes { lanes: [1, 2, 3, 4], next: 0 }
    }
}

impl Lanes {
    /// Adds bytes and the zeros that fill the last word.
    pub fn add(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for words in words.chunks(LANES * WORDS) {
            let mut sides = [[0u8; WORDS * 8]; LANES];
            let mut lens = [0; LANES];
            for (lane, (side, len)) in sides.iter_mut().zip(&mut lens).enumerate() {
                let (slots, _) = side.as_chunks_mut::<8>();
                let words = words.iter().skip(lane).step_by(LANES);
                *len = words.len() * 8;
                slots.iter_mut().zip(words).for_each(|(slot, word)| *slot = *word);
            }
            for (lane, (side, len)) in sides.iter().zip(lens).enumerate() {
                let crc = &mut self.lanes[(self.next + lane) % LANES];
                // The crate inverts before and behind.
                *crc = !crc32c::crc32c_append(!*crc, &side[..len]);
            }
            self.next += words.len();
        }
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            let crc = &mut self.lanes[self.next % LANES];
            *crc = crc32c(*crc, &word);
            self.next += 1;
        }
    }

    /// The checksum of all that was added.
    pub fn finish(&self) -> u32 {
        // As it is defined: the low half of the number of words.
        let count = (self.next & 0xffff_ffff).to_le_bytes();
        let [a, b, c, d, ..] = count;
        let start = u32::from_le_bytes([a, b, c, d]);
        self.lanes.iter().fold(start, |crc, lane| crc32c(crc, &lane.to_le_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::trace::Checksum;

    #[test]
    fn it_is_the_checksum_of_the_format() {
        let mut number = 1u32;
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            number = number.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
            number.to_be_bytes()[0]
        })
        .take(40_000)
        .collect();
        for parts in [&[0][..], &[7], &[8, 24], &[40, 9, 17], &[1, 8192, 8200], &[33_000, 15, 1001]]
        {
            let (mut expected, mut lanes) = (Checksum::default(), Lanes::default());
            let mut at = 0;
            for &len in parts {
                let part = &bytes[at..at + len];
                at += len;
                lanes.add(part);
                let mut padded = part.to_vec();
                padded.resize(len.next_multiple_of(8), 0);
                expected.add(&padded);
            }
            assert_eq!(lanes.finish(), expected.finish(), "{parts:?}");
        }
    }
}
