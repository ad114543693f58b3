//! The undo log of a watched thread, which is replayed alone: old bytes are shown as far as the thread knows them.
//!
//! Two replays answer it, and have to agree on the calls. The one leaves a list of references, which says what is known
//! when; the other one leaves the undo log, which is read along with that.

use std::collections::HashMap;
use std::io::Write;

use abi::event::Loss;
use abi::ids::LiveAddr;
use trace::compile::CompiledUnit;
use trace::events::Event;
use trace::undo::{Item, Items};
use trace::walk::{Entered, Overwritten, Sink, Walker};
use trace::{Error, Trace};

use super::{function, Old, UndoRow};
use crate::args::UndoSelection;
use crate::ask::start;
use crate::ask::whole::loads_what_it_stores;
use crate::debug::Machine;
use crate::known::{Along, Known};
use crate::replay::{conclude, whole_trace, Ready};
use crate::row::Form;
use crate::symbols::Symbols;
use crate::{Stop, Warnings};

/// Items that are collected before they are listed.
const BATCH: usize = 1 << 12;

/// Lists what the thread does: `left` lines at most. Returns how many more there could be.
pub fn list(
    ready: &Ready,
    what: &UndoSelection,
    left: u64,
    warnings: &mut Warnings,
    out: &mut impl Write,
) -> Result<u64, Stop> {
    let file = what.common.file.display();
    // It stands where the thread begins, and has all code.
    let machine = start(ready)?;
    let code = |at, bytes: &mut [u8]| machine.read(at, bytes);
    let known = Known::of(ready, warnings, code)?;
    let (trace, finished) = whole_trace(ready, "undo", &file)?;
    trace.damage.iter().for_each(|damage| warnings.add(damage));
    let left = read(&trace, ready, &known, code, what, left, out)?;
    conclude(&trace, finished.is_equal(&ready.script), ready, &file)?;
    Ok(left)
}

/// Lists what the trace has that the replay has left. `code`: what is at an address of the code; how many bytes there
/// are.
fn read(
    trace: &Trace,
    ready: &Ready,
    known: &Known,
    code: impl Fn(u64, &mut [u8]) -> usize,
    what: &UndoSelection,
    left: u64,
    out: &mut impl Write,
) -> Result<u64, Stop> {
    let Some(thread) = trace.threads.first() else { return Ok(left) };
    let is_backwards = what.is_newest_first();
    let mut follower = Follower {
        along: Along::new(known, ready)?,
        code,
        reloads: HashMap::new(),
        saved: false,
        start: None,
        address: what.address.map(LiveAddr),
        items: Items::default(),
        known: Vec::new(),
        lines: Lines {
            tid: ready.thread_name(thread.index),
            form: Form::new(what.common.json),
            symbols: what.address.map(|_| Symbols::of_replay(ready)),
            left,
            line: Vec::new(),
            out,
        },
        is_backwards,
        failed: None,
    };
    let mut walker = Walker::new(trace);
    for number in 0..thread.chunks.len() {
        let walked = walker.walk(thread, number, &mut follower);
        follower.list();
        follower.start = None;
        if let Some(error) = follower.failed.take() {
            return Err(error);
        }
        if let Some(error) = follower.along.failed() {
            return Err(error.into());
        }
        walked.map_err(|violation| Error(violation.to_string()))?;
        if follower.lines.left == 0 {
            break;
        }
    }
    let Follower { items, known, mut lines, .. } = follower;
    for item in items.items.iter().rev() {
        lines.add(item, &items, &known)?;
    }
    Ok(lines.left)
}

/// What is listed, line by line.
struct Lines<'a, W> {
    tid: u32,
    form: Form,
    /// Where functions are named.
    symbols: Option<Symbols>,
    left: u64,
    line: Vec<u8>,
    out: &'a mut W,
}

impl<W: Write> Lines<'_, W> {
    /// `known`: which of the old bytes of all these items.
    fn add(&mut self, item: &Item, items: &Items, known: &[bool]) -> Result<(), Stop> {
        if self.left == 0 {
            return Ok(());
        }
        self.left -= 1;
        let name = self.symbols.as_mut().and_then(|symbols| function(item, symbols));
        let old = |store| Old { bytes: items.old(store), known: known.get(store.range()) };
        self.line.clear();
        self.form.append(&UndoRow::new(self.tid, item, old, name.as_deref()), &mut self.line)?;
        Ok(self.out.write_all(&self.line)?)
    }
}

/// Goes through the trace.
struct Follower<'a, W, C> {
    along: Along<'a>,
    code: C,
    /// By their addresses: whether instructions load what they store to.
    reloads: HashMap<u64, bool>,
    /// The runtime has saved what the next item shows.
    saved: bool,
    /// Where among the items begins what it has saved since anything else happened, and the first of it.
    start: Option<(usize, [u64; 3])>,
    /// Only what concerns this byte.
    address: Option<LiveAddr>,
    items: Items,
    /// Which of the old bytes are known.
    known: Vec<bool>,
    lines: Lines<'a, W>,
    /// Nothing is listed before all is there.
    is_backwards: bool,
    failed: Option<Stop>,
}

impl<W: Write, C> Follower<'_, W, C> {
    /// Lists what was collected.
    fn list(&mut self) {
        if self.is_backwards {
            return;
        }
        for item in &self.items.items {
            if self.failed.is_some() {
                break;
            }
            self.failed = self.lines.add(item, &self.items, &self.known).err();
        }
        self.items.clear();
        self.known.clear();
    }

    /// The runtime has saved this again: the replay was stopped in front of the instruction, which shows what others
    /// have stored, and it has not been executed.
    fn takes_back(&mut self, save: [u64; 3]) {
        let (len, first) = *self.start.get_or_insert((self.items.items.len(), save));
        if first == save {
            let left = self.items.take_back(len);
            self.known.truncate(left);
        }
    }
}

impl<W: Write, C: Fn(u64, &mut [u8]) -> usize> Sink for Follower<'_, W, C> {
    const REFERENCES: bool = true;

    fn executed(&mut self, unit: &CompiledUnit, count: usize) {
        self.along.executed(unit, count);
        if count > 0 {
            self.start = None;
        }
        if self.start.is_none() && self.items.items.len() >= BATCH {
            self.list();
        }
    }

    fn event(&mut self, event: &Event) {
        self.saved = matches!(event, Event::Undo { .. });
        // Where the replay was stopped, the unit was entered and left.
        if !matches!(event, Event::Undo { .. } | Event::Interrupted(_)) {
            self.start = None;
        }
        self.along.event(event);
    }

    fn store(&mut self, store: Overwritten<'_>) {
        let saved = std::mem::take(&mut self.saved);
        let (pc, address, len) = (store.pc.0, store.address, store.old.len());
        if self.address.is_some_and(|wanted| wanted.from_start(address) >= len as u64) {
            return;
        }
        match saved {
            true => self.takes_back([pc, address.0, len as u64]),
            false => self.start = None,
        }
        let Follower { along, code, reloads, known, .. } = self;
        // What an instruction loads, too, is known, but at which moment of it the runtime looks, is not.
        let is_loaded = !saved
            && *reloads.entry(pc).or_insert_with(|| {
                let mut bytes = [0; 15];
                let len = code(pc, &mut bytes);
                loads_what_it_stores(&bytes[..len.min(15)])
            });
        match is_loaded {
            true => known.resize(known.len() + len, true),
            false => along.which(pc, address.0, len, !saved, known),
        }
        self.items.store(store);
    }

    fn enter(&mut self, entered: Entered) {
        if self.address.is_none() {
            self.items.enter(entered);
        }
    }

    fn lost(&mut self, pc: LiveAddr, start: LiveAddr, len: u64, why: &[u8]) {
        if self.address.is_none_or(|wanted| len == 0 || wanted.from_start(start) < len) {
            self.items.lost(pc, start, len, why);
        }
    }

    fn stopped(&mut self, reason: Loss) {
        self.items.stopped(reason);
    }

    fn go_on(&mut self) -> bool {
        self.lines.left > 0 && self.failed.is_none() && self.along.is_right()
    }
}
