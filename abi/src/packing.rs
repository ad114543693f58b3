//! How the streams of a full chunk lie in its frame: [`crate::trace::PACKED`].
//!
//! Both streams are taken as words of 8 bytes. What is packed of a stream depends on nothing before it, so
//! that each frame can be read alone.
//!
//! **Memory.** Most words are addresses, and an address is near to another one of the same kind that came
//! shortly before. So of 32 words, found by a hash of the word without its low bits, the last one of that
//! hash is remembered, and the difference to it is written: as zig-zag, in 0 to 6 or in 8 bytes. In front of
//! all differences there is a byte for each word, with the hash and how long the difference is.
//!
//! **Control flow.** What followed a word last time mostly follows it again. So of 4096 words, found by a
//! hash of the word before, the one that followed last is remembered. In front there is a bit for each word:
//! 1 if another one follows, which is then written.

/// Where the packed memory stream starts in the frame, behind the register state. The packed control flow
/// follows it.
pub const STREAMS: usize = 256;

/// Bits of a hash of the memory stream.
const KINDS: u32 = 5;
/// Bits of an address that say nothing of its kind.
const NEAR: u32 = 14;
/// Bits of a hash of the control flow.
const FOLLOWERS: u32 = 12;

/// What memory the packing of control flow needs.
pub type Followers = [u64; 1 << FOLLOWERS];

/// How many bytes a difference has, by the lowest three bits of its code.
const LENGTHS: [u8; 8] = [0, 1, 2, 3, 4, 5, 6, 8];

/// The code of its length, and the length, of a difference that begins with so many zeros.
const BY_ZEROS: [[u8; 2]; 65] = {
    let mut all = [[7, 8]; 65];
    let mut zeros = 64 - 6 * 8;
    while zeros <= 64 {
        let needed = (71 - zeros) as u8 >> 3;
        all[zeros] = [needed, needed];
        zeros += 1;
    }
    all
};

/// 64 bits of the golden ratio: what it multiplies is spread over the high bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline(always)]
fn hash(value: u64, bits: u32) -> usize {
    (value.wrapping_mul(SPREAD) >> (64 - bits)) as usize
}

/// Bytes of the codes of `words` words of memory stream. The differences follow, up to 8 bytes for each word.
#[must_use]
pub const fn codes(words: usize) -> usize {
    words.next_multiple_of(8)
}

/// Bytes of the bits of `words` words of control flow. The other words follow, up to 8 bytes for each word.
#[must_use]
pub const fn bits(words: usize) -> usize {
    words.div_ceil(64) * 8
}

/// Packs a memory stream: a code for each word into `codes`, and the differences by `put`, which writes 8 bytes at a
/// place, and is called with ascending places. So many bytes are differences; what is behind them means nothing.
/// (Inlined, and with a `put`, so that the caller decides for which processor and with what checks.)
#[inline(always)]
pub fn pack_memory(words: &[u64], codes: &mut [u8], mut put: impl FnMut(usize, u64)) -> usize {
    let mut last = [0_u64; 1 << KINDS];
    let mut at = 0;
    for (&word, code) in words.iter().zip(codes) {
        let kind = hash(word >> NEAR, KINDS);
        let difference = word.wrapping_sub(last[kind]) as i64;
        last[kind] = word;
        let zigzag = ((difference << 1) ^ (difference >> 63)) as u64;
        let [code_of_length, length] = BY_ZEROS[zigzag.leading_zeros() as usize];
        *code = (kind as u8) << 3 | code_of_length;
        put(at, zigzag);
        at += usize::from(length);
    }
    at
}

/// Packs control flow: a bit for each word into `bits`, 8 bytes for 64 of them, and the words that do not follow
/// as they did by `put`, as [`pack_memory`] does. So many bytes are such words.
#[inline(always)]
pub fn pack_flow(
    words: &[u64],
    followers: &mut Followers,
    bits: &mut [u8],
    mut put: impl FnMut(usize, u64),
) -> usize {
    followers.fill(0);
    let mut at = 0;
    let mut before = 0;
    for (words, bits) in words.chunks(64).zip(bits.as_chunks_mut::<8>().0) {
        let mut differs = 0_u64;
        for (i, &word) in words.iter().enumerate() {
            let follower = &mut followers[hash(before, FOLLOWERS)];
            let is_other = *follower != word;
            *follower = word;
            before = word;
            put(at, word);
            at += usize::from(is_other) * 8;
            differs |= u64::from(is_other) << i;
        }
        *bits = differs.to_le_bytes();
    }
    at
}

/// What [`pack_memory`] made of `out.len() / 8` words (the last one of which may not be whole); how many
/// bytes of `packed` that was. `None`: `packed` is too short.
pub fn unpack_memory(packed: &[u8], out: &mut [u8]) -> Option<usize> {
    const MASKS: [u64; 8] = {
        let mut masks = [u64::MAX; 8];
        let mut i = 0;
        while i < 7 {
            masks[i] = (1 << (8 * LENGTHS[i])) - 1;
            i += 1;
        }
        masks
    };
    let count = out.len().div_ceil(8);
    let codes_len = codes(count);
    let (codes, differences) = packed.split_at_checked(codes_len)?;
    let mut last = [0_u64; 1 << KINDS];
    let mut at = 0;
    for (&code, place) in codes.iter().zip(out.chunks_mut(8)) {
        let (kind, length) = (usize::from(code >> 3), usize::from(code & 7));
        let zigzag = match differences.get(at..).and_then(<[u8]>::first_chunk) {
            Some(bytes) => u64::from_le_bytes(*bytes),
            None => last_bytes(differences, at)?,
        } & MASKS[length];
        at += usize::from(LENGTHS[length]);
        let difference = zigzag >> 1 ^ (zigzag & 1).wrapping_neg();
        let word = last[kind].wrapping_add(difference);
        last[kind] = word;
        match place.first_chunk_mut::<8>() {
            Some(place) => *place = word.to_le_bytes(),
            None => place.copy_from_slice(word.to_le_bytes().get(..place.len())?),
        }
    }
    let end = at.next_multiple_of(8);
    (end <= differences.len()).then_some(codes_len + end)
}

/// The bytes from `at` on, fewer than 8, as a word.
#[cold]
fn last_bytes(bytes: &[u8], at: usize) -> Option<u64> {
    let rest = bytes.get(at..)?;
    let mut word = [0; 8];
    word.get_mut(..rest.len())?.copy_from_slice(rest);
    Some(u64::from_le_bytes(word))
}

/// What [`pack_flow`] made of `out.len() / 8` words (the last one of which may not be whole); how many
/// bytes of `packed` that was. `None`: `packed` is too short.
pub fn unpack_flow(packed: &[u8], followers: &mut Followers, out: &mut [u8]) -> Option<usize> {
    followers.fill(0);
    let bits_len = bits(out.len().div_ceil(8));
    let (bits, others) = packed.split_at_checked(bits_len)?;
    let (bits, mut others) = (bits.as_chunks::<8>().0, others.as_chunks::<8>().0.iter());
    let mut before = 0;
    for (places, bits) in out.chunks_mut(8 * 64).zip(bits) {
        let mut differs = u64::from_le_bytes(*bits);
        for place in places.chunks_mut(8) {
            let follower = &mut followers[hash(before, FOLLOWERS)];
            if differs & 1 == 1 {
                *follower = u64::from_le_bytes(*others.next()?);
            }
            before = *follower;
            differs >>= 1;
            match place.first_chunk_mut::<8>() {
                Some(place) => *place = before.to_le_bytes(),
                None => place.copy_from_slice(before.to_le_bytes().get(..place.len())?),
            }
        }
    }
    Some(packed.len() - others.len() * 8 - (packed.len() - bits_len) % 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::boxed::Box;
    use alloc::vec;
    use alloc::vec::Vec;

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn followers() -> Box<Followers> {
        vec![7; 1 << FOLLOWERS].into_boxed_slice().try_into().unwrap_or_else(|_| unreachable!())
    }

    /// What a packing puts, behind `front` bytes.
    fn whole(
        front: usize,
        pack: impl FnOnce(&mut [u8], &mut dyn FnMut(usize, u64)) -> usize,
    ) -> Vec<u8> {
        let mut out = vec![0; front];
        let mut behind = Vec::new();
        let len = pack(&mut out, &mut |at, word: u64| {
            behind.resize(at, 0);
            behind.extend(word.to_le_bytes());
        });
        behind.truncate(len);
        behind.resize(len.next_multiple_of(8), 0);
        out.extend(behind);
        out
    }

    fn packed_memory(words: &[u64]) -> Vec<u8> {
        whole(codes(words.len()), |codes, put| pack_memory(words, codes, put))
    }

    fn packed_flow(words: &[u64]) -> Vec<u8> {
        whole(bits(words.len()), |bits, put| pack_flow(words, &mut followers(), bits, put))
    }

    /// Packs and unpacks both as memory and as control flow; the packed lengths.
    fn round_trip(words: &[u64]) -> [usize; 2] {
        let (memory, flow) = (packed_memory(words), packed_flow(words));
        assert!(memory.len().is_multiple_of(8) && flow.len().is_multiple_of(8));
        // (The stream need not end with a whole word.)
        for less in 0..8.min(words.len() * 8 + 1) {
            let whole = bytes(words);
            let wanted = &whole[..whole.len() - less];
            let mut out = vec![0x5a; wanted.len()];
            assert_eq!(unpack_memory(&memory, &mut out), Some(memory.len()), "{less}");
            assert!(out == wanted);
            out.fill(0x5a);
            assert_eq!(unpack_flow(&flow, &mut followers(), &mut out), Some(flow.len()));
            assert!(out == wanted);
        }
        [memory.len(), flow.len()]
    }

    fn random() -> impl FnMut() -> u64 {
        let mut state = 0x1234_5678_9abc_def1_u64;
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        }
    }

    #[test]
    fn differences_of_all_lengths_survive() {
        let mut words = vec![0, 1, u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1];
        for bits in 0..64 {
            for offset in [0_u64, 1, 2, u64::MAX] {
                let step = (1_u64 << bits).wrapping_add(offset);
                words.extend([0x7fff_1234_5000, 0x7fff_1234_5000_u64.wrapping_add(step)]);
                words.extend([step, step.wrapping_neg()]);
            }
        }
        round_trip(&words);
    }

    #[test]
    fn streams_of_all_lengths_survive() {
        let mut next = random();
        for len in (0..200).chain([4096, 100_001]) {
            // Addresses of a few kinds, of which many come again.
            let words: Vec<u64> = (0..len)
                .map(|_| {
                    let x = next();
                    (x >> 7 & 3) << 40 | x & [0xff, 0xff8, 0xffff, 0x7][(x >> 60 & 3) as usize]
                })
                .collect();
            round_trip(&words);
        }
    }

    #[test]
    fn what_cannot_be_packed_takes_what_was_promised() {
        let mut next = random();
        let words: Vec<u64> = (0..10_000).map(|_| next()).collect();
        let [memory, flow] = round_trip(&words);
        assert!(memory > 80_000 && memory <= codes(words.len()) + 80_000, "{memory}");
        assert!(flow > 80_000 && flow <= bits(words.len()) + 80_000, "{flow}");
    }

    #[test]
    fn what_is_near_or_comes_again_is_short() {
        let near: Vec<u64> = (0..10_000).map(|i| 0x7fff_0000_0000 + i * 8 % 4096).collect();
        assert!(round_trip(&near)[0] < 25_000);
        let again: Vec<u64> = (0..10_000).map(|i| 0x0012_0034_0056 + (i % 7) * 0x1111).collect();
        assert!(round_trip(&again)[1] < 2_000);
    }

    #[test]
    fn too_few_bytes_are_noticed() {
        let mut next = random();
        let words: Vec<u64> = (0..300).map(|_| next() & 0xffff).collect();
        let (memory, flow) = (packed_memory(&words), packed_flow(&words));
        let mut out = vec![0; words.len() * 8];
        for len in 0..memory.len() {
            assert_eq!(unpack_memory(&memory[..len], &mut out), None, "{len}");
        }
        for len in 0..flow.len() {
            assert_eq!(unpack_flow(&flow[..len], &mut followers(), &mut out), None, "{len}");
        }
        // Whatever the bytes are, nothing else happens.
        for _ in 0..2000 {
            let noise: Vec<u8> = (0..next() % 400).map(|_| next() as u8).collect();
            let mut out = vec![0; (next() % 700) as usize];
            unpack_memory(&noise, &mut out);
            unpack_flow(&noise, &mut followers(), &mut out);
        }
    }
}
