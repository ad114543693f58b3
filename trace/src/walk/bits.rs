//! The `bits` format: only what does not follow from the code is in the stream, that is outcomes of
//! branches and the targets that the code does not name.
//!
//! Most units add nothing, so that many share a place in the stream: whether an event at that place
//! comes before or after the next one follows from what the event says, and from the code.

use abi::ids::LiveAddr;
use abi::trace::bits;

use super::chunk_end::Next;
use super::compiled::{CompiledUnits, Trouble};
use super::course::{done_before, Course, Decoder, Found};
use super::sink::Nobody;
use crate::compile::{CompiledUnit, Exit};
use crate::events::{Event, Placed};
use crate::open::Chunk;
use crate::units::{split_word, Origin, Predecessor, Units};

/// Units in a row that add nothing to the stream; more are an endless loop.
const MAX_SILENT: u32 = 1 << 24;

pub(super) struct Bits {
    /// The chunk's first unit was found.
    started: bool,
    /// What the next unit follows.
    behind: Predecessor,
    /// Units since the stream last moved.
    silent: u32,
}

impl Default for Bits {
    fn default() -> Bits {
        Bits { started: false, behind: Predecessor::None, silent: 0 }
    }
}

fn end(course: &Course<'_>) -> Result<Found, Trouble> {
    course.stream.may_end()?;
    Ok(Found::End)
}

/// Where the next unit lies, if that is known: at the start of a chunk its registers say.
fn expected(course: &Course<'_>) -> Option<LiveAddr> {
    let rip = course.chunk.registers.rip;
    match course.end.next {
        Next::At(address) => Some(address),
        Next::Anywhere if course.end.units == 0 && rip != 0 => Some(LiveAddr(rip)),
        _ => None,
    }
}

/// Whether the stream goes on with a unit at `address`. One of that address that is not announced
/// may exist as well.
fn announces(course: &Course<'_>, address: LiveAddr) -> bool {
    match course.stream.peek::<9>() {
        Some(&[bits::TARGET, ref word @ ..]) => {
            let word: [u8; 8] = *word;
            split_word(u64::from_le_bytes(word)).0 == split_word(address.0).0
        }
        _ => false,
    }
}

/// Whether the event is an interruption in front of the first instruction of a unit that the walk has not come to: it was
/// entered, and has claimed its room.
fn was_in_front(course: &Course<'_>, placed: &Placed) -> bool {
    let interrupted = matches!(placed.event, Some(Event::Interrupted(_)));
    let in_front = placed.position.is_inside() && done_before(placed.position.insn, 1) == 0;
    let is_it = course.inside && !course.inside_is_told;
    interrupted && in_front && !is_it
}

/// What the stream has next, which is 0 behind its end.
fn upcoming(course: &Course<'_>) -> u8 {
    course.stream.peek::<1>().map_or(bits::END, |&[byte]| byte)
}

impl Bits {
    fn started_with(&mut self, unit: &CompiledUnit) {
        self.started = true;
        self.behind = match unit.origin {
            Origin::Static => Predecessor::Static,
            Origin::Jit(_) => Predecessor::Jit,
        };
    }

    fn announced(
        &mut self,
        course: &mut Course<'_>,
        units: &mut CompiledUnits<'_>,
        expected: Option<LiveAddr>,
    ) -> Result<Found, Trouble> {
        match upcoming(course) {
            bits::END => end(course),
            bits::TARGET => {
                course.stream.skip(1);
                self.silent = 0;
                let word = u64::from_le_bytes(course.stream.take()?);
                let number = units.by_word(word)?;
                self.started_with(units.get(number));
                Ok(Found::Unit(number))
            }
            _ => match expected {
                Some(address) => Err(Trouble::Undescribed(format!("no unit at {address}"))),
                None => Err("the next unit does not follow from the code".into()),
            },
        }
    }

    fn thread_ends(&self, course: &Course<'_>) -> bool {
        course.events.first().is_some_and(|placed| {
            matches!(placed.event, Some(Event::ThreadEnd { .. } | Event::ProcessEnd { .. }))
                && !self.is_early(course, placed)
        })
    }
}

impl Decoder for Bits {
    fn begin(&mut self, chunk: &Chunk, units: &Units) {
        let behind = match chunk.frame.header.window {
            0 => Predecessor::None,
            window => units.kind_of_window(window),
        };
        *self = Bits { behind, ..Bits::default() };
    }

    /// The outcome of the last branch, then what is announced or follows from the code.
    fn next(
        &mut self,
        course: &mut Course<'_>,
        units: &mut CompiledUnits<'_>,
    ) -> Result<Found, Trouble> {
        if let Next::Either(taken, not_taken) = course.end.next {
            let address = match upcoming(course) {
                bits::END => return end(course),
                bits::TAKEN => taken,
                bits::NOT_TAKEN => not_taken,
                other => return Err(format!("{other} is no outcome of a branch").into()),
            };
            course.stream.skip(1);
            self.silent = 0;
            course.end.next = Next::At(address);
            if course.event_is_due() {
                course.boundary_events(self, &mut Nobody);
            }
        }
        if course.over {
            return end(course);
        }
        let expected = expected(course);
        // What is announced comes behind what was entered in front of that.
        let first = course.events.first().filter(|_| course.event_is_due());
        let is_entered = first.is_some_and(|placed| was_in_front(course, placed));
        let silent = expected.filter(|&address| is_entered || !announces(course, address));
        let silent = match silent {
            Some(address) => units.described().narrow_at(address, self.behind)?,
            None => None,
        };
        let Some(id) = silent else { return self.announced(course, units, expected) };
        let number = units.by_id(id)?;
        let unit = units.get(number);
        self.started_with(unit);
        if upcoming(course) == bits::END {
            // The stream has ended; did the thread come this far?
            let room = course.cursor.memory.len() - course.cursor.memory_at;
            // What is left of the memory stream belongs to units that add nothing else, which may
            // come through the place where the next chunk starts before it does.
            let took_all = room == 0 || !course.chunk.frame.is_sealed();
            let starts = |chunk: &Chunk| Some(LiveAddr(chunk.registers.rip)) == expected;
            let continued = took_all && course.following.is_some_and(starts);
            let too_much = unit.memory_bytes as usize > room;
            // An event says that it came further.
            let further = matches!(
                course.events.first(),
                Some(Placed { event: Some(Event::Interrupted(_)), .. })
            );
            if !further && (continued || too_much || self.thread_ends(course)) {
                return end(course);
            }
        }
        self.silent += 1;
        match self.silent {
            ..=MAX_SILENT => Ok(Found::Unit(number)),
            _ => Err("an endless loop that records nothing".into()),
        }
    }

    /// A unit that ends with a conditional branch claims a byte for its outcome when it starts.
    fn claimed(&self, unit: &CompiledUnit) -> usize {
        usize::from(self.started && matches!(unit.exit, Exit::Branch { .. }))
    }

    /// Units that add nothing may still come before a signal, up to the interrupted pc, before what
    /// a system call does, up to the one that ends with it, and before what happens inside of a
    /// unit, up to that unit.
    fn is_early(&self, course: &Course<'_>, placed: &Placed) -> bool {
        let next = match expected(course) {
            // No unit is in the kernel's half, where the vsyscall page is.
            Some(next) if self.silent < MAX_SILENT && next.0 >> 63 == 0 => next,
            _ => return false,
        };
        if let Some(Event::Interrupted(state)) = &placed.event {
            return next != LiveAddr(state.rip) || was_in_front(course, placed);
        }
        if let Some(pc) = placed.refused_at() {
            // The unit with that instruction was entered, if it begins with it, too.
            return !course.inside || next != pc;
        }
        if placed.position.is_inside() {
            return !course.inside;
        }
        match &placed.event {
            Some(Event::Signal { pc, .. }) => next != *pc,
            // What is left of the memory stream was recorded before.
            Some(Event::Loss { .. }) => {
                let cursor = &course.cursor;
                course.chunk.frame.is_sealed() && cursor.memory_at < cursor.memory.len()
            }
            Some(
                Event::Syscall { .. }
                | Event::FsBase(_)
                | Event::GsBase(_)
                | Event::Resume(_)
                | Event::Exec(_)
                | Event::NotFollowed(_),
            ) => !course.after_system_call,
            // Of the calls that come before that event, all but the last one have returned.
            _ => placed.is_exit() && !course.in_system_call,
        }
    }

    /// Units that add nothing may still come before the one that a signal interrupted.
    fn is_later(&self, placed: &Placed, unit: &CompiledUnit) -> bool {
        let pc = match &placed.event {
            Some(Event::Signal { pc, .. }) => *pc,
            Some(Event::Interrupted(state)) => LiveAddr(state.rip),
            _ => return false,
        };
        if !self.started || !placed.position.is_inside() {
            return false;
        }
        let start = unit.starts.get(done_before(placed.position.insn, unit.starts.len() - 1));
        let at = start.map(|start| unit.address.plus(u64::from(start.offset)));
        at != Some(pc) && self.silent < MAX_SILENT
    }
}
