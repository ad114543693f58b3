//! The one order in which the events of all threads of a process are to happen.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, Range};

use abi::event::Position;
use abi::ids::StreamOff;
use trace::events::{Event, Placed};
use trace::{Error, Thread, Trace};

use crate::end::End;

/// An event in its place.
#[derive(Clone, Debug)]
pub struct Item<'a> {
    /// Index of the thread in the script.
    pub thread: u32,
    /// `control_flow`: turns of the thread, counted from its first instruction.
    pub position: Position,
    /// What happened.
    pub event: Said<'a>,
}

/// What a trace says, or what is said in its place. There are as many as the program made calls, so they are small.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Said<'a> {
    /// In the trace.
    Recorded(&'a Event),
    /// Here.
    Made(Box<Event>),
}

impl Deref for Said<'_> {
    type Target = Event;

    fn deref(&self) -> &Event {
        match self {
            Said::Recorded(event) => event,
            Said::Made(event) => event,
        }
    }
}

impl<'a> From<&'a Event> for Said<'a> {
    fn from(event: &'a Event) -> Said<'a> {
        Said::Recorded(event)
    }
}

impl From<Event> for Said<'_> {
    fn from(event: Event) -> Self {
        Said::Made(Box::new(event))
    }
}

impl<'a> From<Cow<'a, Event>> for Said<'a> {
    fn from(event: Cow<'a, Event>) -> Said<'a> {
        match event {
            Cow::Borrowed(event) => event.into(),
            Cow::Owned(event) => event.into(),
        }
    }
}

/// Events of a thread that happen without another thread in between.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Piece {
    /// Its place in [`Trace::threads`].
    thread: usize,
    events: Range<usize>,
}

/// The order of the events of one trace or of a line of traces, and what it ends with.
#[derive(Debug)]
pub struct Ordered<'a> {
    /// In their order.
    pub items: Vec<Item<'a>>,
    /// Why there are no more.
    pub end: End,
    /// Of a forked process: where it begins.
    pub child: Option<Child>,
}

/// A forked process among those that forked it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Child {
    /// Index of its first thread, which was one of its parent's.
    pub thread: u32,
    /// Kernel thread id of that.
    pub tid: Option<u32>,
    /// Indexes of its other threads are larger.
    pub above: u32,
    /// Items in front of what its parent has not done before it makes the call.
    pub begins: usize,
}

/// How the numbers of a trace become those of the script.
struct Numbers {
    /// Of the trace's first thread.
    first: u32,
    /// Added to the index of every other thread.
    others: u32,
    /// Added to the turns of the first thread.
    turns: u64,
}

impl Numbers {
    const OWN: Numbers = Numbers { first: 0, others: 0, turns: 0 };

    fn thread(&self, index: u32) -> u32 {
        match index {
            0 => self.first,
            index => index.saturating_add(self.others),
        }
    }

    fn item<'a>(&self, thread: &Thread, placed: &'a Placed) -> Option<Item<'a>> {
        let event = placed.event.as_ref()?;
        let mut position = placed.position;
        if thread.index == 0 {
            position.control_flow = StreamOff(position.control_flow.0.wrapping_add(self.turns));
        }
        let event = match event {
            Event::ThreadStart { tid, parent, registers } => Said::from(Event::ThreadStart {
                tid: *tid,
                parent: self.thread(*parent),
                registers: registers.clone(),
            }),
            event => event.into(),
        };
        Some(Item { thread: self.thread(thread.index), position, event })
    }
}

/// Puts the events of the last of these traces in order, behind those of the traces before it: each is of
/// the process that was forked by the one before.
pub fn order<'a>(traces: &[&'a Trace]) -> Result<Ordered<'a>, Error> {
    let mut ordered = in_line(traces)?;
    ordered.cut();
    Ok(ordered)
}

/// The events of the first trace, and of each further one behind those before it: not cut.
fn in_line<'a>(traces: &[&'a Trace]) -> Result<Ordered<'a>, Error> {
    let Some((first, children)) = traces.split_first() else {
        return Err(Error("there is no trace".into()));
    };
    children.iter().try_fold(alone(first, &Numbers::OWN)?, |ordered, child| behind(ordered, child))
}

/// What the process of the last of these traces did until its threads were watched: each up to there. See [`order`].
pub fn beginning<'a>(traces: &[&'a Trace]) -> Result<Ordered<'a>, Error> {
    let mut ordered = match traces {
        [trace] if !had_others(trace) => {
            let first = trace.threads.iter().find(|thread| thread.index == 0);
            let first = first.ok_or_else(|| Error("damaged: it has no first thread".into()))?;
            let items = first.events.iter().filter_map(|placed| Numbers::OWN.item(first, placed));
            Ordered { items: items.collect(), end: End::None, child: None }
        }
        traces => up_to_watched(in_line(traces)?),
    };
    ordered.cut();
    Ok(ordered)
}

/// Whether other threads than the first one ran before any was watched.
fn had_others(trace: &Trace) -> bool {
    let has_run = |thread: &Thread| thread.events.iter().enumerate().any(|e| runs(e).is_some());
    trace.threads.iter().any(|thread| {
        thread.index != 0
            && !crate::alone::follows_watched(trace, thread)
            && (has_run(thread) || thread.own_process().is_some())
    })
}

/// Leaves out what each thread did from where it was watched on. The one that is watched first lets the others go on to
/// where they are, too; threads that never are begin behind it.
fn up_to_watched(mut ordered: Ordered<'_>) -> Ordered<'_> {
    let is_watched = |item: &&Item<'_>| *item.event == Event::Watched;
    let mut to_come: BTreeSet<u32> =
        ordered.items.iter().filter(is_watched).map(|item| item.thread).collect();
    let (mut has_begun, mut last) = (false, None);
    ordered.items.retain(|item| {
        if is_watched(&item) {
            to_come.remove(&item.thread);
            has_begun = true;
            last = Some(item.clone());
            return false;
        }
        !has_begun || to_come.contains(&item.thread)
    });
    ordered.items.extend(last);
    ordered
}

fn alone<'a>(trace: &'a Trace, numbers: &Numbers) -> Result<Ordered<'a>, Error> {
    let (pieces, whole) = pieces(trace)?;
    let mut items = snapshot(trace);
    items.reserve(pieces.iter().map(|piece| piece.events.len()).sum());
    for Piece { thread, events } in pieces {
        let thread = &trace.threads[thread];
        items.extend(thread.events[events].iter().filter_map(|e| numbers.item(thread, e)));
    }
    // What the File frame says of the end belongs to no thread.
    let ended = |placed: &Placed| matches!(placed.event, Some(Event::ProcessEnd { .. }));
    let end = match whole {
        Err(number) => End::Missing(number),
        Ok(()) if trace.process_events.iter().any(ended) => End::Whole,
        Ok(()) => End::None,
    };
    Ok(Ordered { items, end, child: None })
}

/// What the process was where the part begins that is kept: as events of the thread that has the baton
/// there.
fn snapshot(trace: &Trace) -> Vec<Item<'_>> {
    let events = || trace.snapshot.iter().filter_map(|placed| placed.event.as_ref());
    let first = events().find_map(|event| match event {
        Event::State { index, .. } => Some(*index),
        _ => None,
    });
    let item = |event| Item {
        thread: first.unwrap_or(0),
        position: Position::NONE,
        event: Said::Recorded(event),
    };
    events().map(item).collect()
}

/// Whether these events are the start of a thread, and nothing else.
fn is_start(events: &[Placed]) -> bool {
    let is_part = |placed: &Placed| {
        matches!(
            placed.event,
            Some(Event::ThreadStart { .. } | Event::OwnProcess { .. } | Event::Written { .. })
        )
    };
    let start = events.first().and_then(|placed| placed.event.as_ref());
    matches!(start, Some(Event::ThreadStart { .. })) && events.iter().all(is_part)
}

/// Whether a thread's event is something that a replay has to be told.
pub(crate) fn is_input(event: &Event) -> bool {
    !matches!(event, Event::ThreadStart { .. } | Event::ThreadEnd { .. } | Event::OwnProcess { .. })
}

/// The pieces in their order. The second result: the number of a stretch that is missing, where the order
/// ends.
fn pieces(trace: &Trace) -> Result<(Vec<Piece>, Result<(), u64>), Error> {
    let mut stretches: BTreeMap<u64, Piece> = BTreeMap::new();
    let mut unnumbered = Vec::new();
    let mut within = Vec::new();
    let first = trace.first_stretch();
    let together = |(_, thread): &(usize, &Thread)| !crate::alone::follows_watched(trace, thread);
    for (index, thread) in trace.threads.iter().enumerate().filter(together) {
        let runs: Vec<(usize, u64)> = thread.events.iter().enumerate().filter_map(runs).collect();
        let all = Piece { thread: index, events: 0..thread.events.len() };
        match runs.is_empty() {
            // It has ended, or has not begun, where the part begins that is kept.
            true if first.is_some() => {}
            true if thread.own_process().is_some() => within.push(all),
            true if !thread.events.iter().filter_map(|e| e.event.as_ref()).any(is_input) => {}
            true => unnumbered.push(all),
            false => {}
        }
        let ends = runs.iter().skip(1).map(|&(at, _)| at).chain([thread.events.len()]);
        let mut start = 0;
        for (&(at, number), end) in runs.iter().zip(ends) {
            let is_gone = first.is_some_and(|first| number < first);
            // In front of the first one that is kept may be what is left of one that is not.
            let is_rest = start < at && first.is_some() && !is_start(&thread.events[start..at]);
            let piece = Piece { thread: index, events: if is_rest { at } else { start }..end };
            start = end;
            if is_gone {
                continue;
            }
            if stretches.insert(number, piece).is_some() {
                return Err(Error(format!(
                    "damaged: two stretches of the threads have the number {number}"
                )));
            }
        }
    }
    let mut missing = Ok(());
    let mut pieces = Vec::new();
    for (expected, (number, piece)) in (first.unwrap_or(0)..).zip(stretches) {
        if number != expected {
            missing = Err(expected);
            break;
        }
        pieces.push(piece);
    }
    match unnumbered.len() {
        0 => {}
        1 if pieces.is_empty() => pieces = unnumbered,
        _ => {
            let not_followed = |thread: &Thread| {
                thread.events.iter().find_map(|placed| match &placed.event {
                    Some(Event::Unfollowed { why, .. }) => {
                        Some(String::from_utf8_lossy(why).into_owned())
                    }
                    _ => None,
                })
            };
            let first = &trace.threads[unnumbered[0].thread];
            let is_watched = crate::alone::is_watched(trace);
            match not_followed(first).map(|why| (why, is_watched)) {
                // There was no other thread before.
                Some((_, false)) if pieces.is_empty() => {
                    unnumbered.truncate(1);
                    return Ok((unnumbered, missing));
                }
                Some((why, _)) => {
                    return Err(Error(format!(
                        "the threads of its process were not followed to there: {why}"
                    )))
                }
                None => {}
            }
            let names: Vec<String> =
                unnumbered.iter().map(|p| trace.threads[p.thread].name().to_string()).collect();
            return Err(Error(format!(
                "the order of its threads was not recorded (thread {})",
                names.join(", ")
            )));
        }
    }
    for child in within {
        put_within(trace, &mut pieces, child);
    }
    Ok((pieces, missing))
}

fn runs((at, placed): (usize, &Placed)) -> Option<(usize, u64)> {
    match placed.event {
        Some(Event::Runs(number)) => Some((at, number)),
        _ => None,
    }
}

/// A child that shares the memory runs while its parent waits for it in the system call that made it.
fn put_within(trace: &Trace, pieces: &mut Vec<Piece>, child: Piece) {
    let thread = &trace.threads[child.thread];
    let pid = thread.own_process();
    let parent = thread.events.iter().find_map(|e| match e.event {
        Some(Event::ThreadStart { parent, .. }) => Some(parent),
        _ => None,
    });
    let parent = trace.threads.iter().position(|t| Some(t.index) == parent);
    let made = |placed: &Placed| matches!(placed.event, Some(Event::Fork { pid: made }) if Some(made) == pid);
    let of_parent = |piece: &Piece| Some(piece.thread) == parent;
    // Of several children with this number, each belongs to a call of its own.
    let earlier = trace.threads[..child.thread].iter().filter(|t| t.own_process() == pid).count();
    let parents = pieces.iter().enumerate().filter(|(_, p)| of_parent(p));
    let forks = parents.flat_map(|(at, piece)| {
        let events = &trace.threads[piece.thread].events;
        let forks = piece.events.clone().filter(|&fork| made(&events[fork]));
        forks.filter(|&fork| shares_memory(&events[fork..])).map(move |fork| (at, fork))
    });
    let found = forks.clone().nth(earlier).or_else(|| forks.last());
    let (at, split) = match found {
        Some(found) => found,
        // The parent did not come back from the call.
        None => match pieces.iter().rposition(of_parent) {
            Some(at) => (at, pieces[at].events.end),
            None => return pieces.push(child),
        },
    };
    let Piece { thread, events } = pieces[at].clone();
    pieces[at].events = events.start..split;
    pieces.splice(at + 1..at + 1, [child, Piece { thread, events: split..events.end }]);
}

/// Calls that make a process: clone, fork, vfork, clone3.
pub const MAKERS: [u64; 4] = [56, 57, 58, 435];

/// Whether the call that made a process, the first one of these events, may have let it share the memory.
fn shares_memory(events: &[Placed]) -> bool {
    const CLONE: u64 = 56;
    const CLONE_VM: u64 = 0x100;
    const FORK: u64 = 57;
    let made = events.iter().find_map(|placed| match placed.event {
        Some(Event::Syscall { number, arguments, .. }) if MAKERS.contains(&number) => {
            Some((number, arguments[0]))
        }
        _ => None,
    });
    !made.is_some_and(|(number, flags)| number == FORK || number == CLONE && flags & CLONE_VM == 0)
}

/// The number under which the parent knows the child that it has forked: what its call returned. In another PID namespace the
/// child has another one for itself.
pub fn known_as(parent: &Trace, child: &Trace) -> Option<u64> {
    let own = child.threads.iter().find(|t| t.index == 0);
    let start = own.and_then(|t| t.events.first()).map_or(0, |e| e.position.control_flow.0);
    let mut calls = Vec::new();
    for thread in &parent.threads {
        let mut events = thread.events.iter();
        while let Some(placed) = events.next() {
            if !matches!(placed.event, Some(Event::Fork { pid }) if pid == child.pid) {
                continue;
            }
            calls.extend(events.as_slice().iter().find_map(|placed| match placed.event {
                Some(Event::Syscall { number, result, .. }) if MAKERS.contains(&number) => {
                    Some((placed.position.control_flow.0.abs_diff(start), result))
                }
                _ => None,
            }));
        }
    }
    // Its number may have been that of others, before or behind; the turns say which it is.
    let (_, result) = calls.into_iter().min_by_key(|&(off, _)| off)?;
    u64::try_from(result).ok()
}

/// The events of a forked child, behind those of its parent up to the fork.
fn behind<'a>(parent: Ordered<'a>, child: &'a Trace) -> Result<Ordered<'a>, Error> {
    let pid = child.pid;
    let lacking = || Error(format!("the trace of its parent does not say how {pid} was forked"));
    let Ordered { mut items, .. } = parent;
    let own = child.threads.iter().find(|t| t.index == 0);
    let start = own.and_then(|t| t.events.first()).map_or(0, |e| e.position.control_flow.0);
    let is_it = |item: &Item| matches!(*item.event, Event::Fork { pid: made } if made == pid);
    let call_of = |fork: usize| {
        let thread = items[fork].thread;
        let is_call = |item: &Item| {
            item.thread == thread
                && matches!(*item.event, Event::Syscall { number, .. } if MAKERS.contains(&number))
        };
        Some((fork, items[fork..].iter().position(is_call).map(|at| fork + at)?))
    };
    // Its number may have been that of others, before or behind; the turns say which it is.
    let forks = (0..items.len()).filter(|&at| is_it(&items[at])).filter_map(call_of);
    let off = |&(_, call): &(usize, usize)| items[call].position.control_flow.0.abs_diff(start);
    let (fork, call) = forks.min_by_key(off).ok_or_else(lacking)?;
    let thread = items[fork].thread;
    let mut call = items[call].clone();
    let Event::Syscall { number, arguments, .. } = *call.event else { return Err(lacking()) };
    call.event = Event::Syscall { number, arguments, result: 0 }.into();
    items.truncate(fork);
    // What the call wrote for the parent is not in the child's memory.
    while items
        .last()
        .is_some_and(|item| item.thread == thread && matches!(*item.event, Event::Written { .. }))
    {
        items.pop();
    }

    let begins = items.iter().rposition(is_done).map_or(0, |at| at + 1);
    let tid = own.and_then(|t| t.tid);
    let numbers = Numbers {
        first: thread,
        others: items.iter().map(|item| item.thread).max().unwrap_or(0),
        turns: call.position.control_flow.0.wrapping_sub(start),
    };
    let Ordered { items: own, end, .. } = alone(child, &numbers)?;
    let mut own = own.into_iter().peekable();
    // It goes on where its parent was; the call may have told it its number.
    own.next_if(|item| item.thread == thread && matches!(*item.event, Event::ThreadStart { .. }));
    own.next_if(|item| item.thread == thread && matches!(*item.event, Event::Runs(_)));
    let at = number_goes_to(number, &arguments);
    let told = |item: &Item| match &*item.event {
        Event::Written { address, bytes } => is_number(address.0, bytes, at, pid),
        _ => false,
    };
    while let Some(item) = own.next_if(told) {
        items.push(Item { position: call.position, ..item });
    }
    items.push(call);
    items.extend(own);
    let child = Child { thread, tid, above: numbers.others, begins };
    Ok(Ordered { items, end, child: Some(child) })
}

/// Whether a replay that is about to take what stands behind the event has taken that.
fn is_done(item: &Item<'_>) -> bool {
    matches!(
        *item.event,
        Event::Answer { .. }
            | Event::Arrived(_)
            | Event::Checked(_)
            | Event::Seen { .. }
            | Event::Signal { .. }
            | Event::Syscall { .. }
            | Event::ThreadEnd { .. }
            | Event::ThreadStart { .. }
            | Event::Yields
    )
}

/// Where the call tells the child its number, if the call's arguments say it.
fn number_goes_to(number: u64, arguments: &[u64; 6]) -> Option<u64> {
    const CLONE: u64 = 56;
    const CHILD_SETTID: u64 = 0x100_0000;
    (number == CLONE && arguments[0] & CHILD_SETTID != 0).then_some(arguments[3])
}

/// Whether the bytes at `address` are the child's number, which is told at `at` if that is known, or those
/// of its bytes that were others before.
fn is_number(address: u64, bytes: &[u8], at: Option<u64>, pid: u64) -> bool {
    let word = pid.to_le_bytes();
    let offset = match at {
        Some(at) => address.wrapping_sub(at),
        None if bytes.len() == 4 => 0,
        None => return false,
    };
    let offset = usize::try_from(offset).unwrap_or(usize::MAX);
    let end = offset.saturating_add(bytes.len());
    end <= 4 && word.get(offset..end) == Some(bytes)
}

impl Ordered<'_> {
    /// Leaves out what cannot be replayed, and says why it ends where it does.
    pub(crate) fn cut(&mut self) {
        for (at, item) in self.items.iter().enumerate() {
            let end = match &*item.event {
                Event::Unfollowed { pc, why } => {
                    End::Unfollowed { pc: *pc, why: String::from_utf8_lossy(why).into_owned() }
                }
                Event::Loss { reason, .. } => End::Lost(*reason),
                Event::Watched => End::Watched,
                Event::ProcessEnd { .. } => {
                    self.end = End::Whole;
                    continue;
                }
                _ => continue,
            };
            self.end = end;
            self.items.truncate(at);
            break;
        }
        if self.end == End::None && self.is_replaced() {
            self.end = End::Whole;
        }
        if self.end != End::Whole {
            self.leave_out_halves();
        }
    }

    /// Whether the last that it did was to execute another program.
    fn is_replaced(&self) -> bool {
        let last = self.items.iter().rfind(|item| !matches!(*item.event, Event::NotFollowed(_)));
        last.is_some_and(|item| matches!(*item.event, Event::Exec(_)))
    }

    /// What belongs to an event that did not come means nothing.
    fn leave_out_halves(&mut self) {
        let is_half = |item: &Item| {
            matches!(
                *item.event,
                Event::Written { .. }
                    | Event::Mapped { .. }
                    | Event::Arrived(_)
                    | Event::Fork { .. }
                    | Event::Passed { .. }
            )
        };
        while self.items.last().is_some_and(is_half) {
            // The stack at the start belongs to no other event.
            let before = self.items.iter().rev().find(|item| !is_half(item));
            if before.is_none_or(|item| matches!(*item.event, Event::ThreadStart { .. })) {
                break;
            }
            self.items.pop();
        }
    }
}
