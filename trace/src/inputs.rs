//! What a recording of inputs promises about the order of its events, and what is one beside a profile.

use crate::events::{Event, Placed};
use crate::open::{Thread, Trace};
use crate::Error;
use abi::event::{End, Kind, Position, WHOLE_UNIT};
use abi::ids::StreamOff;

/// Makes a thread of inputs and a profile one of inputs: events that turns place.
pub fn alone(thread: &mut Thread) {
    thread.chunks.clear();
    let mut turns = 0;
    // What the first one says holds for the start, too.
    if let Some(Event::Turns(first)) = thread.events.get(1).and_then(|e| e.event.as_ref()) {
        turns = *first;
    }
    thread.events.retain_mut(|placed| {
        if let Some(Event::Turns(now)) = placed.event {
            turns = now;
        }
        let control_flow = StreamOff(turns);
        placed.position = Position { chunk: 0, control_flow, insn: WHOLE_UNIT };
        !matches!(placed.event, Some(Event::Turns(_) | Event::Interrupted(_) | Event::Registers(_)))
    });
}

/// Leaves the profile of a thread of inputs and a profile.
pub fn without(thread: &mut Thread) {
    thread.events.retain(|placed| {
        !matches!(
            placed.event,
            Some(
                Event::Anew
                    | Event::Answer { .. }
                    | Event::Arrived(_)
                    | Event::Checked(_)
                    | Event::Mapped { .. }
                    | Event::Passed { .. }
                    | Event::Runs(_)
                    | Event::Seen { .. }
                    | Event::Stamp { .. }
                    | Event::Turns(_)
                    | Event::Unfollowed { .. }
                    | Event::Watched
                    | Event::Written { .. }
                    | Event::Yields
            )
        )
    });
}

/// Of a watched thread in a ring: what stands in front of the first part that is kept goes. False if nothing of the
/// thread can be replayed: it has ended, and its part is not kept.
pub fn begins_in_part(thread: &mut Thread) -> bool {
    let kind = |at: usize| thread.events.get(at)?.event.as_ref().map(Event::kind);
    if matches!(kind(0), Some(Kind::ThreadStart | Kind::OwnProcess)) {
        return true;
    }
    let begins = |&at: &usize| kind(at) == Some(Kind::Actions) && kind(at + 1) == Some(Kind::State);
    let Some(first) = (0..thread.events.len()).find(begins) else { return false };
    thread.events.drain(..first);
    let state = thread.events.get(1).and_then(|placed| placed.event.as_ref());
    if let (None, Some(Event::State { tid, .. })) = (thread.tid, state) {
        thread.tid = Some(*tid);
    }
    true
}

/// What the events of a thread have announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Announced {
    Nothing,
    /// Bytes that the kernel wrote, or a file that it mapped, for what comes next.
    Written,
    /// The thread was interrupted from outside.
    Arrived,
}

/// Checks the events of all threads, and counts them; the error is the first violation.
pub fn check(trace: &Trace) -> Result<u64, Error> {
    let mut events = 0;
    for thread in &trace.threads {
        if let Some(chunk) = thread.chunks.first() {
            let what = "a recording of inputs has no streams";
            return Err(Error(format!("offset {:#x}: {what}", chunk.frame.offset)));
        }
        check_thread(thread).map_err(|(placed, what)| {
            let (name, turns) = (thread.name(), placed.position.control_flow.0);
            Error(format!("thread {name}, behind {turns} turns: {what}"))
        })?;
        events += thread.events.len() as u64;
    }
    Ok(events)
}

fn check_thread(thread: &Thread) -> Result<(), (&Placed, String)> {
    let (mut announced, mut turns, mut runs) = (Announced::Nothing, 0, None);
    // What the kernel has left on the stack of a thread that starts is announced for nobody.
    let mut starts = None;
    for placed in &thread.events {
        let wrong = |what: String| Err((placed, what));
        let now = placed.position.control_flow.0;
        if now < turns {
            return wrong(format!("there were {turns} turns before"));
        }
        turns = now;
        let Some(event) = &placed.event else { continue };
        let name = event.kind().name();
        announced = match (event, announced) {
            (Event::Written { .. }, Announced::Nothing) if starts == Some(now) => {
                Announced::Nothing
            }
            // The signal's frame.
            (Event::Written { .. }, Announced::Arrived) => Announced::Arrived,
            (
                Event::Written { .. } | Event::Mapped { .. },
                Announced::Nothing | Announced::Written,
            ) => Announced::Written,
            // A child of vfork that a signal ends.
            (Event::ThreadEnd { reason: End::Signal, .. }, Announced::Arrived) => {
                Announced::Nothing
            }
            (
                Event::Mapped { .. }
                | Event::Syscall { .. }
                | Event::Answer { .. }
                | Event::Fork { .. }
                | Event::ThreadEnd { .. }
                | Event::Unfollowed { .. },
                Announced::Arrived,
            ) => return wrong(format!("{name} behind ARRIVED")),
            (Event::Passed { .. }, Announced::Arrived) => {
                return wrong(format!("{name} behind ARRIVED"))
            }
            (Event::Unfollowed { .. } | Event::Fork { .. } | Event::Passed { .. }, announced) => {
                announced
            }
            (
                Event::Syscall { .. }
                | Event::Answer { .. }
                | Event::Signal { .. }
                | Event::Checked(_)
                | Event::Loss { .. }
                | Event::ThreadEnd { .. }
                | Event::ProcessEnd { .. },
                _,
            ) => Announced::Nothing,
            (Event::Arrived(_), Announced::Nothing) => Announced::Arrived,
            // A call has written, and others run before it returns.
            (Event::Yields, Announced::Arrived | Announced::Written) => Announced::Nothing,
            (Event::Runs(number), _) => {
                if runs.is_some_and(|before| *number <= before) {
                    return wrong(format!("RUNS {number} out of its order"));
                }
                runs = Some(*number);
                announced
            }
            (_, Announced::Nothing) => Announced::Nothing,
            (_, announced) => return wrong(format!("{name} behind {announced:?}")),
        };
        starts = match event {
            Event::ThreadStart { .. } | Event::OwnProcess { .. } => Some(now),
            Event::Written { .. } | Event::Unfollowed { .. } | Event::Runs(_) => starts,
            Event::Actions(_) | Event::State { .. } => starts,
            _ => None,
        };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::ids::LiveAddr;
    use abi::trace::RegisterState;

    fn thread(events: &[(u64, Event)]) -> Thread {
        let placed = |(turns, event): &(u64, Event)| {
            let control_flow = StreamOff(*turns);
            let position = Position { chunk: 0, control_flow, insn: WHOLE_UNIT };
            Placed { position, event: Some(event.clone()) }
        };
        Thread { events: events.iter().map(placed).collect(), ..Thread::default() }
    }

    fn is_valid(events: &[(u64, Event)]) -> bool {
        check_thread(&thread(events)).is_ok()
    }

    fn registers() -> Box<RegisterState> {
        Box::default()
    }

    fn start() -> Event {
        Event::ThreadStart { tid: 7, parent: 0, registers: registers() }
    }

    fn written() -> Event {
        Event::Written { address: LiveAddr(0x1000), bytes: vec![1, 2].into() }
    }

    fn call() -> Event {
        Event::Syscall { number: 0, arguments: [0; 6], result: 2 }
    }

    fn signal() -> Event {
        let (address, pc) = (0, LiveAddr(0x40));
        Event::Signal { signal: 14, code: 0, address, pc, registers: registers() }
    }

    #[test]
    fn what_the_kernel_wrote_belongs_to_what_comes_next() {
        let arrived = || Event::Arrived(registers());
        assert!(is_valid(&[
            (0, start()),
            (0, written()),
            (0, call()),
            (3, written()),
            (3, call())
        ]));
        assert!(is_valid(&[(0, start()), (4, arrived()), (4, written()), (4, signal())]));
        assert!(is_valid(&[(0, start()), (2, written())]), "it was killed there");
        assert!(!is_valid(&[(0, start()), (1, written()), (1, Event::FsBase(1)), (1, call())]));
        assert!(!is_valid(&[(0, start()), (1, arrived()), (1, call())]));
        assert!(!is_valid(&[(0, start()), (1, arrived()), (1, written()), (1, call())]));
        assert!(!is_valid(&[(0, start()), (1, arrived()), (1, arrived())]));
    }

    #[test]
    fn inputs_and_profile_are_told_apart() {
        let events = [
            (9, start()),
            (9, Event::Turns(3)),
            (9, written()),
            (9, call()),
            (12, Event::Turns(5)),
            (12, Event::Arrived(registers())),
            (12, Event::Interrupted(registers())),
            (12, written()),
            (12, signal()),
        ];
        let mut inputs = thread(&events);
        alone(&mut inputs);
        let turns: Vec<_> = inputs.events.iter().map(|e| e.position.control_flow.0).collect();
        assert_eq!(turns, [3, 3, 3, 5, 5, 5]);
        assert!(check_thread(&inputs).is_ok());
        let mut profile = thread(&events);
        without(&mut profile);
        let kinds: Vec<_> = profile.events.iter().flat_map(|e| &e.event).map(Event::kind).collect();
        assert_eq!(kinds, [Kind::ThreadStart, Kind::Syscall, Kind::Interrupted, Kind::Signal]);
        assert_eq!(profile.events[3].position.control_flow.0, 12);
    }

    #[test]
    fn turns_and_stretches_are_in_their_order() {
        assert!(is_valid(&[(0, start()), (5, call()), (5, call())]));
        assert!(!is_valid(&[(0, start()), (5, call()), (4, call())]));
        assert!(is_valid(&[
            (0, start()),
            (0, Event::Runs(0)),
            (5, Event::Yields),
            (5, Event::Runs(2))
        ]));
        assert!(!is_valid(&[
            (0, start()),
            (0, Event::Runs(2)),
            (5, Event::Yields),
            (5, Event::Runs(2))
        ]));
    }
}
