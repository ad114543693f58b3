//! Breakpoints of a debugger, and the one place that a replay has to come to next: in the translations of these
//! instructions there stands an `int3`.
//!
//! The program's code stays as it is, and so do units, gates and links: a breakpoint is one byte behind the
//! boundary of its instruction (and behind the gate of its unit, which is rewritten on other occasions). Only
//! code that was translated when it ran is written to.

use crate::base::program::read_program_value;
use crate::code::jit::Jit;
use crate::code::links::UnitIndex;
use crate::code::world::CodeMemory;
use abi::ids::{CodeAddr, CodeOff, LiveAddr};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use instrument::emit::GATE;
use instrument::recipe::Recipe;

const INT3: u8 = 0xcc;

/// What is in place.
#[derive(Default)]
pub struct Breaks {
    /// Addresses of the instructions.
    wanted: Vec<u64>,
    sites: Vec<Site>,
    /// Units in front of this one have been looked at.
    next: u32,
    /// All units were forgotten so often then.
    flushes: u32,
    /// An instruction has no code of its own to stop at.
    incomplete: bool,
    stops: Stops,
}

/// Where threads were to stop that are not steered, one place at a time.
#[derive(Default)]
struct Stops {
    /// By the address of the instruction.
    known: BTreeMap<u64, Stop>,
    /// The one that is in place.
    standing: Option<u64>,
    /// All units were forgotten so often then.
    flushes: u32,
}

/// So many places are remembered.
const MOST_STOPS: usize = 4096;

#[derive(Default)]
struct Stop {
    sites: Vec<Site>,
    /// Units in front of this one have been looked at.
    next: u32,
    /// It has no code of its own to stop at.
    incomplete: bool,
}

/// A translation of an instruction.
struct Site {
    /// Original address of the instruction.
    pc: u64,
    /// Where its byte is.
    at: CodeOff,
    /// The boundary in front of it.
    boundary: CodeOff,
    /// What belongs there.
    byte: u8,
    /// It does not stand there: the instruction is executed.
    lifted: bool,
}

impl Jit {
    /// A breakpoint at the instruction at `pc`, an original address, or none any more.
    pub fn set_break(&mut self, pc: u64, wanted: bool) {
        self.breaks.wanted.retain(|&other| other != pc);
        if wanted {
            self.breaks.wanted.push(pc);
        }
        // Rather all again than two that share a byte.
        self.remove_sites();
        self.breaks.next = 0;
        self.breaks.incomplete = false;
        self.place_breaks();
    }

    /// Whether there is a breakpoint at the instruction at `pc`.
    pub fn is_break(&self, pc: u64) -> bool {
        self.breaks.wanted.contains(&pc)
    }

    /// Whether there are breakpoints that translated code does not stop at.
    pub fn breaks_need_steps(&self) -> bool {
        self.breaks.incomplete
    }

    /// Puts all breakpoints in place, in what has been translated since the last time, too.
    pub fn place_breaks(&mut self) {
        if self.breaks.flushes != self.flushes() {
            self.breaks.flushes = self.flushes();
            self.breaks.next = 0;
            self.breaks.sites.clear();
        }
        for i in 0..self.breaks.sites.len() {
            self.put(i, true);
        }
        if self.breaks.wanted.is_empty() {
            return;
        }
        let end = self.units().next().0;
        let first = core::mem::replace(&mut self.breaks.next, end);
        let found: Vec<_> = self
            .units()
            .since(UnitIndex(first))
            .filter_map(|i| self.sites_in(i))
            .flatten()
            .collect();
        for (pc, at, boundary, is_code) in found {
            if !is_code || self.breaks.sites.iter().any(|site| site.at == at) {
                self.breaks.incomplete = true;
                continue;
            }
            let mut byte = 0u8;
            if !read_program_value(self.arena.live(at).0, &mut byte) {
                self.breaks.incomplete = true;
                continue;
            }
            self.breaks.sites.push(Site { pc, at, boundary, byte, lifted: true });
            self.put(self.breaks.sites.len() - 1, true);
        }
    }

    /// The instruction at `pc` is about to be executed: until they are put in place again, its breakpoints
    /// are out of the way.
    pub fn lift_breaks(&mut self, pc: u64) {
        for i in 0..self.breaks.sites.len() {
            if self.breaks.sites[i].pc == pc {
                self.put(i, false);
            }
        }
    }

    /// The boundary in front of the instruction whose breakpoint is at `code`.
    pub fn break_at(&self, code: CodeAddr) -> Option<CodeAddr> {
        let at = self.arena.offset(code)?;
        let stops = &self.breaks.stops;
        let stop = stops.standing.and_then(|pc| stops.known.get(&pc));
        let sites = stop.into_iter().flat_map(|stop| &stop.sites).chain(&self.breaks.sites);
        let site = sites.into_iter().find(|site| site.at == at)?;
        Some(self.arena.live(site.boundary))
    }

    /// Whoever comes to the instruction at `pc` stops there, until [`Jit::lift_stop`]. False if code may execute it
    /// that cannot be stopped. What is translated meanwhile is not looked at.
    pub fn stop_at(&mut self, pc: u64) -> bool {
        self.lift_stop();
        let flushes = self.flushes();
        let stops = &mut self.breaks.stops;
        if stops.flushes != flushes || stops.known.len() >= MOST_STOPS {
            *stops = Stops { flushes, ..Stops::default() };
        }
        let mut stop = stops.known.remove(&pc).unwrap_or_default();
        let end = self.units().next().0;
        for i in self.units().since(UnitIndex(stop.next)) {
            let Some((at, boundary, is_code)) = self.site_in(i, pc) else { continue };
            let mut byte = 0u8;
            if !is_code || !read_program_value(self.arena.live(at).0, &mut byte) {
                stop.incomplete = true;
                continue;
            }
            stop.sites.push(Site { pc, at, boundary, byte, lifted: true });
        }
        stop.next = end;
        let stands = !stop.incomplete;
        if stands {
            for site in &mut stop.sites {
                site.lifted = false;
                self.arena.write(site.at.0, &[INT3]);
            }
            self.breaks.stops.standing = Some(pc);
        }
        self.breaks.stops.known.insert(pc, stop);
        stands
    }

    /// Nobody stops there any more.
    pub fn lift_stop(&mut self) {
        let Some(pc) = self.breaks.stops.standing.take() else { return };
        if self.breaks.stops.flushes != self.flushes() {
            return;
        }
        if let Some(stop) = self.breaks.stops.known.get_mut(&pc) {
            for site in &mut stop.sites {
                site.lifted = true;
                self.arena.write(site.at.0, &[site.byte]);
            }
        }
    }

    fn remove_sites(&mut self) {
        if self.breaks.flushes == self.flushes() {
            for i in 0..self.breaks.sites.len() {
                self.put(i, false);
            }
        }
        self.breaks.sites.clear();
    }

    fn put(&mut self, i: usize, stands: bool) {
        let site = &mut self.breaks.sites[i];
        if site.lifted == stands {
            site.lifted = !stands;
            let byte = if stands { INT3 } else { site.byte };
            let at = site.at.0;
            self.arena.write(at, &[byte]);
        }
    }

    /// Where breakpoints belong in unit `i`: the instruction, its byte, its boundary, and whether the byte
    /// is in the unit.
    fn sites_in(&self, i: UnitIndex) -> Option<Vec<(u64, CodeOff, CodeOff, bool)>> {
        let span = self.units().get(i).span();
        let mut within =
            self.breaks.wanted.iter().filter(|&&pc| span.contains(LiveAddr(pc))).peekable();
        within.peek()?;
        let sites = within.filter_map(|&pc| {
            let (at, boundary, is_code) = self.site_in(i, pc)?;
            Some((pc, at, boundary, is_code))
        });
        Some(sites.collect())
    }

    /// Where a breakpoint at `pc` belongs in unit `i`: its byte, its boundary, and whether the byte is in the
    /// unit.
    fn site_in(&self, i: UnitIndex, pc: u64) -> Option<(CodeOff, CodeOff, bool)> {
        let unit = self.units().get(i);
        if !unit.span().contains(LiveAddr(pc)) {
            return None;
        }
        let recipe = Recipe::new(self.units().recipe(unit)?)?;
        let has_gate = (unit.end.0 - unit.entry.0) as usize > GATE.len();
        let behind_gate = if has_gate { GATE.len() as u32 } else { 0 };
        let original = (pc - unit.start.0) as u32;
        let entry = recipe.entries().find(|entry| entry.original == original)?;
        let at = unit.entry.plus(entry.code.max(behind_gate));
        Some((at, unit.entry.plus(entry.code), at < unit.end))
    }
}
