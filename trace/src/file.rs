//! Finds the frames of a trace file, also of a damaged one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use abi::trace::{
    FrameHeader, FrameKind, RegisterState, EMPTY, FRAME_MAGIC, HEADER_SIZE, PAYLOAD, RECORD_DATA,
    RECORD_REGISTERS, REGISTER_STATE_SIZE,
};

use crate::lanes::Lanes;
pub use crate::pieces::MAX_FRAME;
use crate::source::Source;
use crate::streams::{checksum_holds, room, size, Buffer, Streams};
use crate::Error;

const STEP: u64 = 4096;

/// A frame whose header is valid.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// In the file.
    pub offset: u64,
    /// What it holds.
    pub kind: FrameKind,
    /// Its header.
    pub header: FrameHeader,
    /// Bytes of the frame that the file really has.
    pub present: u64,
}

impl Frame {
    /// Whether it is complete.
    pub fn is_sealed(&self) -> bool {
        self.header.is_complete()
    }

    /// Whether this is a complete chunk that was recorded in its thread's buffer, and written here as a whole.
    #[must_use]
    pub fn was_written_out(&self) -> bool {
        let header = &self.header;
        // (Where a chunk was recorded in place there is room behind its memory stream.)
        let memory_end =
            (RECORD_DATA as u64).saturating_add(header.used_memory.next_multiple_of(8));
        header.is_packed() || self.is_sealed() && header.split == memory_end
    }

    /// Whether the file ends inside of it.
    pub fn is_truncated(&self) -> bool {
        self.present < self.header.frame_len
    }
}

/// Something that a whole trace does not have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// In the file.
    pub offset: u64,
    /// What is wrong there.
    pub what: String,
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "at file offset {:#x}: {}", self.offset, self.what)
    }
}

/// An open trace file and the index of its frames, in file order.
#[derive(Debug)]
pub struct TraceFile {
    source: Source,
    /// Bytes of the trace.
    pub len: u64,
    /// All frames, in file order.
    pub frames: Vec<Frame>,
    /// What is damaged.
    pub damage: Vec<Damage>,
    /// What open Record frames held when they were found: a thread that still runs records its next
    /// chunk there. By offset.
    held: RwLock<BTreeMap<u64, Vec<u8>>>,
}

/// Whether the length makes sense.
pub fn has_length(header: &FrameHeader) -> bool {
    let len = header.frame_len;
    (STEP..=MAX_FRAME).contains(&len) && len.is_multiple_of(STEP)
}

/// What is at a place of a file that grows.
pub(crate) enum Place {
    /// Nothing, or nothing yet.
    Zeros,
    /// No frame, or one that is just being written.
    NoFrame,
    /// A frame of so many bytes that holds nothing, for now or for good.
    Empty(u64),
    /// A frame, and what is wrong with it.
    Frame(Frame, Vec<String>),
}

/// The frame at `offset` of a file with `file_len` bytes, if its lengths make sense, and what is wrong with it: lengths
/// of contents are clamped.
fn judged(offset: u64, mut header: FrameHeader, file_len: u64) -> Option<(Frame, Vec<String>)> {
    let mut wrong = Vec::new();
    let kind = FrameKind::from_u16(header.kind)?;
    let len = header.frame_len;
    let [memory_room, room] = match kind {
        FrameKind::Record => room(&header)?,
        _ => [0, len.checked_sub(PAYLOAD as u64)?],
    };
    if header.is_complete() {
        if header.used > room || header.used_memory > memory_room {
            wrong.push("a sealed frame claims more bytes than it has".into());
            header.used = header.used.min(room);
            header.used_memory = header.used_memory.min(memory_room);
        }
    } else if header.state != abi::trace::OPEN {
        wrong.push(format!("unknown frame state {}", header.state));
        header.state = abi::trace::OPEN;
    }
    let present = len.min(file_len - offset);
    if present < len {
        wrong.push(format!("the file ends {} bytes before this frame", len - present));
    }
    Some((Frame { offset, kind, header, present }, wrong))
}

impl TraceFile {
    /// Whether the process was killed before it recorded anything: the file is there, and holds at
    /// most its first frame and zeros.
    pub fn is_not_started(&self) -> bool {
        const SMALL: u64 = 64 << 10;
        if self.len > SMALL
            || self.frames.iter().any(|f| f.kind != FrameKind::File || f.is_truncated())
        {
            return false;
        }
        let from = self.frames.iter().map(|f| f.offset + f.header.frame_len).max().unwrap_or(0);
        let mut rest = vec![0; size(self.len.saturating_sub(from))];
        self.read_some(from, &mut rest).is_ok_and(|n| n == rest.len())
            && rest.iter().all(|&byte| byte == 0)
    }

    /// Bytes that the trace takes on the disk: fewer than it has, if it is compressed.
    pub fn stored(&self) -> u64 {
        self.source.stored().unwrap_or(self.len)
    }

    /// Whether some of it is compressed.
    pub fn is_compressed(&self) -> bool {
        self.source.has_pieces()
    }

    /// Opens the file and indexes its frames; only a file that cannot be read is an error here.
    pub fn open(path: &Path) -> Result<TraceFile, Error> {
        let fail = |e: std::io::Error| Error(format!("{}: {e}", path.display()));
        // Asked first: to open a pipe may take for ever.
        if !std::fs::metadata(path).map_err(fail)?.is_file() {
            return Err(Error(format!("{}: not a regular file", path.display())));
        }
        let source = Source::open(path).map_err(fail)?;
        let mut trace = TraceFile {
            len: source.length().map_err(fail)?,
            source,
            frames: Vec::new(),
            damage: Vec::new(),
            held: RwLock::default(),
        };
        trace.scan_all().map_err(fail)?;
        if let Some(what) = trace.source.missing().map_err(fail)? {
            if trace.frames.is_empty() {
                return Err(Error(format!("{}: {what}", path.display())));
            }
            trace.report(trace.len, what);
        }
        Ok(trace)
    }

    /// Finds all frames, also of a file that grows meanwhile: no chunk is missing before the last one
    /// of its thread.
    fn scan_all(&mut self) -> std::io::Result<()> {
        const TRIES: usize = 8;
        /// Looks at a file that grows all the time.
        const MOST: usize = 200;
        const EACH: std::time::Duration = std::time::Duration::from_millis(1);
        let mut tries = 0;
        for looks in 1.. {
            let before = self.len;
            (self.len, self.frames, self.damage) = (self.source.length()?, vec![], vec![]);
            self.held_mut().clear();
            self.scan()?;
            let is_whole = self.choose_chunks() && !self.has_gaps() && self.damage.is_empty();
            let is_still = !self.source.look()?;
            tries = if self.len > before { 1 } else { tries + 1 };
            if is_whole && is_still || tries == TRIES || looks == MOST {
                break;
            }
            // A frame that is just being made has no header for a moment, and one that is being written has no end.
            std::thread::sleep(EACH);
        }
        Ok(())
    }

    /// Whether a thread's chunk is missing between others: it is just being written where nothing was, or there is
    /// none.
    fn has_gaps(&self) -> bool {
        let mut ranges: BTreeMap<u32, (u32, u32, u64)> = BTreeMap::new();
        for frame in self.frames.iter().filter(|f| f.kind == FrameKind::Record) {
            let seq = frame.header.seq;
            let (first, last, count) = ranges.entry(frame.header.thread).or_insert((seq, seq, 0));
            (*first, *last, *count) = (seq.min(*first), seq.max(*last), *count + 1);
        }
        ranges.values().any(|&(first, last, count)| count < u64::from(last - first) + 1)
    }

    /// A chunk that was found in its thread's buffer and where it was written to is the latter. False
    /// if one was only found in the buffer, and another one follows.
    fn choose_chunks(&mut self) -> bool {
        let is_record = |f: &&Frame| f.kind == FrameKind::Record;
        let key = |f: &Frame| (f.header.thread, f.header.seq);
        let open: BTreeSet<_> =
            self.frames.iter().filter(is_record).filter(|f| !f.is_sealed()).map(key).collect();
        if open.is_empty() {
            return true;
        }
        let mut last = BTreeMap::new();
        let mut written = BTreeSet::new();
        for frame in self.frames.iter().filter(is_record) {
            let (thread, seq) = key(frame);
            // (One that follows may be open, too: the first was sealed where it lies, behind what was read of it.)
            let last = last.entry(thread).or_insert(seq);
            *last = seq.max(*last);
            if frame.is_sealed() {
                written.extend(open.get(&(thread, seq)));
            }
        }
        self.frames
            .retain(|f| f.kind != FrameKind::Record || f.is_sealed() || !written.contains(&key(f)));
        open.difference(&written)
            .all(|(thread, seq)| last.get(thread).is_none_or(|last| last <= seq))
    }

    fn scan(&mut self) -> std::io::Result<()> {
        let mut at = 0;
        let mut bad_since = None;
        loop {
            if at >= self.len {
                // What an open frame held may have been written behind the end meanwhile.
                let grown = self.source.length()?;
                if self.held().is_empty() || grown <= self.len {
                    break;
                }
                self.len = grown;
                continue;
            }
            // (A file that lies need not name multiples of the step.)
            at = (self.source.skip_hole(at)? & !(STEP - 1)).max(at);
            let bytes = self.header_at(at)?;
            let Some(header) = FrameHeader::from_bytes(&bytes).filter(has_length) else {
                // Space that was allocated and never used reads as zeros: no damage.
                if bytes.iter().any(|&b| b != 0) {
                    bad_since.get_or_insert(at);
                }
                at += STEP;
                continue;
            };
            if header.state != EMPTY && at + header.frame_len > self.len {
                // It was written meanwhile, and before it was sealed.
                self.len = self.source.length()?.max(self.len);
            }
            let frame = match header.state {
                EMPTY => None,
                _ => match self.judge(at, header) {
                    Some(frame) => Some(frame),
                    None => {
                        bad_since.get_or_insert(at);
                        at += STEP;
                        continue;
                    }
                },
            };
            if let Some(start) = bad_since.take() {
                self.report(start, format!("{} bytes that are no frame", at - start));
            }
            at += header.frame_len;
            if let Some(frame) = frame {
                if frame.kind != FrameKind::Record || frame.is_sealed() || self.hold(&frame)? {
                    self.frames.push(frame);
                }
            }
        }
        if let Some(start) = bad_since {
            self.report(start, format!("{} bytes that are no frame", self.len - start));
        }
        Ok(())
    }

    /// The first bytes of a frame, or what is there instead.
    fn header_at(&self, at: u64) -> std::io::Result<Vec<u8>> {
        if let Some(head) = self.source.head(at) {
            return Ok(head.to_vec());
        }
        let mut bytes = [0; HEADER_SIZE];
        let mut n = self.read_some(at, &mut bytes)?;
        for _ in 0..8 {
            // One that is just being written may have been read in part.
            let torn = bytes.starts_with(&FRAME_MAGIC.to_le_bytes())
                && FrameHeader::from_bytes(&bytes[..n]).is_none();
            if !torn {
                break;
            }
            n = self.read_some(at, &mut bytes)?;
        }
        Ok(bytes[..n].to_vec())
    }

    /// Keeps what an open Record frame holds. False if that chunk has been written behind the other
    /// frames meanwhile, where it will be found.
    fn hold(&self, frame: &Frame) -> std::io::Result<bool> {
        let mut bytes = vec![0; size(frame.present)];
        // Control flow first: a unit writes to it in front of its records in the memory stream, so of all units that
        // are found there, but the last one, these are written by then.
        let split = size(frame.header.split).min(bytes.len());
        let n = self.read_some(frame.offset + split as u64, &mut bytes[split..])?;
        bytes.truncate(split + n);
        let n = self.read_some(frame.offset, &mut bytes[..split])?;
        if n < split {
            bytes.truncate(n);
        }
        let now = FrameHeader::from_bytes(&self.header_at(frame.offset)?);
        let is_same = now.is_none_or(|now| {
            now.state != EMPTY && now.thread == frame.header.thread && now.seq == frame.header.seq
        });
        self.held_mut().insert(frame.offset, bytes);
        Ok(is_same)
    }

    fn held(&self) -> RwLockReadGuard<'_, BTreeMap<u64, Vec<u8>>> {
        self.held.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn held_mut(&self) -> RwLockWriteGuard<'_, BTreeMap<u64, Vec<u8>>> {
        self.held.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file that grows while it is read. Nothing is looked for yet, and nobody knows how long it will be.
    pub(crate) fn growing(path: &Path) -> std::io::Result<TraceFile> {
        Ok(TraceFile {
            source: Source::open(path)?,
            len: u64::MAX / 2,
            frames: Vec::new(),
            damage: Vec::new(),
            held: RwLock::default(),
        })
    }

    /// Bytes of the file now.
    pub(crate) fn length_now(&self) -> std::io::Result<u64> {
        self.source.length()
    }

    /// What is at `offset` of a file that grows.
    pub(crate) fn look_at(&self, offset: u64) -> std::io::Result<Place> {
        let mut bytes = self.header_at(offset)?;
        let mut header = FrameHeader::from_bytes(&bytes).filter(has_length);
        if header.is_some_and(|header| header.is_complete()) {
            // All of it was written before its state was, which may have been copied last.
            bytes = self.header_at(offset)?;
            header = FrameHeader::from_bytes(&bytes).filter(has_length);
        }
        let Some(header) = header else {
            return Ok(match bytes.iter().any(|&byte| byte != 0) {
                true => Place::NoFrame,
                false => Place::Zeros,
            });
        };
        if header.state == EMPTY {
            return Ok(Place::Empty(header.frame_len));
        }
        Ok(match judged(offset, header, self.len) {
            Some((frame, wrong)) => Place::Frame(frame, wrong),
            None => Place::NoFrame,
        })
    }

    /// Keeps what an open Record frame of a file holds that does not grow any more.
    pub(crate) fn keep_open(&self, frame: &Frame) -> std::io::Result<()> {
        self.hold(frame).map(drop)
    }

    /// A frame whose lengths make sense; lengths of contents are clamped and reported.
    fn judge(&mut self, offset: u64, header: FrameHeader) -> Option<Frame> {
        let (frame, wrong) = judged(offset, header, self.len)?;
        wrong.into_iter().for_each(|what| self.report(offset, what));
        Some(frame)
    }

    fn report(&mut self, offset: u64, what: String) {
        self.damage.push(Damage { offset, what });
    }

    fn read_some(&self, at: u64, buffer: &mut [u8]) -> std::io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self.source.read_at(&mut buffer[done..], at + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    pub(crate) fn read(&self, at: u64, len: u64) -> Result<Vec<u8>, Error> {
        // What a header claims is no reason to ask for memory that the file does not fill.
        let mut bytes = vec![0; size(len.min(self.len.saturating_sub(at)))];
        let n = self
            .read_some(at, &mut bytes)
            .map_err(|e| Error(format!("cannot read at file offset {at:#x}: {e}")))?;
        bytes.truncate(n);
        Ok(bytes)
    }

    /// Payload in use of a File, Events or Units frame (all of it, if the frame is open).
    pub fn payload(&self, frame: &Frame) -> Result<Vec<u8>, Error> {
        let room = frame.present.saturating_sub(PAYLOAD as u64);
        let len = if frame.is_sealed() { frame.header.used.min(room) } else { room };
        self.read(frame.offset + PAYLOAD as u64, len)
    }

    /// The register state at the start of a Record frame.
    pub fn registers(&self, frame: &Frame) -> Result<Vec<u8>, Error> {
        self.read_frame(frame, RECORD_REGISTERS as u64, REGISTER_STATE_SIZE as u64)
    }

    /// Part of a frame as it was when it was found.
    fn read_frame(&self, frame: &Frame, from: u64, len: u64) -> Result<Vec<u8>, Error> {
        let all = self.held();
        let Some(held) = all.get(&frame.offset) else {
            return self.read(frame.offset + from, len);
        };
        let start = size(from).min(held.len());
        let end = size(from.saturating_add(len)).min(held.len());
        Ok(held[start..end].to_vec())
    }

    /// The same, to where `bytes` has room from `start` on, and more if it has to; where it ends.
    fn read_frame_into(
        &self,
        frame: &Frame,
        from: u64,
        len: u64,
        bytes: &mut Vec<u8>,
        start: usize,
    ) -> Result<usize, Error> {
        if self.held().contains_key(&frame.offset) {
            let held = self.read_frame(frame, from, len)?;
            bytes.truncate(start);
            bytes.extend_from_slice(&held);
            return Ok(bytes.len());
        }
        let at = frame.offset + from;
        // What a header claims is no reason to ask for memory that the file does not fill.
        let len = size(len.min(self.len.saturating_sub(at)));
        if bytes.len() < start + len {
            bytes.resize(start + len, 0);
        }
        let n = self
            .read_some(at, &mut bytes[start..start + len])
            .map_err(|e| Error(format!("cannot read at file offset {at:#x}: {e}")))?;
        Ok(start + n)
    }

    /// Both streams of a Record frame that starts with `registers`: what is in use, if it is
    /// complete, else all there is. They are read into `buffer`, whatever it holds.
    pub fn streams(
        &self,
        frame: &Frame,
        registers: &RegisterState,
        mut buffer: Buffer,
    ) -> Result<Streams, Error> {
        let header = &frame.header;
        if header.is_packed() {
            let (from, bytes) = (HEADER_SIZE as u64, &mut buffer.packed);
            let end = self.read_frame_into(frame, from, header.frame_len - from, bytes, 0)?;
            bytes.truncate(end);
            return Streams::unpack(buffer, header)
                .map_err(|what| Error(format!("{what} of the frame at {:#x}", frame.offset)));
        }
        let (memory_len, control_flow_len) = if frame.is_sealed() {
            (header.used_memory, header.used)
        } else {
            (header.split - RECORD_DATA as u64, header.frame_len - header.split)
        };
        // One buffer, without the unused room between the streams.
        let bytes = &mut buffer.streams;
        let memory_end = self.read_frame_into(frame, RECORD_DATA as u64, memory_len, bytes, 0)?;
        let end = self.read_frame_into(frame, header.split, control_flow_len, bytes, memory_end)?;
        let streams = Streams::new(buffer, memory_end, end);
        if frame.is_sealed() && streams.checksum(registers) != frame.header.checksum {
            return Err(Error(format!("wrong checksum of the frame at {:#x}", frame.offset)));
        }
        Ok(streams)
    }

    /// Whether `bytes` are a whole Record frame that is complete.
    pub fn is_whole_record(bytes: &[u8]) -> bool {
        let Some(header) = FrameHeader::from_bytes(bytes).filter(has_length) else { return false };
        header.kind == FrameKind::Record as u16
            && header.is_complete()
            && bytes.len() as u64 == header.frame_len
            && checksum_holds(&header, bytes)
    }

    /// Whether the checksum of a sealed File, Events or Units frame with this payload is right.
    pub fn checksum_holds(&self, frame: &Frame, payload: &[u8]) -> bool {
        if !frame.is_sealed() {
            return true;
        }
        let mut sum = Lanes::default();
        sum.add(payload);
        sum.finish() == frame.header.checksum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{Record, TraceWriter};

    /// A trace of chunks that are open or sealed, in their order.
    fn chunks(open: &[bool]) -> TraceFile {
        let mut writer = TraceWriter::default();
        for (seq, &open) in (0..).zip(open) {
            writer.record(&Record { seq, open, ..Record::default() });
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &writer.bytes).unwrap();
        TraceFile::open(file.path()).unwrap()
    }

    #[test]
    fn only_the_last_chunk_may_have_been_found_open() {
        assert!(chunks(&[false, false, true]).choose_chunks());
        assert!(chunks(&[false, false]).choose_chunks());
        assert!(!chunks(&[false, true, false]).choose_chunks());
        // Sealed where it lies while it was read: the next one was begun then.
        assert!(!chunks(&[false, true, true]).choose_chunks());
    }
}
