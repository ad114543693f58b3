//! Turns of a thread, as generated code counts them: up while inputs are recorded, up to a last one or down in a
//! replay.
//!
//! What is here is right while the thread block holds the thread's registers and pointers: in the
//! runtime, and in the handler behind `take_pointers`.

use crate::base::facts::facts;
use crate::thread::Thread;
use abi::options::{Turns, LAST_TURN};

/// Turns that no thread ever makes.
pub const NEVER: u64 = 1 << 62;

impl Thread {
    /// Turns that the thread has made, one that it was just told of at `stub_turn` included; 0 if none
    /// are counted.
    pub fn turns(&self) -> u64 {
        match facts().options.turns() {
            Turns::NotCounted => 0,
            Turns::Up => self.block.pointers[0],
            Turns::UpToLast => self.turns_from.wrapping_add(self.block.pointers[0]),
            Turns::Down => self.turns_from.wrapping_sub(self.block.turns_left),
        }
    }

    /// In a replay: the thread has made so many turns, and control leaves nowhere.
    pub fn begin_turns(&mut self, made: u64) {
        self.start_counting(made, NEVER);
    }

    /// In a replay that is not straight: control leaves by way of `stub_turn` in front of the instruction that is the `left`th
    /// turn from here on, or sooner. 0 is never.
    pub fn leave_in(&mut self, left: u64) {
        self.start_counting(self.turns(), if left == 0 { NEVER } else { left });
    }

    fn start_counting(&mut self, made: u64, left: u64) {
        match facts().options.turns() {
            Turns::NotCounted => {}
            // It leaves nowhere.
            Turns::Up => self.block.pointers[0] = made,
            Turns::UpToLast => {
                // More turns than fit are counted in several goes.
                let counted = LAST_TURN - left.min(LAST_TURN);
                self.block.pointers[0] = counted;
                self.turns_from = made.wrapping_sub(counted);
            }
            Turns::Down => {
                self.block.turns_left = left;
                self.turns_from = made.wrapping_add(left);
            }
        }
    }

    /// The runtime has carried out an instruction that is a turn.
    pub fn count_turn(&mut self) {
        match facts().options.turns() {
            Turns::NotCounted => {}
            Turns::Up | Turns::UpToLast => {
                let [turns, _] = &mut self.block.pointers;
                *turns = turns.wrapping_add(1);
            }
            Turns::Down => self.block.turns_left = self.block.turns_left.wrapping_sub(1),
        }
    }

    /// The turn that was counted last has not been made: its instruction has faulted, and may start
    /// again.
    pub fn take_back_turn(&mut self) {
        match facts().options.turns() {
            Turns::NotCounted => {}
            Turns::Up | Turns::UpToLast => {
                let [turns, _] = &mut self.block.pointers;
                *turns = turns.wrapping_sub(1);
            }
            Turns::Down => self.block.turns_left = self.block.turns_left.wrapping_add(1),
        }
    }
}
