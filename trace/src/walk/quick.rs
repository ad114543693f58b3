//! Whole units one after another, while nothing happens but that they are executed: most of a chunk.
//!
//! What this does not do, [`Course::unit`] does, for one unit; and whatever is wrong is found there, with
//! its place.

use super::compiled::{CompiledUnits, Leads, QuickSilent};
use super::course::{Course, Decoder};
use super::passage::Passed;
use super::passages::Passages;
use super::sink::Sink;
use crate::plain::{Slots, FS, GS};
use crate::streams::Buffer;
use abi::unit::MAX_SILENT;
use lifter::regs::GprSet;

/// What one walk after another uses.
pub(super) struct Desk {
    slots: Box<Slots>,
    addresses: Vec<u64>,
    /// Of walks without references, and with them.
    passages: [Passages; 2],
    /// Both streams.
    pub buffer: Buffer,
}

impl Default for Desk {
    fn default() -> Desk {
        Desk {
            slots: Box::new([0; 256]),
            addresses: Vec::new(),
            passages: Default::default(),
            buffer: Buffer::default(),
        }
    }
}

impl Course<'_> {
    /// Executes units as far as it can; true: the sink asked to stop.
    pub(super) fn quickly<S: Sink, D: Decoder>(
        &mut self,
        decoder: &mut D,
        units: &CompiledUnits<'_>,
        desk: &mut Desk,
        sink: &mut S,
    ) -> bool {
        let is_open = !self.chunk.frame.is_sealed() && self.following.is_none();
        let is_first = self.end.units == 0 || self.is_uncertain();
        if is_open || is_first || self.silent.is_some() || !self.is_plain() {
            return false;
        }
        let until = self.events.first().map_or(u64::MAX, |e| e.position.control_flow.0);
        let Desk { slots, addresses, passages, .. } = desk;
        let slots = &mut **slots;
        let passages = &mut passages[usize::from(S::REFERENCES)];
        slots[..16].copy_from_slice(&self.cursor.known.values);
        slots[usize::from(FS)] = self.cursor.fs_base;
        slots[usize::from(GS)] = self.cursor.gs_base;
        let mut known = self.cursor.known.known;
        let memory = self.cursor.memory;
        let mut memory_at = self.cursor.memory_at;
        let mut leads = Leads::new(self.end.next, self.is_fresh());
        let mut last = None;
        let (mut done, mut instructions) = (self.end.units, self.end.instructions);
        let mut stopped = false;
        // What may follow without a tag, and how many such units there were in a row.
        let (mut silent, mut silently): (Option<&QuickSilent>, u32) = (None, 0);
        // The passage that was executed last, and nothing since.
        let mut before = u32::MAX;
        // Nothing follows without a tag.
        let mut settled = true;
        loop {
            if let Some(context) = decoder.context().filter(|_| settled) {
                let rest = self.stream.rest();
                let mut found = passages.guess(before, rest, context);
                if found.is_none() {
                    found = passages.search(before, rest, context, decoder, units, S::REFERENCES);
                }
                before = found.unwrap_or(u32::MAX);
                let fits = passages.get(before).and_then(|passage| {
                    let behind = memory_at + passage.memory_bytes;
                    let words = memory.get(memory_at..behind)?;
                    let needs = passage.plain.as_ref().map_or(GprSet::EMPTY, |plain| plain.needs);
                    let fits = self.stream.at().0 + (passage.bytes as u64) < until
                        && leads.allows(passage.address)
                        && needs.minus(known).is_empty();
                    fits.then_some((passage, words))
                });
                if let Some((passage, words)) = fits {
                    if let Some(plain) = &passage.plain {
                        plain.execute(words, slots, &mut known, addresses, S::ADDRESSES);
                    }
                    let (number, begins) = (before, !leads.falls_to(passage.address));
                    let forgotten = passages.forgotten;
                    let room = &addresses[..];
                    sink.passage(&Passed { number, forgotten, begins, room, passage, units });
                    self.stream.skip(passage.bytes);
                    decoder.resume(passage.behind);
                    memory_at += words.len();
                    let so_far = done;
                    done += passage.len();
                    instructions += passage.count;
                    leads = passage.leads;
                    let number = passage.last();
                    (silent, silently, settled) = (None, 0, passage.settled);
                    if !settled {
                        silent = units.quick(number).silent.as_ref();
                    }
                    last = Some(units.get(number));
                    if so_far >> 12 != done >> 12 && !sink.go_on() {
                        self.end.stopped = true;
                        stopped = true;
                        break;
                    }
                    continue;
                }
                before = u32::MAX;
            }
            let Some((named, bytes)) = decoder.plain(&self.stream) else { break };
            let (mut number, mut bytes) = (named, bytes);
            match silent.filter(|silent| silent.follows(units.quick(named).address)) {
                Some(silent) if self.stream.at().0 < until && silently < MAX_SILENT => {
                    let Some(unit) = silent.number(units) else { break };
                    (number, bytes) = (unit, 0);
                    silently += 1;
                }
                Some(_) => break,
                None if !settled => {
                    // The stream says so.
                    (settled, silently, silent) = (true, 0, None);
                    continue;
                }
                None => silently = 0,
            }
            let quick = units.quick(number);
            if self.stream.at().0 + bytes as u64 >= until || !leads.allows(quick.address) {
                break;
            }
            let behind = memory_at + quick.memory_bytes as usize;
            let Some(words) = memory.get(memory_at..behind) else { break };
            let unit = units.get(number);
            match &quick.plain {
                Some(plain) if S::REFERENCES => {
                    if !plain.needs.minus(known).is_empty() {
                        break;
                    }
                    plain.execute(words, slots, &mut known, addresses, S::ADDRESSES);
                    sink.unit(unit, false);
                    if !leads.falls_to(quick.address) {
                        sink.block(quick.address, false);
                    }
                    let these = addresses.get(..plain.references.len()).unwrap_or_default();
                    sink.plain(number.0, unit, &plain.references, these);
                }
                None if S::REFERENCES => break,
                _ => {
                    sink.unit(unit, false);
                    if !leads.falls_to(quick.address) {
                        sink.block(quick.address, false);
                    }
                    for &at in &unit.inner_blocks {
                        sink.block(quick.address.plus(u64::from(at)), false);
                    }
                }
            }
            sink.executed(unit, quick.count as usize);
            self.stream.skip(bytes);
            memory_at = behind;
            done += 1;
            instructions += u64::from(quick.count);
            leads = quick.leads;
            silent = quick.silent.as_ref();
            settled = silent.is_none();
            last = Some(unit);
            if done & 0xfff == 0 && !sink.go_on() {
                self.end.stopped = true;
                stopped = true;
                break;
            }
        }
        if let Some(unit) = last {
            self.leave(unit, unit.starts.len() - 1, true);
            self.cursor.memory_at = memory_at;
            (self.end.units, self.end.instructions) = (done, instructions);
            self.cursor.known.values.copy_from_slice(&slots[..16]);
            self.cursor.known.known = known;
        }
        stopped
    }
}

#[cfg(test)]
mod tests;
