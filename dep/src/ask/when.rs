//! `dep when`: where a condition holds.
//!
//! Of a thread that is replayed alone not all memory is known. A condition that reads what is not known, and depends on it,
//! does not hold there; how often that was so is said. What becomes known may let it hold without a change of memory, so
//! these moments are looked at, too.

use std::cell::Cell;
use std::io::Write;
use std::ops::Range;

use abi::steer::{Stop as Stood, Watched, Why};
use clap::Args as ClapArgs;
use serde::Serialize;
use trace::Error;

use crate::args::Common;
use crate::ask::between::Between;
use crate::ask::expression::{parse, Expression, Special, State};
use crate::ask::place::Place;
use crate::ask::{run, start};
use crate::debug::{Calls, Machine, Points, Steered, Watch};
use crate::known::Known;
use crate::replay::Ready;
use crate::row::{Form, Row};
use crate::symbols::Symbols;
use crate::{Stop, Warnings};

/// The command line.
#[derive(ClapArgs)]
pub struct Arguments {
    #[command(flatten)]
    pub common: Common,
    /// For example `pc == main+0x12 && rax > 5`, or `[counter]:4 == 7`
    #[arg(value_name = "EXPRESSION")]
    pub condition: String,
    #[command(flatten)]
    pub between: Between,
    /// Only the first place
    #[arg(long, conflicts_with_all = ["last", "count", "limit"])]
    pub first: bool,
    /// Only the last place
    #[arg(long, conflicts_with_all = ["count", "limit"])]
    pub last: bool,
    /// Only how many there are
    #[arg(long, conflicts_with = "limit")]
    pub count: bool,
    /// Stop after N lines
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
}

impl Row for Place {
    fn text(&self, out: &mut Vec<u8>) {
        Place::text(self, out);
    }
}

#[derive(Serialize)]
struct CountRow {
    count: u64,
}

impl Row for CountRow {
    fn text(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.count.to_string().as_bytes());
    }
}

/// A replay that stands, for an expression.
struct Standing<'a> {
    machine: &'a Steered,
    stop: &'a Stood,
    /// Not all was known that was read.
    doubt: &'a Cell<bool>,
}

impl State for Standing<'_> {
    fn gpr(&self, number: u8) -> u64 {
        self.stop.gpr[usize::from(number & 15)]
    }

    fn special(&self, which: Special) -> u64 {
        match which {
            Special::Pc => self.stop.position.pc,
            Special::Flags => self.stop.rflags,
            Special::FsBase => self.stop.fs_base,
            Special::Thread => self.stop.tid,
            Special::Turn => self.stop.position.turns,
        }
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        let is_read = self.machine.read(address, bytes) == bytes.len();
        if !is_read && self.machine.known().is_some() {
            self.doubt.set(true);
        }
        is_read
    }
}

/// How the condition is looked at.
enum Manner {
    /// In front of these instructions; each time that it holds counts.
    AtPlaces(Points),
    /// Behind each change of the memory that it reads; each time that it begins to hold counts.
    AtChanges(Points),
    /// In front of each instruction, as long as the part about memory holds, if there is one; each time that
    /// it begins to hold counts.
    Always(Option<(Expression, Points)>),
}

fn manner(condition: &Expression, known: Option<&Known>) -> Manner {
    if let Some(breaks) = condition.pcs() {
        return Manner::AtPlaces(Points { breaks, ..Points::default() });
    }
    let (part, whole) = condition.of_memory();
    let watched = part.and_then(|part| {
        let read = part.memory()?;
        // What becomes known need not change.
        let (breaks, calls) = known.map(|known| known.moments(&read)).unwrap_or_default();
        let calls = if calls.is_empty() { Calls::None } else { Calls::These(calls) };
        let watches =
            read.into_iter().map(|(at, len)| Watch::new(at, len, Watched::Write)).collect();
        let points = Points { breaks, watches, calls, only: None };
        Steered::can_watch(&points.watches).then_some((part, points))
    });
    match watched {
        Some((_, points)) if whole => Manner::AtChanges(points),
        watched => Manner::Always(watched),
    }
}

/// The command.
pub fn list(what: &Arguments, out: &mut impl Write) -> Result<(), Stop> {
    let most = if what.first { 1 } else { what.limit.unwrap_or(u64::MAX) };
    let mut found = Found { count: 0, last: None, left: most };
    let (form, mut last) = (Form::new(what.common.json), None);
    crate::replay::each_ready(&what.common, what.between.thread(), |ready, tid| {
        // The first and the last place are those of each thread, as there is no order between them.
        if tid != last {
            last = tid;
            if let Some(place) = found.last.take() {
                form.write(&place, out)?;
            }
            if what.first {
                found.left = most;
            }
        }
        if found.left > 0 {
            one(what, ready, tid, &mut found, out)?;
        }
        Ok(found.left > 0 || what.first)
    })?;
    if let Some(place) = found.last.take() {
        form.write(&place, out)?;
    }
    if what.count {
        form.write(&CountRow { count: found.count }, out)?;
    }
    Ok(out.flush()?)
}

/// What has been found so far.
struct Found {
    count: u64,
    /// The last place.
    last: Option<Place>,
    /// So many more are wanted.
    left: u64,
}

/// Looks for it in one replay.
fn one(
    what: &Arguments,
    ready: &Ready,
    tid: Option<u32>,
    found: &mut Found,
    out: &mut impl Write,
) -> Result<(), Stop> {
    let file = what.common.file.display();
    let wrong = |why: String| Stop::from(Error(format!("{file}: {why}")));
    let mut symbols = Symbols::of_replay(ready);
    let mut resolve = |name: &str| symbols.find(name).map(|(address, _)| address);
    let condition = parse(&what.condition, &mut resolve)
        .map_err(|why| wrong(format!("`{}`: {why}", what.condition)))?;
    let turns = what.between.turns(ready).map_err(wrong)?;
    let mut search = Search {
        ready,
        what,
        condition: &condition,
        turns,
        symbols,
        found,
        held: false,
        doubts: 0,
        form: Form::new(what.common.json),
    };
    let mut machine = start(ready)?;
    let mut warnings = Warnings::default();
    if ready.script.header.alone != 0 && condition.reads_memory() {
        let code = |at, bytes: &mut [u8]| machine.read(at, bytes);
        let known = Known::of(ready, &mut warnings, code)?;
        machine.knows(known);
    }
    match manner(&condition, machine.known()) {
        Manner::AtPlaces(points) => search.at_places(&mut machine, &points, out)?,
        Manner::AtChanges(points) => search.at_changes(&mut machine, &points, out)?,
        Manner::Always(memory) => {
            if memory.is_none() {
                eprintln!(
                    "dep: each instruction is looked at, of {} turns: `pc == ...` or memory at a known address makes it quick",
                    ready.script.turns
                );
            }
            search.always(&mut machine, memory.as_ref(), out)?;
        }
    }
    search.end(tid);
    match warnings.any() {
        false => Ok(()),
        true => Err(wrong("this is not all, or not what was recorded".into())),
    }
}

struct Search<'a> {
    ready: &'a Ready,
    what: &'a Arguments,
    condition: &'a Expression,
    turns: Range<u64>,
    symbols: Symbols,
    found: &'a mut Found,
    /// It held where one looked last.
    held: bool,
    /// So often it was not known whether it holds.
    doubts: u64,
    form: Form,
}

impl Search<'_> {
    /// Whether the search is over where the replay stands.
    fn is_over(&self, stop: &Stood) -> bool {
        stop.why == Why::End || self.found.left == 0 || stop.position.turns >= self.turns.end
    }

    /// Whether a part of the condition holds.
    fn holds(part: &Expression, machine: &Steered) -> bool {
        part.holds(&Standing { machine, stop: machine.stop(), doubt: &Cell::new(false) })
    }

    /// Whether the condition holds.
    fn holds_here(&mut self, machine: &Steered) -> bool {
        let (stop, doubt) = (machine.stop(), Cell::new(false));
        let holds = self.condition.verdict(&Standing { machine, stop, doubt: &doubt });
        if holds.is_none() && doubt.get() && self.turns.contains(&stop.position.turns) {
            self.doubts += 1;
        }
        holds == Some(true)
    }

    /// It holds where the replay stands.
    fn is_found(&mut self, stop: &Stood, out: &mut impl Write) -> Result<(), Stop> {
        let tid = u32::try_from(stop.tid).unwrap_or(u32::MAX);
        let wanted = self.what.between.is_of(tid);
        if !wanted || !self.turns.contains(&stop.position.turns) || self.found.left == 0 {
            return Ok(());
        }
        self.found.count += 1;
        self.found.left -= 1;
        if self.what.count {
            return Ok(());
        }
        let place = Place::new(tid, &stop.position, &mut self.symbols);
        match self.what.last {
            true => self.found.last = Some(place),
            false => self.form.write(&place, out)?,
        }
        Ok(())
    }

    /// Tells of it where it begins to hold.
    fn edge(&mut self, machine: &Steered, out: &mut impl Write) -> Result<(), Stop> {
        let now = self.holds_here(machine);
        let before = std::mem::replace(&mut self.held, now);
        if self.held && !before {
            self.is_found(machine.stop(), out)?;
        }
        Ok(())
    }

    fn at_places(
        &mut self,
        machine: &mut Steered,
        points: &Points,
        out: &mut impl Write,
    ) -> Result<(), Stop> {
        loop {
            let stop = *machine.stop();
            if self.is_over(&stop) {
                return Ok(());
            }
            // In front of a signal's handler the instruction does not come next.
            let here = stop.why != Why::Signal && points.breaks.contains(&stop.position.pc);
            if here && self.holds_here(machine) {
                self.is_found(&stop, out)?;
            }
            run(machine, points).map_err(Error::from)?;
        }
    }

    fn at_changes(
        &mut self,
        machine: &mut Steered,
        points: &Points,
        out: &mut impl Write,
    ) -> Result<(), Stop> {
        loop {
            if machine.stop().why != Why::End {
                self.edge(machine, out)?;
            }
            if self.is_over(machine.stop()) {
                return Ok(());
            }
            go_on(machine, points)?;
        }
    }

    fn always(
        &mut self,
        machine: &mut Steered,
        memory: Option<&(Expression, Points)>,
        out: &mut impl Write,
    ) -> Result<(), Stop> {
        let nothing = Points::default();
        // Nobody wants to know what was before.
        while machine.stop().position.turns < self.turns.start && !self.is_over(machine.stop()) {
            let goal = crate::debug::Goal::Turn(self.turns.start);
            machine.run(goal, abi::steer::Hits::Ignore, &nothing).map_err(Error::from)?;
        }
        loop {
            if self.is_over(machine.stop()) {
                return Ok(());
            }
            if machine.stop().why != Why::Signal {
                self.edge(machine, out)?;
            }
            match memory {
                Some((part, points)) if !Self::holds(part, machine) => go_on(machine, points)?,
                Some((_, points)) => machine.step(points).map_err(Error::from)?,
                None => machine.step(&nothing).map_err(Error::from)?,
            }
        }
    }

    fn end(&self, tid: Option<u32>) {
        if self.doubts > 0 {
            let of = tid.map_or(String::new(), |tid| format!("thread {tid}: "));
            let times = if self.doubts == 1 { "once" } else { "times" };
            let count = if self.doubts == 1 { String::new() } else { format!("{} ", self.doubts) };
            eprintln!(
                "dep: {of}{count}{times} it is not known whether it holds: the thread had neither loaded nor stored the memory"
            );
        }
        // A recording that stops before its end says so.
        if !self.ready.script.end.is_whole() && self.found.left > 0 {
            eprintln!("dep: warning: the recording is replayable {}", self.ready.script.end);
        }
    }
}

/// On to the next change, or to what becomes known.
fn go_on(machine: &mut Steered, points: &Points) -> Result<(), Error> {
    let stop = machine.stop();
    // Behind the instruction something is known; so it may be in front of a handler, of what is on its stack.
    let becomes_known = stop.why == Why::Breakpoint || points.breaks.contains(&stop.position.pc);
    match machine.known().is_some() && (becomes_known || stop.why == Why::Signal) {
        true => Ok(machine.step(points)?),
        false => Ok(run(machine, points)?),
    }
}
