//! The runtime's side of a replay.

use crate::thread::Thread;

/// The thread has come to the turn that it was told to leave at: counted, and not made yet. The thread
/// block holds its registers, `resume_original` the instruction; what is set there is where it goes on.
pub fn at_turn(_thread: &mut Thread) {
    crate::die!("internal error: a turn without a script");
}
