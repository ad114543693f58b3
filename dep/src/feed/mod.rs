//! What all threads did, in the order in which they did it.
//!
//! A thread's chunks are walked by a thread of ours, a few batches ahead (`collect`). Whoever listens takes the batches
//! of the thread that ran: of threads that ran one at a time stretch by stretch (`stretches`), of watched ones from
//! stamp to stamp (`stamps`).

mod collect;
pub mod stamps;
pub mod stretches;

use std::ops::Range;
use std::sync::mpsc::{sync_channel, Receiver};
use std::thread::{Scope, ScopedJoinHandle};

use abi::ids::LiveAddr;
use trace::events::Event;
use trace::{Error, Thread, Trace};

use stamps::Stamps;

/// Batches that may wait.
const QUEUE: usize = 2;

/// What a thread did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Did {
    /// It executed so many instructions, and made so many turns.
    Ran {
        instructions: u32,
        turns: u32,
    },
    /// It executed the instruction that is looked for.
    Passed,
    Referred {
        pc: u64,
        address: u64,
        size: u32,
        write: bool,
        atomic: bool,
    },
    /// An event; its number among those of the thread that are told.
    Happened(u32),
    /// From here on it is in this stretch, behind the instruction at `pc`.
    Runs {
        number: u64,
        pc: u64,
    },
    /// It is at this stamp.
    Stamped(u64),
    /// It begins the call whose event is next.
    Calls(u32),
    /// It begins the atomic instruction that refers to this, and others may come in between.
    Left {
        address: u64,
        size: u32,
    },
    /// The atomic instruction that has referred to this is behind it, and others may have come in between.
    Took {
        address: u64,
        size: u32,
    },
}

/// The events that a thread's listener is told of, with the pc of the instruction in front.
#[derive(Default)]
struct Batch {
    all: Vec<Did>,
    events: Vec<(Event, u64)>,
}

/// Which references are told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum References {
    All,
    /// Those of locked instructions.
    Atomic,
    Nothing,
}

/// What is told.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    pub references: References,
    /// Where a mask chooses the elements of a reference, the first one stands for all: of the others nobody knows.
    pub first_of_masked: bool,
    /// Code whose plain accesses to words synchronise: where its functions lie, ascending.
    pub synchronising: &'a [Range<LiveAddr>],
    /// The instruction that is looked for.
    pub passing: Option<LiveAddr>,
}

/// Who is told what happened, in the order of all threads.
pub trait Listener {
    /// The thread at this place (in [`Trace::threads`]) goes on.
    fn runs(&mut self, _thread: usize) {}
    /// It executed so many instructions, and made so many turns.
    fn ran(&mut self, _instructions: u32, _turns: u32) {}
    /// It is about to execute the instruction that is looked for.
    fn passed(&mut self) {}
    /// It referred to memory.
    fn referred(&mut self, _pc: u64, _address: u64, _size: u32, _write: bool, _atomic: bool) {}
    /// Of a watched thread: in front of an atomic instruction, where others may take what it leaves.
    fn left(&mut self, _address: u64, _size: u32) {}
    /// Of a watched thread: behind an atomic instruction, which may have found there what others have left meanwhile.
    fn took(&mut self, _address: u64, _size: u32) {}
    /// Of a watched thread: it begins the call of this event, which happens later.
    fn calls(&mut self, _event: &Event, _pc: u64) {}
    /// Something happened, at or behind the instruction at `pc`.
    fn happened(&mut self, _event: &Event, _pc: u64) {}
    /// It stands still from here on, behind the instruction at `pc`, until it goes on in this stretch.
    fn stands(&mut self, _until: u64, _pc: u64) {}
    /// Of a watched thread: there is no more of it.
    fn ends(&mut self) {}
}

/// The walk of one thread.
struct Source {
    receiver: Receiver<Batch>,
    batch: Batch,
    at: usize,
}

impl Source {
    fn next(&mut self) -> Option<Did> {
        loop {
            if let Some(&did) = self.batch.all.get(self.at) {
                self.at += 1;
                return Some(did);
            }
            self.batch = self.receiver.recv().ok()?;
            self.at = 0;
        }
    }

    /// Tells it, unless it is about the order.
    fn tell(&self, did: Did, listener: &mut impl Listener) {
        let event = |at: u32| self.batch.events.get(at as usize);
        match did {
            Did::Ran { instructions, turns } => listener.ran(instructions, turns),
            Did::Passed => listener.passed(),
            Did::Referred { pc, address, size, write, atomic } => {
                listener.referred(pc, address, size, write, atomic);
            }
            Did::Left { address, size } => listener.left(address, size),
            Did::Took { address, size } => listener.took(address, size),
            Did::Calls(at) => {
                event(at).into_iter().for_each(|(event, pc)| listener.calls(event, *pc));
            }
            Did::Happened(at) => {
                event(at).into_iter().for_each(|(event, pc)| listener.happened(event, *pc));
            }
            Did::Runs { .. } | Did::Stamped(_) => {}
        }
    }
}

/// Walks through threads, each of which has a thread of ours.
struct Walks<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    wanted: Wanted<'env>,
    all: Vec<ScopedJoinHandle<'scope, Result<(), String>>>,
}

impl<'scope, 'env> Walks<'scope, 'env> {
    fn new(scope: &'scope Scope<'scope, 'env>, wanted: Wanted<'env>) -> Walks<'scope, 'env> {
        Walks { scope, wanted, all: Vec::new() }
    }

    /// Begins to walk through a thread.
    fn begin(&mut self, trace: &'env Trace, thread: &'env Thread, stamps: Stamps<'env>) -> Source {
        let (sender, receiver) = sync_channel(QUEUE);
        let wanted = self.wanted;
        self.all
            .push(self.scope.spawn(move || collect::walk(trace, thread, sender, wanted, stamps)));
        Source { receiver, batch: Batch::default(), at: 0 }
    }

    /// Nobody listens any more: what has failed.
    fn end(self) -> Result<(), Error> {
        for walk in self.all {
            match walk.join() {
                Ok(Ok(())) => {}
                Ok(Err(what)) => return Err(Error(what)),
                Err(_) => return Err(Error("a walk through the replay's trace has failed".into())),
            }
        }
        Ok(())
    }
}
