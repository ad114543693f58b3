//! The traces that the replay of one process needs.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use abi::script::member;

use crate::mapped::Mapped;
use crate::order::known_as;
use crate::space::Used;
use recording::{Recording, TraceName};
use trace::events::{Event, Placed};
use trace::{Error, Trace, NOT_STARTED};

/// The trace of a process, behind those of the processes that forked it, the first of which began with an
/// exec.
#[derive(Debug)]
pub struct Lineage {
    first: Arc<Trace>,
    others: Vec<Arc<Trace>>,
    /// Looked for once: many threads may be replayed, each alone.
    used: OnceLock<Used>,
    mapped: OnceLock<Result<(Mapped, Range<u64>), Error>>,
}

/// Traces of processes that forked others, each opened once.
#[derive(Debug, Default)]
pub struct Parents(HashMap<TraceName, Arc<Trace>>);

impl Parents {
    fn open(&mut self, recording: &Recording, name: TraceName) -> Option<Arc<Trace>> {
        if let Some(known) = self.0.get(&name) {
            return Some(Arc::clone(known));
        }
        Trace::open_alone(&recording.path(name)).ok().map(Arc::new)
    }
}

/// A longer line of forks is not believed.
const MOST: usize = 10_000;

impl Lineage {
    /// Of a trace of a recording.
    pub fn of_recording(recording: &Recording, name: TraceName) -> Result<Lineage, Error> {
        Lineage::with_parents(recording, name, &mut Parents::default())
    }

    /// The same, with traces that have been opened for others.
    pub fn with_parents(
        recording: &Recording,
        name: TraceName,
        parents: &mut Parents,
    ) -> Result<Lineage, Error> {
        let trace = Trace::open_alone(&recording.path(name))?;
        Lineage::from(trace, |child| {
            let candidates = recording.traces.iter().filter(|name| Some(name.pid) == child.parent);
            let opened =
                candidates.filter_map(|&name| Some((name, parents.open(recording, name)?)));
            let mut found: Vec<_> = opened.filter(|(_, parent)| forked(parent, child)).collect();
            found.sort_by_key(|(_, parent)| parent.start_ns);
            let (name, parent) = found.pop()?;
            parents.0.insert(name, Arc::clone(&parent));
            Some(parent)
        })
        .map_err(|e| Error(format!("{name}: {e}")))
    }

    /// Of a trace that is none of a recording: those of its ancestors are beside it, under the same
    /// name with another process id.
    pub fn of_file(path: &Path) -> Result<Lineage, Error> {
        let trace = Trace::open_alone(path)?;
        let mut at = path.to_owned();
        Lineage::from(trace, |child| {
            let candidates = beside(&at, child.pid, child.parent?)?;
            let opened = candidates
                .filter_map(|path| Some((Trace::open_alone(&path).ok()?, path)))
                .filter(|(parent, _)| forked(parent, child));
            let (parent, path) = opened.max_by_key(|(parent, _)| parent.start_ns)?;
            at = path;
            Some(Arc::new(parent))
        })
        .map_err(|e| Error(format!("{}: {e}", path.display())))
    }

    fn from(
        trace: Trace,
        mut parent: impl FnMut(&Trace) -> Option<Arc<Trace>>,
    ) -> Result<Lineage, Error> {
        if has_not_begun(&trace) {
            return Err(Error(NOT_STARTED.into()));
        }
        if !trace.options.recording.inputs() {
            return Err(Error(
                "it is no recording of inputs: record with `dep record --instrument inputs`".into(),
            ));
        }
        // The youngest first.
        let mut line = vec![Arc::new(trace)];
        loop {
            let Some(youngest) = line.last().filter(|_| line.len() < MOST) else {
                return Err(Error("damaged: it has too many ancestors".into()));
            };
            if begins(youngest) {
                break;
            }
            let Some(pid) = youngest.parent else {
                return Err(Error("its start is not in the trace: nothing can be replayed".into()));
            };
            let before = parent(youngest).ok_or_else(|| {
                Error(format!(
                    "its start is not in the trace, nor that of process {pid}, which may have forked it"
                ))
            })?;
            line.push(before);
        }
        line.reverse();
        let mut line = line.into_iter();
        let first = line.next().ok_or_else(|| Error("there is no trace".into()))?;
        let others = line.collect();
        Ok(Lineage { first, others, used: OnceLock::new(), mapped: OnceLock::new() })
    }

    /// The one with the start.
    #[must_use]
    pub fn first(&self) -> &Trace {
        &self.first
    }

    /// That of the process itself.
    #[must_use]
    pub fn last(&self) -> &Trace {
        self.others.last().unwrap_or(&self.first)
    }

    /// Whether the process was forked by one that is recorded.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        !self.others.is_empty()
    }

    /// Which process of its tree it is: see [`abi::script::member`].
    #[must_use]
    pub fn member(&self) -> u64 {
        self.traces().windows(2).fold(0, |of_parent, pair| {
            member(of_parent, known_as(pair[0], pair[1]).unwrap_or(pair[1].pid))
        })
    }

    /// Addresses that the process, and those that forked it, had at any time.
    pub(crate) fn used(&self) -> &Used {
        self.used.get_or_init(|| {
            let mut used = Used::default();
            self.traces().iter().for_each(|trace| used.add_trace(trace));
            used
        })
    }

    /// What they had mapped, and the stack that the program began with.
    pub(crate) fn mapped(&self) -> Result<(&Mapped, &Range<u64>), Error> {
        let find = || {
            let layout = self.first.process_events.iter().find_map(|placed| match placed.event {
                Some(Event::Layout { brk, stack, stack_end, .. }) => {
                    Some((brk.0, stack.0..stack_end.0))
                }
                _ => None,
            });
            let (brk, stack) =
                layout.ok_or_else(|| Error("where its parts lay is missing: damaged".into()))?;
            Ok((Mapped::of(&self.traces(), brk)?, stack))
        };
        let found = self.mapped.get_or_init(find).as_ref();
        found.map(|(mapped, stack)| (mapped, stack)).map_err(Clone::clone)
    }

    /// All, in the order of their starts.
    #[must_use]
    pub fn traces(&self) -> Vec<&Trace> {
        std::iter::once(&self.first).chain(&self.others).map(Arc::as_ref).collect()
    }
}

/// Whether the process was killed before there was anything to replay: as nothing was recorded, or as it is a forked child
/// whose thread was about to be watched.
#[must_use]
pub fn has_not_begun(trace: &Trace) -> bool {
    let threads = trace.threads.iter().flat_map(|thread| &thread.events);
    let mut events = threads.chain(&trace.process_events);
    // (A child whose parent could not be watched any more goes on without being watched.)
    let is_of_more = |placed: &Placed| {
        matches!(
            placed.event,
            Some(
                Event::Syscall { .. }
                    | Event::Signal { .. }
                    | Event::Answer { .. }
                    | Event::State { .. }
                    | Event::Unfollowed { .. }
                    | Event::ThreadEnd { .. }
                    | Event::ProcessEnd { .. }
            )
        )
    };
    let is_watched_child = trace.options.recording.watches() && !has_start(trace);
    trace.not_started || is_watched_child && !events.any(is_of_more)
}

/// Whether the trace has the start of a program, or all that the replays of a forked child need.
fn begins(trace: &Trace) -> bool {
    // A ring of watched threads says itself what was mapped before.
    let recording = trace.options.recording;
    let is_told = |placed: &Placed| matches!(placed.event, Some(Event::Snapshot { .. }));
    let is_whole =
        recording.ring && recording.watches() && trace.process_events.iter().any(is_told);
    trace.first_stretch().is_some() || is_whole || has_start(trace)
}

/// Whether the trace has the start of a program, and not of a forked child: what the stack held.
pub fn has_start(trace: &Trace) -> bool {
    let layout = trace.process_events.iter().find_map(|placed| match placed.event {
        Some(Event::Layout { stack, .. }) => Some(stack.0),
        _ => None,
    });
    let Some(stack) = layout else { return false };
    let first = trace.threads.iter().find(|thread| thread.index == 0);
    let mut events = first.into_iter().flat_map(|thread| &thread.events);
    let mut ahead = events.by_ref().map_while(|placed| match &placed.event {
        Some(Event::Syscall { .. } | Event::Signal { .. }) => None,
        event => Some(event),
    });
    ahead.any(|event| match event {
        Some(Event::Written { address, bytes }) => {
            stack.wrapping_sub(address.0) < bytes.len() as u64
        }
        _ => false,
    })
}

/// Whether the one process says that it forked the other. (Both have the same number where a namespace is in another.)
fn forked(parent: &Trace, child: &Trace) -> bool {
    let is_itself = (parent.pid, parent.start_ns) == (child.pid, child.start_ns);
    !is_itself && parent.start_ns <= child.start_ns && parent.children().any(|pid| pid == child.pid)
}

/// The paths with another process id in their names: what the process was first, and behind each `exec`.
fn beside(path: &Path, pid: u64, other: u64) -> Option<impl Iterator<Item = PathBuf> + use<>> {
    let name = path.file_name()?.to_str()?;
    let parts: Vec<String> = name.split('.').map(str::to_owned).collect();
    let at = parts.iter().rposition(|part| *part == pid.to_string())?;
    let mut parts = parts;
    parts[at] = other.to_string();
    // What it was behind an exec has a number behind.
    parts.truncate(at + 2);
    let first = path.with_file_name(parts.join("."));
    let behind_exec = {
        let first = first.clone();
        (1..MOST).map(move |number| {
            let mut name = first.as_os_str().to_owned();
            name.push(format!(".{number}"));
            PathBuf::from(name)
        })
    };
    Some(std::iter::once(first).chain(behind_exec.take_while(|path| path.exists())))
}
