//! Listings as lines of text, or of JSON: formatted by the workers, printed in order.

use std::io::Write;
use std::ops::Range;

use abi::ids::LiveAddr;
use serde::Serialize;
use trace::compile::CompiledUnit;
use trace::pipeline::{BatchSink, Job, Outlet};
use trace::plain::Referred;
use trace::walk::{unit_by_unit, MemoryReference, Passed, Sink};

use super::{Spare, Start};
use crate::line::{Line, MOST};
use crate::row::{Form, Hex, Number, Row, Template};
use crate::text::{decimal, hex};
use crate::Stop;

/// A batch is sent when its text is this long.
const BATCH: usize = 1 << 18;
/// Lines that are written at once.
const ROOM: usize = 32;
/// How much longer a batch may become by one unit, usually.
const MORE: usize = 1 << 12;

/// Lines of text; of its [`Start`] the lengths are bytes.
pub struct Lines {
    text: Vec<u8>,
    start: Start,
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

/// Where the lines of a unit or passage are that was not met yet.
const NOWHERE: u32 = u32::MAX;

/// Lines that were formatted before, of units and passages by their numbers.
#[derive(Default)]
pub struct Known {
    /// Index of the thread that they are of.
    thread: usize,
    /// Where the first line of a unit is.
    units: Vec<u32>,
    lines: Vec<Line>,
    /// How often all passages were forgotten.
    forgotten: u32,
    /// Of each passage where in `places`, or for blocks in `blocks`, that begins and ends which it has.
    passages: Vec<[u32; 2]>,
    /// Of each reference the line.
    places: Vec<u32>,
    /// Text.
    blocks: Vec<u8>,
}

impl Known {
    #[cold]
    fn forget_passages(&mut self, forgotten: u32) {
        self.forgotten = forgotten;
        self.passages.clear();
        self.places.clear();
        self.blocks.clear();
    }
}

/// A place, which [`NOWHERE`] is not.
fn place(at: usize) -> u32 {
    u32::try_from(at).ok().filter(|&at| at != NOWHERE).expect("lines of some units fit into memory")
}

/// The entry of a number, which may be new.
fn entry<T: Clone>(entries: &mut Vec<T>, number: usize, new: T) -> &mut T {
    if entries.len() <= number {
        entries.resize(number + 1, new);
    }
    &mut entries[number]
}

/// Writes the lines of a chunk.
pub struct Printer<'a, const REFERENCES: bool> {
    spare: &'a Spare<Vec<u8>>,
    outlet: Outlet<Lines, Known>,
    style: Style,
    lines: Lines,
    /// No unit was executed yet.
    fresh: bool,
    /// For lines, before they are appended.
    room: Box<[u8; ROOM * MOST]>,
}

impl<'a, const REFERENCES: bool> Printer<'a, REFERENCES> {
    /// `outside`: code that is not recorded has lines, too.
    pub fn new(
        job: Job,
        mut outlet: Outlet<Lines, Known>,
        form: Form,
        range: Option<Range<LiveAddr>>,
        outside: bool,
        spare: &'a Spare<Vec<u8>>,
    ) -> Printer<'a, REFERENCES> {
        if outlet.kept.thread != job.thread {
            outlet.kept = Known { thread: job.thread, ..Known::default() };
        }
        Printer {
            spare,
            outlet,
            style: Style::new(job.name, form, range, outside),
            lines: Lines { text: buffer(spare), start: Start::default() },
            fresh: true,
            room: Box::new([0; ROOM * MOST]),
        }
    }

    fn wants(&self, pc: LiveAddr) -> bool {
        self.style.range.as_ref().is_none_or(|r| r.contains(&pc))
    }

    fn send(&mut self) {
        let text = buffer(self.spare);
        let lines = std::mem::replace(&mut self.lines, Lines { text, start: Start::default() });
        if self.outlet.is_open() {
            self.outlet.send(lines);
        }
    }

    /// Where the lines of a unit are.
    #[inline]
    fn lines_of(&mut self, number: u32, unit: &CompiledUnit, references: &[Referred]) -> u32 {
        match self.outlet.kept.units.get(number as usize) {
            Some(&at) if at != NOWHERE => at,
            _ => self.meet(number, unit, references),
        }
    }

    /// The lines of a unit that is met for the first time.
    #[cold]
    fn meet(&mut self, number: u32, unit: &CompiledUnit, references: &[Referred]) -> u32 {
        let line = |r: &Referred| {
            let template = if r.write { &self.style.write } else { &self.style.read };
            let pc = unit.address.plus(u64::from(r.offset)).0;
            let numbers = [Number::Hex(pc), Number::Hex(0), Number::Decimal(r.size.into())];
            Line::new(template, numbers, 1)
        };
        let Known { units, lines, .. } = &mut self.outlet.kept;
        let at = place(lines.len());
        lines.extend(references.iter().map(line));
        *entry(units, number as usize, NOWHERE) = at;
        at
    }

    /// What is kept of a passage that is met for the first time.
    #[cold]
    fn meet_passage(&mut self, passed: &Passed<'_>) -> [u32; 2] {
        let ends =
            |known: &Known| place(if REFERENCES { known.places.len() } else { known.blocks.len() });
        let start = ends(&self.outlet.kept);
        if REFERENCES {
            for (number, unit, references) in passed.units() {
                let first = self.lines_of(number, unit, references);
                self.outlet.kept.places.extend((first..).take(references.len()));
            }
        } else {
            let mut text = std::mem::take(&mut self.outlet.kept.blocks);
            for pc in passed.blocks().filter(|&pc| self.wants(pc)) {
                self.style.block.append([Number::Hex(pc.0)], &mut text);
            }
            self.outlet.kept.blocks = text;
        }
        let both = [start, ends(&self.outlet.kept)];
        let known = &mut self.outlet.kept.passages;
        *entry(known, passed.number as usize, [NOWHERE; 2]) = both;
        both
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
            self.lines.start.uncertain = Some((pc, self.lines.text.len()));
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
            self.lines.start.outside = line.len();
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
        let first = self.lines_of(number, unit, references) as usize;
        let lines = &mut self.outlet.kept.lines[first..];
        for (addresses, lines) in addresses.chunks(ROOM).zip(lines.chunks_mut(ROOM)) {
            let mut len = 0;
            for (line, &address) in lines.iter_mut().zip(addresses) {
                len += line.write(address, &mut self.room[len..]);
            }
            self.lines.text.extend_from_slice(&self.room[..len]);
        }
        self.send_if_full();
    }

    fn passage(&mut self, passed: &Passed<'_>) {
        if REFERENCES && !self.style.same {
            return unit_by_unit(passed, self);
        }
        self.fresh = false;
        if self.outlet.kept.forgotten != passed.forgotten {
            self.outlet.kept.forget_passages(passed.forgotten);
        }
        let known = self.outlet.kept.passages.get(passed.number as usize);
        let ends = match known {
            Some(&ends) if ends[0] != NOWHERE => ends,
            _ => self.meet_passage(passed),
        };
        let [start, end] = ends.map(|end| end as usize);
        if !REFERENCES {
            if passed.begins {
                self.block(passed.start(), false);
            }
            self.lines.text.extend_from_slice(&self.outlet.kept.blocks[start..end]);
            return self.send_if_full();
        }
        let Known { places, lines, .. } = &mut self.outlet.kept;
        for (places, addresses) in
            places[start..end].chunks(ROOM).zip(passed.addresses().chunks(ROOM))
        {
            let mut len = 0;
            for (&place, &address) in places.iter().zip(addresses) {
                len += lines[place as usize].write(address, &mut self.room[len..]);
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
    type Kept = Known;

    fn finish(mut self) -> Outlet<Lines, Known> {
        self.send();
        self.spare.give(self.lines.text);
        self.outlet
    }
}

impl Lines {
    /// Where they start.
    pub fn start(&self) -> &Start {
        &self.start
    }

    /// Prints them without the first `skip` bytes, no more than are `left`.
    pub fn print(
        self,
        skip: usize,
        left: &mut u64,
        out: &mut impl Write,
        spare: &Spare<Vec<u8>>,
    ) -> Result<(), Stop> {
        let printed = print(&self.text[skip..], left, out);
        spare.give(self.text);
        printed
    }
}

/// An empty buffer for a batch.
fn buffer(spare: &Spare<Vec<u8>>) -> Vec<u8> {
    let mut text = spare.take().unwrap_or_else(|| Vec::with_capacity(BATCH + MORE));
    text.clear();
    text
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
    fn a_line_has_the_number_that_it_is_given_each_time() {
        let style = Style::new(SIZE, Form::Text, None, false);
        let numbers = [Number::Hex(PC), Number::Hex(0), Number::Decimal(65_535)];
        let mut line = Line::new(&style.read, numbers, 1);
        let mut number = 0x0123_4567_89ab_cdef_u64;
        let all = (0..4096u32).flat_map(|n| {
            number = number.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            // Many have the same high half.
            let low = number & 0xffff_ffff;
            [number >> (n % 64), low, low >> (n % 32), 0x7fff << 32 | low]
        });
        for number in [u64::MAX, 0, u64::MAX, 0xfff_ffff, 0x1000_0000].into_iter().chain(all) {
            let mut text = [0; MOST];
            let len = line.write(number, &mut text);
            let expected = format!("{SIZE} {PC:#x} R {number:#x} 65535\n");
            assert_eq!(String::from_utf8_lossy(&text[..len]), expected);
        }
    }

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
