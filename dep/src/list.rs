//! `dep blocks` and `dep memrefs`: formatted by the workers, written in order.

use std::io::Write;
use std::ops::Range;
use std::sync::Mutex;

use abi::ids::LiveAddr;
use serde::Serialize;
use trace::compile::CompiledUnit;
use trace::pipeline::{self, BatchSink, Job, Outlet, Piece, Seam};
use trace::plain::Referred;
use trace::walk::{MemoryReference, Sink};
use trace::{Error, Trace};

use crate::args::Selection;
use crate::line::{Line, MOST};
use crate::row::{Form, Hex, Number, Row, Template};
use crate::text::{decimal, hex};
use crate::{Stop, Warnings};

/// A batch is sent when its text is this long.
const BATCH: usize = 1 << 18;
/// Lines that are written at once.
const ROOM: usize = 32;
/// How much longer a batch may become by one unit, usually.
const MORE: usize = 1 << 12;

/// Lines of text. The first `uncertain` bytes (one line) count only if a block begins there, see
/// [`Seam`].
pub struct Lines {
    text: Vec<u8>,
    uncertain: Option<(LiveAddr, usize)>,
    /// Bytes of a first line that says that the chunk starts in code that is not recorded.
    outside: usize,
}

/// A block starts.
#[derive(Serialize)]
struct BlockRow {
    tid: u32,
    pc: Hex,
}

impl Row for BlockRow {
    fn text(&self, out: &mut Vec<u8>) {
        decimal(out, u64::from(self.tid));
        out.push(b' ');
        hex(out, self.pc.0);
    }
}

/// Code ran that is not recorded.
#[derive(Serialize)]
struct OutsideRow {
    tid: u32,
    outside: bool,
}

impl Row for OutsideRow {
    fn text(&self, out: &mut Vec<u8>) {
        decimal(out, u64::from(self.tid));
        out.extend_from_slice(b" outside");
    }
}

/// Memory is read (`R`) or written (`W`).
#[derive(Serialize)]
struct ReferenceRow {
    tid: u32,
    pc: Hex,
    access: &'static str,
    address: Hex,
    size: u32,
}

impl Row for ReferenceRow {
    #[inline]
    fn text(&self, out: &mut Vec<u8>) {
        decimal(out, u64::from(self.tid));
        out.push(b' ');
        hex(out, self.pc.0);
        out.push(b' ');
        out.extend_from_slice(self.access.as_bytes());
        out.push(b' ');
        hex(out, self.address.0);
        out.push(b' ');
        decimal(out, u64::from(self.size));
    }
}

/// Numbers that the rows of templates have. They are longer than any thread id.
const PC: u64 = 0x1111_1111_1111_1111;
const ADDRESS: u64 = 0x2222_2222_2222_2222;
const SIZE: u32 = 3_333_333_333;

/// What to print, the same for all lines of a thread.
#[derive(Clone)]
struct Style {
    range: Option<Range<LiveAddr>>,
    /// The line for code that is not recorded, if it is wanted.
    outside: Option<Vec<u8>>,
    block: Template<1>,
    read: Template<3>,
    write: Template<3>,
    /// Text of all code, so that a unit's lines are the same but for their addresses.
    same: bool,
}

impl Style {
    fn new(tid: u32, form: Form, range: Option<Range<LiveAddr>>, outside: bool) -> Style {
        let outside = outside.then(|| {
            let mut line = Vec::new();
            // It goes to memory.
            let _ = form.append(&OutsideRow { tid, outside: true }, &mut line);
            line
        });
        let reference = |access| {
            let row = ReferenceRow { tid, pc: Hex(PC), access, address: Hex(ADDRESS), size: SIZE };
            let numbers = [Number::Hex(PC), Number::Hex(ADDRESS), Number::Decimal(SIZE)];
            Template::new(form, &row, numbers)
        };
        let block = Template::new(form, &BlockRow { tid, pc: Hex(PC) }, [Number::Hex(PC)]);
        let same = form == Form::Text && range.is_none();
        Style { range, outside, block, read: reference("R"), write: reference("W"), same }
    }
}

/// Where the lines of a unit are that was not met yet.
const NOWHERE: usize = usize::MAX;

/// Buffers that were printed, for what comes next.
type Spare = Mutex<Vec<Vec<u8>>>;

struct Printer<'a, const REFERENCES: bool> {
    spare: &'a Spare,
    outlet: Outlet<Lines>,
    style: Style,
    lines: Lines,
    /// No unit was executed yet.
    fresh: bool,
    /// By the unit's number: where its lines are. Of units that were not met yet, [`NOWHERE`].
    units: Vec<usize>,
    lines_of_units: Vec<Line>,
    /// For lines, before they are appended.
    room: Box<[u8; ROOM * MOST]>,
}

impl<const REFERENCES: bool> Printer<'_, REFERENCES> {
    fn wants(&self, pc: LiveAddr) -> bool {
        self.style.range.as_ref().is_none_or(|r| r.contains(&pc))
    }

    fn send(&mut self) {
        let text = buffer(self.spare);
        let lines = std::mem::replace(&mut self.lines, Lines { text, uncertain: None, outside: 0 });
        if self.outlet.is_open() {
            self.outlet.send(lines);
        }
    }

    /// The lines of a unit that is met for the first time.
    #[cold]
    fn meet(&mut self, number: usize, unit: &CompiledUnit, references: &[Referred]) {
        if self.units.len() <= number {
            self.units.resize(number + 1, NOWHERE);
        }
        let line = |r: &Referred| {
            let template = if r.write { &self.style.write } else { &self.style.read };
            let pc = unit.address.plus(u64::from(r.offset)).0;
            let numbers = [Number::Hex(pc), Number::Hex(0), Number::Decimal(r.size.into())];
            Line::new(template, numbers, 1)
        };
        self.units[number] = self.lines_of_units.len();
        self.lines_of_units.extend(references.iter().map(line));
    }

    #[inline]
    fn send_if_full(&mut self) {
        if self.lines.text.len() >= BATCH {
            self.send();
        }
    }
}

impl<const REFERENCES: bool> Sink for Printer<'_, REFERENCES> {
    const REFERENCES: bool = REFERENCES;

    fn block(&mut self, pc: LiveAddr, uncertain: bool) {
        if REFERENCES || !self.wants(pc) {
            return;
        }
        self.style.block.append([Number::Hex(pc.0)], &mut self.lines.text);
        if uncertain {
            // Always the first line of the chunk's first batch.
            self.lines.uncertain = Some((pc, self.lines.text.len()));
        }
        self.send_if_full();
    }

    fn unit(&mut self, _unit: &CompiledUnit, _partial: bool) {
        self.fresh = false;
    }

    fn outside(&mut self) {
        let Some(line) = self.style.outside.as_ref().filter(|_| !REFERENCES) else { return };
        if self.fresh {
            // Nothing was sent yet.
            self.lines.outside = line.len();
        }
        self.lines.text.extend_from_slice(line);
        self.send_if_full();
    }

    #[inline]
    fn reference(&mut self, r: MemoryReference) {
        if !REFERENCES || !self.wants(r.pc) {
            return;
        }
        let template = if r.write { &self.style.write } else { &self.style.read };
        let numbers = [Number::Hex(r.pc.0), Number::Hex(r.address.0), Number::Decimal(r.size)];
        template.append(numbers, &mut self.lines.text);
        self.send_if_full();
    }

    #[inline]
    fn plain(
        &mut self,
        number: u32,
        unit: &CompiledUnit,
        references: &[Referred],
        addresses: &[u64],
    ) {
        if !REFERENCES || references.is_empty() {
            return;
        }
        if !self.style.same {
            for (r, &address) in references.iter().zip(addresses) {
                self.reference(MemoryReference {
                    pc: unit.address.plus(u64::from(r.offset)),
                    address: LiveAddr(address),
                    size: r.size.into(),
                    write: r.write,
                });
            }
            return;
        }
        let number = number as usize;
        if self.units.get(number).is_none_or(|&at| at == NOWHERE) {
            self.meet(number, unit, references);
        }
        let lines = &self.lines_of_units[self.units[number]..];
        for (addresses, lines) in addresses.chunks(ROOM).zip(lines.chunks(ROOM)) {
            let mut len = 0;
            for (line, &address) in lines.iter().zip(addresses) {
                len += line.write(address, &mut self.room[len..]);
            }
            self.lines.text.extend_from_slice(&self.room[..len]);
        }
        self.send_if_full();
    }

    fn go_on(&mut self) -> bool {
        self.outlet.is_open()
    }
}

impl<const REFERENCES: bool> BatchSink for Printer<'_, REFERENCES> {
    type Batch = Lines;

    fn finish(mut self) -> Outlet<Lines> {
        self.send();
        give_back(self.spare, self.lines.text);
        self.outlet
    }
}

pub fn blocks(
    trace: &Trace,
    what: &Selection,
    outside: bool,
    warnings: &mut Warnings,
    out: &mut impl Write,
) -> Result<(), Stop> {
    list::<false>(trace, what, outside, warnings, out)
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
    list::<true>(trace, what, false, warnings, out)
}

fn list<const REFERENCES: bool>(
    trace: &Trace,
    what: &Selection,
    outside: bool,
    warnings: &mut Warnings,
    out: &mut impl Write,
) -> Result<(), Stop> {
    if let Some(tid) = what.thread.filter(|&tid| trace.threads.iter().all(|t| t.name() != tid)) {
        return Err(Error(format!("the trace has no thread {tid}")).into());
    }
    let form = Form::new(what.common.json);
    let range = what.range.as_ref().map(|r| LiveAddr(r.start)..LiveAddr(r.end));
    let style = |thread: &trace::Thread| Style::new(thread.name(), form, range.clone(), outside);
    let styles: Vec<Style> = trace.threads.iter().map(style).collect();
    let jobs = pipeline::jobs(trace, |t| what.thread.is_none_or(|tid| tid == t.name()));
    let spare = Spare::default();
    let make = |job: Job, outlet| Printer::<REFERENCES> {
        spare: &spare,
        outlet,
        style: styles[job.thread].clone(),
        lines: Lines { text: buffer(&spare), uncertain: None, outside: 0 },
        fresh: true,
        units: Vec::new(),
        lines_of_units: Vec::new(),
        room: Box::new([0; ROOM * MOST]),
    };
    // The thread whose last chunk ended in code that is not recorded.
    let mut outside_of = None;
    let mut left = what.limit.unwrap_or(u64::MAX);
    let mut seam = Seam::default();
    let mut result = Ok(());
    pipeline::run(trace, &jobs, make, |job, piece| {
        result = match piece {
            Piece::Batch(lines) => {
                let begins = |pc| seam.begins_block(trace, &job, pc);
                let skip = lines.uncertain.filter(|&(pc, _)| !begins(pc)).map_or(0, |(_, end)| end);
                let goes_on = outside_of == Some(job.thread);
                let skip = if goes_on { skip.max(lines.outside) } else { skip };
                let printed = print(&lines.text[skip..], &mut left, out);
                give_back(&spare, lines.text);
                printed
            }
            Piece::End(end) => match *end {
                Ok(end) => {
                    seam.ended(trace, &job, Some(end.falls));
                    if end.units > 0 || end.stays > 0 {
                        outside_of = end.ends_outside.then_some(job.thread);
                    }
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

/// An empty buffer for a batch.
fn buffer(spare: &Spare) -> Vec<u8> {
    let used = spare.lock().ok().and_then(|mut spare| spare.pop());
    used.unwrap_or_else(|| Vec::with_capacity(BATCH + MORE))
}

fn give_back(spare: &Spare, mut text: Vec<u8>) {
    text.clear();
    if let Ok(mut spare) = spare.lock() {
        spare.push(text);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_write_what_rows_write() {
        for (tid, pc, address, size, form) in [
            (1, 0, 0, 0, Form::Text),
            (u32::MAX, u64::MAX, PC, SIZE, Form::Text),
            (0x1111_1111, 0x40_1000, 0x7fff_ffff_f000, 64, Form::Json),
            (SIZE, PC, u64::MAX, u32::MAX, Form::Json),
        ] {
            let style = Style::new(tid, form, None, false);
            let numbers = [Number::Hex(pc), Number::Hex(address), Number::Decimal(size)];
            let (pc, address) = (Hex(pc), Hex(address));
            for (access, template) in [("R", &style.read), ("W", &style.write)] {
                let (mut one, mut other) = (Vec::new(), Vec::new());
                template.append(numbers, &mut one);
                let row = ReferenceRow { tid, pc, access, address, size };
                form.append(&row, &mut other).expect("memory");
                assert_eq!(String::from_utf8_lossy(&one), String::from_utf8_lossy(&other));
            }
            let (mut one, mut other) = (Vec::new(), Vec::new());
            for (access, template) in [("R", &style.read), ("W", &style.write)] {
                let size = u16::try_from(size).unwrap_or(u16::MAX);
                if form == Form::Text {
                    let row = ReferenceRow { tid, pc, access, address, size: size.into() };
                    let mut text = Vec::new();
                    form.append(&row, &mut text).expect("memory");
                    let numbers = [Number::Hex(pc.0), Number::Hex(0), Number::Decimal(size.into())];
                    let mut line = [0; MOST];
                    let len = Line::new(template, numbers, 1).write(address.0, &mut line);
                    assert_eq!(
                        String::from_utf8_lossy(&line[..len]),
                        String::from_utf8_lossy(&text)
                    );
                }
            }
            style.block.append([Number::Hex(pc.0)], &mut one);
            form.append(&BlockRow { tid, pc }, &mut other).expect("memory");
            assert_eq!(String::from_utf8_lossy(&one), String::from_utf8_lossy(&other));
        }
    }
}
