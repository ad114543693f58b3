//! Packs a full chunk ([`abi::packing`]), as its frame will be in the file.

use crate::base::mapping::Mapping;
use crate::base::processor::has_fast_counts;
use abi::layout::page_up;
use abi::packing::{self, Followers, STREAMS};
use abi::trace::{HEADER_SIZE, PACKED_FLOW, REGISTER_STATE_SIZE};
use core::mem::size_of;

/// The memory in which one thread's chunks are packed.
#[derive(Default)]
pub struct Packer {
    /// Empty: there is none, and nothing is packed. Else the table of followers, and behind it a frame.
    memory: Mapping,
    /// Bytes of the largest frame that fits.
    most: u64,
}

/// A chunk as it will be in the file, but for the header.
pub struct Packed<'a> {
    /// All behind the header.
    pub words: &'a [u64],
    /// Where the packed control flow starts in the frame.
    pub split: u64,
}

const FOLLOWERS: u64 = size_of::<Followers>() as u64;

impl Packer {
    /// Takes memory for chunks whose frames have `frame_len` bytes. Where there is none they are not packed.
    pub fn prepare(&mut self, frame_len: u64) {
        if self.most >= frame_len {
            return;
        }
        // Codes and bits take an eighth and a 64th, and each rounding up less than 8 bytes.
        let most = FOLLOWERS + STREAMS as u64 + frame_len + frame_len / 8 + frame_len / 64 + 64;
        if let Ok(memory) = Mapping::anonymous(page_up(most)) {
            self.close();
            (self.memory, self.most) = (memory, frame_len);
        }
    }

    /// Gives the memory back.
    pub fn close(&mut self) {
        let memory = core::mem::take(self).memory;
        if !memory.is_empty() {
            memory.unmap();
        }
    }

    /// A chunk's register state and its two streams, packed. `None` if that has as many pages, or there is
    /// no memory for it.
    pub fn pack(&mut self, registers: &[u64], memory: &[u64], flow: &[u64]) -> Option<Packed<'_>> {
        let raw = STREAMS as u64 + (memory.len() + flow.len()) as u64 * 8;
        if self.memory.is_empty() || raw > self.most {
            return None;
        }
        let (start, len) = (self.memory.start(), self.memory.len());
        let (followers, frame) = self
            .memory
            .words_mut(start, len)
            .split_first_chunk_mut::<{ FOLLOWERS as usize / 8 }>()?;
        let split = STREAMS + pack_memory(memory, behind(frame, STREAMS)?)?;
        let flow_len = pack_flow(flow, followers, behind(frame, split)?)?;
        let end = split + flow_len;
        if page_up(end as u64) >= page_up(raw) {
            return None;
        }
        let (front, head) = (HEADER_SIZE / 8, PACKED_FLOW / 8);
        frame.get_mut(front..head)?.copy_from_slice(registers.get(..REGISTER_STATE_SIZE / 8)?);
        let (flow_place, padding) = frame.get_mut(head..STREAMS / 8)?.split_first_mut()?;
        *flow_place = flow_len as u64;
        padding.fill(0);
        Some(Packed { words: frame.get(front..end / 8)?, split: split as u64 })
    }
}

/// The bytes of a frame from `at` on, a multiple of 8.
fn behind(frame: &mut [u64], at: usize) -> Option<&mut [u8]> {
    let words = frame.get_mut(at / 8..)?;
    // SAFETY: words are bytes, and nobody else has a reference to them.
    Some(unsafe { core::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len() * 8) })
}

/// What writes words behind each other to `out`, if there is room for `most` of them, each ascending by
/// 8 bytes at most.
fn putting(out: &mut [u8], most: usize) -> Option<impl FnMut(usize, u64) + '_> {
    let start = out.get_mut(..most * 8)?.as_mut_ptr();
    Some(move |at: usize, word: u64| {
        debug_assert!(at + 8 <= most * 8);
        // SAFETY: the n-th word (from 0) is put n * 8 bytes behind the start or before that
        // (`abi::packing`), and there is room for all.
        unsafe { start.add(at).cast::<u64>().write_unaligned(word) }
    })
}

/// Fills the last word; the bytes of all.
fn finished(out: &mut [u8], used: usize) -> Option<usize> {
    let end = used.next_multiple_of(8);
    out.get_mut(used..end)?.fill(0);
    Some(end)
}

#[inline(always)]
fn memory(words: &[u64], out: &mut [u8]) -> Option<usize> {
    let (codes, differences) = out.split_at_mut_checked(packing::codes(words.len()))?;
    let (codes_used, padding) = codes.split_at_mut_checked(words.len())?;
    padding.fill(0);
    let used = packing::pack_memory(words, codes_used, putting(differences, words.len())?);
    Some(codes.len() + finished(differences, used)?)
}

#[inline(always)]
fn flow(words: &[u64], followers: &mut Followers, out: &mut [u8]) -> Option<usize> {
    let (bits, others) = out.split_at_mut_checked(packing::bits(words.len()))?;
    let used = packing::pack_flow(words, followers, bits, putting(others, words.len())?);
    Some(bits.len() + finished(others, used)?)
}

/// To how many bytes, a multiple of 8, the memory stream is packed at the start of `out`.
fn pack_memory(words: &[u64], out: &mut [u8]) -> Option<usize> {
    #[target_feature(enable = "lzcnt,bmi1,bmi2")]
    fn fast(words: &[u64], out: &mut [u8]) -> Option<usize> {
        memory(words, out)
    }
    match has_fast_counts() {
        // SAFETY: the processor has these instructions.
        true => unsafe { fast(words, out) },
        false => memory(words, out),
    }
}

/// The same of control flow.
fn pack_flow(words: &[u64], followers: &mut Followers, out: &mut [u8]) -> Option<usize> {
    #[target_feature(enable = "lzcnt,bmi1,bmi2")]
    fn fast(words: &[u64], followers: &mut Followers, out: &mut [u8]) -> Option<usize> {
        flow(words, followers, out)
    }
    match has_fast_counts() {
        // SAFETY: the processor has these instructions.
        true => unsafe { fast(words, followers, out) },
        false => flow(words, followers, out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::processor;
    use abi::packing::{unpack_flow, unpack_memory};
    use std::vec;
    use std::vec::Vec;

    const REGISTERS: [u64; REGISTER_STATE_SIZE / 8] = [9; REGISTER_STATE_SIZE / 8];

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn check(packer: &mut Packer, memory: &[u64], flow: &[u64]) {
        let packed = packer.pack(&REGISTERS, memory, flow).expect("it is shorter");
        let frame = [bytes(&[0; HEADER_SIZE / 8]), bytes(packed.words)].concat();
        assert_eq!(frame[HEADER_SIZE..PACKED_FLOW], bytes(&REGISTERS));
        let split = packed.split as usize;
        let mut out = vec![0; memory.len() * 8];
        assert_eq!(unpack_memory(&frame[STREAMS..split], &mut out), Some(split - STREAMS));
        assert!(out == bytes(memory));
        let flow_len = u64::from_le_bytes(*frame[PACKED_FLOW..].first_chunk().expect("8 bytes"));
        let mut out = vec![0; flow.len() * 8];
        let mut followers = vec![0; FOLLOWERS as usize / 8];
        let followers = followers.first_chunk_mut().expect("a table");
        assert_eq!(unpack_flow(&frame[split..], followers, &mut out), Some(flow_len as usize));
        assert_eq!(frame.len(), split + flow_len as usize);
        assert!(out == bytes(flow));
    }

    #[test]
    fn chunks_are_packed_and_unpacked_on_each_processor() {
        let memory: Vec<u64> = (0..90_000).map(|i| 0x7fff_0000_0000 + i * i % 70_000).collect();
        let flow: Vec<u64> = (0..20_000).map(|i| 0x1234 + i % 9).collect();
        let mut packer = Packer::default();
        packer.prepare(1 << 20);
        // (Without `detect` there is no feature.)
        assert!(!has_fast_counts());
        check(&mut packer, &memory, &flow);
        check(&mut packer, &memory[..3], &flow);
        check(&mut packer, &memory, &[]);
        processor::detect();
        check(&mut packer, &memory, &flow);
        check(&mut packer, &memory[..777], &flow[..65]);
        packer.close();
    }

    #[test]
    fn what_gets_longer_or_has_no_room_is_not_packed() {
        let noise: Vec<u64> =
            (1..5000).map(|i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).swap_bytes()).collect();
        let mut packer = Packer::default();
        assert!(packer.pack(&REGISTERS, &noise, &noise).is_none());
        packer.prepare(100_000);
        assert!(packer.pack(&REGISTERS, &noise, &noise).is_none());
        assert!(packer.pack(&REGISTERS, &[7; 12_000], &[8; 4000]).is_none(), "no room");
        assert!(packer.pack(&REGISTERS, &[7; 8000], &[8; 4000]).is_some());
        packer.close();
    }
}
