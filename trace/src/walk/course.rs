//! The way through one chunk: unit by unit, with the events in between.

use std::ops::ControlFlow::{self, Break, Continue};

use abi::event::{instructions_in, LAST_NOT_DONE, WHOLE_UNIT};
use abi::ids::StreamOff;
use lifter::regs::GprSet;

use super::chunk_end::{ChunkEnd, Falls, Next};
use super::compiled::{CompiledUnits, Trouble, UnitNumber};
use super::cursor::Cursor;
use super::quick::Desk;
use super::sink::{Entered, Overwritten, Sink};
use super::stream::Stream;
use crate::compile::{CompiledUnit, Exit, Silent, Start};
use crate::events::{Event, Placed};
use crate::open::Chunk;
use crate::units::Units;

/// Result of looking for the next unit.
pub(super) enum Found {
    Unit(UnitNumber),
    /// Code that is not selected, with bits of [`abi::trace::outside`].
    Outside(u8),
    End,
}

/// Reads one format of the control-flow stream. What a decoder knows of a chunk, or keeps between
/// chunks to be fast, is its own.
///
/// The methods with a body are for formats in which units may add nothing to the stream, or only
/// when they end, so that a place in the stream does not say alone what happened there.
pub(super) trait Decoder {
    /// A chunk starts.
    fn begin(&mut self, chunk: &Chunk, units: &Units);

    /// The unit that is executed next. If that fails, the stream is at the record that is wrong.
    fn next(
        &mut self,
        course: &mut Course<'_>,
        units: &mut CompiledUnits<'_>,
    ) -> Result<Found, Trouble>;

    /// The unit that is executed next, and the bytes of the stream that say so, if that is all that is to
    /// be said of it: it was met before, claims nothing and nothing is told early or late. Nothing is
    /// passed over; `next` says the same.
    fn plain(&mut self, _stream: &Stream<'_>) -> Option<(UnitNumber, usize)> {
        None
    }

    /// All that [`plain`](Decoder::plain) needs to know besides the stream, if passages can be kept of the format.
    fn context(&self) -> Option<u32> {
        None
    }

    /// Units were passed over, or not, and the next one is behind or in front of them.
    fn resume(&mut self, _context: u32) {}

    /// Bytes of the stream that the unit claims when it starts, but that are read only when it has
    /// come to its end.
    fn claimed(&self, _unit: &CompiledUnit) -> usize {
        0
    }

    /// Whether further units come before `event`, although it has the place where the stream is.
    fn is_early(&self, _course: &Course<'_>, _event: &Placed) -> bool {
        false
    }

    /// Whether `event`, which has the place where the stream is and is inside of a unit, is inside
    /// of a unit that comes after this one.
    fn is_later(&self, _event: &Placed, _unit: &CompiledUnit) -> bool {
        false
    }
}

/// Where a walk through a chunk is.
pub(super) struct Course<'a> {
    pub chunk: &'a Chunk,
    pub following: Option<&'a Chunk>,
    pub stream: Stream<'a>,
    /// Those that are still to come.
    pub events: &'a [Placed],
    pub cursor: Cursor<'a>,
    pub end: ChunkEnd,
    /// A block starts with the next unit.
    fresh: bool,
    /// Nothing is known about what came before.
    uncertain: bool,
    /// The last unit ended with a system call.
    pub after_system_call: bool,
    /// It did, and nothing says yet that the call has returned.
    pub in_system_call: bool,
    /// The last unit was left before its end, or it is what an event says to be inside of.
    pub inside: bool,
    /// An event has said so, and no unit was entered since.
    pub inside_is_told: bool,
    /// The next unit continues a block of code that is not selected.
    falls: bool,
    /// Code that is not selected comes in front of what is next.
    outside: bool,
    /// Only a part of the code is recorded.
    selective: bool,
    /// The process was stopped in front of an instruction, or the thread ended itself, and that was reached.
    pub over: bool,
    /// What may follow the last unit without a tag.
    pub silent: Option<Silent>,
}

impl<'a> Course<'a> {
    pub fn new(
        chunk: &'a Chunk,
        following: Option<&'a Chunk>,
        stream: Stream<'a>,
        events: &'a [Placed],
        cursor: Cursor<'a>,
        selective: bool,
    ) -> Course<'a> {
        Course {
            chunk,
            following,
            stream,
            events,
            cursor,
            end: ChunkEnd::at_start(chunk.registers),
            fresh: true,
            uncertain: true,
            after_system_call: false,
            in_system_call: false,
            inside: false,
            inside_is_told: false,
            falls: false,
            outside: false,
            selective,
            over: false,
            silent: None,
        }
    }

    /// To the end of the chunk.
    pub fn run<S: Sink, D: Decoder>(
        &mut self,
        decoder: &mut D,
        units: &mut CompiledUnits<'_>,
        desk: &mut Desk,
        is_lossy: bool,
        sink: &mut S,
    ) -> Result<(), String> {
        loop {
            if self.event_is_due() {
                self.boundary_events(decoder, sink);
            }
            if self.quickly(decoder, units, desk, sink) {
                break;
            }
            let before = self.stream.mark();
            let number = match decoder.next(self, units) {
                Ok(Found::Unit(number)) => number,
                Ok(Found::Outside(mark)) => {
                    self.outside(mark, sink)?;
                    continue;
                }
                Ok(Found::End) => break,
                Err(Trouble::Undescribed(_)) if is_lossy => {
                    self.end.lost = true;
                    return Ok(());
                }
                Err(Trouble::Undescribed(what) | Trouble::Wrong(what)) => return Err(what),
            };
            let unit = units.get(number);
            if !self.end.next.allows(unit.address) {
                self.stream.back(before);
                return Err(format!(
                    "unit {} at {} cannot follow: expected {}",
                    unit.id, unit.address, self.end.next
                ));
            }
            if self.unit(decoder, unit, sink)?.is_break() {
                break;
            }
        }
        if !self.end.partial && !self.end.stopped && self.event_is_due() {
            self.boundary_events(decoder, sink);
        }
        if let Some(entered) = self.cursor.entered.take() {
            let to = self.following.map_or(0, |chunk| chunk.registers.rip);
            sink.enter(Entered { to: abi::ids::LiveAddr(to), ..entered });
        }
        Ok(())
    }

    pub fn finish(self) -> ChunkEnd {
        let falls = match self.end.next {
            _ if self.falls => Falls::Anywhere,
            Next::At(address) if !self.fresh => Falls::To(address),
            _ => Falls::Nowhere,
        };
        ChunkEnd {
            falls,
            ends_outside: self.outside,
            known: self.cursor.known,
            control_flow: self.stream.at(),
            memory: StreamOff(self.cursor.memory_at as u64),
            ..self.end
        }
    }

    #[inline]
    pub fn event_is_due(&self) -> bool {
        self.events.first().is_some_and(|e| e.position.control_flow <= self.stream.at())
    }

    /// Applies the events at the current position.
    pub fn boundary_events<S: Sink, D: Decoder>(&mut self, decoder: &D, sink: &mut S) {
        while let Some((placed, rest)) = self.events.split_first() {
            if placed.position.control_flow > self.stream.at() || decoder.is_early(self, placed) {
                break;
            }
            self.events = rest;
            self.silent = None;
            placed.event.iter().for_each(|event| sink.event(event));
            // (What ends inside of a unit that adds nothing goes no further.)
            let is_end = self.inside
                && placed.position.is_inside()
                && matches!(placed.event, Some(Event::ThreadEnd { .. } | Event::ProcessEnd { .. }));
            self.over |= placed.refused_at().is_some() || placed.is_exit() || is_end;
            let returns = |event: &Event| {
                matches!(event, Event::Syscall { .. }) || event.goes_on_with().is_some()
            };
            self.in_system_call &= !placed.event.as_ref().is_some_and(returns);
            match &placed.event {
                Some(Event::FsBase(base)) => self.cursor.fs_base = *base,
                Some(Event::GsBase(base)) => self.cursor.gs_base = *base,
                Some(Event::Interrupted(state)) => {
                    self.inside_is_told = placed.position.is_inside();
                    self.cursor.set(state);
                }
                Some(Event::Undo { pc, address, old }) => {
                    sink.store(Overwritten { pc: *pc, address: *address, old });
                }
                Some(Event::Lost { pc, start, len, why }) => sink.lost(*pc, *start, *len, why),
                Some(Event::Order(number)) => sink.order(*number, false),
                Some(Event::Loss { reason, .. }) => {
                    sink.stopped(*reason);
                    self.end.next = Next::Anywhere;
                    self.cursor.known.known = GprSet::EMPTY;
                    (self.fresh, self.falls) = (true, false);
                }
                Some(other) => {
                    if let Some(state) = other.goes_on_with() {
                        self.cursor.set(state);
                        self.end.next = match state.rip {
                            0 => Next::Anywhere,
                            rip => Next::At(abi::ids::LiveAddr(rip)),
                        };
                        let starts_block = !matches!(other, Event::Registers(_));
                        if starts_block {
                            (self.fresh, self.uncertain) = (true, false);
                        }
                        self.falls &= !starts_block;
                    }
                }
                None => {}
            }
        }
    }

    /// Passes over code that is not selected.
    fn outside<S: Sink>(&mut self, mark: u8, sink: &mut S) -> Result<(), String> {
        use abi::trace::outside::{FALLS, FS_BASE, GS_BASE, LOW_HALF};
        if !self.selective {
            return Err(format!("unknown control word {mark}"));
        }
        if mark & (FS_BASE | GS_BASE) != 0 {
            let Some(value) = self.cursor.word() else {
                return Err("the memory stream ends at a mark of code that is not selected".into());
            };
            match (mark & FS_BASE != 0, mark & LOW_HALF != 0) {
                (false, _) => self.cursor.gs_base = value,
                (true, true) => self.cursor.fs_base = value & 0xffff_ffff,
                (true, false) => self.cursor.fs_base = value,
            }
        }
        if !self.outside {
            self.outside = true;
            self.end.stays += 1;
            sink.outside();
        }
        self.end.starts_outside |= self.end.units == 0;
        self.end.next = Next::Anywhere;
        self.cursor.known.known = GprSet::EMPTY;
        self.falls = mark & FALLS != 0;
        (self.fresh, self.uncertain) = (!self.falls, false);
        self.silent = None;
        (self.after_system_call, self.in_system_call, self.inside) = (false, false, false);
        Ok(())
    }

    /// The first event, which comes before the first instruction of a unit, is a fault of that
    /// instruction: it was being executed. Any other signal came before it.
    fn is_fault(&self) -> bool {
        let Some(position) = self.events.first().map(|placed| placed.position) else {
            return false;
        };
        let here = self.events.iter().take_while(|placed| placed.position == position);
        here.filter_map(|placed| placed.event.as_ref()).any(Event::is_fault)
    }

    /// The event that may say how far the unit came. In front of a system call stands what the log notes of it and
    /// who has run meanwhile, and the call may not have been made all the same.
    fn tells(&self, unit: &CompiledUnit) -> Option<&'a Placed> {
        let first = self.events.first()?;
        if !is_of_call(first) || !matches!(unit.exit, Exit::System(_)) {
            return Some(first);
        }
        let last = unit.starts.len() - 2;
        let call = unit.address.plus(u64::from(unit.starts[last].offset));
        let keeps = |placed: &Placed| {
            placed.position.insn == LAST_NOT_DONE
                && placed.position.control_flow == first.position.control_flow
                && match &placed.event {
                    Some(Event::Signal { pc, .. }) => *pc == call,
                    Some(Event::Interrupted(state)) => state.rip == call.0,
                    _ => false,
                }
        };
        let behind = self.events.iter().find(|placed| !is_of_call(placed));
        behind.filter(|placed| keeps(placed)).or(Some(first))
    }

    /// Executes one unit.
    #[inline]
    fn unit<S: Sink, D: Decoder>(
        &mut self,
        decoder: &D,
        unit: &CompiledUnit,
        sink: &mut S,
    ) -> Result<ControlFlow<()>, String> {
        let continues = match self.end.next {
            _ if self.falls => true,
            Next::At(address) => !self.fresh && address == unit.address,
            _ => false,
        };
        (self.falls, self.outside) = (false, false);
        let last = unit.starts.len() - 1;
        let mut stop = last;
        let mut named = false;
        let (mut begins, mut at_end) = (true, false);
        let claimed = decoder.claimed(unit);
        if let Some(placed) = self.tells(unit) {
            let refused = placed.refused_at();
            let inside = placed.position.is_inside();
            let claims = inside || refused.is_some();
            let behind = self.stream.at().0 + if claims { claimed as u64 } else { 0 };
            named = placed.position.control_flow.0 <= behind;
            if let Some(pc) = refused.filter(|_| named) {
                let is_it = |start: &Start| unit.address.plus(u64::from(start.offset)) == pc;
                stop = unit.starts[..last].iter().position(is_it).unwrap_or(last);
            } else if named && inside && !decoder.is_later(placed, unit) {
                stop = done_before(placed.position.insn, last);
                begins = stop > 0 || self.is_fault();
                at_end = is_behind(placed.position.insn, last);
            }
        }
        // The last unit of a recording that just ended: nobody knows how far it came.
        let partial = !named
            && self.following.is_none()
            && !self.chunk.frame.is_sealed()
            && self.stream.is_blank();
        if let Some(entered) = self.cursor.entered.take() {
            sink.enter(Entered { to: unit.address, ..entered });
        }
        sink.unit(unit, partial);
        if begins && !continues {
            sink.block(unit.address, self.uncertain);
            self.end.uncertain |= self.uncertain;
        }
        if self.end.units == 0 {
            self.end.first_unit = Some(unit.address);
        }
        self.uncertain &= !begins;
        self.end.units += 1;
        self.end.partial = partial;
        // The unit claimed room for all of its records when it started, however far it came.
        let recorded = unit.memory_bytes as usize;
        let room = self.cursor.memory.len() - self.cursor.memory_at;
        let behind = self.cursor.memory_at + recorded.min(room);
        if partial {
            self.cursor.memory_at = behind;
            return Ok(Break(()));
        }
        self.end.instructions += stop as u64;
        let steps = &unit.steps[..unit.starts[stop].step as usize];
        if recorded > room {
            return Err(format!(
                "the memory stream ends inside unit {} at {}",
                unit.id, unit.address
            ));
        }
        if !S::REFERENCES {
            let inner = unit.inner_blocks.iter().filter(|&&b| b < unit.starts[stop].offset);
            inner.for_each(|&b| sink.block(unit.address.plus(u64::from(b)), false));
        } else if self.cursor.run(unit, steps, sink)?.is_break() {
            self.end.stopped = true;
            return Ok(Break(()));
        } else if let Some(Event::Interrupted(state)) =
            self.events.first().and_then(|e| e.event.as_ref()).filter(|_| stop < last)
        {
            if self.cursor.run_interrupted(unit, stop, state, sink)?.is_break() {
                self.end.stopped = true;
                return Ok(Break(()));
            }
        }
        self.cursor.memory_at = behind;
        if stop < last {
            self.stream.skip(claimed);
        }
        sink.executed(unit, stop);
        self.leave(unit, stop, stop == last);
        // What happened behind the last instruction has this unit's place, too.
        self.inside |= at_end;
        // If the thread goes on here, the block begins then.
        self.fresh |= !begins && !continues;
        if self.end.units & 0xfff == 0 && !sink.go_on() {
            self.end.stopped = true;
            return Ok(Break(()));
        }
        Ok(Continue(()))
    }

    /// What comes next is neither the rest of code that is not selected, nor the first behind it, nor
    /// the target of a call whose registers were recorded.
    #[inline]
    pub fn is_plain(&self) -> bool {
        !self.falls && !self.outside && self.cursor.entered.is_none()
    }

    /// What was executed so far may belong to a block that began in the chunk before.
    #[inline]
    pub fn is_uncertain(&self) -> bool {
        self.uncertain
    }

    /// A block starts with the next unit.
    #[inline]
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    #[inline]
    pub fn leave(&mut self, unit: &CompiledUnit, stop: usize, whole: bool) {
        (self.inside, self.inside_is_told) = (!whole, false);
        self.silent = unit.silent.filter(|_| whole);
        self.after_system_call = whole && matches!(unit.exit, Exit::System(_));
        self.in_system_call = self.after_system_call;
        self.fresh = whole && unit.transfers;
        self.end.next = if !whole {
            Next::At(unit.address.plus(u64::from(unit.starts[stop].offset)))
        } else {
            Next::behind(unit.exit)
        };
    }
}

/// Whether the event may come between a system call that is about to be made and the call itself.
fn is_of_call(placed: &Placed) -> bool {
    let event = placed.event.as_ref();
    placed.position.insn == WHOLE_UNIT
        && event.is_some_and(|event| {
            matches!(
                event,
                Event::Runs(_) | Event::Order(_) | Event::Undo { .. } | Event::Lost { .. }
            )
        })
}

/// Whether an event at `insn` happened behind the last instruction of a unit of `count`.
fn is_behind(insn: u32, count: usize) -> bool {
    insn != LAST_NOT_DONE && instructions_in(insn) as usize == count
}

/// Instructions of a unit of `count` that were done when an event at `insn` happened.
pub(super) fn done_before(insn: u32, count: usize) -> usize {
    match insn {
        LAST_NOT_DONE => count.saturating_sub(1),
        insn => count.min(instructions_in(insn) as usize),
    }
}
