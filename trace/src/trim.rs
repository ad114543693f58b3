//! Writes a ring's trace again, without the pages of its snapshot that nobody looks at.

use std::io::{BufWriter, Write};
use std::ops::Range;

use abi::event::{EventHeader, Kind, EVENT_HEADER_SIZE};
use abi::ids::LiveAddr;
use abi::trace::{FrameHeader, FrameKind, FRAME_MAGIC, HEADER_SIZE, PAYLOAD, PROCESS, SEALED};

use crate::events::{Event, Placed};
use crate::file::{Frame, TraceFile};
use crate::lanes::Lanes;
use crate::{Error, Trace};

/// Frames get longer than this by one event.
const FRAME: usize = 1 << 20;
/// What the length of a frame is a multiple of.
const STEP: usize = 4096;

/// Bytes of the pages in the snapshot.
#[must_use]
pub fn kept(trace: &Trace) -> u64 {
    let bytes = |placed: &Placed| match &placed.event {
        Some(Event::Written { bytes, .. }) => bytes.len() as u64,
        _ => 0,
    };
    trace.snapshot.iter().map(bytes).sum()
}

/// The pages of the snapshot that were not kept, in the order of their addresses.
#[must_use]
pub fn untouched(trace: &Trace) -> Vec<Range<u64>> {
    let range = |placed: &Placed| match placed.event {
        Some(Event::Untouched { start, len }) => Some(start.0..start.0.saturating_add(len)),
        _ => None,
    };
    let mut all: Vec<_> = trace.snapshot.iter().filter_map(range).collect();
    all.sort_unstable_by_key(|range| range.start);
    all
}

/// The pieces of `range` that lie outside of `left`, which is in order.
fn outside(range: &Range<u64>, left: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut pieces = Vec::new();
    let mut at = range.start;
    for out in within(range, left) {
        if at < out.start {
            pieces.push(at..out.start);
        }
        at = out.end;
    }
    if at < range.end {
        pieces.push(at..range.end);
    }
    pieces
}

/// The parts of `left`, which is in order, that lie in `range`.
fn within<'a>(
    range: &Range<u64>,
    left: &'a [Range<u64>],
) -> impl Iterator<Item = Range<u64>> + use<'a> {
    let first = left.partition_point(|out| out.end <= range.start);
    let Range { start, end } = *range;
    let part = move |out: &Range<u64>| out.start.max(start)..out.end.min(end);
    left[first..].iter().take_while(move |out| out.start < end).map(part)
}

/// Writes `trace` to `out`, without the contents of the pages in `left`: disjoint, and in order. What was
/// damaged would be lost for good, so a damaged trace is an error, and so is a compressed one.
pub fn write(trace: &Trace, left: &[Range<u64>], out: &mut impl Write) -> Result<(), Error> {
    let file = &trace.file;
    if let Some(damage) = trace.damage.first() {
        return Err(Error(format!("it is damaged: {damage}")));
    }
    if file.is_compressed() {
        return Err(Error("it is compressed".into()));
    }
    let snapshot = snapshot_frames(trace, left);
    let others = || file.frames.iter().filter(|frame| frame.kind != FrameKind::Snapshot);
    let length = others().map(|frame| frame.header.frame_len).sum::<u64>()
        + snapshot.iter().map(|frame| frame.len() as u64).sum::<u64>();
    let mut out = BufWriter::new(out);
    let failed = |e: std::io::Error| Error(format!("cannot write: {e}"));
    for frame in others() {
        let mut bytes = file.whole(frame)?;
        if frame.kind == FrameKind::File {
            put_length(frame, &mut bytes, length);
        }
        out.write_all(&bytes).map_err(failed)?;
    }
    for frame in snapshot {
        out.write_all(&frame).map_err(failed)?;
    }
    out.flush().map_err(failed)
}

/// Puts the length of the file where a File frame says it.
fn put_length(frame: &Frame, bytes: &mut [u8], length: u64) {
    let used = match frame.is_sealed() {
        true => usize::try_from(frame.header.used).unwrap_or(usize::MAX),
        false => bytes.len() - PAYLOAD,
    };
    let end = PAYLOAD.saturating_add(used).min(bytes.len());
    let mut at = PAYLOAD;
    while let Some(header) = EventHeader::from_bytes(&bytes[at..end]).filter(|h| h.kind != 0) {
        at += EVENT_HEADER_SIZE;
        if header.kind == Kind::Length as u16 && at + 8 <= end {
            bytes[at..at + 8].copy_from_slice(&length.to_le_bytes());
        }
        at = at.saturating_add(header.len as usize).min(end);
    }
    if frame.is_sealed() {
        let header = FrameHeader { checksum: checksum(&bytes[PAYLOAD..end]), ..frame.header };
        bytes[..HEADER_SIZE].copy_from_slice(&header.to_bytes());
    }
}

fn checksum(payload: &[u8]) -> u32 {
    let mut sum = Lanes::default();
    sum.add(payload);
    sum.finish()
}

/// The frames of the snapshot.
fn snapshot_frames(trace: &Trace, left: &[Range<u64>]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut payload = Vec::new();
    let mut put = |placed: &Placed, event: &Event| {
        put_event(&mut payload, placed, event);
        if payload.len() >= FRAME || matches!(event, Event::Snapshot { .. }) {
            frames.push(frame(u32::try_from(frames.len()).unwrap_or(u32::MAX), &payload));
            payload.clear();
        }
    };
    for placed in &trace.snapshot {
        match &placed.event {
            Some(Event::Written { address, bytes }) => {
                let end = address.0.saturating_add(bytes.len() as u64);
                for piece in outside(&(address.0..end), left) {
                    let part = |at: u64| usize::try_from(at - address.0).unwrap_or(usize::MAX);
                    let bytes = bytes[part(piece.start)..part(piece.end)].into();
                    put(placed, &Event::Written { address: LiveAddr(piece.start), bytes });
                }
                for out in within(&(address.0..end), left) {
                    let (start, len) = (LiveAddr(out.start), out.end - out.start);
                    put(placed, &Event::Untouched { start, len });
                }
            }
            Some(event) => put(placed, event),
            None => {}
        }
    }
    frames
}

fn put_event(payload: &mut Vec<u8>, placed: &Placed, event: &Event) {
    let size = event.payload_len().next_multiple_of(8);
    let len = u32::try_from(size).unwrap_or(u32::MAX);
    let header = EventHeader { kind: event.kind() as u16, len, position: placed.position };
    payload.extend_from_slice(&header.to_bytes());
    event.encode(payload);
    payload.resize(payload.len().next_multiple_of(8), 0);
}

fn frame(seq: u32, payload: &[u8]) -> Vec<u8> {
    let len = (PAYLOAD + payload.len() + 8).next_multiple_of(STEP);
    let mut header = FrameHeader {
        magic: FRAME_MAGIC,
        kind: FrameKind::Snapshot as u16,
        state: SEALED,
        thread: PROCESS,
        seq,
        frame_len: len as u64,
        used: payload.len() as u64,
        checksum: checksum(payload),
        ..FrameHeader::default()
    };
    header.header_checksum = header.fixed_checksum();
    let mut bytes = header.to_bytes().to_vec();
    bytes.extend_from_slice(payload);
    bytes.resize(len, 0);
    bytes
}

impl TraceFile {
    /// All bytes of a frame.
    fn whole(&self, frame: &Frame) -> Result<Vec<u8>, Error> {
        let bytes = self.read(frame.offset, frame.header.frame_len)?;
        match bytes.len() as u64 == frame.header.frame_len {
            true => Ok(bytes),
            false => Err(Error("it got shorter meanwhile".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_cuts_a_range() {
        let left = [0..10, 20..30, 30..40, 90..200];
        let range = 5..100;
        assert_eq!(outside(&range, &left), [10..20, 40..90]);
        assert_eq!(within(&range, &left).collect::<Vec<_>>(), [5..10, 20..30, 30..40, 90..100]);
        assert_eq!(outside(&(40..90), &left).len(), 1);
        assert_eq!(outside(&(21..29), &left), []);
        assert_eq!(within(&(40..90), &left).count(), 0);
    }

    #[test]
    fn a_frame_is_one_that_readers_know() {
        let bytes = frame(3, &[7; 17]);
        let header = FrameHeader::from_bytes(&bytes).expect("a header");
        assert_eq!((header.seq, header.used, header.frame_len), (3, 17, bytes.len() as u64));
        assert_eq!(header.checksum, checksum(&[7; 17]));
    }
}
