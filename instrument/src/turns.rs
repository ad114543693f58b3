//! Turns, which place a moment in a run, and instructions whose answers are recorded.
//!
//! A turn ([`Flow::is_turn`]) is counted between the boundary in front of its instruction and the
//! instruction itself, so at the boundary it is not counted yet, and behind the instruction it is. What
//! is interrupted in between is stepped on to the next boundary; an instruction that faults has its turn
//! taken back by the runtime. Nothing here touches a flag, and rcx is the only register that is
//! borrowed.

use crate::emit::At;
use crate::loose::Cold;
use crate::recipe::Kind;
use crate::weaver::Weaver;
use abi::ids::OrigAddr;
use abi::options::Turns;
use abi::thread;
use iced_x86::Instruction;
use lifter::asks::asks;
use lifter::flow::Flow;
use lifter::regs::RCX;

/// The length 1 in the table of increments.
const ONE: usize = 1;
const _: () = assert!(thread::CF_LENGTHS[ONE] == 1);

impl Weaver<'_> {
    /// Counts `insn`, in front of which the boundary has been noted, if it is a turn.
    pub fn turn(&mut self, insn: &Instruction) {
        let pc = OrigAddr(insn.ip());
        if !Flow::of(insn).is_turn(pc) {
            return;
        }
        match self.manner.turns {
            Turns::NotCounted => {}
            // The control-flow pointer is the counter.
            Turns::Up => match self.manner.pointer_vector() {
                Some(vector) => self.code().bump(vector, thread::increment_offset(ONE, 0)),
                None => {
                    self.count(thread::POINTERS, 1);
                    self.load_rcx();
                }
            },
            Turns::UpToLast => {
                // (Without such a register turns are counted down.)
                let Some(vector) = self.manner.pointer_vector() else { return };
                self.save_rcx(false);
                let code = self.code();
                code.bump(vector, thread::increment_offset(ONE, 0));
                code.control_flow_pointer_high(RCX, vector);
                let more = code.jrcxz();
                let at = code.jump();
                code.bind_short(more);
                let back = code.here();
                self.load_rcx();
                self.ends.cold.push(Cold::Turn { at, back, pc, saves: true });
            }
            Turns::Down => {
                self.count(thread::TURNS_LEFT, -1);
                let code = self.code();
                let last = code.jrcxz();
                let more = code.branch_short(None);
                code.bind_short(last);
                let at = code.jump();
                code.bind_short(more);
                code.load(RCX, thread::SAVED_RCX);
                let back = code.here();
                self.ends.cold.push(Cold::Turn { at, back, pc, saves: false });
            }
        }
    }

    /// Takes the turn back that was counted in front of a jump by way of a slot, which has led here. The runtime, which
    /// has taken it back itself, goes on behind this ([`crate::emit::takes_back`]).
    pub fn turn_is_taken_back(&mut self) {
        let holder = self.manner.pointer_vector().filter(|_| self.manner.turns == Turns::Up);
        if let Some(holder) = holder {
            self.code().take_back(holder, thread::increment_offset(ONE, 0));
        }
    }

    /// Adds to a word of the thread block by way of rcx, which is left there.
    fn count(&mut self, offset: i32, by: i32) {
        self.save_rcx(false);
        let code = self.code();
        code.load(RCX, offset);
        code.lea(RCX, At(RCX, by));
        code.store(offset, RCX);
    }

    /// Whether the runtime answers in place of `insn`.
    pub fn is_answered(&self, insn: &Instruction) -> bool {
        self.manner.turns != Turns::NotCounted && asks(insn)
    }

    /// Lets the runtime answer in place of `insn`. The instruction itself follows, where the processor
    /// raises what it raises if there is no answer.
    pub fn ask(&mut self, insn: &Instruction) {
        let at = self.code().here();
        self.boundary_at(at, 0, Kind::SavedRcx, &[]);
        self.code().ask(insn.ip());
    }
}
