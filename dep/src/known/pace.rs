//! How far a thread has come, as the trace of a replay tells it.

use trace::compile::CompiledUnit;
use trace::events::Event;
use trace::Error;

const RT_SIGRETURN: u64 = 15;
/// Calls that do not return, and are no calls in the script, unless they fail.
const LAST: [u64; 4] = [60, 231, 59, 322];

/// How far a thread has come.
#[derive(Default)]
pub struct Pace {
    pub turns: u64,
    /// The turn in which a signal came, or a handler returned.
    interrupted: Option<u64>,
    /// Nothing was executed since the last call.
    behind_call: bool,
}

impl Pace {
    /// It begins with so many turns.
    pub fn new(turns: u64) -> Pace {
        Pace { turns, ..Pace::default() }
    }

    /// Whether addresses of instructions need not have grown in this turn.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted == Some(self.turns)
    }

    /// So many of the unit's instructions were executed.
    pub fn executed(&mut self, unit: &CompiledUnit, count: usize) {
        self.behind_call = false;
        let whole = count + 1 == unit.starts.len();
        self.turns += u64::from(whole && unit.turns);
    }

    /// Something happened. Returns the number of the call, if it is one that the script has next.
    pub fn event(&mut self, event: &Event) -> Option<u64> {
        // What an undo log notes of a call is not in other traces.
        if matches!(event, Event::Order(_) | Event::Undo { .. } | Event::Lost { .. }) {
            return None;
        }
        let behind_call = std::mem::take(&mut self.behind_call);
        if matches!(event, Event::Resume(_)) {
            // `rt_sigreturn` is a turn; the way back from the vsyscall page stands behind its call, and is none.
            self.turns += u64::from(!behind_call);
        }
        if matches!(event, Event::Signal { .. } | Event::Resume(_)) {
            self.interrupted = Some(self.turns);
        }
        let Event::Syscall { number, result, .. } = event else { return None };
        self.behind_call = true;
        match *number {
            RT_SIGRETURN => {
                self.interrupted = Some(self.turns);
                None
            }
            number if LAST.contains(&number) && *result >= 0 => None,
            number => Some(number),
        }
    }

    /// Whether the call `number`, which is made now, is what the script has next: its number, and the turn.
    pub fn agrees(&self, number: u64, next: Option<(u64, u64)>) -> Result<(), Error> {
        let made = self.turns;
        let has = match next {
            Some(next) if next == (number, made) => return Ok(()),
            Some((next, turns)) => format!("{next} at turn {turns}"),
            None => "no more".into(),
        };
        Err(Error(format!(
            "two replays do not agree on the calls: one makes call {number} at turn {made}, where the script has {has}"
        )))
    }
}
