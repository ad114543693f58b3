//! Instructions that access memory that others store to, and that is closed to the program.
//!
//! Such memory is open elsewhere, at a distance, and what the program has left there lies at another one. So an
//! instruction that was found to access it, which is *marked*, looks whether it does ([`abi::thread::ThreadBlock::shared_pages`]).
//! If so, it does what one of a watched thread does: what is loaded is compared with what was left, and read from there;
//! what is stored goes to both. Else it is the program's instruction, as it is.
//!
//! One that is not marked faults where it comes to such memory, and so does one for which there is nothing here.
//! Nothing here touches a flag.

use crate::operand::{register64, uses_gs};
use crate::recipe::{pair, Kind};
use crate::watched::{watch_of, Borrowed, Watch};
use crate::weaver::{Slot, Weaver};
use abi::ids::{CodeOff, Gpr};
use abi::thread::{self, watch, PAGE_OF};
use alloc::vec::Vec;
use iced_x86::{Code as Op, CpuidFeature, Instruction, Mnemonic, Register};
use lifter::asks::asks;
use lifter::operands::{Index, Reference};
use lifter::regs::RCX;

impl Weaver<'_> {
    /// Instruction `i`, if it is marked and can be carried out so; else nothing.
    pub fn marked(&mut self, insn: &Instruction, i: usize) -> bool {
        if self.unit.marked.binary_search(&insn.ip()).is_err() {
            return false;
        }
        let mut all = Vec::new();
        let watch = watch_of(insn, self.factory(), &mut all);
        let has_segment = insn.memory_segment() == Register::FS || uses_gs(insn);
        if has_segment || asks(insn) || self.far_register(insn, i).is_some() {
            return false;
        }
        match watch {
            Watch::Load(reference) => self.load_of_others(insn, i, &reference),
            Watch::Store(_) => self.store_for_others(insn, i),
            Watch::Copied { reference, loads } => {
                self.change_of_others(insn, i, &reference, loads);
            }
            Watch::Around { stores } if !all.iter().any(is_scattered) => {
                self.around_others(insn, i, stores);
            }
            // (A `mov` with an address of 64 bits is rare.)
            Watch::CarriedOut if insn.mnemonic() != Mnemonic::Mov => {
                self.carried_out(insn, i, &all);
            }
            _ => return false,
        }
        self.forget_pointer();
        true
    }

    fn load_of_others(&mut self, insn: &Instruction, i: usize, reference: &Reference) {
        let (start, borrowed, own) = self.split(insn, i);
        self.compared_at(insn, start, borrowed, reference.size, thread::SHARED_LEFT);
        self.on_view(insn, borrowed);
        self.code().load(borrowed.address, Slot::First.offset());
        self.code().bind_here(own);
    }

    fn store_for_others(&mut self, insn: &Instruction, i: usize) {
        let (_, borrowed, own) = self.split(insn, i);
        let Borrowed { address, other } = borrowed;
        self.code().load(other, Slot::Second.offset());
        self.code().load(RCX, thread::SAVED_RCX);
        self.on_view(insn, borrowed);
        self.code().load(other, thread::SHARED_LEFT);
        self.code().lea_sum(true, address, address, other, 0);
        self.code().load(other, Slot::Second.offset());
        self.on_view(insn, borrowed);
        self.code().load(address, Slot::First.offset());
        self.code().bind_here(own);
    }

    fn change_of_others(
        &mut self,
        insn: &Instruction,
        i: usize,
        reference: &Reference,
        loads: bool,
    ) {
        let (start, borrowed, own) = self.split(insn, i);
        if loads {
            self.compared_at(insn, start, borrowed, reference.size, thread::SHARED_LEFT);
        } else {
            let Borrowed { address, other } = borrowed;
            self.code().load(other, thread::SHARED_LEFT);
            self.code().lea_sum(true, address, address, other, 0);
            self.code().load(other, Slot::Second.offset());
            self.code().load(RCX, thread::SAVED_RCX);
        }
        self.on_view(insn, borrowed);
        self.copied(reference, borrowed, thread::SHARED_BACK);
        self.code().bind_here(own);
    }

    /// What of its operand it accesses registers tell: the runtime compares that, and copies what is stored (`stores`).
    fn around_others(&mut self, insn: &Instruction, i: usize, stores: bool) {
        let (_, borrowed, own) = self.split(insn, i);
        let Borrowed { address, other } = borrowed;
        self.restore(borrowed);
        self.code().watch(insn.ip(), watch::BEFORE);
        self.borrow(i);
        self.lea_operand(insn, address);
        let code = self.code();
        for distance in [thread::SHARED_OPEN, thread::SHARED_LEFT] {
            code.load(other, distance);
            code.lea_sum(true, address, address, other, 0);
        }
        code.load(other, Slot::Second.offset());
        self.on_view(insn, borrowed);
        self.code().load(address, Slot::First.offset());
        if stores {
            self.code().watch(insn.ip(), watch::AFTER);
        }
        self.code().bind_here(own);
    }

    /// The runtime carries it out, if it can; what it cannot the processor does, and faults.
    fn carried_out(&mut self, insn: &Instruction, i: usize, all: &[Reference]) {
        let is_explicit = !insn.is_string_instruction()
            && all.iter().all(|r| r.operand.is_some() && !r.address32);
        let pc = insn.ip();
        if is_explicit {
            let (_, borrowed, own) = self.split(insn, i);
            self.restore(borrowed);
            let behind = self.code().carry_out(pc);
            self.copy_or_reach(insn, None);
            self.code().bind_here(behind);
            self.code().bind_here(own);
            return;
        }
        let start = self.code().here();
        self.boundary_at(start, 0, Kind::SavedRcx, &[]);
        let behind = self.code().carry_out(pc);
        // What repeats itself may have been carried out for a part: all registers are the program's.
        self.boundary(insn, Kind::Plain, &[]);
        self.copy_or_reach(insn, None);
        self.code().bind_here(behind);
    }

    /// Begins the instruction, and finishes it where it accesses nothing but the program's own memory: then it jumps, with
    /// a distance that is returned. Else the borrowed register leads to where the memory is open, the other one and rcx are
    /// used up, and all others are the program's. Returns where the instruction begins, too.
    fn split(&mut self, insn: &Instruction, i: usize) -> (CodeOff, Borrowed, CodeOff) {
        let start = self.code().here();
        let borrowed = Borrowed::beside(self.touched(i));
        let Borrowed { address, other } = borrowed;
        self.boundary_at(start, insn.len(), Kind::Marked, &[pair(address, other)]);
        self.borrow(i);
        self.code().store(thread::SAVED_RCX, RCX);
        self.lea_operand(insn, address);
        let [left, right] = PAGE_OF;
        self.code().constant(RCX, left.into());
        self.shift(Op::VEX_Shlx_r64_rm64_r64, other, address);
        self.code().constant(RCX, right.into());
        self.shift(Op::VEX_Shrx_r64_rm64_r64, RCX, other);
        let code = self.code();
        code.load(other, thread::SHARED_PAGES);
        code.read_sum(1, RCX, other, RCX, 0);
        let is_own = code.jrcxz();
        let is_shared = code.jump();
        code.bind_short(is_own);
        self.restore(borrowed);
        self.copy_or_reach(insn, None);
        let code = self.code();
        let own = code.jump();
        code.bind_here(is_shared);
        code.load(other, thread::SHARED_OPEN);
        code.lea_sum(true, address, address, other, 0);
        (start, borrowed, own)
    }

    /// All registers are the program's.
    fn restore(&mut self, borrowed: Borrowed) {
        let code = self.code();
        code.load(borrowed.address, Slot::First.offset());
        code.load(borrowed.other, Slot::Second.offset());
        code.load(RCX, thread::SAVED_RCX);
    }

    /// `op to, from, rcx`
    fn shift(&mut self, op: Op, to: Gpr, from: Gpr) {
        let [to, from, by] = [to, from, RCX].map(register64);
        if let Ok(shift) = Instruction::with3(op, to, from, by) {
            debug_assert!(shift.cpuid_features().contains(&CpuidFeature::BMI2));
            self.encode_or_trap(&shift);
        }
    }
}

/// Whether its elements lie anywhere.
fn is_scattered(reference: &Reference) -> bool {
    matches!(reference.index, Index::Vector { .. })
}
