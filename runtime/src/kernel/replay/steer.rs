//! Steering a replay from outside: where it is to stop.
//!
//! The replay asks here whenever a thread, with its whole state in its block, is about to go on
//! ([`at_boundary`]): what is answered there is where it has to come back next. The answer may be given
//! late: whoever steers talks with the other side first, looks at memory and registers, and forks.

use crate::thread::seek::Moment;
use crate::thread::Thread;
use abi::script::Outcome;

/// How far a thread goes before it asks again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// As far as it comes by itself: to the next system call, fault, answer or arrival.
    GoOn,
    /// One instruction (one iteration of a repeated one).
    Step,
    /// To the moment behind so many turns of this thread, counted from its start. If the thread never
    /// comes there it asks at the turn behind it.
    At {
        /// Turns that the thread has made then.
        turns: u64,
        /// Where it is then.
        moment: Moment,
    },
}

/// The thread is about to execute the instruction at `resume_original` (or, if a signal waits in its
/// mailbox, to be interrupted there); `block.registers` has its general registers and flags, `xmm` the
/// low halves of its vectors, [`Thread::turns`] its turns. What the script had for this moment has
/// happened.
pub fn at_boundary(thread: &mut Thread) -> Wish {
    wish(thread)
}

/// What was wished for last: the thread has come to the runtime for a reason of the runtime's, inside of
/// an instruction.
pub fn wish(_thread: &mut Thread) -> Wish {
    Wish::GoOn
}

/// The replay ends here: its state can be looked at for a last time.
pub fn at_end(_thread: &mut Thread, _outcome: &Outcome) {}
