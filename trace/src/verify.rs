//! Checks everything that the format promises and that the trace alone can show.

use abi::event::{Position, WHOLE_UNIT};
use abi::ids::{Gpr, LiveAddr};

use crate::compile::CompiledUnit;
use crate::events::Event;
use crate::first_use::is_overwritten;
use crate::open::{Chunk, Trace};
use crate::pipeline::{self, BatchSink, Job, Outlet, Piece};
use crate::plain::Referred;
use crate::walk::{ChunkEnd, MemoryReference, Overwritten, Passed, Sink, Violation};
use crate::Error;

/// What a trace that passed amounts to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Frames of the file.
    pub frames: u64,
    /// Chunks that were walked through.
    pub chunks: u64,
    /// Units that were executed.
    pub units: u64,
    /// Instructions that were executed.
    pub instructions: u64,
    /// Blocks that were executed.
    pub blocks: u64,
    /// Memory references, or stores of an undo log.
    pub references: u64,
    /// Events of a recording of inputs.
    pub events: u64,
}

/// Counts; what it counts has been checked by being recovered.
struct Count {
    outlet: Outlet<(u64, u64)>,
    blocks: u64,
    references: u64,
}

impl Sink for Count {
    const REFERENCES: bool = true;
    const ADDRESSES: bool = false;

    fn block(&mut self, _pc: LiveAddr, _uncertain: bool) {
        self.blocks += 1;
    }

    fn reference(&mut self, _reference: MemoryReference) {
        self.references += 1;
    }

    fn references(&mut self, _all: impl Iterator<Item = MemoryReference>, count: u64) {
        self.references += count;
    }

    fn plain(
        &mut self,
        _number: u32,
        unit: &CompiledUnit,
        references: &[Referred],
        _addresses: &[u64],
    ) {
        self.blocks += unit.inner_blocks.len() as u64;
        self.references += references.len() as u64;
    }

    fn passage(&mut self, passed: &Passed<'_>) {
        self.blocks += passed.block_count() + u64::from(passed.begins);
        self.references += passed.references() as u64;
    }

    fn store(&mut self, _store: Overwritten<'_>) {
        self.references += 1;
    }

    fn go_on(&mut self) -> bool {
        self.outlet.is_open()
    }
}

impl BatchSink for Count {
    type Batch = (u64, u64);
    type Kept = ();

    fn finish(mut self) -> Outlet<(u64, u64)> {
        self.outlet.send((self.blocks, self.references));
        self.outlet
    }
}

/// Verifies the whole trace; the error is the first violation.
pub fn verify(trace: &Trace) -> Result<Summary, Error> {
    if let Some(damage) = trace.damage.first() {
        return Err(Error(damage.to_string()));
    }
    if let Some(thread) = trace.threads.iter().find(|t| t.tid.is_none()) {
        return Err(Error(format!("thread {}: its start is missing", thread.index)));
    }
    switches_alternate(trace)?;
    let events = match trace.options.recording.inputs() {
        true => crate::inputs::check(trace)?,
        false if trace.both => crate::inputs::check(&Trace::open_alone(&trace.path)?)?,
        false => 0,
    };
    let frames = trace.file.frames.len() as u64;
    let mut summary = Summary { frames, events, ..Summary::default() };
    let mut previous: Option<(usize, ChunkEnd)> = None;
    let mut wrong = None;
    let make = |_, outlet| Count { outlet, blocks: 0, references: 0 };
    pipeline::run(trace, pipeline::tasks(trace, |_| true), make, |job, piece| {
        let end = match piece {
            Piece::Batch((blocks, references)) => {
                summary.blocks += blocks;
                summary.references += references;
                return true;
            }
            Piece::End(end) => match *end {
                Ok(end) => end,
                Err(violation) => {
                    wrong = Some(violation);
                    return false;
                }
            },
        };
        let thread = &trace.threads[job.thread];
        let before = previous.take().filter(|(of, _)| *of == job.thread).map(|(_, end)| end);
        summary.chunks += 1;
        summary.units += end.units;
        summary.instructions += end.instructions;
        let continues = before
            .as_ref()
            .zip(end.first_unit)
            .is_some_and(|(before, first)| before.falls.reaches(first));
        summary.blocks -= u64::from(end.uncertain && continues);
        let checked =
            thread.chunk(job.seq).map_or(Ok(()), |chunk| used_up(chunk, &end)).and_then(|()| {
                let is_lost = |register| is_overwritten(trace, thread, job.seq, register);
                before.map_or(Ok(()), |before| fits(&before, &end, is_lost))
            });
        if let Err(what) = checked {
            wrong = Some(at(&job, &end, what));
            return false;
        }
        previous = Some((job.thread, end));
        true
    });
    match wrong {
        Some(violation) => Err(Error(violation.to_string())),
        None => Ok(summary),
    }
}

/// The recording is on at first, and each switch changes that.
fn switches_alternate(trace: &Trace) -> Result<(), Error> {
    let mut is_on = true;
    for event in &trace.process_events {
        if let Some(Event::Switch { on, .. }) = event.event {
            if on == is_on {
                let what = if on { "on" } else { "off" };
                return Err(Error(format!("the recording is switched {what} twice")));
            }
            is_on = on;
        }
    }
    Ok(())
}

fn at(job: &Job, end: &ChunkEnd, what: String) -> Violation {
    Violation {
        thread: job.name,
        position: Position { chunk: job.seq, control_flow: end.control_flow, insn: WHOLE_UNIT },
        what,
    }
}

/// A sealed chunk's units account for every byte of both streams.
fn used_up(chunk: &Chunk, end: &ChunkEnd) -> Result<(), String> {
    let header = &chunk.frame.header;
    if !chunk.frame.is_sealed() || end.lost {
        return Ok(());
    }
    if header.used_memory != end.memory.0 {
        return Err(format!(
            "the memory stream has {} bytes, its units took {}",
            header.used_memory, end.memory.0
        ));
    }
    Ok(())
}

/// The next chunk starts where, and with what, the one before ended. `is_lost`: whether the program does not need what
/// a register holds there.
fn fits(before: &ChunkEnd, end: &ChunkEnd, is_lost: impl Fn(Gpr) -> bool) -> Result<(), String> {
    if end.starts_outside {
        return Ok(());
    }
    if let Some(first) = end.first_unit {
        if !before.next.allows(first) {
            return Err(format!(
                "the chunk starts at {first}, the one before leads to {}",
                before.next
            ));
        }
    }
    for register in before.known.known.iter() {
        let recorded = end.start.gpr[register.index()];
        let computed = before.known.values[register.index()];
        let is_valid = end.start.valid >> register.0 & 1 == 1;
        if is_valid && recorded != computed && !is_lost(register) {
            return Err(format!(
                "register {register} is {recorded:#x} at the start of the chunk, computed {computed:#x}"
            ));
        }
    }
    Ok(())
}
