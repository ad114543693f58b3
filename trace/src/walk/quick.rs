//! Whole units one after another, while nothing happens but that they are executed: most of a chunk.
//!
//! What this does not do, [`Course::unit`] does, for one unit; and whatever is wrong is found there, with
//! its place.

use super::compiled::{CompiledUnits, Leads, QuickSilent};
use super::course::{Course, Decoder};
use super::sink::Sink;
use crate::plain::{Slots, FS, GS};
use abi::unit::MAX_SILENT;

/// What one walk after another uses.
pub(super) struct Desk {
    slots: Box<Slots>,
    addresses: Vec<u64>,
    /// Both streams.
    pub bytes: Vec<u8>,
}

impl Default for Desk {
    fn default() -> Desk {
        Desk { slots: Box::new([0; 256]), addresses: Vec::new(), bytes: Vec::new() }
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
        let slots = &mut *desk.slots;
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
        while let Some((named, bytes)) = decoder.plain(&self.stream) {
            let (mut number, mut bytes) = (named, bytes);
            match silent.filter(|silent| silent.follows(units.quick(named).address)) {
                Some(silent) if self.stream.at().0 < until && silently < MAX_SILENT => {
                    let Some(unit) = silent.number(units) else { break };
                    (number, bytes) = (unit, 0);
                    silently += 1;
                }
                Some(_) => break,
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
                    plain.execute(words, slots, &mut known, &mut desk.addresses);
                    sink.unit(unit, false);
                    if !leads.falls_to(quick.address) {
                        sink.block(quick.address, false);
                    }
                    sink.plain(number.0, unit, &plain.references, &desk.addresses);
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
