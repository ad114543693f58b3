//! `dep blocks` and `dep memrefs`: formatted by the workers, written in order.

use std::io::Write;
use std::ops::Range;

use trace::pipeline::{self, BatchSink, Job, Outlet, Piece, Seam};
use trace::walk::{MemoryReference, Sink};
use trace::{Error, Trace};

use crate::args::Selection;
use crate::text::{decimal, hex};
use crate::{Stop, Warnings};

/// A batch is sent when its text is this long.
const BATCH: usize = 1 << 18;

/// Lines of text. The first `uncertain` bytes (one line) count only if a block begins there, see
/// [`Seam`].
pub struct Lines {
    text: Vec<u8>,
    uncertain: Option<(u64, usize)>,
}

/// What to print, the same for all lines of a chunk.
#[derive(Clone)]
struct Style {
    /// `TID ` or the start of a JSON object.
    prefix: Vec<u8>,
    range: Option<Range<u64>>,
    json: bool,
}

struct Printer<const REFERENCES: bool> {
    outlet: Outlet<Lines>,
    style: Style,
    lines: Lines,
}

impl<const REFERENCES: bool> Printer<REFERENCES> {
    fn wants(&self, pc: u64) -> bool {
        self.style.range.as_ref().is_none_or(|r| r.contains(&pc))
    }

    fn number(&mut self, value: u64) {
        if self.style.json {
            self.lines.text.push(b'"');
            hex(&mut self.lines.text, value);
            self.lines.text.push(b'"');
        } else {
            hex(&mut self.lines.text, value);
        }
    }

    fn send(&mut self) {
        let text = Vec::with_capacity(BATCH + 256);
        let lines = std::mem::replace(&mut self.lines, Lines { text, uncertain: None });
        if self.outlet.is_open() {
            self.outlet.send(lines);
        }
    }

    fn end_line(&mut self) {
        self.lines.text.extend_from_slice(if self.style.json { b"}\n" } else { b"\n" });
        if self.lines.text.len() >= BATCH {
            self.send();
        }
    }
}

impl<const REFERENCES: bool> Sink for Printer<REFERENCES> {
    const REFERENCES: bool = REFERENCES;

    fn block(&mut self, pc: u64, uncertain: bool) {
        if REFERENCES || !self.wants(pc) {
            return;
        }
        self.lines.text.extend_from_slice(&self.style.prefix);
        self.number(pc);
        if uncertain {
            // Always the first line of the chunk's first batch.
            let end = self.lines.text.len() + if self.style.json { 2 } else { 1 };
            self.lines.uncertain = Some((pc, end));
        }
        self.end_line();
    }

    #[inline]
    fn reference(&mut self, r: MemoryReference) {
        if !REFERENCES || !self.wants(r.pc) {
            return;
        }
        self.lines.text.extend_from_slice(&self.style.prefix);
        self.number(r.pc);
        let (direction, separator): (&[u8], &[u8]) = match (self.style.json, r.write) {
            (false, false) => (b" R ", b" "),
            (false, true) => (b" W ", b" "),
            (true, false) => (b",\"access\":\"R\",\"address\":", b",\"size\":"),
            (true, true) => (b",\"access\":\"W\",\"address\":", b",\"size\":"),
        };
        self.lines.text.extend_from_slice(direction);
        self.number(r.address);
        self.lines.text.extend_from_slice(separator);
        decimal(&mut self.lines.text, u64::from(r.size));
        self.end_line();
    }

    fn go_on(&mut self) -> bool {
        self.outlet.is_open()
    }
}

impl<const REFERENCES: bool> BatchSink for Printer<REFERENCES> {
    type Batch = Lines;

    fn finish(mut self) -> Outlet<Lines> {
        self.send();
        self.outlet
    }
}

pub fn blocks(
    trace: &Trace,
    what: &Selection,
    warnings: &mut Warnings,
    out: &mut impl Write,
) -> Result<(), Stop> {
    list::<false>(trace, what, warnings, out)
}

pub fn memrefs(
    trace: &Trace,
    what: &Selection,
    warnings: &mut Warnings,
    out: &mut impl Write,
) -> Result<(), Stop> {
    if !trace.options.recording.records_memory() {
        return Err(Error("the trace was recorded without memory references".into()).into());
    }
    list::<true>(trace, what, warnings, out)
}

fn list<const REFERENCES: bool>(
    trace: &Trace,
    what: &Selection,
    warnings: &mut Warnings,
    out: &mut impl Write,
) -> Result<(), Stop> {
    if let Some(tid) = what.thread.filter(|&tid| trace.threads.iter().all(|t| t.name() != tid)) {
        return Err(Error(format!("the trace has no thread {tid}")).into());
    }
    let json = what.common.json;
    let styles: Vec<Style> = trace
        .threads
        .iter()
        .map(|thread| {
            let tid = thread.name();
            let prefix = if json { format!("{{\"tid\":{tid},\"pc\":") } else { format!("{tid} ") };
            Style { prefix: prefix.into_bytes(), range: what.range.clone(), json }
        })
        .collect();
    let jobs = pipeline::jobs(trace, |t| what.thread.is_none_or(|tid| tid == t.name()));
    let make = |job: Job, outlet| Printer::<REFERENCES> {
        outlet,
        style: styles[job.thread].clone(),
        lines: Lines { text: Vec::new(), uncertain: None },
    };
    let mut left = what.limit.unwrap_or(u64::MAX);
    let mut seam = Seam::default();
    let mut result = Ok(());
    pipeline::run(trace, &jobs, make, |job, piece| {
        result = match piece {
            Piece::Batch(lines) => {
                let begins = |pc| seam.begins_block(trace, &job, pc);
                let skip = lines.uncertain.filter(|&(pc, _)| !begins(pc)).map_or(0, |(_, end)| end);
                print(&lines.text[skip..], &mut left, out)
            }
            Piece::End(end) => match *end {
                Ok(end) => {
                    seam.ended(trace, &job, Some(end.falls_to));
                    Ok(())
                }
                Err(violation) => {
                    // The chunks behind it are decoded on their own.
                    warnings.add(&format!("{violation}: the rest of this chunk is missing"));
                    seam.ended(trace, &job, None);
                    Ok(())
                }
            },
        };
        result.is_ok() && left > 0
    });
    result
}

fn print(mut text: &[u8], left: &mut u64, out: &mut impl Write) -> Result<(), Stop> {
    if *left < u64::MAX {
        let mut end = 0;
        for line in text.split_inclusive(|&b| b == b'\n') {
            if *left == 0 {
                break;
            }
            *left -= 1;
            end += line.len();
        }
        text = &text[..end];
    }
    Ok(out.write_all(text)?)
}
