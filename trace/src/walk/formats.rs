//! The three formats of the control-flow stream: which unit comes next.

use abi::trace::{bits, tags};
use abi::unit::FIRST_TAG;

use super::{split, Found, Next, Trouble, Walk, Walker, MAX_SILENT};
use crate::events::Event;
use crate::units::{Origin, Predecessor};

impl Walk<'_> {
    fn word<const N: usize>(&mut self) -> Result<[u8; N], Trouble> {
        let bytes = self
            .control_flow
            .get(self.at..self.at + N)
            .and_then(|b| b.try_into().ok())
            .ok_or("the control-flow stream ends inside a record")?;
        self.at += N;
        Ok(bytes)
    }

    /// A zero where a record should be: the end, which in a sealed chunk may only be padding.
    fn zero(&self) -> Result<Found, Trouble> {
        let rest = &self.control_flow[self.at..];
        if self.chunk.frame.is_sealed() && (rest.len() >= 8 || rest.iter().any(|&b| b != 0)) {
            return Err("an end mark inside a sealed chunk".into());
        }
        Ok(Found::End)
    }

    #[inline]
    pub(super) fn next_tag(&mut self, walker: &mut Walker<'_>) -> Result<Found, Trouble> {
        loop {
            let Some(&[low, high]) =
                self.control_flow.get(self.at..self.at + 2).and_then(|b| b.first_chunk())
            else {
                return if self.at == self.control_flow.len() {
                    Ok(Found::End)
                } else {
                    self.zero()
                };
            };
            let tag = u16::from_le_bytes([low, high]);
            match tag {
                tags::END => return self.zero(),
                tags::WIDE => {
                    let start = self.at;
                    self.at += 2;
                    let id = u32::from_le_bytes(self.word()?);
                    self.window = Some(id >> 16);
                    return walker
                        .by_tag(id >> 16, id as u16)
                        .map(Found::Unit)
                        .inspect_err(|_| self.at = start);
                }
                tags::WINDOW => {
                    self.at += 2;
                    self.window = Some(u32::from_le_bytes(self.word()?));
                }
                tag if u32::from(tag) < FIRST_TAG => {
                    return Err(format!("unknown control word {tag}").into());
                }
                tag => {
                    let window = self.window.ok_or("a narrow tag, and no window is current")?;
                    let number = walker.by_tag(window, tag)?;
                    self.at += 2;
                    return Ok(Found::Unit(number));
                }
            }
        }
    }

    pub(super) fn next_pc(&mut self, walker: &mut Walker<'_>) -> Result<Found, Trouble> {
        if self.control_flow.len() - self.at < 8 {
            return self.zero();
        }
        let word = u64::from_le_bytes(self.word()?);
        if word == 0 {
            self.at -= 8;
            return self.zero();
        }
        walker.by_word(word).map(Found::Unit).inspect_err(|_| self.at -= 8)
    }

    /// The next unit of a `bits` stream: the outcome of the last branch, then what is announced or
    /// follows from the code.
    pub(super) fn next_bits(&mut self, walker: &mut Walker<'_>) -> Result<Found, Trouble> {
        if let Next::Either(taken, not_taken) = self.end.next {
            let address = match self.control_flow.get(self.at).copied() {
                None | Some(bits::END) => return self.zero(),
                Some(bits::TAKEN) => taken,
                Some(bits::NOT_TAKEN) => not_taken,
                Some(other) => return Err(format!("{other} is no outcome of a branch").into()),
            };
            self.at += 1;
            self.silent = 0;
            self.end.next = Next::At(address);
            if self.event_is_due() {
                self.boundary_events(&mut super::Nobody);
            }
        }
        let expected = self.expected();
        let silent = expected
            .filter(|&address| !self.announces(address))
            .and_then(|address| walker.trace.units.narrow_at(address, self.behind));
        let Some(id) = silent else { return self.announced(walker, expected) };
        let number = walker.by_id(id)?;
        self.started_with(walker, number);
        if matches!(self.control_flow.get(self.at), None | Some(&bits::END)) {
            // The stream has ended; did the thread come this far?
            let room = self.cursor.memory.len() - self.cursor.memory_at;
            // What is left of the memory stream belongs to units that add nothing else, which may
            // come through the place where the next chunk starts before it does.
            let took_all = room == 0 || !self.chunk.frame.is_sealed();
            let continued =
                took_all && self.following.is_some_and(|c| Some(c.registers.rip) == expected);
            let too_much = walker.programs[number as usize].memory_bytes as usize > room;
            if continued || too_much || self.thread_ends() {
                return self.zero();
            }
        }
        self.silent += 1;
        match self.silent {
            ..=MAX_SILENT => Ok(Found::Unit(number)),
            _ => Err("an endless loop that records nothing".into()),
        }
    }

    /// Whether the stream goes on with a unit at `address`. One of that address that is not
    /// announced may exist as well.
    fn announces(&self, address: u64) -> bool {
        let record = self.control_flow.get(self.at..self.at + 9).and_then(|b| b.split_first());
        let Some((&bits::TARGET, word)) = record else { return false };
        word.try_into().is_ok_and(|w| split(u64::from_le_bytes(w)).0 == split(address).0)
    }

    fn started_with(&mut self, walker: &Walker<'_>, number: u32) {
        self.started = true;
        self.behind = match walker.programs[number as usize].origin {
            Origin::Static => Predecessor::Static,
            Origin::Jit(_) => Predecessor::Jit,
        };
    }

    fn announced(
        &mut self,
        walker: &mut Walker<'_>,
        expected: Option<u64>,
    ) -> Result<Found, Trouble> {
        match self.control_flow.get(self.at) {
            None | Some(&bits::END) => self.zero(),
            Some(&bits::TARGET) => {
                self.at += 1;
                self.silent = 0;
                let word = u64::from_le_bytes(self.word()?);
                let number = walker.by_word(word)?;
                self.started_with(walker, number);
                Ok(Found::Unit(number))
            }
            Some(_) => match expected {
                Some(address) => Err(Trouble::Undescribed(format!("no unit at {address:#x}"))),
                None => Err("the next unit does not follow from the code".into()),
            },
        }
    }

    fn thread_ends(&self) -> bool {
        self.events.first().is_some_and(|e| {
            matches!(e.event, Some(Event::ThreadEnd { .. } | Event::ProcessEnd { .. }))
                && !self.bits_event_is_early(e)
        })
    }
}
