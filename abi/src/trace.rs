//! The trace file: frames, streams, register states. `docs/format.md` says the same in
//! words. What the payload of events is, [`crate::event`] says.
//!
//! A trace is a sequence of *frames*, each at a multiple of 4096 bytes and a multiple of 4096
//! bytes long. Everything is little-endian. Frames are allocated from the end of the file by
//! whichever thread needs one, so frames of different threads and kinds interleave.

/// First bytes of each frame.
pub const FRAME_MAGIC: u32 = 0x4650_4544; // "DEPF"
/// Version of the format, in the payload of the FILE frame.
pub const VERSION: u32 = 6;

/// `thread` of frames that belong to the whole process.
pub const PROCESS: u32 = u32::MAX;

/// What a frame holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum FrameKind {
    /// First frame of the file: events that describe process, program and options.
    File = 1,
    /// One chunk of a thread's recording: memory stream and control-flow stream.
    Record = 2,
    /// Events of one thread, or (thread [`PROCESS`]) of the process.
    Events = 3,
    /// Descriptions of units of the JIT ([`crate::unit::JitUnit`]).
    Units = 4,
    /// What a process was when the part of a ring of inputs began that is kept.
    Snapshot = 5,
}

impl FrameKind {
    /// The kind with this number.
    pub fn from_u16(x: u16) -> Option<FrameKind> {
        Some(match x {
            1 => FrameKind::File,
            2 => FrameKind::Record,
            3 => FrameKind::Events,
            4 => FrameKind::Units,
            5 => FrameKind::Snapshot,
            _ => return None,
        })
    }
}

/// A frame that may still be written to (or was, when the process was killed).
pub const OPEN: u16 = 0;
/// A frame that is complete: `used`, `used_memory` and `checksum` are valid.
pub const SEALED: u16 = 1;
/// A Record frame that is complete, with its streams as [`crate::packing`] has them: `used` and `used_memory` are
/// their lengths when they are unpacked, the packed memory stream starts at [`crate::packing::STREAMS`] and the packed
/// control flow at `split`, and [`PACKED_FLOW`] has its length. The checksum is that of all from the
/// register state on to the end of it.
pub const PACKED: u16 = 2;
/// A frame that holds nothing: a chunk is being written there, or a thread's buffer is between two
/// chunks. (Not what a damaged bit makes of another state.)
pub const EMPTY: u16 = 0x5a5a;

/// First 64 bytes of each frame.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameHeader {
    /// [`FRAME_MAGIC`].
    pub magic: u32,
    /// A [`FrameKind`].
    pub kind: u16,
    /// [`OPEN`], [`SEALED`], [`PACKED`] or [`EMPTY`].
    pub state: u16,
    /// Dense thread index (0: the first thread) or [`PROCESS`].
    pub thread: u32,
    /// Counts the frames of this (kind, thread), from 0.
    pub seq: u32,
    /// Bytes of the whole frame.
    pub frame_len: u64,
    /// Record: offset of the control-flow stream in the frame; the memory stream starts at
    /// [`RECORD_DATA`]. Otherwise 0.
    pub split: u64,
    /// Sealed: payload bytes in use (Record: of the control-flow stream).
    pub used: u64,
    /// Sealed Record: bytes in use of the memory stream.
    pub used_memory: u64,
    /// Sealed: [`crc32c`] (four lanes, see [`Checksum`]) of the payload in use; Record: register
    /// state, then memory stream, then control flow.
    pub checksum: u32,
    /// [`FrameHeader::fixed_checksum`]: of the fields up to `split`, without `state`, and `window`.
    pub header_checksum: u32,
    /// Record: the `tags` format's current window where the control-flow stream starts.
    pub window: u32,
    /// Zero.
    pub reserved: u32,
}

/// Bytes of a [`FrameHeader`].
pub const HEADER_SIZE: usize = 64;
const _: () = assert!(core::mem::size_of::<FrameHeader>() == HEADER_SIZE);

/// Where the payload of File, Events and Units frames starts.
pub const PAYLOAD: usize = HEADER_SIZE;
/// Where the [`RegisterState`] of a Record frame lies.
pub const RECORD_REGISTERS: usize = HEADER_SIZE;
/// Where the memory stream of a Record frame starts, if it is not packed.
pub const RECORD_DATA: usize = 4096;
/// Where a packed Record frame says how many bytes its packed control flow has (8 bytes).
pub const PACKED_FLOW: usize = RECORD_REGISTERS + REGISTER_STATE_SIZE;
const _: () = assert!(PACKED_FLOW + 8 <= crate::packing::STREAMS);

/// Registers of the program at a point of its execution.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegisterState {
    /// Hardware numbering: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 .. r15.
    pub gpr: [u64; 16],
    /// The instruction pointer.
    pub rip: u64,
    /// The flags.
    pub rflags: u64,
    /// Base of the segment fs.
    pub fs_base: u64,
    /// Base of the segment gs.
    pub gs_base: u64,
    /// Bit i: `gpr[i]` is the program's value; a clear bit marks a register that was dead here.
    pub valid: u64,
}

/// Bytes of a [`RegisterState`].
pub const REGISTER_STATE_SIZE: usize = 21 * 8;
const _: () = assert!(core::mem::size_of::<RegisterState>() == REGISTER_STATE_SIZE);

/// Control-flow stream of the `tags` format: 2-byte words.
pub mod tags {
    use crate::ids::UnitId;

    /// Behind the last record.
    pub const END: u16 = 0;
    /// Set in the first word of a wide tag, which has the window's other bits.
    pub const WIDE: u16 = 0x8000;

    /// The two words of a unit's wide tag, the first one in the low half: [`WIDE`] and the window but for
    /// its highest bit, then the tag below that bit. The unit's window becomes the current one.
    pub const fn wide(id: UnitId) -> u32 {
        let (window, tag) = (id.0 >> 16, id.0 & 0xffff);
        (window & 0x7fff) | WIDE as u32 | (tag | window & 0x8000) << 16
    }

    /// Inverse of [`wide`]. The tag is 0 if only the first word has been written.
    pub const fn unit_of(words: u32) -> UnitId {
        let high = words >> 16;
        UnitId((words & 0x7fff | high & 0x8000) << 16 | high & 0x7fff)
    }

    /// A u32 window number follows, which becomes the current one.
    pub const WINDOW: u16 = 2;
}

/// Control-flow stream of the `full-pc` format: 8-byte words, `address | version << 48`; 0 ends.
/// Ahead-of-time units have version 0.
pub mod full_pc {
    /// Bits of the address in a word.
    pub const ADDRESS_BITS: u32 = 48;
}

/// What stands in the control-flow stream for code that is not selected ([`crate::selection`]), as a
/// word of the `tags` or of the `full-pc` format: it names no unit, and any amount of such code ran
/// here. There is one at least between two units with such code in between.
pub mod outside {
    /// A word is a mark if it is this one or one of the seven behind it.
    pub const FIRST: u8 = 8;
    /// Added to [`FIRST`]: control fell out of the code, so that what follows continues its block.
    pub const FALLS: u8 = 1;
    /// The memory stream has the value (8 bytes) of which the fs base became.
    pub const FS_BASE: u8 = 2;
    /// With [`FS_BASE`]: only the low half of that value.
    pub const LOW_HALF: u8 = 4;
    /// Without [`FS_BASE`]: the memory stream has the value of which the gs base became.
    pub const GS_BASE: u8 = LOW_HALF;

    /// Whether a word is a mark.
    #[must_use]
    pub const fn is_mark(word: u64) -> bool {
        word >> 3 == 1
    }
}

/// Control-flow stream of the `bits` format, in bytes.
///
/// A wide unit ([`crate::unit::flags::WIDE`]) is announced by [`TARGET`](bits::TARGET) and its
/// `full-pc` word; a unit that ends with a conditional branch (including `loop` and `jrcxz`) adds
/// one byte with the outcome in its lowest bit. Everything else follows from the code.
pub mod bits {
    /// Behind the last record.
    pub const END: u8 = 0;
    /// A unit is announced.
    pub const TARGET: u8 = 1;
    /// The branch was not taken.
    pub const NOT_TAKEN: u8 = 2;
    /// The branch was taken.
    pub const TAKEN: u8 = 3;
}

/// Guards an event that decides where units are: with a damaged one, what is listed would be wrong
/// rather than missing.
pub fn words_check(words: &[u64]) -> u64 {
    u64::from(words.iter().fold(!0, |crc, word| crc32c(crc, &word.to_le_bytes())))
}

const fn crc_table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut x = i as u32;
        let mut bit = 0;
        while bit < 8 {
            x = if x & 1 == 1 { (x >> 1) ^ 0x82f6_3b78 } else { x >> 1 };
            bit += 1;
        }
        table[i] = x;
        i += 1;
    }
    table
}

static CRC_TABLE: [u32; 256] = crc_table();

/// CRC-32C (Castagnoli) update without initial and final inversion, as the `crc32` instruction.
pub fn crc32c(mut crc: u32, bytes: &[u8]) -> u32 {
    for &byte in bytes {
        crc = (crc >> 8) ^ CRC_TABLE[((crc ^ u32::from(byte)) & 0xff) as usize];
    }
    crc
}

/// Four interleaved CRC-32C lanes over 8-byte words, so that a processor can compute them side by
/// side. `bytes.len()` must be a multiple of 8 (a stream is padded with its zero end).
#[derive(Clone, Copy, Debug)]
pub struct Checksum {
    lanes: [u32; 4],
    next: usize,
}

impl Default for Checksum {
    fn default() -> Self {
        Checksum { lanes: [1, 2, 3, 4], next: 0 }
    }
}

impl Checksum {
    /// Adds whole words with `step(lane, word)`, which must compute [`crc32c`] of the word.
    pub fn add_with(&mut self, words: impl Iterator<Item = u64>, step: impl Fn(u32, u64) -> u32) {
        for word in words {
            let lane = &mut self.lanes[self.next & 3];
            *lane = step(*lane, word);
            self.next += 1;
        }
    }

    /// As [`Checksum::add_with`], the four lanes side by side.
    #[inline]
    pub fn add_words_with(&mut self, words: &[u64], step: impl Fn(u32, u64) -> u32) {
        let single = (self.next.wrapping_neg() & 3).min(words.len());
        let (before, words) = words.split_at(single);
        let (blocks, behind) = words.as_chunks::<4>();
        self.add_with(before.iter().copied(), &step);
        let [mut a, mut b, mut c, mut d] = self.lanes;
        for block in blocks {
            a = step(a, block[0]);
            b = step(b, block[1]);
            c = step(c, block[2]);
            d = step(d, block[3]);
        }
        self.lanes = [a, b, c, d];
        self.next += blocks.len() * 4;
        self.add_with(behind.iter().copied(), &step);
    }

    /// Adds bytes, a multiple of 8, in portable code.
    pub fn add(&mut self, bytes: &[u8]) {
        let words =
            bytes.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap_or([0; 8])));
        self.add_with(words, |crc, word| crc32c(crc, &word.to_le_bytes()));
    }

    /// The checksum of all that was added.
    pub fn finish(self) -> u32 {
        self.lanes.iter().fold(self.next as u32, |crc, lane| crc32c(crc, &lane.to_le_bytes()))
    }
}

impl FrameHeader {
    /// Whether nothing is written to the frame any more.
    pub fn is_complete(&self) -> bool {
        self.state == SEALED || self.is_packed()
    }

    /// Whether it is a Record frame with packed streams.
    pub fn is_packed(&self) -> bool {
        self.state == PACKED && self.kind == FrameKind::Record as u16
    }

    /// Checksum of the fields that never change once the frame exists.
    pub fn fixed_checksum(&self) -> u32 {
        let mut crc = crc32c(!0, &self.magic.to_le_bytes());
        crc = crc32c(crc, &self.kind.to_le_bytes());
        crc = crc32c(crc, &self.thread.to_le_bytes());
        crc = crc32c(crc, &self.seq.to_le_bytes());
        crc = crc32c(crc, &self.frame_len.to_le_bytes());
        crc = crc32c(crc, &self.split.to_le_bytes());
        crc32c(crc, &self.window.to_le_bytes())
    }

    /// The header as it is in the file.
    pub fn to_bytes(&self) -> [u8; HEADER_SIZE] {
        let mut out = [0; HEADER_SIZE];
        out[0..4].copy_from_slice(&self.magic.to_le_bytes());
        out[4..6].copy_from_slice(&self.kind.to_le_bytes());
        out[6..8].copy_from_slice(&self.state.to_le_bytes());
        out[8..12].copy_from_slice(&self.thread.to_le_bytes());
        out[12..16].copy_from_slice(&self.seq.to_le_bytes());
        out[16..24].copy_from_slice(&self.frame_len.to_le_bytes());
        out[24..32].copy_from_slice(&self.split.to_le_bytes());
        out[32..40].copy_from_slice(&self.used.to_le_bytes());
        out[40..48].copy_from_slice(&self.used_memory.to_le_bytes());
        out[48..52].copy_from_slice(&self.checksum.to_le_bytes());
        out[52..56].copy_from_slice(&self.header_checksum.to_le_bytes());
        out[56..60].copy_from_slice(&self.window.to_le_bytes());
        out
    }

    /// The first 64 bytes of a frame; `None` if magic or header checksum say that it is not one.
    pub fn from_bytes(b: &[u8]) -> Option<FrameHeader> {
        let b = b.get(..HEADER_SIZE)?;
        let u16_at = |i: usize| u16::from_le_bytes([b[i], b[i + 1]]);
        let u32_at = |i: usize| u32::from(u16_at(i)) | u32::from(u16_at(i + 2)) << 16;
        let u64_at = |i: usize| u64::from(u32_at(i)) | u64::from(u32_at(i + 4)) << 32;
        let header = FrameHeader {
            magic: u32_at(0),
            kind: u16_at(4),
            state: u16_at(6),
            thread: u32_at(8),
            seq: u32_at(12),
            frame_len: u64_at(16),
            split: u64_at(24),
            used: u64_at(32),
            used_memory: u64_at(40),
            checksum: u32_at(48),
            header_checksum: u32_at(52),
            window: u32_at(56),
            reserved: u32_at(60),
        };
        (header.magic == FRAME_MAGIC && header.header_checksum == header.fixed_checksum())
            .then_some(header)
    }
}

impl RegisterState {
    fn words(&self) -> [u64; 21] {
        let mut words = [0; 21];
        words[..16].copy_from_slice(&self.gpr);
        words[16..].copy_from_slice(&[
            self.rip,
            self.rflags,
            self.fs_base,
            self.gs_base,
            self.valid,
        ]);
        words
    }

    /// The state as it is in the file.
    pub fn to_bytes(&self) -> [u8; REGISTER_STATE_SIZE] {
        let mut out = [0; REGISTER_STATE_SIZE];
        for (slot, word) in out.chunks_exact_mut(8).zip(self.words()) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// The state at the start of `bytes`; `None` if there are too few.
    pub fn from_bytes(bytes: &[u8]) -> Option<RegisterState> {
        let mut words = [0u64; 21];
        for (word, slot) in words.iter_mut().zip(bytes.get(..REGISTER_STATE_SIZE)?.chunks_exact(8))
        {
            *word = u64::from_le_bytes(slot.try_into().ok()?);
        }
        let mut gpr = [0; 16];
        gpr.copy_from_slice(&words[..16]);
        Some(RegisterState {
            gpr,
            rip: words[16],
            rflags: words[17],
            fs_base: words[18],
            gs_base: words[19],
            valid: words[20],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_is_castagnoli() {
        assert_eq!(!crc32c(!0, b"123456789"), 0xe306_9283);
    }

    #[test]
    fn wide_tags_invert_and_are_no_other_words() {
        use crate::ids::UnitId;
        for (window, tag) in [(1, 16), (0x7fff, 0x7fff), (0x8000, 16), (0xffff, 0x7fff)] {
            let id = UnitId::new(window, tag);
            let words = tags::wide(id);
            assert_eq!(tags::unit_of(words), id);
            assert!(words & u32::from(tags::WIDE) != 0);
            assert!(words >> 16 != 0, "the stream is zero behind what has been written");
        }
    }

    #[test]
    fn headers_and_registers_survive_encoding() {
        let mut header = FrameHeader {
            magic: FRAME_MAGIC,
            kind: FrameKind::Record as u16,
            state: SEALED,
            thread: 3,
            seq: 9,
            frame_len: 1 << 20,
            split: 0xcd000,
            used: 77,
            used_memory: 88,
            checksum: 0x1234_5678,
            ..FrameHeader::default()
        };
        header.header_checksum = header.fixed_checksum();
        assert_eq!(FrameHeader::from_bytes(&header.to_bytes()), Some(header));
        let mut bytes = header.to_bytes();
        bytes[17] ^= 1;
        assert_eq!(FrameHeader::from_bytes(&bytes), None);

        let mut state = RegisterState { rip: 5, rflags: 6, valid: 0xffff, ..Default::default() };
        state.gpr[7] = 99;
        assert_eq!(RegisterState::from_bytes(&state.to_bytes()), Some(state));
    }

    #[test]
    fn lanes_side_by_side_are_lanes_one_after_another() {
        let words: [u64; 23] = core::array::from_fn(|i| (i as u64 + 1).wrapping_mul(!0 / 7));
        let step = |crc: u32, word: u64| crc32c(crc, &word.to_le_bytes());
        for first in 0..words.len() {
            let (mut one, mut other) = (Checksum::default(), Checksum::default());
            one.add_with(words.iter().copied(), step);
            other.add_words_with(&words[..first], step);
            other.add_words_with(&words[first..], step);
            assert_eq!(one.finish(), other.finish(), "{first}");
        }
    }

    #[test]
    fn checksum_lanes_do_not_commute() {
        let mut a = Checksum::default();
        a.add(&[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        let mut b = Checksum::default();
        b.add(&[2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_ne!(a.finish(), b.finish());
    }
}
