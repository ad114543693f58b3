//! The `tags` format: each unit writes its number, as far as its window does not say it.

use std::collections::HashMap;

use abi::ids::{LiveAddr, UnitId};
use abi::trace::{outside, tags};
use abi::unit::{FIRST_TAG, LAST_TAG, MAX_SILENT};

use super::compiled::{CompiledUnits, Trouble, UnitNumber};
use super::course::{Course, Decoder, Found};
use super::stream::Stream;
use crate::compile::{CompiledUnit, Silent};
use crate::events::{Event, Placed};
use crate::open::Chunk;
use crate::units::Units;

/// In the table of a window: not looked up yet.
const NOT_MET: UnitNumber = UnitNumber(u32::MAX);
/// Windows that get a table (128 KiB); units of further ones are looked up by their ids.
const MAX_TABLES: usize = 256;

pub(super) struct Tags {
    /// The current window, if there is one.
    window: Option<u32>,
    /// For windows in use, the unit of each tag.
    tables: Vec<Box<[UnitNumber]>>,
    /// Where the table of a window is.
    windows: HashMap<u32, usize>,
    /// The last window that was looked for, and its table.
    last: (u32, usize),
    /// A place in the stream, and units that were executed there without a tag.
    silently: (usize, u32),
}

impl Default for Tags {
    fn default() -> Tags {
        Tags {
            window: None,
            tables: Vec::new(),
            windows: HashMap::new(),
            last: (0, usize::MAX),
            silently: (0, 0),
        }
    }
}

impl Tags {
    #[inline]
    fn find(&self, id: UnitId) -> Option<UnitNumber> {
        let table = self.tables.get(self.last.1).filter(|_| self.last.0 == id.window())?;
        Some(table[usize::from(id.tag())]).filter(|&number| number != NOT_MET)
    }

    #[inline]
    fn by_id(&mut self, id: UnitId, units: &mut CompiledUnits<'_>) -> Result<UnitNumber, Trouble> {
        match self.find(id) {
            Some(number) => Ok(number),
            None => self.by_other_id(id, units),
        }
    }

    /// The slow path: another window, or a unit that is met for the first time.
    fn by_other_id(
        &mut self,
        id: UnitId,
        units: &mut CompiledUnits<'_>,
    ) -> Result<UnitNumber, Trouble> {
        let number = units.by_id(id)?;
        let table = match self.windows.get(&id.window()) {
            Some(&table) => table,
            None if self.tables.len() >= MAX_TABLES => return Ok(number),
            None => {
                self.tables.push(vec![NOT_MET; LAST_TAG as usize + 1].into_boxed_slice());
                self.windows.insert(id.window(), self.tables.len() - 1);
                self.tables.len() - 1
            }
        };
        self.tables[table][usize::from(id.tag())] = number;
        self.last = (id.window(), table);
        Ok(number)
    }
}

impl Tags {
    /// The table of a window that has one becomes the last that was looked for.
    #[inline(always)]
    fn turn_to(&mut self, window: u32) -> Option<&[UnitNumber]> {
        if self.last.0 != window {
            self.last = (window, *self.windows.get(&window)?);
        }
        self.tables.get(self.last.1).map(|table| &**table)
    }
}

/// Whether a complete chunk has records of units that were not told yet.
fn leaves_memory(course: &Course<'_>) -> bool {
    let cursor = &course.cursor;
    course.chunk.frame.is_sealed() && cursor.memory_at < cursor.memory.len()
}

impl Tags {
    /// The unit whose tag is next in the stream, if one is.
    fn named(
        &mut self,
        stream: &Stream<'_>,
        units: &mut CompiledUnits<'_>,
    ) -> Result<Option<UnitNumber>, Trouble> {
        let Some(&word) = stream.peek() else { return Ok(None) };
        let word = u16::from_le_bytes(word);
        let id = if word & tags::WIDE != 0 {
            stream.peek().map(|&words| tags::unit_of(u32::from_le_bytes(words)))
        } else {
            self.window.map(|window| UnitId::new(window, word))
        };
        // (What is no tag, or not there yet, is less than the first one.)
        match id.filter(|id| u32::from(id.tag()) >= FIRST_TAG) {
            Some(id) => self.by_id(id, units).map(Some),
            None => Ok(None),
        }
    }

    /// Whether a unit that writes no tag was executed behind the last one, which leads to it.
    fn follows(
        &mut self,
        course: &Course<'_>,
        units: &mut CompiledUnits<'_>,
        silent: Silent,
    ) -> Result<bool, Trouble> {
        // An event at this place is of a unit that comes later, or it would have been told.
        if course.event_is_due() {
            return Ok(true);
        }
        if let Some(number) = self.named(&course.stream, units)? {
            return Ok(silent.other != Some(units.get(number).address));
        }
        // The thread met the end of the chunk in front of the unit with which the next one starts.
        let start = course.following.map_or(0, |chunk| chunk.registers.rip);
        Ok(match start {
            0 => leaves_memory(course),
            start => silent.other != Some(LiveAddr(start)),
        })
    }
}

impl Decoder for Tags {
    #[inline(always)]
    fn plain(&mut self, stream: &Stream<'_>) -> Option<(UnitNumber, usize)> {
        let word = u16::from_le_bytes(*stream.peek()?);
        let (window, tag, bytes) = match word {
            word if word & tags::WIDE != 0 => {
                // No table has a unit for the tag of a record that is being written.
                let id = tags::unit_of(u32::from_le_bytes(*stream.peek()?));
                (id.window(), id.tag(), 4)
            }
            // A record of its own, or a mark.
            word if u32::from(word) < FIRST_TAG => return None,
            tag => (self.window?, tag, 2),
        };
        let number = *self.turn_to(window)?.get(usize::from(tag))?;
        if number == NOT_MET {
            return None;
        }
        // If the unit is not taken, whoever reads the record says the same.
        self.window = Some(window);
        Some((number, bytes))
    }

    #[inline(always)]
    fn context(&self) -> Option<u32> {
        self.window.filter(|&window| window != 0)
    }

    #[inline(always)]
    fn resume(&mut self, context: u32) {
        self.window = Some(context);
    }

    fn begin(&mut self, chunk: &Chunk, _units: &Units) {
        self.window = Some(chunk.frame.header.window).filter(|&window| window != 0);
        self.silently = (0, 0);
    }

    #[inline]
    fn next(
        &mut self,
        course: &mut Course<'_>,
        units: &mut CompiledUnits<'_>,
    ) -> Result<Found, Trouble> {
        if let Some(silent) = course.silent {
            if self.follows(course, units, silent)? {
                let here = course.stream.mark();
                let (at, before) = self.silently;
                self.silently = (here, if at == here { before + 1 } else { 1 });
                if self.silently.1 > MAX_SILENT {
                    return Err("too many units in a row that record nothing".into());
                }
                return Ok(Found::Unit(units.by_id(silent.id)?));
            }
        }
        let stream = &mut course.stream;
        loop {
            let Some(&word) = stream.peek() else {
                if !stream.rest().is_empty() {
                    stream.may_end()?;
                }
                return Ok(Found::End);
            };
            match u16::from_le_bytes(word) {
                tags::END => {
                    stream.may_end()?;
                    return Ok(Found::End);
                }
                word if word & tags::WIDE != 0 => {
                    let start = stream.mark();
                    let id = tags::unit_of(u32::from_le_bytes(stream.take()?));
                    if id.tag() == 0 {
                        // The recorder is about to write the second word.
                        stream.back(start);
                        stream.may_end()?;
                        return Ok(Found::End);
                    }
                    self.window = Some(id.window());
                    let found = self.by_id(id, units).map(Found::Unit);
                    return found.inspect_err(|_| stream.back(start));
                }
                tags::WINDOW => {
                    stream.skip(2);
                    self.window = Some(u32::from_le_bytes(stream.take()?));
                }
                mark if outside::is_mark(mark.into()) => {
                    stream.skip(2);
                    // A mark is smaller than 16.
                    return Ok(Found::Outside(mark.to_le_bytes()[0]));
                }
                tag if u32::from(tag) < FIRST_TAG => {
                    return Err(format!("unknown control word {tag}").into());
                }
                tag => {
                    let window = self.window.ok_or("a narrow tag, and no window is current")?;
                    let number = self.by_id(UnitId::new(window, tag), units)?;
                    stream.skip(2);
                    return Ok(Found::Unit(number));
                }
            }
        }
    }

    /// A silent unit is named by what happens in it. What the next chunk cannot have recorded, as the
    /// recording stops, is told of the place that its registers say, and no sooner than the memory stream
    /// is used up.
    fn is_early(&self, course: &Course<'_>, placed: &Placed) -> bool {
        if course.silent.is_none() || self.silently == (course.stream.mark(), MAX_SILENT) {
            return false;
        }
        match &placed.event {
            _ if placed.position.silent_unit().is_some() => true,
            Some(Event::Interrupted(state)) if !placed.position.is_inside() => {
                !course.end.next.allows(LiveAddr(state.rip))
            }
            Some(Event::Loss { .. }) => leaves_memory(course),
            _ => false,
        }
    }

    fn is_later(&self, placed: &Placed, unit: &CompiledUnit) -> bool {
        placed.position.silent_unit().is_some_and(|tag| tag != unit.id.tag())
    }
}
