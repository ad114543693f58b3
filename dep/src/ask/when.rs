//! `dep when`: where a condition holds.

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
use crate::ask::{ready, run, start};
use crate::debug::{Machine, Points, Steered, Watch};
use crate::replay::Ready;
use crate::row::{Form, Row};
use crate::symbols::Symbols;
use crate::Stop;

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
        self.machine.read(address, bytes) == bytes.len()
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

fn manner(condition: &Expression) -> Manner {
    if let Some(breaks) = condition.pcs() {
        return Manner::AtPlaces(Points { breaks, ..Points::default() });
    }
    let (part, whole) = condition.of_memory();
    let watched = part.and_then(|part| {
        let read = part.memory()?;
        let watches =
            read.into_iter().map(|(at, len)| Watch::new(at, len, Watched::Write)).collect();
        Steered::can_watch(&watches).then_some((part, Points { watches, ..Points::default() }))
    });
    match watched {
        Some((_, points)) if whole => Manner::AtChanges(points),
        watched => Manner::Always(watched),
    }
}

/// The command.
pub fn list(what: &Arguments, out: &mut impl Write) -> Result<(), Stop> {
    let file = what.common.file.display();
    let wrong = |why: String| Stop::from(Error(format!("{file}: {why}")));
    let ready = ready(&what.common)?;
    let mut symbols = Symbols::of_replay(&ready);
    let mut resolve = |name: &str| symbols.find(name).map(|(address, _)| address);
    let condition = parse(&what.condition, &mut resolve)
        .map_err(|why| wrong(format!("`{}`: {why}", what.condition)))?;
    let turns = what.between.turns(&ready).map_err(wrong)?;
    let mut search = Search {
        ready: &ready,
        what,
        condition: &condition,
        turns,
        symbols,
        found: 0,
        last: None,
        held: false,
        left: if what.first { 1 } else { what.limit.unwrap_or(u64::MAX) },
        form: Form::new(what.common.json),
    };
    let mut machine = start(&ready)?;
    match manner(&condition) {
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
    search.end(out)?;
    Ok(out.flush()?)
}

struct Search<'a> {
    ready: &'a Ready,
    what: &'a Arguments,
    condition: &'a Expression,
    turns: Range<u64>,
    symbols: Symbols,
    found: u64,
    last: Option<Place>,
    /// It held where one looked last.
    held: bool,
    left: u64,
    form: Form,
}

impl Search<'_> {
    /// Whether the search is over where the replay stands.
    fn is_over(&self, stop: &Stood) -> bool {
        stop.why == Why::End || self.left == 0 || stop.position.turns >= self.turns.end
    }

    fn holds(&self, condition: &Expression, machine: &Steered) -> bool {
        condition.holds(&Standing { machine, stop: machine.stop() })
    }

    /// It holds where the replay stands.
    fn is_found(&mut self, stop: &Stood, out: &mut impl Write) -> Result<(), Stop> {
        let tid = u32::try_from(stop.tid).unwrap_or(u32::MAX);
        let wanted = self.what.between.is_of(tid);
        if !wanted || !self.turns.contains(&stop.position.turns) || self.left == 0 {
            return Ok(());
        }
        self.found += 1;
        self.left -= 1;
        if self.what.count {
            return Ok(());
        }
        let place = Place::new(tid, &stop.position, &mut self.symbols);
        match self.what.last {
            true => self.last = Some(place),
            false => self.form.write(&place, out)?,
        }
        Ok(())
    }

    /// Tells of it where it begins to hold.
    fn edge(&mut self, machine: &Steered, out: &mut impl Write) -> Result<(), Stop> {
        let now = self.holds(self.condition, machine);
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
            if here && self.holds(self.condition, machine) {
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
            run(machine, points).map_err(Error::from)?;
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
                Some((part, points)) if !self.holds(part, machine) => {
                    run(machine, points).map_err(Error::from)?;
                }
                Some((_, points)) => machine.step(points).map_err(Error::from)?,
                None => machine.step(&nothing).map_err(Error::from)?,
            }
        }
    }

    fn end(&mut self, out: &mut impl Write) -> Result<(), Stop> {
        if let Some(place) = self.last.take() {
            self.form.write(&place, out)?;
        }
        if self.what.count {
            self.form.write(&CountRow { count: self.found }, out)?;
        }
        // A recording that stops before its end says so.
        if !self.ready.script.end.is_whole() && self.left > 0 {
            eprintln!("dep: warning: the recording is replayable {}", self.ready.script.end);
        }
        Ok(())
    }
}
