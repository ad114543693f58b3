//! Threads that ran one at a time: `RUNS` numbers the stretches.

use trace::events::Event;
use trace::{Error, Trace};

use super::stamps::Stamps;
use super::{Did, Listener, Source, Walks, Wanted};
use crate::args::Common;
use crate::replay::Ready;
use crate::Stop;

/// Who runs in which stretch: `(number, thread)`, in their order.
pub fn stretches(trace: &Trace) -> Vec<(u64, usize)> {
    let mut all: Vec<(u64, usize)> = Vec::new();
    for (at, thread) in trace.threads.iter().enumerate() {
        all.extend(thread.events.iter().filter_map(|placed| match placed.event {
            Some(Event::Runs(number)) => Some((number, at)),
            _ => None,
        }));
    }
    all.sort_unstable();
    all
}

/// The trace does not say in which order its threads ran.
pub fn needs_inputs(common: &Common) -> Stop {
    let file = common.file.display();
    let why = "the order of its threads was not recorded; it takes a recording of inputs";
    Error(format!("{file}: {why} (dep record --instrument inputs)")).into()
}

/// The thread that runs before anybody is numbered, by its place.
pub fn first(trace: &Trace, ready: &Ready) -> usize {
    match ready.script.child {
        Some(child) => place_of(trace, child.thread).unwrap_or(0),
        None => standing(trace, ready).first().copied().unwrap_or(0),
    }
}

fn place_of(trace: &Trace, index: u32) -> Option<usize> {
    trace.threads.iter().position(|thread| thread.index == index)
}

/// The threads that were there where the part begins that was kept, by their places; the first one had
/// the baton. Empty if it begins where the program does.
pub fn standing(trace: &Trace, ready: &Ready) -> Vec<usize> {
    // A forked process begins with one thread, wherever its parent's recording did.
    if ready.script.child.is_some() {
        return Vec::new();
    }
    let snapshot = ready.lineage.first().snapshot.iter();
    let indexes = snapshot.filter_map(|placed| match placed.event {
        Some(Event::State { index, .. }) => Some(index),
        _ => None,
    });
    indexes.filter_map(|index| place_of(trace, index)).collect()
}

/// A thread, and the stretch that it is about to go on in.
struct Runner {
    source: Source,
    next: Option<u64>,
}

impl Runner {
    /// Tells what the thread did in stretch `number` (0: before its first).
    fn stretch(&mut self, number: u64, listener: &mut impl Listener) {
        if self.next.is_some_and(|next| next != number) {
            return;
        }
        self.next = None;
        while let Some(did) = self.source.next() {
            match did {
                // It has begun.
                Did::Runs { number: runs, .. } if runs == number => {}
                Did::Runs { number: runs, pc } => {
                    self.next = Some(runs);
                    return listener.stands(runs, pc);
                }
                did => self.source.tell(did, listener),
            }
        }
    }
}

/// Tells the listener all that the threads did. `first`: the thread that runs before anybody is numbered.
pub fn run(
    trace: &Trace,
    first: usize,
    wanted: Wanted<'_>,
    listener: &mut impl Listener,
) -> Result<(), Error> {
    let order = stretches(trace);
    std::thread::scope(|scope| {
        let mut walks = Walks::new(scope, wanted);
        let mut runners: Vec<Option<Runner>> = Vec::new();
        runners.resize_with(trace.threads.len(), || None);
        for (number, at) in std::iter::once((0, first)).chain(order) {
            let (Some(runner), Some(thread)) = (runners.get_mut(at), trace.threads.get(at)) else {
                break;
            };
            let runner = runner.get_or_insert_with(|| Runner {
                source: walks.begin(trace, thread, Stamps::none()),
                next: None,
            });
            listener.runs(at);
            runner.stretch(number, listener);
        }
        drop(runners);
        walks.end()
    })
}
