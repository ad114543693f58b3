//! Chunks of full size are not mapped where they stay: a thread records in one frame, its *slot*,
//! again and again. New pages of a file cost several times what it costs to write them.
//!
//! A full chunk is written behind the other frames, packed, or, where that would not be shorter, its two
//! streams without the room between them.
//! A process may be killed at any moment, and a reader may look at any moment. So the order is: a
//! header that says that the frame holds nothing; the streams; the header of the complete frame; the
//! slot says that it holds nothing; its control flow is cleared; the slot's header is that of the next
//! chunk. Each header is written by one call, which a kill does not interrupt. At each moment the chunk
//! is in the slot, or in its frame, or the same in both.

use super::{within_limit, Frames, TraceFile, ZEROS};
use crate::base::sys::{self, nr};
use crate::recording::appender::Place;
use abi::layout::page_up;
use abi::trace::{FrameHeader, EMPTY, HEADER_SIZE};
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// The pipe that says how far the trace was read, or -1.
static PACE: AtomicI32 = AtomicI32::new(-1);

/// Whoever reads the trace while it is written lets one chunk be written for each byte that it puts into this
/// pipe: so the file need not have room for all of them. Without a reader there is nothing to write for.
pub fn paced_by(fd: i32) {
    PACE.store(fd, Relaxed);
}

/// Whether there is such a reader.
pub fn is_paced() -> bool {
    PACE.load(Relaxed) >= 0
}

/// Waits until the next chunk may be written.
fn keep_pace() {
    let fd = PACE.load(Relaxed);
    if fd < 0 {
        return;
    }
    let mut byte = 0u8;
    loop {
        // SAFETY: the kernel writes at most one byte.
        match unsafe { sys::call(nr::READ, &[fd as usize, &raw mut byte as usize, 1]) } {
            Err(sys::EINTR) => {}
            Ok(0) => sys::exit_group(1),
            _ => return,
        }
    }
}

/// A chunk that is complete.
pub struct Full<'a> {
    /// All but the length of the frame.
    pub header: FrameHeader,
    /// What lies behind the header, one behind the other.
    pub parts: [&'a [u64]; 2],
}

impl Full<'_> {
    /// Bytes that are in use.
    fn used(&self) -> u64 {
        HEADER_SIZE as u64 + self.parts.iter().map(|part| part.len() as u64 * 8).sum::<u64>()
    }
}

impl TraceFile {
    /// A frame of `len` bytes for a thread to record in, again and again.
    pub fn take_slot(&self, len: u64) -> Result<Place, i32> {
        let mut state = self.state.lock();
        self.make_room(&mut state, len)?;
        let place = match state.slots.iter().position(|slot| slot.len == len) {
            Some(used_before) if self.phase().describes() => {
                let place = state.slots.swap_remove(used_before);
                within_limit(place.offset + len)?;
                self.get_blocks(place.offset, place.offset + len)?;
                place
            }
            _ => self.allocate_locked(&mut state, len)?,
        };
        state.log += len;
        Ok(place)
    }

    /// A thread of recording number `epoch` ends: its slot, which holds nothing, is there for others.
    /// Until then it takes no room but for its header: whoever reads meanwhile finds what is behind it.
    pub fn give_slot_back(&self, epoch: u32, slot: Place) {
        let mut state = self.state.lock();
        if self.life.epoch() != epoch || self.fd.load(Relaxed) < 0 {
            return;
        }
        let Place { offset, len } = slot;
        let header = page_up(HEADER_SIZE as u64);
        if self.punch(Place { offset: offset + header, len: len - header }).is_ok() {
            state.log -= slot.len;
            state.slots.push(slot);
        }
    }

    /// Says in one go what is in the frame at `offset`.
    pub fn write_header(&self, offset: u64, header: &FrameHeader) -> Result<(), i32> {
        within_limit(offset + HEADER_SIZE as u64)?;
        self.write_at(offset, &header.to_bytes())
    }

    /// Writes a chunk of recording number `epoch` behind the other frames; none if that recording has
    /// ended.
    pub fn write_out(&self, epoch: u32, chunk: &Full<'_>) -> Result<Option<Place>, i32> {
        keep_pace();
        // Held all the time: neither does another recording begin meanwhile, nor a forked child.
        let mut state = self.state.lock();
        if self.life.epoch() != epoch || !self.phase().describes() {
            return Ok(None);
        }
        let len = page_up(chunk.used());
        self.make_room(&mut state, len)?;
        let place = self.behind_the_last(&mut state, len)?;
        if let Err(errno) = self.write_chunk(place, chunk) {
            // Nothing of it stays: neither its blocks, nor bytes where another frame may come.
            if self.punch(place).is_ok() {
                state.end = place.offset;
                state.reserved = state.reserved.min(place.offset);
            }
            return Err(errno);
        }
        state.log += len;
        Ok(Some(place))
    }

    fn write_chunk(&self, place: Place, chunk: &Full<'_>) -> Result<(), i32> {
        let mut header = FrameHeader { frame_len: place.len, state: EMPTY, ..chunk.header };
        header.header_checksum = header.fixed_checksum();
        self.write_at(place.offset, &header.to_bytes())?;
        let mut at = place.offset + HEADER_SIZE as u64;
        for part in chunk.parts {
            self.write_words(at, part)?;
            at += part.len() as u64 * 8;
        }
        let rest = (place.offset + place.len - at) as usize;
        self.write_at(at, ZEROS.get(..rest).unwrap_or_default())?;
        header.state = chunk.header.state;
        self.write_at(place.offset, &header.to_bytes())
    }

    /// As for a frame that is mapped, but its blocks come when it is written.
    fn behind_the_last(&self, state: &mut Frames, len: u64) -> Result<Place, i32> {
        let offset = state.end;
        within_limit(offset + len)?;
        state.end = offset + len;
        Ok(Place { offset, len })
    }

    fn write_words(&self, offset: u64, words: &[u64]) -> Result<(), i32> {
        // SAFETY: words are bytes.
        let bytes =
            unsafe { core::slice::from_raw_parts(words.as_ptr().cast::<u8>(), words.len() * 8) };
        self.write_at(offset, bytes)
    }
}
