//! Where a walk through a chunk ended, or went wrong.

use std::fmt;

use abi::event::Position;
use abi::ids::{LiveAddr, StreamOff};
use abi::trace::RegisterState;
use lifter::recompute::Known;

use crate::compile::Exit;

/// The trace is not what the format promises.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// What the thread is called.
    pub thread: u32,
    /// Where the walk stood.
    pub position: Position,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { thread, position: Position { chunk, control_flow, .. }, what } = self;
        let control_flow = control_flow.0;
        write!(f, "thread {thread}, chunk {chunk}, control-flow offset {control_flow:#x}: {what}")
    }
}

impl std::error::Error for Violation {}

/// Where a walk stood when its chunk ended.
#[derive(Clone, Debug)]
pub struct ChunkEnd {
    /// Registers with which the chunk starts.
    pub start: RegisterState,
    /// Where the first unit lies.
    pub first_unit: Option<LiveAddr>,
    /// The block of the first unit was reported as uncertain.
    pub uncertain: bool,
    /// What must come next, as far as the code says.
    pub next: Next,
    /// What continues the last block.
    pub falls: Falls,
    /// What comes first is code that is not selected: how the thread got there is not recorded.
    pub starts_outside: bool,
    /// What comes last is code that is not selected.
    pub ends_outside: bool,
    /// The thread was in code that is not selected so many times.
    pub stays: u64,
    /// Registers that are known.
    pub known: Known,
    /// Units that were executed.
    pub units: u64,
    /// Instructions that were executed.
    pub instructions: u64,
    /// How far the control-flow stream was read.
    pub control_flow: StreamOff,
    /// How far the memory stream was read.
    pub memory: StreamOff,
    /// The last unit may be incomplete (open chunk).
    pub partial: bool,
    /// The sink asked to stop.
    pub stopped: bool,
    /// The recording was lost: what follows is not described.
    pub lost: bool,
}

impl ChunkEnd {
    /// Before the first unit of a chunk that starts with these registers.
    pub(super) fn at_start(start: RegisterState) -> ChunkEnd {
        ChunkEnd {
            start,
            first_unit: None,
            uncertain: false,
            next: Next::Anywhere,
            falls: Falls::Nowhere,
            starts_outside: false,
            ends_outside: false,
            stays: 0,
            known: Known::default(),
            units: 0,
            instructions: 0,
            control_flow: StreamOff(0),
            memory: StreamOff(0),
            partial: false,
            stopped: false,
            lost: false,
        }
    }
}

/// Which unit continues the last block, if it comes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Falls {
    /// None: the block is over.
    Nowhere,
    /// The one at this address.
    To(LiveAddr),
    /// Whichever comes: the block is one of code that is not selected.
    Anywhere,
}

impl Falls {
    /// Whether a unit at `address` continues the block.
    #[must_use]
    pub fn reaches(self, address: LiveAddr) -> bool {
        match self {
            Falls::Nowhere => false,
            Falls::To(to) => to == address,
            Falls::Anywhere => true,
        }
    }
}

/// Which unit may come next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Any.
    Anywhere,
    /// The one at this address.
    At(LiveAddr),
    /// One of these two: a conditional branch leads to them.
    Either(LiveAddr, LiveAddr),
}

impl Next {
    /// Behind a unit that ends so.
    #[must_use]
    pub fn behind(exit: Exit) -> Next {
        match exit {
            Exit::To(address) | Exit::System(address) => Next::At(address),
            Exit::Branch { taken, not_taken } => Next::Either(taken, not_taken),
            Exit::Anywhere => Next::Anywhere,
        }
    }

    /// Whether a unit at `address` may come next.
    #[must_use]
    pub fn allows(self, address: LiveAddr) -> bool {
        match self {
            Next::Anywhere => true,
            Next::At(a) => a == address,
            Next::Either(a, b) => a == address || b == address,
        }
    }
}

impl fmt::Display for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Next::Anywhere => f.write_str("Anywhere"),
            Next::At(a) => write!(f, "At({:x})", a.0),
            Next::Either(a, b) => write!(f, "Either({:x}, {:x})", a.0, b.0),
        }
    }
}
