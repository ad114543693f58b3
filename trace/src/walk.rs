//! Follows one chunk: from its two streams, the events in between and the compiled units back to
//! units, blocks and memory references.
//!
//! In reading order: `passage` is many units as one, `sink` says what is found, `chunk_end` where it ended; `stream` is the
//! control-flow stream, `compiled` keeps units, `cursor` runs their steps over the memory stream, `quick`
//! whole units without looking at steps, `passages` makes and finds passages;
//! `course` goes from unit to unit and asks a decoder for the next one: `tags`, `full_pc`, `bits`.
//! This file chooses the decoder. Only a decoder knows its format.

use abi::event::{Position, WHOLE_UNIT};
use abi::ids::StreamOff;
use abi::options::ControlFlow;

use crate::open::{Chunk, Thread, Trace};
use crate::streams::Streams;

mod bits;
mod chunk_end;
mod compiled;
mod course;
mod cursor;
mod full_pc;
mod passage;
mod passages;
mod quick;
mod sink;
mod stream;
mod tags;

pub use chunk_end::{ChunkEnd, Falls, Next, Violation};
pub use passage::{Kind, Passed, LANES};
pub use sink::{unit_by_unit, Entered, MemoryReference, Overwritten, Sink};

use compiled::CompiledUnits;
use course::{Course, Decoder};
use cursor::Cursor;
use quick::Desk;
use stream::Stream;

/// Recovers chunks of one trace, one after another; keeps compiled units.
pub struct Walker<'t> {
    trace: &'t Trace,
    units: CompiledUnits<'t>,
    decoders: Decoders,
    desk: Desk,
}

/// One of each format; only that of the trace is used.
#[derive(Default)]
struct Decoders {
    tags: tags::Tags,
    full_pc: full_pc::FullPc,
    bits: bits::Bits,
}

impl<'t> Walker<'t> {
    /// A walker for `trace`.
    #[must_use]
    pub fn new(trace: &'t Trace) -> Walker<'t> {
        Walker {
            trace,
            units: CompiledUnits::new(trace),
            decoders: Decoders::default(),
            desk: Desk::default(),
        }
    }

    /// Walks chunk number `number` (a position in `thread.chunks`) and tells `sink`.
    pub fn walk<S: Sink>(
        &mut self,
        thread: &Thread,
        number: usize,
        sink: &mut S,
    ) -> Result<ChunkEnd, Violation> {
        let (trace, units, desk) = (self.trace, &mut self.units, &mut self.desk);
        let Decoders { tags, full_pc, bits } = &mut self.decoders;
        match trace.options.recording.control_flow {
            ControlFlow::Tags => walk(trace, thread, number, tags, units, desk, sink),
            ControlFlow::FullPc => walk(trace, thread, number, full_pc, units, desk, sink),
            ControlFlow::Bits => walk(trace, thread, number, bits, units, desk, sink),
        }
    }
}

fn walk<S: Sink, D: Decoder>(
    trace: &Trace,
    thread: &Thread,
    number: usize,
    decoder: &mut D,
    units: &mut CompiledUnits<'_>,
    desk: &mut Desk,
    sink: &mut S,
) -> Result<ChunkEnd, Violation> {
    let chunk = &thread.chunks[number];
    let violation = |control_flow, what| Violation {
        thread: thread.name(),
        position: Position { chunk: chunk.frame.header.seq, control_flow, insn: WHOLE_UNIT },
        what,
    };
    let streams: Streams = trace
        .file
        .streams(&chunk.frame, &chunk.registers, std::mem::take(&mut desk.buffer))
        .map_err(|error| violation(StreamOff(0), error.0))?;
    decoder.begin(chunk, &trace.units);
    let following: Option<&Chunk> = thread.chunks.get(number + 1);
    let stream = Stream::new(streams.control_flow(), chunk.frame.is_sealed());
    let events = thread.events_of(chunk.frame.header.seq);
    let cursor = Cursor::new(&chunk.registers, streams.memory(), trace.xsave.as_ref());
    let selective = trace.options.recording.selective;
    let mut course = Course::new(chunk, following, stream, events, cursor, selective);
    let end = match course.run(decoder, units, desk, trace.is_lossy, sink) {
        Ok(()) => Ok(course.finish()),
        Err(what) => Err(violation(course.stream.at(), what)),
    };
    desk.buffer = streams.into_buffer();
    end
}
