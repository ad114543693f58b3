//! A mapped frame that small items are appended to, and how a frame is completed.

use crate::base::mapping::Mapping;
use abi::event::{EventHeader, EventRef, Position, Sink, EVENT_HEADER_SIZE};
use abi::trace::{crc32c, FrameHeader, FrameKind, FRAME_MAGIC, PAYLOAD, SEALED};
use alloc::vec::Vec;
use core::mem::offset_of;
use core::sync::atomic::{compiler_fence, Ordering::SeqCst};

/// A frame in the file.
#[derive(Clone, Copy)]
pub struct Place {
    pub offset: u64,
    pub len: u64,
}

/// A mapped frame that small items are appended to.
pub struct Appender {
    memory: Mapping,
    used: u64,
    pub place: Place,
}

/// Writes the payload of an event where it belongs.
struct Payload<'a> {
    to: &'a mut Appender,
    at: u64,
}

impl Sink for Payload<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.to.put(self.at, bytes);
        self.at += bytes.len() as u64;
    }
}

impl Appender {
    /// The frame at `place` of the file `fd`, which has `used` bytes of payload.
    pub fn map(fd: i32, place: Place, used: u64) -> Result<Appender, i32> {
        let memory = Mapping::of_file(place.len, fd, place.offset)?;
        Ok(Appender { memory, used, place })
    }

    /// Where the payload is in the file, and its bytes.
    pub fn written(&self) -> Place {
        Place { offset: self.place.offset + PAYLOAD as u64, len: self.used }
    }

    fn payload(&self) -> u64 {
        self.memory.start() + PAYLOAD as u64
    }

    /// Whether `bytes` fit, and the zero that ends the list behind them.
    pub fn has_room(&self, bytes: usize) -> bool {
        PAYLOAD as u64 + self.used + bytes as u64 + 8 <= self.memory.len()
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        let to = self.payload() + at;
        self.memory.write(to, bytes);
    }

    /// Appends items that start with a non-zero word, which is written last.
    pub fn append(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(4);
        self.put(self.used + 4, rest);
        compiler_fence(SeqCst);
        self.put(self.used, first);
        self.used += bytes.len() as u64;
    }

    /// Appends an event, for which there is room; its kind is written last.
    pub fn event(&mut self, position: Position, event: &EventRef<'_>) {
        let (start, size) = (self.used, event.size());
        let behind_header = start + EVENT_HEADER_SIZE as u64;
        event.encode(&mut Payload { to: self, at: behind_header });
        let len = (size - EVENT_HEADER_SIZE) as u32;
        let header = EventHeader { kind: event.kind() as u16, len, position }.to_bytes();
        let (kind, rest) = header.split_at(4);
        self.put(start + 4, rest);
        compiler_fence(SeqCst);
        self.put(start, kind);
        self.used = start + size as u64;
    }

    /// The frame goes on elsewhere.
    pub fn unmap(self) {
        self.memory.unmap();
    }

    /// Completes the frame and unmaps it.
    pub fn seal(mut self) {
        self.complete();
        self.memory.unmap();
    }

    /// Completes the frame. It stays mapped: the process ends.
    pub fn seal_at_end(mut self) {
        self.complete();
    }

    fn complete(&mut self) {
        let padded = self.used.next_multiple_of(8);
        let mut sum = abi::trace::Checksum::default();
        add_words(&mut sum, self.memory.words(self.payload(), padded));
        let frame = self.memory.start();
        seal_header(&mut self.memory, frame, self.used, 0, sum.finish());
    }
}

/// Fills in the fields of the sealed frame at `frame`; the state comes last.
pub fn seal_header(memory: &mut Mapping, frame: u64, used: u64, used_memory: u64, checksum: u32) {
    let at = |offset: usize| frame + offset as u64;
    memory.store(at(offset_of!(FrameHeader, used)), used);
    memory.store(at(offset_of!(FrameHeader, used_memory)), used_memory);
    memory.store(at(offset_of!(FrameHeader, checksum)), checksum);
    memory.store(at(offset_of!(FrameHeader, state)), SEALED);
}

/// One step of [`crc32c`] over a word, in hardware where there is SSE 4.2.
pub fn fast_crc(crc: u32, word: u64) -> u32 {
    match crate::base::processor::has_sse42() {
        true => hardware_crc(crc, word),
        false => crc32c(crc, &word.to_le_bytes()),
    }
}

/// The processor has SSE 4.2.
fn hardware_crc(crc: u32, word: u64) -> u32 {
    let mut wide = u64::from(crc);
    // SAFETY: the processor has the instruction.
    unsafe {
        core::arch::asm!("crc32 {0}, {1}", inout(reg) wide, in(reg) word,
            options(pure, nomem, nostack, preserves_flags));
    }
    wide as u32
}

/// Adds words of a frame.
pub fn add_words(sum: &mut abi::trace::Checksum, words: &[u64]) {
    match crate::base::processor::has_sse42() {
        true => sum.add_words_with(words, hardware_crc),
        false => sum.add_with(words.iter().copied(), fast_crc),
    }
}

/// The header of a frame that is new.
pub fn new_header(kind: FrameKind, thread: u32, seq: u32, frame_len: u64) -> FrameHeader {
    let mut header = FrameHeader {
        magic: FRAME_MAGIC,
        kind: kind as u16,
        thread,
        seq,
        frame_len,
        ..FrameHeader::default()
    };
    header.header_checksum = header.fixed_checksum();
    header
}

/// Appends an event of the process to `out`, as it is in a file.
pub fn put_event(out: &mut Vec<u8>, event: &EventRef<'_>) {
    let len = event.payload_len().next_multiple_of(8);
    let position = Position::NONE;
    let header = EventHeader { kind: event.kind() as u16, len: len as u32, position };
    out.extend_from_slice(&header.to_bytes());
    let end = out.len() + len;
    event.encode(out);
    out.resize(end, 0);
}

/// The frame of this header is complete with this payload.
pub fn complete(header: &mut FrameHeader, payload: &[u8]) {
    let mut sum = abi::trace::Checksum::default();
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    sum.add_with(payload.chunks(8).map(word), fast_crc);
    header.used = payload.len() as u64;
    header.checksum = sum.finish();
    header.state = SEALED;
}

/// Appends a frame of `len` bytes with this payload to `out`: complete, or one that goes on.
pub fn put_frame(
    out: &mut Vec<u8>,
    kind: FrameKind,
    thread: u32,
    seq: u32,
    len: u64,
    payload: &[u8],
    is_complete: bool,
) {
    let mut header = new_header(kind, thread, seq, len);
    if is_complete {
        complete(&mut header, payload);
    }
    let end = out.len() + len as usize;
    out.extend_from_slice(&header.to_bytes());
    out.extend_from_slice(payload);
    out.resize(end, 0);
}
