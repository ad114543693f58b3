//! The two streams of a Record frame, as they were recorded or packed ([`abi::packing`]).

use abi::packing::{unpack_flow, unpack_memory, Followers, STREAMS};
use abi::trace::{
    FrameHeader, RegisterState, HEADER_SIZE, PACKED_FLOW, RECORD_DATA, RECORD_REGISTERS,
    REGISTER_STATE_SIZE,
};

use crate::file::MAX_FRAME;
use crate::lanes::Lanes;

/// What streams are read into, again and again.
#[derive(Debug, Default)]
pub struct Buffer {
    /// The memory stream, and behind it the control flow. Bytes behind those in use mean nothing.
    pub(crate) streams: Vec<u8>,
    /// Of a packed frame: what is behind its header.
    pub(crate) packed: Vec<u8>,
    followers: Vec<u64>,
}

/// The two streams of a Record frame.
#[derive(Debug)]
pub struct Streams {
    buffer: Buffer,
    control_flow: (usize, usize),
    memory: (usize, usize),
}

/// A number of bytes in memory.
pub(crate) fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl Streams {
    /// Those that lie in `buffer`: the memory stream up to one place, the control flow to the other.
    pub(crate) fn new(buffer: Buffer, memory_end: usize, end: usize) -> Streams {
        Streams { buffer, memory: (0, memory_end), control_flow: (memory_end, end) }
    }

    /// Those that are packed in `buffer.packed`, whose length is that of the frame without the header. An
    /// error says what is wrong.
    pub(crate) fn unpack(mut buffer: Buffer, header: &FrameHeader) -> Result<Streams, String> {
        let parts = PackedParts::of(header, &buffer.packed).ok_or("wrong lengths")?;
        if parts.checksum() != header.checksum {
            return Err("wrong checksum".into());
        }
        let [memory_len, flow_len] = [header.used_memory, header.used].map(size);
        let end = memory_len + flow_len;
        if buffer.streams.len() < end {
            buffer.streams.resize(end, 0);
        }
        let (memory, rest) = buffer.streams.split_at_mut(memory_len);
        buffer.followers.resize(size_of::<Followers>() / 8, 0);
        let followers = buffer.followers.first_chunk_mut().ok_or("no table")?;
        let is_whole = unpack_memory(parts.memory, memory) == Some(parts.memory.len())
            && unpack_flow(parts.flow, followers, &mut rest[..flow_len]) == Some(parts.flow.len());
        match is_whole {
            true => Ok(Streams::new(buffer, memory_len, end)),
            false => Err("wrong packing".into()),
        }
    }

    /// The control-flow stream.
    pub fn control_flow(&self) -> &[u8] {
        &self.buffer.streams[self.control_flow.0..self.control_flow.1]
    }

    /// The buffer, for other streams.
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }

    /// The memory stream.
    pub fn memory(&self) -> &[u8] {
        &self.buffer.streams[self.memory.0..self.memory.1]
    }

    /// The checksum of a sealed Record frame that starts with `registers`.
    pub(crate) fn checksum(&self, registers: &RegisterState) -> u32 {
        let mut sum = Lanes::default();
        sum.add(&registers.to_bytes());
        sum.add(self.memory());
        sum.add(self.control_flow());
        sum.finish()
    }
}

/// Where things are in a packed frame.
struct PackedParts<'a> {
    /// All that the checksum is of.
    all: &'a [u8],
    memory: &'a [u8],
    flow: &'a [u8],
}

impl PackedParts<'_> {
    /// `behind`: what is behind the header.
    fn of<'a>(header: &FrameHeader, behind: &'a [u8]) -> Option<PackedParts<'a>> {
        let len = behind.get(PACKED_FLOW - HEADER_SIZE..)?.first_chunk()?;
        let split = size(header.split).checked_sub(HEADER_SIZE)?;
        let end = split.checked_add(size(u64::from_le_bytes(*len)))?;
        Some(PackedParts {
            all: behind.get(..end)?,
            memory: behind.get(STREAMS - HEADER_SIZE..split)?,
            flow: behind.get(split..end)?,
        })
    }

    fn checksum(&self) -> u32 {
        let mut sum = Lanes::default();
        sum.add(self.all);
        sum.finish()
    }
}

/// The most bytes that the streams of a complete Record frame can have: memory, control flow. `None`: the frame
/// has no place for them.
pub(crate) fn room(header: &FrameHeader) -> Option<[u64; 2]> {
    // A byte for a word; a bit for a word.
    let (start, times) = match header.is_packed() {
        true => (STREAMS, [8, 64 * 8]),
        false => (RECORD_DATA, [1, 1]),
    };
    let memory = header.split.checked_sub(start as u64)?;
    let flow = header.frame_len.checked_sub(header.split)?;
    Some([memory.saturating_mul(times[0]), flow.saturating_mul(times[1])].map(|n| n.min(MAX_FRAME)))
}

/// Whether the checksum of the complete Record frame `bytes` is right.
pub(crate) fn checksum_holds(header: &FrameHeader, bytes: &[u8]) -> bool {
    let computed = match header.is_packed() {
        true => bytes
            .get(HEADER_SIZE..)
            .and_then(|behind| PackedParts::of(header, behind))
            .map(|parts| parts.checksum()),
        false => sealed_checksum(header, bytes),
    };
    computed == Some(header.checksum)
}

fn sealed_checksum(header: &FrameHeader, bytes: &[u8]) -> Option<u32> {
    let part = |start: u64, len: u64| bytes.get(size(start)..size(start.checked_add(len)?));
    let mut sum = Lanes::default();
    sum.add(part(RECORD_REGISTERS as u64, REGISTER_STATE_SIZE as u64)?);
    sum.add(part(RECORD_DATA as u64, header.used_memory)?);
    sum.add(part(header.split, header.used)?);
    Some(sum.finish())
}
