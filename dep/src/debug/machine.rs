//! What can be debugged: something that runs forwards, and that there can be copies of.

use std::collections::BTreeSet;

use abi::steer::{Hits, Position, Stop, Watched};

/// Why a replay cannot go on: a line for a person.
#[derive(Debug)]
pub struct Failed(pub String);

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// What there is to stop at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Points {
    /// Addresses of instructions.
    pub breaks: BTreeSet<u64>,
    pub watches: BTreeSet<Watch>,
    pub calls: Calls,
    /// The breakpoints are met only where an instruction references these bytes: address, length.
    pub only: Option<(u64, u64)>,
}

/// Which system calls are stops, in front of them and behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Calls {
    #[default]
    None,
    All,
    /// With these numbers.
    These(BTreeSet<u64>),
    /// The same, but not behind them.
    InFront(BTreeSet<u64>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Watch {
    pub address: u64,
    pub len: u64,
    kind: u64,
}

impl Watch {
    pub fn new(address: u64, len: u64, kind: Watched) -> Watch {
        Watch { address, len, kind: kind as u64 }
    }

    pub fn kind(&self) -> Watched {
        match self.kind {
            k if k == Watched::Read as u64 => Watched::Read,
            k if k == Watched::Access as u64 => Watched::Access,
            _ => Watched::Write,
        }
    }
}

/// How far to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The first place behind so many turns.
    Turn(u64),
    /// Here, the last part step by step.
    Place(Position),
}

/// A replay that stands in front of an instruction. The conditions are those of [`abi::steer`].
pub trait Machine: Sized {
    /// Where it stands, and why.
    fn stop(&self) -> &Stop;

    /// Runs on to the goal, or to what is met before.
    fn run(&mut self, goal: Goal, hits: Hits, points: &Points) -> Result<(), Failed>;

    /// One instruction.
    fn step(&mut self, points: &Points) -> Result<(), Failed>;

    /// Another one that stands at the same place.
    fn fork(&mut self) -> Result<Self, Failed>;

    /// Reads the program's memory; how many bytes there are.
    fn read(&self, address: u64, buffer: &mut [u8]) -> usize;

    /// The registers of a thread that stands while another one runs, from 0.
    fn thread(&mut self, number: u64) -> Result<Stop, Failed>;

    /// Whether it can watch all of these at once.
    fn can_watch(_watches: &BTreeSet<Watch>) -> bool {
        true
    }

    /// The vector registers of the thread that was told of last as `stop`, as an XSAVE area holds them, as far as they
    /// are known.
    fn vectors(&self, stop: &Stop) -> Vec<u8> {
        vectors_of(stop, |address, area| self.read(address, area))
    }
}

/// The vector registers of `stop`, which `read` reads.
pub fn vectors_of(stop: &Stop, read: impl FnOnce(u64, &mut [u8]) -> usize) -> Vec<u8> {
    let mut area = vec![0; stop.vectors_len.min(4096) as usize];
    let len = read(stop.vectors, &mut area);
    area.truncate(len);
    area
}
