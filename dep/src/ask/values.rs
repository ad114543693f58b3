//! `dep values`: what was loaded from a place, and stored there.
//!
//! Two replays answer it, and have to agree. The first one is listed: it says which instructions touch the
//! place, and how often. The second one is stopped in front of each of those moments, where memory has the old
//! value, and behind it, where it has the new one. What the kernel does stands in the script of both.
//!
//! Threads that were watched are replayed one by one, each in memory that is empty at first. What such a thread has
//! neither loaded nor stored is not known, whatever is in that memory.

use std::collections::{BTreeSet, HashMap};
use std::io::Write;
use std::ops::Range;

use abi::steer::{Position, Stop as Stood, Why};
use clap::Args as ClapArgs;
use serde::{Serialize, Serializer};
use trace::walk::MemoryReference;
use trace::Error;

use crate::args::Common;
use crate::ask::between::Between;
use crate::ask::hits::{self, Found};
use crate::ask::kernel::{Effect, Effects, Who};
use crate::ask::place::{self, Place};
use crate::ask::whole::touches_whole;
use crate::ask::{run, start};
use crate::debug::{Calls, Machine, Points, Steered};
use crate::replay::Ready;
use crate::row::{Form, Hex, Row};
use crate::symbols::Symbols;
use crate::text::{hex, pair};
use crate::{Stop, Warnings};

/// Bytes that can be asked for at once.
const MOST: u64 = 1 << 16;
/// Bytes of a place that is given as a number.
const USUAL: u64 = 8;

/// The command line.
#[derive(ClapArgs)]
pub struct Arguments {
    #[command(flatten)]
    pub common: Common,
    /// The first byte: a number (0x12 is hexadecimal), a symbol, SYMBOL+NUMBER, or LIBRARY:SYMBOL
    #[arg(long, value_name = "A")]
    pub address: String,
    /// How many bytes; without it as many as the symbol has, or 8
    #[arg(long, value_name = "N")]
    pub size: Option<u64>,
    #[command(flatten)]
    pub between: Between,
    /// Only what is loaded
    #[arg(long, conflicts_with = "stores")]
    pub loads: bool,
    /// Only what is stored, by the kernel, too
    #[arg(long)]
    pub stores: bool,
    /// Stop after N lines
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
}

/// A byte, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Byte {
    Is(u8),
    /// Nothing is mapped there.
    Gone,
    /// Nobody has looked yet.
    Open,
    /// The thread that is replayed alone does not know it.
    Unknown,
}

/// Bytes as a number, where they are one, or as they lie there.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Value(Vec<Byte>);

impl Value {
    fn append(&self, out: &mut Vec<u8>) {
        let known: Option<Vec<u8>> = self
            .0
            .iter()
            .map(|byte| match byte {
                Byte::Is(byte) => Some(*byte),
                _ => None,
            })
            .collect();
        match known {
            Some(bytes) if matches!(bytes.len(), 1 | 2 | 4 | 8) => {
                let word = bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
                hex(out, word);
            }
            _ => {
                for byte in &self.0 {
                    match byte {
                        Byte::Is(byte) => out.extend_from_slice(&pair(*byte)),
                        Byte::Gone => out.extend_from_slice(b"--"),
                        Byte::Open | Byte::Unknown => out.extend_from_slice(b"??"),
                    }
                }
            }
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = Vec::new();
        self.append(&mut text);
        serializer.serialize_str(&String::from_utf8_lossy(&text))
    }
}

/// What has happened to the place.
#[derive(Clone, Serialize)]
struct ValueRow {
    #[serde(flatten)]
    place: Place,
    /// `load`, `store` or `kernel`.
    access: &'static str,
    /// Of the kernel: for which call.
    #[serde(skip_serializing_if = "Option::is_none")]
    call: Option<String>,
    /// What was accessed.
    address: Hex,
    size: u64,
    /// The bytes that were asked for, in front of it and behind.
    old: Value,
    new: Value,
    #[serde(skip)]
    turns: u64,
}

impl Row for ValueRow {
    fn text(&self, out: &mut Vec<u8>) {
        self.place.text(out);
        out.push(b' ');
        out.extend_from_slice(self.call.as_deref().unwrap_or(self.access).as_bytes());
        out.push(b' ');
        hex(out, self.address.0);
        out.extend_from_slice(format!(" {} ", self.size).as_bytes());
        self.old.append(out);
        if self.access != "load" {
            out.extend_from_slice(b" -> ");
            self.new.append(out);
        }
    }
}

/// What the lines are chosen by, and how many are left.
struct Wanted<'a> {
    what: &'a Arguments,
    turns: Range<u64>,
    left: u64,
}

impl Wanted<'_> {
    fn wants(&self, row: &ValueRow, tid: u32) -> bool {
        let is_load = row.access == "load";
        self.what.between.is_of(tid)
            && self.turns.contains(&row.turns)
            && (is_load || !self.what.loads)
            && !(is_load && self.what.stores)
    }
}

/// The command.
pub fn list(what: &Arguments, out: &mut impl Write) -> Result<(), Stop> {
    let file = what.common.file.display();
    let (mut warnings, mut left) = (Warnings::default(), what.limit.unwrap_or(u64::MAX));
    crate::replay::each_ready(&what.common, what.between.thread(), |ready, _| {
        left = one(what, ready, left, &mut warnings, out)?;
        Ok(left > 0)
    })?;
    out.flush()?;
    match warnings.any() {
        false => Ok(()),
        true => Err(Error(format!("{file}: this is not all, or not what was recorded")).into()),
    }
}

/// Lists what one replay has, at most `left` lines. Returns how many more there could be.
fn one(
    what: &Arguments,
    ready: &Ready,
    left: u64,
    warnings: &mut Warnings,
    out: &mut impl Write,
) -> Result<u64, Stop> {
    let file = what.common.file.display();
    let wrong = |why: String| Stop::from(Error(format!("{file}: {why}")));
    let mut symbols = Symbols::of_replay(ready);
    let (address, size) = place::address(&what.address, &mut symbols).map_err(wrong)?;
    let size = what.size.or(size.filter(|size| (1..=MOST).contains(size))).unwrap_or(USUAL);
    if size == 0 || size > MOST {
        return Err(wrong(format!("--size {size}: expected 1 to {MOST}")));
    }
    let end = address.checked_add(size).ok_or_else(|| {
        wrong(format!("{address:#x}, {size} bytes: the address space ends before"))
    })?;
    let turns = what.between.turns(ready).map_err(wrong)?;
    let range = address..end;
    let found = crate::replay::listed(ready, warnings, |trace, warnings| {
        hits::find(trace, &range, warnings)
    })?;
    let effects = Effects::of(&ready.script_path, range.clone(), ready.script.header.brk)?;
    let wanted = Wanted { what, turns, left };
    let machine = start(ready)?;
    let memory = vec![Byte::Gone; size as usize];
    let is_alone = ready.script.header.alone != 0;
    let form = Form::new(what.common.json);
    let mut walk = Walk {
        ready,
        symbols,
        range,
        found,
        effects: effects.into_iter().collect(),
        calls: HashMap::new(),
        memory,
        is_alone,
        known: vec![!is_alone; size as usize],
        held: Vec::new(),
        wanted,
        form,
        warnings,
    };
    walk.go(machine, out)?;
    Ok(walk.wanted.left)
}

/// The second replay, on its way.
struct Walk<'a> {
    ready: &'a Ready,
    symbols: Symbols,
    range: Range<u64>,
    found: Found,
    /// What has not happened yet.
    effects: std::collections::VecDeque<Effect>,
    /// By the threads' indexes: where each has made its last call.
    calls: HashMap<u64, u64>,
    /// The bytes, as what was seen says.
    memory: Vec<Byte>,
    /// One thread is replayed alone.
    is_alone: bool,
    /// Which of the bytes it knows: it has loaded or stored them, or was shown them.
    known: Vec<bool>,
    /// Lines that wait for somebody to look at what is mapped now.
    held: Vec<(ValueRow, u32)>,
    wanted: Wanted<'a>,
    form: Form,
    warnings: &'a mut Warnings,
}

impl Walk<'_> {
    fn go(&mut self, mut machine: Steered, out: &mut impl Write) -> Result<(), Stop> {
        let calls: BTreeSet<u64> = self
            .effects
            .iter()
            .filter_map(|effect| match effect.who {
                Who::Call(number) => Some(number),
                _ => None,
            })
            .collect();
        let points = Points {
            breaks: self.found.pcs.clone(),
            calls: if calls.is_empty() { Calls::None } else { Calls::InFront(calls) },
            only: Some((self.range.start, self.range.end - self.range.start)),
            ..Points::default()
        };
        self.effects_up_to(machine.stop().position.entry);
        self.memory = self.look(&machine);
        loop {
            let stop = *machine.stop();
            if stop.position.turns >= self.wanted.turns.end || self.wanted.left == 0 {
                self.observe(&machine, &stop);
                return self.write(out);
            }
            match stop.why {
                Why::End => {
                    self.observe(&machine, &stop);
                    self.write(out)?;
                    self.compare_rest();
                    return Ok(());
                }
                Why::Breakpoint | Why::Goal if stop.detail > 0 => {
                    self.access(&mut machine, &stop, &points)?;
                    self.write(out)?;
                    continue;
                }
                Why::Call => drop(self.calls.insert(stop.thread, stop.position.pc)),
                // The handler starts.
                Why::Signal => {
                    machine.step(&points).map_err(Error::from)?;
                    continue;
                }
                _ => {}
            }
            run(&mut machine, &points).map_err(Error::from)?;
        }
    }

    /// The replay stands in front of an instruction that touches the place.
    fn access(
        &mut self,
        machine: &mut Steered,
        stop: &Stood,
        points: &Points,
    ) -> Result<(), Error> {
        self.observe(machine, stop);
        machine.step(points)?;
        let behind = *machine.stop();
        let is_done = match behind.why {
            Why::Signal => behind.position != stop.position,
            Why::End => behind.position.pc != stop.position.pc,
            _ => true,
        };
        if !is_done {
            if behind.why == Why::Signal {
                machine.step(points)?;
            }
            return Ok(());
        }
        let of = u32::try_from(stop.thread).unwrap_or(u32::MAX);
        let mut references = Vec::new();
        for _ in 0..stop.detail {
            let next = self.found.of.get_mut(&of).and_then(|of| of.pop_front());
            match next.filter(|next| next.pc.0 == stop.position.pc) {
                Some(next) => references.push(next),
                None => return Err(disagree(&stop.position, next)),
            }
        }
        let whole = !self.is_alone || self.touches_whole(machine, stop.position.pc);
        let (loads, stores): (Vec<_>, Vec<_>) = references.iter().partition(|r| !r.write);
        if whole {
            self.knows(&loads);
        }
        let old = self.value();
        if !stores.is_empty() {
            let mut new = self.look(machine);
            // What the kernel has written since stands there now.
            let is_change = |e: &&Effect| e.bytes.as_ref().is_none_or(|bytes| !bytes.is_empty());
            let since = self.effects.iter().take_while(|e| e.at < behind.position.entry);
            for effect in since.filter(is_change) {
                let from = (effect.touched.start - self.range.start) as usize;
                let to = (effect.touched.end - self.range.start) as usize;
                new[from..to].fill(Byte::Open);
            }
            // Where nothing was stored, nothing has changed.
            for (i, byte) in new.iter_mut().enumerate() {
                if !touches(&stores, self.range.start + i as u64) {
                    *byte = self.memory[i];
                }
            }
            self.memory = new;
            if whole {
                self.knows(&stores);
            }
        }
        let tid = self.ready.thread_name(of);
        for reference in references {
            let new = match reference.write {
                true => self.value(),
                false => old.clone(),
            };
            let row = ValueRow {
                place: Place::new(tid, &stop.position, &mut self.symbols),
                access: if reference.write { "store" } else { "load" },
                call: None,
                address: Hex(reference.address.0),
                size: u64::from(reference.size),
                old: old.clone(),
                new,
                turns: stop.position.turns,
            };
            self.held.push((row, tid));
        }
        Ok(())
    }

    /// The bytes, as far as they are known.
    fn value(&self) -> Value {
        let all = self.memory.iter().zip(&self.known);
        Value(all.map(|(&byte, &known)| if known { byte } else { Byte::Unknown }).collect())
    }

    /// The thread has touched these.
    fn knows(&mut self, references: &[&MemoryReference]) {
        for (at, known) in (self.range.start..).zip(&mut self.known) {
            *known |= touches(references, at);
        }
    }

    /// Whether the instruction at `pc` touches all bytes of what it references.
    fn touches_whole(&self, machine: &Steered, pc: u64) -> bool {
        let mut code = [0; 15];
        let len = machine.read(pc, &mut code);
        touches_whole(&code[..len])
    }

    /// The bytes that are there.
    fn look(&self, machine: &Steered) -> Vec<Byte> {
        let mut bytes = vec![Byte::Gone; self.memory.len()];
        let mut at = 0;
        while at < bytes.len() {
            // Up to the end of a page, behind which there may be nothing.
            let address = self.range.start + at as u64;
            let len = (4096 - address as usize % 4096).min(bytes.len() - at);
            let mut there = vec![0; len];
            let read = machine.read(address, &mut there);
            for (slot, byte) in bytes[at..at + len].iter_mut().zip(&there[..read]) {
                *slot = Byte::Is(*byte);
            }
            at += len;
        }
        bytes
    }

    /// The kernel has done what stands in front of `entry`.
    fn effects_up_to(&mut self, entry: u64) {
        while self.effects.front().is_some_and(|effect| effect.at < entry) {
            let Some(effect) = self.effects.pop_front() else { return };
            let old = self.value();
            let from = (effect.touched.start - self.range.start) as usize;
            let to = (effect.touched.end - self.range.start) as usize;
            match &effect.bytes {
                Some(bytes) => {
                    for (slot, &byte) in self.memory[from..to].iter_mut().zip(bytes) {
                        *slot = Byte::Is(byte);
                    }
                    if effect.is_sure {
                        self.known[from..to].fill(true);
                    }
                }
                None => {
                    self.memory[from..to].fill(Byte::Open);
                    self.known[from..to].fill(!self.is_alone);
                }
            }
            // The load tells of it that sees it.
            if effect.who == Who::Others {
                continue;
            }
            let called = self.calls.get(&u64::from(effect.thread)).copied();
            let pc = match effect.who {
                Who::Call(_) => called,
                _ => effect.pc,
            };
            let at = Position {
                turns: effect.turns,
                entry: effect.at,
                pc: pc.unwrap_or(0),
                ..Position::default()
            };
            let tid = self.ready.thread_name(effect.thread);
            let row = ValueRow {
                place: Place::new(tid, &at, &mut self.symbols),
                access: "kernel",
                call: Some(effect.who.name()),
                address: Hex(effect.touched.start),
                size: effect.touched.end - effect.touched.start,
                old,
                new: self.value(),
                turns: effect.turns,
            };
            self.held.push((row, tid));
        }
    }

    /// Compares what is there with what was seen so far.
    fn observe(&mut self, machine: &Steered, stop: &Stood) {
        self.effects_up_to(stop.position.entry);
        let now = self.look(machine);
        for (i, (&seen, &is)) in self.memory.iter().zip(&now).enumerate() {
            if seen == Byte::Open {
                // Up to where it was last known.
                for (row, _) in self.held.iter_mut().rev() {
                    match row.new.0.get_mut(i) {
                        Some(byte @ Byte::Open) => *byte = is,
                        _ => break,
                    }
                    match row.old.0.get_mut(i) {
                        Some(byte @ Byte::Open) => *byte = is,
                        _ => break,
                    }
                }
            } else if seen != is {
                self.warnings.add(&format!(
                    "{:#x} has changed in front of turn {}, pc {:#x}, and no access was seen",
                    self.range.start + i as u64,
                    stop.position.turns,
                    stop.position.pc
                ));
            }
        }
        self.memory = now;
    }

    fn write(&mut self, out: &mut impl Write) -> Result<(), Stop> {
        if self.memory.contains(&Byte::Open) {
            return Ok(());
        }
        for (row, tid) in std::mem::take(&mut self.held) {
            if self.wanted.left > 0 && self.wanted.wants(&row, tid) {
                self.wanted.left -= 1;
                self.form.write(&row, out)?;
            }
        }
        Ok(())
    }

    /// At the end each reference of the listing has been come to.
    fn compare_rest(&mut self) {
        let left: usize = self.found.of.values().map(|of| of.len()).sum();
        if left > 0 {
            self.warnings
                .add(&format!("{left} accesses of the listing were not met by the second replay"));
        }
    }
}

/// Whether one of these touches the byte at `at`.
fn touches(references: &[&MemoryReference], at: u64) -> bool {
    references.iter().any(|r| at.wrapping_sub(r.address.0) < u64::from(r.size))
}

/// The two replays say different things.
fn disagree(at: &Position, next: Option<MemoryReference>) -> Error {
    let listed = match next {
        Some(next) => format!("comes to {}", next.pc),
        None => "has no more".into(),
    };
    Error(format!(
        "two replays do not agree on the accesses: one is made at turn {}, pc {:#x}, where the listing {listed}",
        at.turns, at.pc
    ))
}
