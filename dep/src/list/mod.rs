//! `dep blocks` and `dep memrefs`: made by the workers, in the order of the trace, as lines or as a table.

mod columns;
mod lines;

use std::io::Write;
use std::sync::{Mutex, PoisonError};

use abi::ids::LiveAddr;
use trace::pipeline::{self, BatchSink, Job, Outlet, Piece, Seam, Task};
use trace::{Error, Trace};

pub use columns::Table;

use crate::args::{BlockSelection, Selection};
use crate::row::Form;
use crate::{Stop, Warnings};

/// What is at the start of a batch that may have to be left out. Lengths are in what the batch counts.
#[derive(Default)]
pub struct Start {
    /// How long the first entry is, which counts only if a block begins there, see [`Seam`].
    uncertain: Option<(LiveAddr, usize)>,
    /// How long a first entry is that says that the chunk starts in code that is not recorded.
    outside: usize,
}

/// Batches that were put out, whose memory what comes next is given.
struct Spare<T>(Mutex<Vec<T>>);

impl<T> Default for Spare<T> {
    fn default() -> Spare<T> {
        Spare(Mutex::default())
    }
}

impl<T> Spare<T> {
    fn give(&self, used: T) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(used);
    }

    fn take(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }
}

/// Lists what a trace has.
pub fn list(
    trace: &Trace,
    listing: &Listing<'_>,
    warnings: &mut Warnings,
    out: &mut impl Write,
) -> Result<(), Stop> {
    if listing.references && !trace.options.recording.records_memory() {
        return Err(Error("the trace was recorded without memory references".into()).into());
    }
    let wanted = listing.what.thread;
    let tasks = pipeline::tasks(trace, |t| wanted.is_none_or(|tid| tid == t.name()));
    if let Some(tid) = wanted.filter(|&tid| trace.threads.iter().all(|t| t.name() != tid)) {
        return Err(no_thread(tid).into());
    }
    list_tasks(trace, tasks, &Nobody, listing, warnings, out).map(drop)
}

pub fn no_thread(tid: u32) -> Error {
    Error(format!("the trace has no thread {tid}"))
}

/// Who is told how far a listing has come.
pub trait Progress: Sync {
    /// This chunk need not be read again.
    fn read(&self, _task: &Task<'_>) {}
    /// No more chunks are wanted.
    fn enough(&self) {}
}

struct Nobody;

impl Progress for Nobody {}

/// What is listed.
#[derive(Clone, Copy)]
pub struct Listing<'a> {
    pub what: &'a Selection,
    /// References, or blocks.
    pub references: bool,
    /// Also where code ran that is not recorded.
    pub outside: bool,
    /// So many lines at most.
    pub limit: u64,
}

impl<'a> Listing<'a> {
    pub fn blocks(what: &'a BlockSelection) -> Listing<'a> {
        Listing { references: false, outside: what.outside, ..Listing::references(&what.what) }
    }

    pub fn references(what: &'a Selection) -> Listing<'a> {
        let limit = what.limit.unwrap_or(u64::MAX);
        Listing { what, references: true, outside: false, limit }
    }
}

/// Lists what these chunks have. Returns how many lines more there could be: none, if as many were listed as were
/// asked for.
pub fn list_tasks<'t>(
    trace: &Trace,
    tasks: impl Iterator<Item = Task<'t>> + Send,
    progress: &impl Progress,
    listing: &Listing<'_>,
    warnings: &mut Warnings,
    out: &mut impl Write,
) -> Result<u64, Stop> {
    match listing.references {
        true => list_kind::<true>(trace, tasks, progress, listing, warnings, out),
        false => list_kind::<false>(trace, tasks, progress, listing, warnings, out),
    }
}

fn list_kind<'t, const REFERENCES: bool>(
    trace: &Trace,
    tasks: impl Iterator<Item = Task<'t>> + Send,
    progress: &impl Progress,
    &Listing { what, outside, limit, .. }: &Listing<'_>,
    warnings: &mut Warnings,
    out: &mut impl Write,
) -> Result<u64, Stop> {
    let range = what.range.as_ref().map(|r| LiveAddr(r.start)..LiveAddr(r.end));
    let source = Source { trace, tasks, progress, limit };
    match &what.columns {
        Some(table) => {
            let schema = columns::schema(REFERENCES);
            table.begin(&schema)?;
            let spare = Spare::default();
            let make = |job: Job, outlet| {
                let range = range.clone();
                columns::Gatherer::<REFERENCES>::new(job, outlet, &schema, &spare, range, outside)
            };
            source.list(warnings, make, columns::Rows::start, |rows, skip, left| {
                table.append(&rows.part(skip, left))?;
                rows.leave(&spare);
                Ok(())
            })
        }
        None => {
            let form = Form::new(what.common.json);
            let spare = Spare::default();
            let make = |job: Job, outlet| {
                lines::Printer::<REFERENCES>::new(job, outlet, form, range.clone(), outside, &spare)
            };
            source.list(warnings, make, lines::Lines::start, |lines, skip, left| {
                lines.print(skip, left, out, &spare)
            })
        }
    }
}

/// What is listed, and how much of it.
struct Source<'a, T, P> {
    trace: &'a Trace,
    tasks: T,
    progress: &'a P,
    limit: u64,
}

impl<'t, T: Iterator<Item = Task<'t>> + Send, P: Progress> Source<'_, T, P> {
    /// Hands over what the sinks of `make` send, in the order of the tasks: a batch, how much of its start is to be
    /// left out, and how many entries may follow, which `put` counts down. Returns how many those are in the end.
    fn list<S: BatchSink>(
        self,
        warnings: &mut Warnings,
        make: impl Fn(Job, Outlet<S::Batch, S::Kept>) -> S + Sync,
        start: impl Fn(&S::Batch) -> &Start,
        mut put: impl FnMut(S::Batch, usize, &mut u64) -> Result<(), Stop>,
    ) -> Result<u64, Stop> {
        let Source { trace, tasks, progress, limit } = self;
        // The thread whose last chunk ended in code that is not recorded.
        let mut outside_of = None;
        let mut left = limit;
        let mut seam = Seam::default();
        let mut result = Ok(());
        pipeline::run_and_tell(
            trace,
            tasks,
            make,
            |task| progress.read(task),
            |job, piece| {
                result = match piece {
                    Piece::Batch(batch) => {
                        let &Start { uncertain, outside } = start(&batch);
                        let begins = |pc| seam.begins_block(&job, pc);
                        let skip =
                            uncertain.filter(|&(pc, _)| !begins(pc)).map_or(0, |(_, end)| end);
                        let goes_on = outside_of == Some(job.thread);
                        let skip = if goes_on { skip.max(outside) } else { skip };
                        put(batch, skip, &mut left)
                    }
                    Piece::End(end) => match *end {
                        Ok(end) => {
                            seam.ended(&job, Some(end.falls));
                            if end.units > 0 || end.stays > 0 {
                                outside_of = end.ends_outside.then_some(job.thread);
                            }
                            Ok(())
                        }
                        Err(violation) => {
                            // The chunks behind it are decoded on their own.
                            let what = format!("{violation}: the rest of this chunk is missing");
                            warnings.add(&what);
                            seam.ended(&job, None);
                            Ok(())
                        }
                    },
                };
                let goes_on = result.is_ok() && left > 0;
                if !goes_on {
                    progress.enough();
                }
                goes_on
            },
        );
        result.map(|()| left)
    }
}
