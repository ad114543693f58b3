//! Whole units one after another, while nothing happens but that they are executed: most of a chunk.
//!
//! What this does not do, [`Course::unit`] does, for one unit; and whatever is wrong is found there, with
//! its place.

use super::chunk_end::Next;
use super::compiled::CompiledUnits;
use super::course::{Course, Decoder};
use super::sink::Sink;
use crate::plain::{Slots, FS, GS};

/// What one walk after another uses.
pub(super) struct Desk {
    slots: Box<Slots>,
    addresses: Vec<u64>,
}

impl Default for Desk {
    fn default() -> Desk {
        Desk { slots: Box::new([0; 256]), addresses: Vec::new() }
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
        if is_open || self.end.units == 0 || !self.is_plain() {
            return false;
        }
        let until = self.events.first().map_or(u64::MAX, |e| e.position.control_flow.0);
        let slots = &mut *desk.slots;
        slots[..16].copy_from_slice(&self.cursor.known.values);
        slots[usize::from(FS)] = self.cursor.fs_base;
        slots[usize::from(GS)] = self.cursor.gs_base;
        let mut known = self.cursor.known.known;
        let memory = self.cursor.memory;
        let mut stopped = false;
        while let Some((number, bytes)) = decoder.plain(&self.stream) {
            let unit = units.get(number);
            if self.stream.at().0 + bytes as u64 >= until || !self.end.next.allows(unit.address) {
                break;
            }
            let from = self.cursor.memory_at;
            let behind = from + unit.memory_bytes as usize;
            let Some(words) = memory.get(from..behind) else { break };
            if S::REFERENCES {
                let Some(plain) = units.plain(number) else { break };
                if !plain.needs.minus(known).is_empty() {
                    break;
                }
                plain.execute(words, slots, &mut known, &mut desk.addresses);
            }
            let continues = match self.end.next {
                Next::At(address) => !self.is_fresh() && address == unit.address,
                _ => false,
            };
            sink.unit(unit, false);
            if !continues {
                sink.block(unit.address, false);
            }
            match units.plain(number) {
                Some(plain) if S::REFERENCES => {
                    sink.plain(number.0, unit, &plain.references, &desk.addresses);
                }
                _ => {
                    let inner = unit.inner_blocks.iter();
                    inner.for_each(|&at| sink.block(unit.address.plus(u64::from(at)), false));
                }
            }
            let count = unit.starts.len() - 1;
            sink.executed(unit, count);
            self.stream.skip(bytes);
            self.cursor.memory_at = behind;
            self.end.units += 1;
            self.end.instructions += count as u64;
            self.leave(unit, count, true);
            if self.end.units & 0xfff == 0 && !sink.go_on() {
                self.end.stopped = true;
                stopped = true;
                break;
            }
        }
        self.cursor.known.values.copy_from_slice(&slots[..16]);
        self.cursor.known.known = known;
        stopped
    }
}

#[cfg(test)]
mod tests;
