//! The look-up of a return ahead of it, where the unit has registers that it is about to overwrite.
//!
//! At a return every register is live: conventions are not trusted. But the instructions in front of it
//! mostly load registers (`pop rbx; pop rbp; ret`), and in front of those instructions what is in the
//! registers is lost anyway. So the look-up can be made there, needs no register of the program's to be
//! saved and loaded, and leaves what it finds in xmm30 until the return. With a second register the address
//! of a table that lies high is a constant.
//!
//! Nothing between the two may store (it might be the return address), move rsp by what is not known here, or
//! use xmm30. Whatever interrupts the unit in between goes on at the original address of the instruction, where
//! another unit begins, with a look-up of its own. That the return address is read some loads earlier than natively can
//! only be seen by a thread that overwrites another one's return addresses.
//!
//! Where what is interrupted has to show every register (a recording of inputs), the look-up puts aside what it uses
//! up, until the program overwrites it ([`Kind::UsedUp`]).
//!
//! The look-up may meet memory that is not there, where the program would fault a few instructions
//! later: the runtime passes over it then, and the return faults, as its own first instruction reads
//! the address again.

use crate::emit::At;
use crate::manner::Returns;
use crate::operand::uses_gs;
use crate::recipe::{self, Kind, NOT_BORROWED};
use crate::transfer::popped_by;
use crate::weaver::{Ahead, Slot, Weaver};
use abi::ids::Gpr;
use abi::thread;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use lifter::flow::Flow;
use lifter::regs::{gpr_number, GprSet, RSP};

/// Most instructions between the look-up and its return.
const FARTHEST: usize = 12;

impl Weaver<'_> {
    /// Where the return at the unit's end can be looked up: as late as possible, but where there are two
    /// registers, if one is not enough.
    pub fn find_ahead(&mut self) -> Option<Ahead> {
        let (last, before) = self.unit.insns.split_last()?;
        let Returns::Merged(table) = self.manner.returns else { return None };
        // (An instruction that is marked borrows what the look-up has put aside.)
        let is_marked = !self.unit.marked.is_empty();
        if !self.manner.looks_ahead || is_marked || Flow::of(last) != Flow::Return {
            return None;
        }
        // Where it returns to nobody knows how far it popped.
        if self.manner.puts_back && popped_by(last).is_some() {
            return None;
        }
        let one_is_enough = table.base < 1 << 31;
        let (mut dead, mut distance, mut found) = (GprSet::EMPTY, 0i32, None);
        for (at, insn) in before.iter().enumerate().rev().take(FARTHEST) {
            let Some(moved) = moves_stack_by(insn).filter(|_| !self.needs_own_vectors(insn)) else {
                break;
            };
            if self.manner.keeps_used_up && (insn.is_ip_rel_memory_operand() || uses_gs(insn)) {
                break;
            }
            let Some(sum) = distance.checked_add(moved).filter(|&sum| sum >= 0) else { break };
            distance = sum;
            let effect = self.effect(at);
            dead = dead.union(effect.defined).minus(effect.used);
            dead.remove(RSP);
            let mut free = dead.iter();
            let Some(index) = free.next() else { continue };
            let base = free.next().filter(|_| !one_is_enough);
            if base.is_some() || one_is_enough {
                return Some(Ahead { at, distance, index, base });
            }
            found = found.or(Some(Ahead { at, distance, index, base }));
        }
        found
    }

    /// The look-up.
    pub fn look_ahead(&mut self) {
        let (Some(ahead), Returns::Merged(table)) = (self.ahead, self.manner.returns) else {
            return;
        };
        let Ahead { distance, index, base, .. } = ahead;
        let at = self.out.code.here();
        match self.manner.keeps_used_up {
            false => self.boundary_at(at, 0, Kind::Ahead, &[]),
            true => {
                let both = recipe::pair(index, base.unwrap_or(NOT_BORROWED));
                self.boundary_at(at, 0, Kind::UsedUp, &[both]);
                self.code().store(Slot::First.offset(), index);
                if let Some(base) = base {
                    self.code().store(Slot::Second.offset(), base);
                }
            }
        }
        for register in [Some(index), base].into_iter().flatten() {
            self.forget_pointer_in(register);
        }
        let code = self.code();
        code.read32(index, At(RSP, distance));
        code.store32(thread::TARGET, index);
        code.look_up_ahead(index, base, table);
    }

    /// If the look-up has put registers aside that no instruction in front of `i` has overwritten: these, for the recipe.
    pub fn used_up(&mut self, i: usize) -> Option<u8> {
        let ahead = self.ahead.filter(|ahead| self.manner.keeps_used_up && ahead.at <= i)?;
        let overwritten =
            (ahead.at..i).fold(GprSet::EMPTY, |set, i| set.union(self.effect(i).defined));
        let kept = |register: Option<Gpr>| {
            register.filter(|&r| !overwritten.contains(r)).unwrap_or(NOT_BORROWED)
        };
        let [first, second] = [kept(Some(ahead.index)), kept(ahead.base)];
        (first != NOT_BORROWED || second != NOT_BORROWED).then(|| recipe::pair(first, second))
    }

    /// The return.
    pub fn return_looked_up(&mut self, insn: &Instruction) {
        self.boundary(insn, Kind::Ahead, &[]);
        self.turn(insn);
        let puts_back = self.manner.puts_back;
        let code = self.code();
        if puts_back {
            code.keep_return_address();
        }
        code.merge_high_half();
        code.write_merged();
        code.ret(popped_by(insn));
    }
}

/// How far rsp lies higher behind the instruction than in front of it, if that is all that it does to
/// the stack, and it is one of those that do nothing but compute, or load, registers.
fn moves_stack_by(insn: &Instruction) -> Option<i32> {
    use Mnemonic::{
        Add, And, Cdqe, Cmova, Cmovae, Cmovb, Cmovbe, Cmove, Cmovg, Cmovge, Cmovl, Cmovle, Cmovne,
        Cmovns, Cmovs, Dec, Imul, Inc, Lea, Mov, Movaps, Movd, Movq, Movsd, Movss, Movsx, Movsxd,
        Movups, Movzx, Neg, Nop, Not, Or, Pop, Pxor, Sar, Seta, Setae, Setb, Setbe, Sete, Setg,
        Setge, Setl, Setle, Setne, Shl, Shr, Sub, Vzeroupper, Xor, Xorps,
    };
    let computes = match insn.mnemonic() {
        // As a move of strings it has no operand that is a register.
        Movsd | Movss | Movaps | Movups | Movd | Movq | Pxor | Xorps => {
            insn.op0_kind() == OpKind::Register
        }
        Add | And | Cmova | Cmovae | Cmovb | Cmovbe | Cmove | Cmovg | Cmovge | Cmovl | Cmovle
        | Cmovne | Cmovns | Cmovs | Dec | Imul | Inc | Lea | Mov | Movsx | Movsxd | Movzx | Neg
        | Not | Or | Pop | Sar | Seta | Setae | Setb | Setbe | Sete | Setg | Setge | Setl
        | Setle | Setne | Shl | Shr | Sub | Xor => {
            insn.op0_kind() == OpKind::Register && gpr_number(insn.op0_register()).is_some()
        }
        Cdqe | Vzeroupper => true,
        Nop => insn.op_count() == 0,
        _ => false,
    };
    if !computes {
        return None;
    }
    if insn.mnemonic() == Mnemonic::Pop {
        return (insn.op0_register().size() == 8 && insn.op0_register() != Register::RSP)
            .then_some(8);
    }
    if insn.op0_kind() != OpKind::Register || gpr_number(insn.op0_register()) != Some(RSP) {
        return Some(0);
    }
    let moved = match insn.mnemonic() {
        Mnemonic::Add if is_number(insn.op1_kind()) => insn.immediate(1) as i64,
        Mnemonic::Sub if is_number(insn.op1_kind()) => (insn.immediate(1) as i64).checked_neg()?,
        Mnemonic::Lea
            if insn.memory_base() == Register::RSP && insn.memory_index() == Register::None =>
        {
            insn.memory_displacement64() as i64
        }
        _ => return None,
    };
    let whole = insn.op0_register() == Register::RSP;
    i32::try_from(moved).ok().filter(|_| whole)
}

fn is_number(kind: OpKind) -> bool {
    matches!(kind, OpKind::Immediate8to64 | OpKind::Immediate32to64)
}
