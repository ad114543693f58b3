//! Watched threads: what an instruction loads is compared with the thread's view of memory, and what it
//! stores goes to both.
//!
//! The view lies at a distance from memory ([`abi::thread::VIEW`]). What has been compared is read from the
//! view and not from memory, where another thread may write meanwhile: so what an instruction computes
//! with is what was compared. Where memory is not as in the view, the runtime mends the view and notes what
//! it has put there; the instruction begins again.
//!
//! Nothing here touches a flag. Three registers are borrowed: one for the address, which the instruction
//! itself does not touch, one, and rcx.

use crate::emit::At;
use crate::loose::{Cold, Mend};
use crate::operand::register64;
use crate::recipe::{pair, Kind};
use crate::undo::pieces;
use crate::weaver::{Slot, Weaver};
use abi::ids::{CodeOff, Gpr, OrigAddr};
use abi::thread::{self, watch};
use alloc::vec::Vec;
use iced_x86::{
    Code as Op, CpuidFeature, Instruction, InstructionInfoFactory, MemoryOperand, Mnemonic, OpKind,
    Register,
};
use lifter::asks::asks;
use lifter::masks::compresses;
use lifter::operands::{references, Index, Reference, Shape};
use lifter::regs::{gpr_number, GprSet, RAX, RBP, RCX, RSI, RSP};
use lifter::stores::{is_masked, is_synchronising};

/// How an instruction that does not pass control on is carried out on memory and view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Watch {
    /// It references no memory.
    Plain,
    /// It loads: from the view, once that is compared.
    Load(Reference),
    /// It stores, and changes nothing else: to memory, then to the view.
    Store(Reference),
    /// It runs on the view, which is compared first if it `loads`; what it has stored is copied.
    Copied {
        /// Where.
        reference: Reference,
        /// It loads, too.
        loads: bool,
    },
    /// `push` of a register or a constant.
    Push,
    /// `pop` of a register.
    Pop,
    /// `leave`.
    Leave,
    /// The runtime compares, the instruction runs on the view, and (`stores`) the runtime copies.
    Around {
        /// Whether it stores.
        stores: bool,
    },
    /// The runtime carries it out.
    CarriedOut,
}

/// How `insn` is carried out.
pub fn watch_of(
    insn: &Instruction,
    factory: &mut InstructionInfoFactory,
    all: &mut Vec<Reference>,
) -> Watch {
    all.clear();
    references(insn, factory, all);
    if matches!(
        insn.mnemonic(),
        Mnemonic::Clzero | Mnemonic::Tileloadd | Mnemonic::Tileloaddt1 | Mnemonic::Tilestored
    ) {
        return Watch::CarriedOut;
    }
    let Some(first) = all.first().copied() else { return Watch::Plain };
    let is_gpr = |register: Register| register.is_gpr64() && register != Register::RSP;
    match insn.mnemonic() {
        Mnemonic::Push if insn.op0_kind() == OpKind::Register && is_gpr(insn.op0_register()) => {
            return Watch::Push;
        }
        Mnemonic::Push if is_constant(insn) && first.size == 8 => return Watch::Push,
        Mnemonic::Pop if insn.op0_kind() == OpKind::Register && is_gpr(insn.op0_register()) => {
            return Watch::Pop;
        }
        Mnemonic::Leave if insn.code() == Op::Leaveq => return Watch::Leave,
        _ => {}
    }
    let explicit = all.iter().all(|r| r.operand.is_some());
    let is_moved = matches!(
        insn.code(),
        Op::Mov_AL_moffs8
            | Op::Mov_AX_moffs16
            | Op::Mov_EAX_moffs32
            | Op::Mov_RAX_moffs64
            | Op::Mov_moffs8_AL
            | Op::Mov_moffs16_AX
            | Op::Mov_moffs32_EAX
            | Op::Mov_moffs64_RAX
    );
    let is_other = insn.is_string_instruction()
        || matches!(
            insn.mnemonic(),
            Mnemonic::Xlatb | Mnemonic::Movdir64b | Mnemonic::Enqcmd | Mnemonic::Enqcmds
        )
        || asks(insn)
        || is_synchronising(insn)
        || matches!(insn.mnemonic(), Mnemonic::Adc | Mnemonic::Sbb) && all.iter().any(|r| r.write)
        || matches!(first.index, Index::BitOffset { .. } | Index::LowByte { .. })
        || is_moved
        || !explicit;
    if is_other {
        return Watch::CarriedOut;
    }
    let (loads, stores) = (all.iter().any(|r| !r.write), all.iter().any(|r| r.write));
    let is_plain = first.shape == Shape::Plain
        && matches!(first.index, Index::None | Index::Gpr { .. })
        && matches!(first.size, 1 | 2 | 4 | 8..=64)
        && !is_masked(insn)
        && !compresses(insn);
    if !is_plain {
        return match first.address32 {
            true => Watch::CarriedOut,
            false => Watch::Around { stores },
        };
    }
    match (loads, stores) {
        (_, false) => Watch::Load(first),
        (false, true) if is_floating(insn) => Watch::Copied { reference: first, loads: false },
        (false, true) => Watch::Store(first),
        (true, true) => Watch::Copied { reference: first, loads: true },
    }
}

/// Of the x87 unit: some of these change it when they store.
fn is_floating(insn: &Instruction) -> bool {
    insn.cpuid_features().contains(&CpuidFeature::FPU)
}

fn is_constant(insn: &Instruction) -> bool {
    matches!(
        insn.op0_kind(),
        OpKind::Immediate8to64 | OpKind::Immediate32to64 | OpKind::Immediate8 | OpKind::Immediate32
    )
}

/// The registers that are borrowed: for the address, and another one.
#[derive(Clone, Copy)]
pub(crate) struct Borrowed {
    pub address: Gpr,
    pub other: Gpr,
}

impl Borrowed {
    /// For an instruction that touches these registers. The low ones go with every encoding.
    pub fn beside(touched: GprSet) -> Borrowed {
        const LOW: [Gpr; 5] = [RSI, Gpr(7), Gpr(3), Gpr(2), RAX];
        const HIGH: [Gpr; 6] = [Gpr(8), Gpr(9), Gpr(10), Gpr(11), Gpr(14), Gpr(15)];
        let mut free = LOW.into_iter().chain(HIGH).filter(|&r| !touched.contains(r));
        let address = free.next().unwrap_or(RSI);
        let other = LOW.into_iter().find(|&r| r != address).unwrap_or(RAX);
        Borrowed { address, other }
    }
}

impl Weaver<'_> {
    /// Instruction `i`, in the middle of its unit; false if it references no memory.
    pub fn watched(&mut self, insn: &Instruction, i: usize) -> bool {
        let mut all = Vec::new();
        let watch = watch_of(insn, self.factory(), &mut all);
        if self.quickly(insn, i, &watch) {
            self.forget_pointer();
            return true;
        }
        match watch {
            Watch::Plain => return false,
            // It runs on memory as it is, and fs is not the program's.
            Watch::Store(_) if insn.memory_segment() == Register::FS => self.around(insn, i, true),
            Watch::Load(reference) => {
                let borrowed = self.compared(insn, i, Some(&reference), insn.len());
                self.on_view(insn, borrowed);
                self.code().load(borrowed.address, Slot::First.offset());
            }
            Watch::Copied { reference, loads } => {
                let borrowed = match loads {
                    true => self.compared(insn, i, Some(&reference), insn.len()),
                    false => self.addressed(insn, i),
                };
                self.on_view(insn, borrowed);
                self.copied(&reference, borrowed, thread::VIEW_BACK);
            }
            Watch::Store(_) => {
                let far = self.far_register(insn, i);
                match far {
                    None => self.boundary(insn, Kind::Plain, &[]),
                    Some(reg) => self.boundary(insn, Kind::Scratch, &[reg.0]),
                }
                self.copy_or_reach(insn, far);
                let borrowed = self.borrow(i);
                self.view_address(insn, borrowed);
                self.code().load(borrowed.other, Slot::Second.offset());
                self.on_view(insn, borrowed);
                self.code().load(borrowed.address, Slot::First.offset());
            }
            Watch::Push => self.push(insn),
            Watch::Pop => self.pop(insn, i),
            Watch::Leave if self.leave_quickly(insn, i) => {}
            Watch::Leave => {
                let borrowed = self.compared(insn, i, None, insn.len());
                let code = self.code();
                code.lea(RSP, At(RBP, 8));
                code.read(RBP, At(borrowed.address, 0));
                code.load(borrowed.address, Slot::First.offset());
            }
            Watch::Around { stores } => self.around(insn, i, stores),
            Watch::CarriedOut => {
                let far = self.far_register(insn, i);
                self.boundary(insn, Kind::SavedRcx, &[]);
                let pc = insn.ip();
                let behind = self.code().carry_out(pc);
                self.copy_or_reach(insn, far);
                self.code().bind_here(behind);
            }
        }
        self.forget_pointer();
        true
    }

    /// Puts two registers that the instruction does not touch aside.
    pub fn borrow(&mut self, i: usize) -> Borrowed {
        let touched = self.touched(i);
        let borrowed = Borrowed::beside(touched);
        self.code().store(Slot::First.offset(), borrowed.address);
        self.code().store(Slot::Second.offset(), borrowed.other);
        borrowed
    }

    /// The address of the operand (`None`: what `leave` pops) in a register. The other one may be used up.
    fn address(&mut self, insn: &Instruction, borrowed: Borrowed) {
        let Borrowed { address, other } = borrowed;
        match insn.mnemonic() {
            Mnemonic::Leave => self.code().lea(address, At(RBP, 0)),
            Mnemonic::Pop | Mnemonic::Ret => self.code().lea(address, At(RSP, 0)),
            _ => self.lea_operand(insn, address),
        }
        self.add_segment(insn, address, other);
    }

    /// Adds the base of the operand's segment, if it has one, to `address`; `other` is used up.
    fn add_segment(&mut self, insn: &Instruction, address: Gpr, other: Gpr) {
        let base = match insn.memory_segment() {
            Register::FS => thread::PROGRAM_FS,
            Register::GS => thread::PROGRAM_GS,
            _ => return,
        };
        self.code().load(other, base);
        self.code().lea_sum(true, address, address, other, 0);
    }

    fn view_address(&mut self, insn: &Instruction, borrowed: Borrowed) {
        self.address(insn, borrowed);
        let Borrowed { address, other } = borrowed;
        self.code().load(other, thread::VIEW);
        self.code().lea_sum(true, address, address, other, 0);
    }

    /// Begins the instruction, and compares its operand with the view. `length`: as the recipe has it.
    /// Behind it, the register for the address leads to the view, and all others are the program's.
    fn compared(
        &mut self,
        insn: &Instruction,
        i: usize,
        reference: Option<&Reference>,
        length: usize,
    ) -> Borrowed {
        let start = self.code().here();
        let borrowed = Borrowed::beside(self.touched(i));
        self.boundary_at(start, length, Kind::Watched, &[pair(borrowed.address, borrowed.other)]);
        let borrowed = self.borrow(i);
        self.code().store(thread::SAVED_RCX, RCX);
        self.address(insn, borrowed);
        self.compared_at(insn, start, borrowed, reference.map_or(8, |r| r.size), thread::VIEW);
        borrowed
    }

    /// Compares so many bytes at the borrowed address with what lies at the `distance` that the thread block has. Behind it
    /// that register leads there, and all others are the program's. The instruction begins at `start`.
    pub fn compared_at(
        &mut self,
        insn: &Instruction,
        start: CodeOff,
        borrowed: Borrowed,
        size: u32,
        distance: i32,
    ) {
        let Borrowed { address, other } = borrowed;
        for from in pieces(size) {
            let piece = if size < 8 { size } else { 8 };
            #[allow(clippy::cast_possible_truncation, reason = "an operand has at most 64 bytes")]
            let at = from as i8;
            let code = self.code();
            code.load(other, distance);
            code.read_sized(piece, RCX, At(address, from));
            code.read_sum(piece, other, address, other, at);
            code.not(other);
            code.lea_sum(piece == 8, RCX, RCX, other, 1);
            let same = code.jrcxz();
            let jump = code.jump();
            code.bind_short(same);
            let pc = OrigAddr(insn.ip());
            let spilled = [Some(address), Some(other)];
            let (rcx_is_saved, why) = (true, watch::MEND);
            let mend = Mend { at: jump, back: start, pc, spilled, rcx_is_saved, why };
            self.ends.cold.push(Cold::Mend(mend));
        }
        let code = self.code();
        code.load(other, distance);
        code.lea_sum(true, address, address, other, 0);
        code.load(other, Slot::Second.offset());
        code.load(RCX, thread::SAVED_RCX);
    }

    /// Compares what instruction `i` loads: a snippet in front of it, which leaves all registers as they were.
    pub fn compare_operand(&mut self, insn: &Instruction, i: usize, reference: &Reference) {
        let borrowed = self.compared(insn, i, Some(reference), 0);
        self.code().load(borrowed.address, Slot::First.offset());
    }

    /// As [`Weaver::compared`], of an instruction that only stores: memory is touched, so that it faults if
    /// it cannot be read.
    fn addressed(&mut self, insn: &Instruction, i: usize) -> Borrowed {
        let start = self.code().here();
        let borrowed = Borrowed::beside(self.touched(i));
        let operands = [pair(borrowed.address, borrowed.other)];
        self.boundary_at(start, insn.len(), Kind::Watched, &operands);
        let borrowed = self.borrow(i);
        self.code().store(thread::SAVED_RCX, RCX);
        self.address(insn, borrowed);
        let Borrowed { address, other } = borrowed;
        let code = self.code();
        code.read_byte(other, At(address, 0));
        code.load(other, thread::VIEW);
        code.lea_sum(true, address, address, other, 0);
        code.load(other, Slot::Second.offset());
        borrowed
    }

    /// The instruction, with its operand in the view, or wherever the borrowed address leads.
    pub fn on_view(&mut self, insn: &Instruction, borrowed: Borrowed) {
        if insn.mnemonic() == Mnemonic::Pop {
            return;
        }
        let mut on_view = *insn;
        on_view.set_segment_prefix(Register::None);
        on_view.set_memory_base(register64(borrowed.address));
        on_view.set_memory_index(Register::None);
        on_view.set_memory_index_scale(1);
        on_view.set_memory_displacement64(0);
        on_view.set_memory_displ_size(0);
        self.encode_or_trap(&on_view);
    }

    pub fn encode_or_trap(&mut self, insn: &Instruction) {
        let encoded = self.encode(insn);
        debug_assert!(encoded, "{:x} {:?}", insn.ip(), insn.code());
        if !encoded {
            // Never seen; traps rather than doing something else.
            self.code().ud2();
        }
    }

    /// What has been stored to the view goes to memory, at the distance `back` that the thread block has, and the registers
    /// are the program's again.
    pub fn copied(&mut self, reference: &Reference, borrowed: Borrowed, back: i32) {
        let Borrowed { address, other } = borrowed;
        let size = reference.size;
        let code = self.code();
        code.store(thread::VIEW_SPILL, other);
        code.store(thread::VIEW_SPILL + 8, RCX);
        code.load(other, back);
        for from in pieces(size) {
            let piece = if size < 8 { size } else { 8 };
            #[allow(clippy::cast_possible_truncation, reason = "an operand has at most 64 bytes")]
            let at = from as i8;
            code.read_sized(piece, RCX, At(address, from));
            code.write_sum(piece, RCX, address, other, at);
        }
        code.load(other, thread::VIEW_SPILL);
        code.load(RCX, thread::VIEW_SPILL + 8);
        code.load(address, Slot::First.offset());
    }

    fn push(&mut self, insn: &Instruction) {
        self.boundary(insn, Kind::Plain, &[]);
        self.copy_or_reach(insn, None);
        let register = gpr_number(insn.op0_register());
        if let Some(register) = register.filter(|_| !is_constant(insn)) {
            return self.pushed(register);
        }
        #[allow(clippy::cast_possible_truncation, reason = "an immediate has 32 bits")]
        let value = match insn.op0_kind() {
            OpKind::Immediate8to64 => insn.immediate8to64() as i32,
            OpKind::Immediate32to64 => insn.immediate32to64() as i32,
            _ => insn.immediate(0) as i32,
        };
        let mut memory = MemoryOperand::with_base(Register::RSP);
        memory.segment_prefix = Register::FS;
        if let Ok(store) = Instruction::with2(Op::Mov_rm64_imm32, memory, value) {
            self.encode_or_trap(&store);
        }
    }

    fn pop(&mut self, insn: &Instruction, i: usize) {
        let borrowed = self.compared(insn, i, None, insn.len());
        let code = self.code();
        if let Some(register) = gpr_number(insn.op0_register()) {
            code.read(register, At(borrowed.address, 0));
        }
        code.lea(RSP, At(RSP, 8));
        code.load(borrowed.address, Slot::First.offset());
    }

    fn around(&mut self, insn: &Instruction, i: usize, stores: bool) {
        let touched = self.touched(i);
        let borrowed = Borrowed::beside(touched);
        let start = self.code().here();
        let operands = [pair(borrowed.address, borrowed.other)];
        self.boundary_at(start, insn.len(), Kind::Watched, &operands);
        self.code().watch(insn.ip(), watch::BEFORE);
        let Borrowed { address, other } = self.borrow(i);
        // The base alone moves: an index may be a vector.
        let mut on_view = *insn;
        on_view.set_segment_prefix(Register::None);
        on_view.set_memory_base(register64(address));
        if insn.is_ip_rel_memory_operand() {
            self.code().address_of(address, insn.ip_rel_memory_address());
            on_view.set_memory_displacement64(0);
            on_view.set_memory_displ_size(0);
        } else {
            match gpr_number(insn.memory_base()) {
                Some(base) => self.code().lea(address, At(base, 0)),
                None => self.code().constant(address, 0),
            }
            if insn.memory_displ_size() == 8 {
                on_view.set_memory_displ_size(8);
            }
        }
        self.add_segment(insn, address, other);
        self.code().load(other, thread::VIEW);
        self.code().lea_sum(true, address, address, other, 0);
        self.code().load(other, Slot::Second.offset());
        self.encode_or_trap(&on_view);
        self.code().load(address, Slot::First.offset());
        if stores {
            self.code().watch(insn.ip(), watch::AFTER);
        }
    }

    // --- transfers ---

    /// Compares what a return, or an indirect call or jump, reads: a snippet in front of it.
    pub fn compare_target(&mut self, insn: &Instruction, i: usize) {
        let reads = insn.mnemonic() == Mnemonic::Ret || insn.op0_kind() == OpKind::Memory;
        if self.manner.watches && reads && !self.compare_word(insn, i, 0) {
            let borrowed = self.compared(insn, i, None, 0);
            self.code().load(borrowed.address, Slot::First.offset());
        }
    }

    /// Loads the target that an indirect call or jump reads from memory into rcx, from the view.
    pub fn target_on_view(&mut self, insn: &Instruction, i: usize) {
        if self.target_quickly(insn, i) {
            return;
        }
        let other = RSI;
        self.lea_operand(insn, RCX);
        self.code().store(Slot::First.offset(), other);
        self.add_segment(insn, RCX, other);
        let code = self.code();
        code.load(other, thread::VIEW);
        code.read_sum(8, RCX, RCX, other, 0);
        code.load(other, Slot::First.offset());
    }

    /// The return address that a call is about to push goes to the view. Memory is touched where the call
    /// will store: it faults in its place.
    pub fn push_on_view(&mut self, next: OrigAddr) {
        if !self.manner.watches {
            return;
        }
        let value = RCX;
        self.save_rcx(true);
        let mut below = MemoryOperand::with_base_displ(Register::RSP, -8);
        if let Ok(store) = Instruction::with2(Op::Mov_rm64_imm32, below, 0) {
            self.encode_or_trap(&store);
        }
        self.code().address_of(value, next.0);
        below.segment_prefix = Register::FS;
        if let Ok(store) = Instruction::with2(Op::Mov_rm64_r64, below, register64(value)) {
            self.encode_or_trap(&store);
        }
        self.code().load(value, thread::SAVED_RCX);
    }
}
