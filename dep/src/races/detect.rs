//! Finds accesses of different threads that nothing orders.

use std::collections::HashMap;

use abi::syscalls::{effects, Access as Direction};
use trace::events::Event;
use trace::Trace;

use super::calls::{self, Call, Descriptors, Futex};
use super::order::{Order, Place};
use super::shadow::{pieces, Access, Shadow};
use crate::feed::Listener;

/// What the script has for an event of a thread: what the kernel had written.
pub type OfCall = Vec<(u64, Vec<u8>)>;

/// A pair of instructions whose accesses nothing orders.
#[derive(Clone, Copy, Debug)]
pub struct Race {
    /// How often.
    pub count: u64,
    /// The first time: the access before, the one behind it, and the bytes that both accessed.
    pub before: Access,
    pub behind: Access,
    pub address: u64,
    pub size: u64,
}

/// Collects the bytes that threads synchronise with: those that a locked instruction or a futex call was
/// about, and those that the kernel changes when a thread ends.
pub struct SyncBytes<'a> {
    shadow: &'a mut Shadow,
    /// The thread that runs.
    thread: usize,
    /// Of each thread that stood still where the part begins that was kept, while it has come to no event:
    /// instructions that it has executed.
    begun: HashMap<usize, u64>,
    /// Those of them that stood in a system call: thread, call, and its pc.
    pub in_calls: Vec<(usize, Call, u64)>,
}

impl SyncBytes<'_> {
    /// `standing`: the threads with which it begins ([`crate::feed::stretches::standing`]).
    pub fn new<'a>(shadow: &'a mut Shadow, standing: &[usize]) -> SyncBytes<'a> {
        // The first one ran.
        let begun = standing.iter().skip(1).map(|&thread| (thread, 0)).collect();
        SyncBytes { shadow, thread: 0, begun, in_calls: Vec::new() }
    }

    pub fn add(&mut self, address: u64, size: u32) {
        for (granule, mask) in pieces(address, size) {
            self.shadow.synchronises(granule, mask);
        }
    }
}

impl Listener for SyncBytes<'_> {
    fn runs(&mut self, thread: usize) {
        self.thread = thread;
    }

    fn ran(&mut self, instructions: u32, _turns: u32) {
        if let Some(executed) = self.begun.get_mut(&self.thread) {
            *executed += u64::from(instructions);
        }
    }

    fn referred(&mut self, _pc: u64, address: u64, size: u32, _write: bool, atomic: bool) {
        if atomic {
            self.add(address, size);
        }
    }

    fn happened(&mut self, event: &Event, pc: u64) {
        let call = call_of(event);
        // A replay has each thread start where it goes on.
        if !matches!(event, Event::ThreadStart { .. }) {
            let executed = self.begun.remove(&self.thread);
            // The call is made again: it is the first instruction.
            if let (Some(0 | 1), Some(call)) = (executed, call) {
                self.in_calls.push((self.thread, call, pc));
            }
        }
        let Some((what, word, other)) = call.as_ref().and_then(calls::futex) else {
            return;
        };
        self.add(word, 4);
        if what == Futex::Moves {
            self.add(other, 4);
        }
    }
}

/// The event, if it is a system call that returned.
pub fn call_of(event: &Event) -> Option<Call> {
    match *event {
        Event::Syscall { number, arguments, result } => Some(Call { number, arguments, result }),
        _ => None,
    }
}

/// Turns up to now.
pub enum Turns {
    /// Of all threads, which ran one at a time.
    All(u64),
    /// Of each thread, which were watched.
    Each(Vec<u64>),
}

impl Turns {
    fn now(&self, thread: usize) -> u64 {
        match self {
            Turns::All(all) => *all,
            Turns::Each(each) => each.get(thread).copied().unwrap_or(0),
        }
    }

    fn add(&mut self, thread: usize, turns: u32) {
        let to = match self {
            Turns::All(all) => Some(all),
            Turns::Each(each) => each.get_mut(thread),
        };
        if let Some(to) = to {
            *to += u64::from(turns);
        }
    }
}

/// Follows all threads.
pub struct Detector<'a> {
    trace: &'a Trace,
    strict: bool,
    shadow: Shadow,
    order: Order,
    descriptors: Descriptors,
    /// The thread that runs.
    thread: usize,
    turns: Turns,
    /// What was written for the calls and the end of each thread, in their order.
    written: Vec<std::vec::IntoIter<OfCall>>,
    /// Calls during which others ran, by the stretch in which they returned.
    pending: HashMap<u64, Call>,
    /// What the thread's next call leaves was left already.
    has_left: Vec<bool>,
    heap_end: u64,
    /// Watched threads of a ring that have begun.
    begun: Vec<bool>,
    /// Which threads were there before the part that was kept.
    was_there: Vec<bool>,
    /// Which watched threads did more than the recording has.
    does_more: Vec<bool>,
    /// Conflicts of one access: with which, and with which bytes.
    conflicts: Vec<(Access, u64, u64)>,
    pub found: HashMap<(u64, u64), Race>,
}

impl<'a> Detector<'a> {
    pub fn new(
        trace: &'a Trace,
        shadow: Shadow,
        written: Vec<std::vec::IntoIter<OfCall>>,
        turns: Turns,
        strict: bool,
    ) -> Detector<'a> {
        let mut pending = HashMap::new();
        for thread in &trace.threads {
            for pair in thread.events.windows(2) {
                let (Some(Event::Runs(number)), Some(event)) = (&pair[0].event, &pair[1].event)
                else {
                    continue;
                };
                if pair[0].position.place() == pair[1].position.place() {
                    pending.extend(call_of(event).map(|call| (*number, call)));
                }
            }
        }
        let begins_in_midst = |thread: &trace::Thread| {
            let first = thread.events.first().and_then(|placed| placed.event.as_ref());
            matches!(first, Some(Event::Actions(_)))
        };
        let begun = trace.threads.iter().map(|thread| !begins_in_midst(thread)).collect();
        Detector {
            trace,
            begun,
            strict,
            shadow,
            order: Order::default(),
            descriptors: Descriptors::default(),
            thread: 0,
            turns,
            written,
            pending,
            has_left: vec![false; trace.threads.len()],
            heap_end: 0,
            was_there: vec![false; trace.threads.len()],
            does_more: Vec::new(),
            conflicts: Vec::new(),
            found: HashMap::new(),
        }
    }

    /// Which of the watched threads did more than the recording has: another one ended the process meanwhile.
    pub fn does_more(&mut self, threads: Vec<bool>) {
        self.does_more = threads;
    }

    /// Nothing is known of what was in front of this: these threads were there, and some of them were in calls.
    pub fn begins_within(&mut self, standing: &[usize], in_calls: &[(usize, Call, u64)]) {
        self.descriptors = Descriptors::unknown();
        for &thread in standing {
            self.was_there[thread] = true;
        }
        for &(thread, ref call, pc) in in_calls {
            self.runs(thread);
            self.leaves(call, pc);
            self.has_left[thread] = true;
        }
    }

    fn refer(
        &mut self,
        pc: u64,
        (address, size): (u64, u32),
        write: bool,
        odd: bool,
        atomic: bool,
    ) {
        let thread = self.thread;
        let mut access = Access {
            thread: u16::try_from(thread).unwrap_or(u16::MAX),
            clock: self.order.time(thread),
            pc,
            turn: self.turns.now(thread),
            write,
            odd,
            atomic,
        };
        for (granule, mask) in pieces(address, size) {
            let sync = self.shadow.synchronising(granule, mask);
            let data = if self.strict { mask } else { mask & !sync };
            if data != 0 {
                let conflicts = &mut self.conflicts;
                let seen = self.order.known(thread);
                self.shadow.access(granule, data, &access, seen, &mut |other, common| {
                    let start = granule + u64::from(common.trailing_zeros());
                    let end = granule + 8 - u64::from(common.leading_zeros());
                    match conflicts.iter_mut().find(|(known, ..)| known.pc == other.pc) {
                        Some((_, _, until)) => *until = end.max(*until),
                        None => conflicts.push((other, start, end)),
                    }
                });
            }
            if sync != 0 {
                match write {
                    true => self.order.release(thread, Place::Word(granule)),
                    false => self.order.acquire(thread, Place::Word(granule)),
                }
                access.clock = self.order.time(thread);
            }
        }
        if !self.conflicts.is_empty() {
            self.record(access);
        }
    }

    fn record(&mut self, behind: Access) {
        for (before, start, end) in self.conflicts.drain(..) {
            let pair = (before.pc.min(behind.pc), before.pc.max(behind.pc));
            let race = Race { count: 0, before, behind, address: start, size: end - start };
            self.found.entry(pair).or_insert(race).count += 1;
        }
    }

    /// What the kernel reads or writes for a call.
    fn kernel(&mut self, call: &Call, pc: u64, direction: Direction) {
        let Some(known) = abi::syscalls::find(call.number) else { return };
        let mut ranges = Vec::new();
        effects(known, &call.arguments, call.result, &mut |_, _| false, &mut |what, at, len| {
            if what == direction {
                ranges.push((at, len));
            }
        });
        for (at, len) in ranges {
            self.kernel_range(pc, at, len, direction);
        }
    }

    fn kernel_range(&mut self, pc: u64, at: u64, len: u64, direction: Direction) {
        let size = u32::try_from(len).unwrap_or(u32::MAX);
        self.refer(pc, (at, size), direction == Direction::Write, true, false);
    }

    /// What is left for others when the call begins.
    fn leaves(&mut self, call: &Call, pc: u64) {
        if calls::futex(call).is_none() {
            self.kernel(call, pc, Direction::Read);
        }
        calls::leaves(call, self.thread, &mut self.order, &mut self.descriptors);
    }

    fn called(&mut self, call: &Call, pc: u64) {
        if !std::mem::take(&mut self.has_left[self.thread]) {
            self.leaves(call, pc);
        }
        let written = self.written[self.thread].next().unwrap_or_default();
        let thread = self.thread;
        calls::takes(call, thread, &mut self.order, &mut self.descriptors, &written);
        // (What the kernel writes as it makes a thread, its id, is there before that thread runs, which may be long before the
        // call comes back.)
        if calls::futex(call).is_none() && !calls::makes(call) {
            for (at, bytes) in &written {
                self.kernel_range(pc, *at, bytes.len() as u64, Direction::Write);
            }
            self.kernel(call, pc, Direction::Write);
        }
        calls::leaves_behind(call, thread, &mut self.order);
        for (start, len) in calls::renewed(call).into_iter().flatten() {
            self.shadow.forget(start, len);
        }
        if let Some(end) = calls::heap_end(call) {
            let before = std::mem::replace(&mut self.heap_end, end);
            if before > end {
                self.shadow.forget(end, before - end);
            }
        }
    }

    fn ended(&mut self) {
        let thread = self.thread;
        for (at, bytes) in self.written[thread].next().unwrap_or_default() {
            for (granule, _) in pieces(at, u32::try_from(bytes.len()).unwrap_or(0)) {
                self.order.release(thread, Place::Word(granule));
            }
        }
        if let Some(pid) = self.trace.threads[thread].own_process() {
            self.order.release(thread, Place::Ended(pid));
            self.order.release(thread, Place::Children);
        }
    }

    fn started(&mut self, tid: u32, parent: u32) {
        let thread = self.thread;
        let parent = self.trace.threads.iter().position(|t| t.index == parent);
        if !self.order.take(thread, Place::Child(tid)) {
            if let Some(parent) = parent.filter(|&parent| parent != thread) {
                self.order.begin(thread, parent);
            }
        }
    }
}

impl Detector<'_> {
    /// A watched thread in a ring begins in the midst of what it did: what ordered it behind others before is not kept.
    /// It is behind all that they have done by now, so no race is made up.
    fn begins_in_midst(&mut self, thread: usize) {
        if self.begun.get(thread).copied().unwrap_or(true) {
            return;
        }
        self.begun[thread] = true;
        let others: Vec<usize> =
            (0..self.begun.len()).filter(|&at| at != thread && self.begun[at]).collect();
        others.into_iter().for_each(|other| self.order.begin(thread, other));
    }

    /// What the thread did last is not in the recording, and may have left what it had done for others: from here on
    /// they are behind it, so no race is made up.
    fn ends_in_midst(&mut self) {
        let thread = self.thread;
        for other in (0..self.does_more.len()).filter(|&other| other != thread) {
            self.order.begin(other, thread);
        }
    }
}

impl Listener for Detector<'_> {
    fn runs(&mut self, thread: usize) {
        self.thread = thread;
        self.order.clock(thread);
        self.begins_in_midst(thread);
    }

    fn ran(&mut self, _instructions: u32, turns: u32) {
        self.turns.add(self.thread, turns);
    }

    #[inline]
    fn referred(&mut self, pc: u64, address: u64, size: u32, write: bool, atomic: bool) {
        self.refer(pc, (address, size), write, !matches!(size, 4 | 8), atomic);
    }

    fn left(&mut self, address: u64, size: u32) {
        for (granule, _) in pieces(address, size) {
            self.order.release(self.thread, Place::Word(granule));
        }
    }

    fn took(&mut self, address: u64, size: u32) {
        for (granule, _) in pieces(address, size) {
            self.order.acquire(self.thread, Place::Word(granule));
        }
    }

    fn calls(&mut self, event: &Event, pc: u64) {
        if let Some(call) = call_of(event) {
            self.leaves(&call, pc);
            self.has_left[self.thread] = true;
        }
    }

    fn happened(&mut self, event: &Event, pc: u64) {
        if let Some(call) = call_of(event) {
            return self.called(&call, pc);
        }
        match *event {
            // It was started before, whatever its parent has done since.
            Event::ThreadStart { .. } if self.was_there[self.thread] => {}
            Event::ThreadStart { tid, parent, .. } => self.started(tid, parent),
            Event::ThreadEnd { .. } => self.ended(),
            // It was sent.
            Event::Signal { code, .. } if code <= 0 => {
                self.order.acquire(self.thread, Place::Signals);
            }
            _ => {}
        }
    }

    fn stands(&mut self, until: u64, pc: u64) {
        // What it does in the call that it stands in happens now, whenever it returns.
        let Some(call) = self.pending.get(&until).copied() else { return };
        self.leaves(&call, pc);
        self.has_left[self.thread] = true;
    }

    fn ends(&mut self) {
        if self.does_more.get(self.thread).copied().unwrap_or(false) {
            self.ends_in_midst();
        }
    }
}
