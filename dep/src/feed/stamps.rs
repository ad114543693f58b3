//! Watched threads: whoever has the lowest next stamp goes on up to the one behind that.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use abi::event::Moment;
use trace::events::Event;
use trace::{Error, Thread, Trace};

use super::{Did, Listener, Source, Walks, Wanted};

/// A place of a thread in the order of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    number: u64,
    moment: Moment,
    pc: u64,
    /// Turns that the thread had made.
    turns: u64,
    /// Its calls, and its end, that happened before.
    calls: u64,
}

/// The stamps of a watched thread of a recording, in their order: the first one is where it begins. `None`: it has none.
pub fn of(thread: &Thread) -> Option<Vec<Stamp>> {
    let (mut stamps, mut calls) = (Vec::<Stamp>::new(), 0);
    for placed in &thread.events {
        match placed.event {
            // What was in front is no part of it. (In a ring a thread begins anew again and again.)
            Some(Event::State { .. }) if stamps.is_empty() => calls = 0,
            Some(Event::Stamp { pc, number, moment }) => {
                let turns = placed.position.control_flow.0;
                stamps.push(Stamp { number, moment, pc: pc.0, turns, calls });
            }
            Some(ref event) if is_call(event) => calls += 1,
            _ => {}
        }
    }
    let begins = stamps.first().is_some_and(|stamp| stamp.moment == Moment::Begins);
    begins.then_some(stamps)
}

fn is_call(event: &Event) -> bool {
    matches!(event, Event::Syscall { .. } | Event::ThreadEnd { .. })
}

/// What a stamp is to the instruction that refers to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passes {
    /// It stands in front of it.
    Earlier,
    /// It is an atomic one, which begins.
    Atomic,
    /// It is about to see what was found in memory.
    Sees,
}

/// The stamps of a thread, and how far it is.
pub struct Stamps<'a> {
    left: std::slice::Iter<'a, Stamp>,
    /// Turns that it has made.
    pub turns: u64,
    calls: u64,
    /// The atomic instruction that has referred to memory last: its address, and where.
    pub atomic: Option<(u64, u64, u32)>,
    /// How the thread starts and ends.
    start: Option<&'a Event>,
    end: Option<&'a Event>,
}

impl<'a> Stamps<'a> {
    /// Of a thread that ran one at a time with others.
    pub fn none() -> Stamps<'a> {
        Stamps { left: [].iter(), turns: 0, calls: 0, atomic: None, start: None, end: None }
    }

    pub fn new(part: &'a Part<'_>) -> Stamps<'a> {
        let mut left = part.stamps.iter();
        // It is there where it begins.
        let turns = left.next().map_or(0, |stamp| stamp.turns);
        Stamps { left, turns, start: part.start, end: part.end, ..Stamps::none() }
    }

    /// What happens as this does, to the thread.
    pub fn of_thread<'e>(&self, event: &'e Event) -> &'e Event
    where
        'a: 'e,
    {
        let other = match event {
            Event::ThreadStart { .. } => self.start,
            Event::ProcessEnd { .. } => self.end,
            _ => None,
        };
        other.unwrap_or(event)
    }

    fn next(&self) -> Option<&'a Stamp> {
        self.left.as_slice().first()
    }

    /// Whether there are more, or what is to be said behind an instruction.
    #[inline]
    pub fn is_next(&self) -> bool {
        !self.left.as_slice().is_empty()
    }

    /// The next stamp that the thread has passed as the instruction at `pc` refers to memory. Within a turn addresses only
    /// grow, so that one that was not met lies behind.
    pub fn before(&mut self, pc: u64) -> Option<(u64, Passes)> {
        let next = self.next()?;
        let passes = |stamp: &Stamp| match stamp.moment {
            _ if (stamp.turns, stamp.pc) != (self.turns, pc) => Passes::Earlier,
            Moment::Before => Passes::Atomic,
            Moment::Sees => Passes::Sees,
            _ => Passes::Earlier,
        };
        let is_behind = (next.turns, next.pc) < (self.turns, pc)
            || self.of_turn().any(|stamp| passes(stamp) != Passes::Earlier);
        let what = passes(next);
        is_behind.then(|| (self.take(next), what))
    }

    /// The stamp behind the last atomic instruction, if it is not the one at `pc`, and the memory that this was about.
    pub fn behind(&mut self, pc: Option<u64>) -> Option<(u64, u64, u32)> {
        let (last, address, size) = self.atomic.take_if(|&mut (last, ..)| Some(last) != pc)?;
        let is_behind = |stamp: &Stamp| {
            (stamp.turns, stamp.pc) == (self.turns, last) && stamp.moment == Moment::Behind
        };
        let at = self.of_turn().position(is_behind)?;
        // Those in front have lower numbers.
        let stamp = self.left.nth(at)?;
        Some((stamp.number, address, size))
    }

    /// The next ones, up to those of later turns and to calls.
    fn of_turn(&self) -> impl Iterator<Item = &'a Stamp> + use<'a> {
        let turns = self.turns;
        let is_call = |s: &Stamp| matches!(s.moment, Moment::BeforeCall | Moment::BehindCall);
        self.left.as_slice().iter().take_while(move |s| s.turns <= turns && !is_call(s))
    }

    /// The next stamp in front of what happens: a call up to where it began.
    pub fn in_front_of(&mut self, event: &Event) -> Option<u64> {
        let next = self.next().filter(|next| is_call(event) && next.calls <= self.calls)?;
        (next.moment != Moment::BehindCall).then(|| self.take(next))
    }

    /// The call, which happens now, has come back at this stamp.
    pub fn returns(&mut self, event: &Event) -> Option<u64> {
        if !is_call(event) {
            return None;
        }
        let next = self.next().filter(|next| next.calls <= self.calls);
        self.calls += 1;
        let next = next.filter(|next| next.moment == Moment::BehindCall)?;
        Some(self.take(next))
    }

    fn take(&mut self, next: &Stamp) -> u64 {
        self.left.next();
        next.number
    }
}

/// A replay of a thread, or of what it did before it was watched.
pub struct Part<'a> {
    pub trace: &'a Trace,
    /// What it left there.
    pub thread: &'a Thread,
    /// None before it was watched.
    pub stamps: Vec<Stamp>,
    /// How it began: its replay had no other thread.
    pub start: Option<&'a Event>,
    /// How it ended, if not with its process: for its replay that is the end of the process.
    pub end: Option<&'a Event>,
}

/// A thread, and the parts that it has not begun.
struct Runner<'a> {
    parts: std::slice::Iter<'a, Part<'a>>,
    source: Option<Source>,
}

impl<'a> Runner<'a> {
    fn next(&mut self, mut begin: impl FnMut(&'a Part<'a>) -> Source) -> Option<Did> {
        loop {
            if let Some(did) = self.source.as_mut().and_then(Source::next) {
                return Some(did);
            }
            self.source = Some(begin(self.parts.next()?));
        }
    }
}

/// Tells the listener all that the threads did, of which each has these parts, one behind the other.
pub fn run(
    threads: &[Vec<Part<'_>>],
    wanted: Wanted<'_>,
    listener: &mut impl Listener,
) -> Result<(), Error> {
    std::thread::scope(|scope| {
        let mut walks = Walks::new(scope, wanted);
        let runner = |parts| Runner { parts: <[Part<'_>]>::iter(parts), source: None };
        let mut runners: Vec<Runner<'_>> = threads.iter().map(|parts| runner(parts)).collect();
        let first = |parts: &Vec<Part<'_>>| parts.first()?.stamps.first().map(|stamp| stamp.number);
        let begin = threads.iter().map(|parts| first(parts).unwrap_or(0));
        let mut waiting: BinaryHeap<_> = begin.zip(0..).map(Reverse).collect();
        while let Some(Reverse((now, at))) = waiting.pop() {
            let Some(runner) = runners.get_mut(at) else { break };
            listener.runs(at);
            loop {
                match runner.next(|part| walks.begin(part.trace, part.thread, Stamps::new(part))) {
                    None => {
                        listener.ends();
                        break;
                    }
                    Some(Did::Stamped(number)) if number > now => {
                        waiting.push(Reverse((number, at)));
                        break;
                    }
                    Some(did) => {
                        if let Some(source) = &runner.source {
                            source.tell(did, listener);
                        }
                    }
                }
            }
        }
        drop(runners);
        walks.end()
    })
}
