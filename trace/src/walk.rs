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

use crate::events::Placed;
use crate::open::{Chunk, Thread, Trace};
use crate::pipeline::Task;
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
pub use passage::{Fixed, Passed, LANES};
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

/// A chunk, and what is known of it besides its streams.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    /// What its thread is called.
    pub name: u32,
    /// The chunk.
    pub chunk: &'a Chunk,
    /// The one behind it, if it is known.
    pub following: Option<&'a Chunk>,
    /// What happened in it, in its order.
    pub events: &'a [Placed],
    /// The recording ended before the process: what was translated later is not described.
    pub is_lossy: bool,
}

impl<'a> Part<'a> {
    /// Of a task.
    #[must_use]
    pub fn of(task: &'a Task<'_>) -> Part<'a> {
        Part {
            name: task.job.name,
            chunk: &task.chunk,
            following: task.following.as_ref(),
            events: &task.events,
            is_lossy: task.is_lossy,
        }
    }
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
        let chunk = &thread.chunks[number];
        let part = Part {
            name: thread.name(),
            chunk,
            following: thread.chunks.get(number + 1),
            events: thread.events_of(chunk.frame.header.seq),
            is_lossy: self.trace.is_lossy,
        };
        self.walk_part(&part, sink)
    }

    /// Walks a chunk and tells `sink`.
    pub fn walk_part<S: Sink>(
        &mut self,
        part: &Part<'_>,
        sink: &mut S,
    ) -> Result<ChunkEnd, Violation> {
        let (trace, units, desk) = (self.trace, &mut self.units, &mut self.desk);
        let Decoders { tags, full_pc, bits } = &mut self.decoders;
        match trace.options.recording.control_flow {
            ControlFlow::Tags => walk(trace, part, tags, units, desk, sink),
            ControlFlow::FullPc => walk(trace, part, full_pc, units, desk, sink),
            ControlFlow::Bits => walk(trace, part, bits, units, desk, sink),
        }
    }
}

fn walk<S: Sink, D: Decoder>(
    trace: &Trace,
    part: &Part<'_>,
    decoder: &mut D,
    units: &mut CompiledUnits<'_>,
    desk: &mut Desk,
    sink: &mut S,
) -> Result<ChunkEnd, Violation> {
    let &Part { name, chunk, following, events, is_lossy } = part;
    let violation = |control_flow, what| Violation {
        thread: name,
        position: Position { chunk: chunk.frame.header.seq, control_flow, insn: WHOLE_UNIT },
        what,
    };
    let streams: Streams = trace
        .file
        .streams(&chunk.frame, &chunk.registers, std::mem::take(&mut desk.buffer))
        .map_err(|error| violation(StreamOff(0), error.0))?;
    decoder.begin(chunk, &trace.units);
    let stream = Stream::new(streams.control_flow(), chunk.frame.is_sealed());
    let cursor = Cursor::new(&chunk.registers, streams.memory(), trace.xsave.as_ref());
    let selective = trace.options.recording.selective;
    let mut course = Course::new(chunk, following, stream, events, cursor, selective);
    let end = match course.run(decoder, units, desk, is_lossy, sink) {
        Ok(()) => Ok(course.finish()),
        Err(what) => Err(violation(course.stream.at(), what)),
    };
    desk.buffer = streams.into_buffer();
    end
}
