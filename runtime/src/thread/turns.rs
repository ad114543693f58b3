//! How many turns a thread has made in a replay, and where it is led to.

use crate::thread::Thread;

/// More turns than any thread makes: the thread is not stopped.
const FAR: u64 = i64::MAX as u64;

/// What a replay keeps of a thread.
#[derive(Clone, Copy)]
pub struct Turns {
    /// Turns that it will have made when `turns_left` of its block comes to zero.
    goal: u64,
    /// Where it is led to, a step at a time, if it is.
    pub sought: Option<Sought>,
    /// Instructions of the last unit that were done where the handler has stopped the thread.
    pub insn: Option<u32>,
    /// The byte of the program's memory in which the instruction that is being stepped shows that it is,
    /// or 0.
    pub flag_shown: u64,
}

/// What a thread is stepped to.
#[derive(Clone, Copy)]
pub struct Sought {
    /// The moment; `None`: the next instruction.
    pub moment: Option<Moment>,
    /// The first instruction that it meets is the one that it is at already.
    pub first: bool,
}

/// A moment of a thread, between two of its turns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    /// Original address.
    pub rip: u64,
    /// rcx, which tells the iterations of a repeated instruction apart.
    pub rcx: u64,
}

impl Turns {
    /// Of a thread that has made none.
    pub const fn new() -> Turns {
        Turns { goal: FAR, sought: None, insn: None, flag_shown: 0 }
    }

    /// What the thread's block holds then.
    pub const fn left_at_start() -> u64 {
        FAR
    }
}

impl Default for Turns {
    fn default() -> Self {
        Turns::new()
    }
}

impl Thread {
    /// Turns that the thread has made.
    pub fn turns_made(&self) -> u64 {
        self.turns.goal.wrapping_sub(self.block.turns_left)
    }

    /// The thread's turns count from zero again.
    pub fn forget_turns(&mut self) {
        self.turns = Turns::new();
        self.block.turns_left = Turns::left_at_start();
    }

    /// The thread comes to the runtime at its `n`-th turn from here, in front of the instruction; that
    /// turn is counted then. `None`: at no turn.
    pub fn stop_at_turn(&mut self, n: Option<u64>) {
        let left = n.unwrap_or(FAR).clamp(1, FAR);
        self.turns.goal = self.turns_made().wrapping_add(left);
        self.block.turns_left = left;
    }
}
