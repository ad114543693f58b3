//! Watched threads: the short sequences, for what is common.
//!
//! While translated code runs, the processor's fs base is the distance to the thread's view, so `fs:` in front
//! of an operand is its place in the view; the program's own fs base is in the thread block. With that a load
//! is compared in one instruction where the flags are dead: what has been loaded *is* what is in the view,
//! or the runtime loads it again. Where flags are live, the difference is made with `not` and `lea`, and
//! `jrcxz` looks at it.
//!
//! Memory is referenced first, as natively, so a fault finds the registers as they were, or put aside as the
//! recipe says. The view is mapped wherever memory can be.

use crate::emit::At;
use crate::loose::{Cold, Mend};
use crate::operand::{displacement, memory_operand, sized, uses_gs};
use crate::recipe::{pair, Kind, NOT_BORROWED};
use crate::watched::{watch_of, Watch};
use crate::weaver::{Slot, Weaver};
use abi::ids::{CodeOff, Gpr, OrigAddr};
use abi::thread::{self, watch};
use alloc::vec::Vec;
use iced_x86::{Code as Op, Instruction, MemoryOperand, Mnemonic, OpKind, Register};
use lifter::operands::{references, Reference};
use lifter::regs::{gpr_number, GprSet, RBP, RCX, RSP};

/// `jne`
const NOT_EQUAL: u8 = 5;

impl Weaver<'_> {
    /// Emits instruction `i` in a short form, if there is one for it; nothing if not.
    pub fn quickly(&mut self, insn: &Instruction, i: usize, watch: &Watch) -> bool {
        if self.far_register(insn, i).is_some() {
            return false;
        }
        let dead = !self.unit.live.flags_before(i);
        match watch {
            Watch::Load(reference) => match dead {
                true => self.load_with_flags(insn, i, reference),
                false => self.load_without_flags(insn, i, reference),
            },
            Watch::Store(_) => self.store_twice(insn, i),
            Watch::Copied { reference, loads: true } if dead => {
                self.change_in_register(insn, i, reference)
            }
            Watch::Pop => self.pop_quickly(insn, dead),
            Watch::Around { stores: false } => self.masked_load(insn),
            Watch::CarriedOut => self.push_loaded(insn, i) || self.fence(insn, i, dead),
            _ => false,
        }
    }

    /// The operand through a register that has the program's fs base, if it needs that.
    fn operand(&mut self, insn: &Instruction, touched: GprSet) -> Option<Operand> {
        if insn.memory_segment() != Register::FS {
            return Some(Operand { memory: plain(insn), base: None });
        }
        let index = insn.memory_base();
        let fits = matches!(index, Register::None) || index.is_gpr64() && index != Register::RSP;
        if insn.memory_index() != Register::None || !fits {
            return None;
        }
        let base = free(touched, GprSet::of(RCX))?;
        let displacement = displacement(insn);
        let size = if i8::try_from(displacement).is_ok() { 1 } else { 8 };
        let memory =
            MemoryOperand::new(sized(base, 8), index, 1, displacement, size, false, Register::None);
        Some(Operand { memory, base: Some(base) })
    }

    fn put_base(&mut self, operand: &Operand) {
        if let Some(base) = operand.base {
            self.code().store(Slot::Second.offset(), base);
            self.code().load(base, thread::PROGRAM_FS);
        }
    }

    fn take_base(&mut self, operand: &Operand) {
        if let Some(base) = operand.base {
            self.code().load(base, Slot::Second.offset());
        }
    }

    /// The instruction with this operand.
    fn with_operand(&mut self, insn: &Instruction, memory: &MemoryOperand) {
        let mut other = *insn;
        set_operand(&mut other, memory);
        self.encode_or_trap(&other);
    }

    /// `op register, memory`
    fn with_register(&mut self, op: Op, register: Register, memory: &MemoryOperand) {
        if let Ok(insn) = Instruction::with2(op, register, *memory) {
            self.encode_or_trap(&insn);
        }
    }

    /// `op memory, register`
    fn store_from(&mut self, op: Op, memory: &MemoryOperand, register: Register) {
        if let Ok(insn) = Instruction::with2(op, *memory, register) {
            self.encode_or_trap(&insn);
        }
    }

    /// The view is mended where `at` jumps to; `back` is where the program goes on then.
    fn mends(&mut self, insn: &Instruction, at: CodeOff, back: CodeOff, how: How) {
        let How { spilled, rcx_is_saved, why } = how;
        let pc = OrigAddr(insn.ip());
        self.ends.cold.push(Cold::Mend(Mend { at, back, pc, spilled, rcx_is_saved, why }));
    }

    fn load_with_flags(&mut self, insn: &Instruction, i: usize, reference: &Reference) -> bool {
        let touched = self.touched(i);
        let Some(operand) = self.operand(insn, touched) else { return false };
        let start = self.code().here();
        let size = reference.size;
        if let Some(destination) = destination(insn) {
            match operand.base {
                None => self.boundary(insn, Kind::Plain, &[]),
                Some(base) => self.boundary(insn, Kind::Scratch, &[base.0]),
            }
            self.put_base(&operand);
            self.with_operand(insn, &operand.memory);
            self.with_register(comparing(size), low_part(destination, size), &operand.on_view());
            let at = self.code().jcc(NOT_EQUAL);
            self.take_base(&operand);
            let behind = self.code().here();
            let spilled = [None, operand.base];
            let how = How { spilled, rcx_is_saved: false, why: watch::LOADED };
            self.mends(insn, at, behind, how);
            return true;
        }
        let register = match operand.base {
            None => free(touched, GprSet::of(RCX)),
            Some(_) => Some(RCX).filter(|&rcx| !touched.contains(rcx)),
        };
        let (Some(register), true) = (register, matches!(size, 1 | 2 | 4 | 8 | 16 | 32)) else {
            return false;
        };
        let rcx_is_saved = operand.base.is_some();
        if let Some(base) = operand.base {
            self.boundary(insn, Kind::Watched, &[pair(NOT_BORROWED, base)]);
            self.code().store(thread::SAVED_RCX, RCX);
            self.put_base(&operand);
        } else {
            self.boundary(insn, Kind::Scratch, &[register.0]);
            self.code().store(Slot::Second.offset(), register);
        }
        let spilled = [None, Some(operand.base.unwrap_or(register))];
        let piece = size.min(8);
        for from in (0..size).step_by(8) {
            let mut part = operand;
            part.memory.displacement += i64::from(from);
            if part.memory.displ_size <= 1 {
                part.memory.displ_size = wide_displacement(&part.memory);
            }
            self.with_register(loading(piece), loaded(register, piece), &part.memory);
            self.with_register(comparing(piece), sized(register, piece), &part.on_view());
            let at = self.code().jcc(NOT_EQUAL);
            let how = How { spilled, rcx_is_saved, why: watch::MEND };
            self.mends(insn, at, start, how);
        }
        let mut changed = *insn;
        replace_operand(&mut changed, sized(register, piece));
        if size > 8 || insn.has_lock_prefix() || !self.encode(&changed) {
            self.with_operand(insn, &operand.on_view());
        }
        self.take_base(&operand);
        match operand.base {
            Some(_) => self.code().load(RCX, thread::SAVED_RCX),
            None => self.code().load(register, Slot::Second.offset()),
        }
        true
    }

    fn load_without_flags(&mut self, insn: &Instruction, i: usize, reference: &Reference) -> bool {
        let touched = self.touched(i);
        let size = reference.size;
        if !matches!(size, 1 | 2 | 4 | 8) {
            return false;
        }
        let Some(operand) = self.operand(insn, touched) else { return false };
        let start = self.code().here();
        let zero_extends = matches!(insn.mnemonic(), Mnemonic::Mov | Mnemonic::Movzx);
        let direct =
            destination(insn).filter(|d| zero_extends && d.size() >= 4).and_then(gpr_number);
        // The value of memory, and then of the view.
        let (first, second) = match direct {
            Some(register) => (register, RCX),
            None => match free(touched, GprSet::of(RCX).union(operand.borrowed())) {
                Some(other) => (RCX, other),
                None => return false,
            },
        };
        let other = Some(second).filter(|&r| r != RCX);
        let borrowed = pair(other.unwrap_or(NOT_BORROWED), operand.base.unwrap_or(NOT_BORROWED));
        self.boundary(insn, Kind::Watched, &[borrowed]);
        self.code().store(thread::SAVED_RCX, RCX);
        self.put_base(&operand);
        if let Some(other) = other {
            self.code().store(Slot::First.offset(), other);
        }
        // An address in rcx is gone behind the load to rcx.
        let memory = (loaded(first, size), operand.memory);
        let view = (loaded(second, size), operand.on_view());
        let in_order = if direct.is_some() { [memory, view] } else { [view, memory] };
        for (register, place) in in_order {
            self.with_register(loading(size), register, &place);
        }
        self.code().not(second);
        self.code().lea_sum(size == 8, RCX, first, second, 1);
        let at = self.unless_equal();
        let code = self.code();
        if let Some(other) = other {
            code.load(other, Slot::First.offset());
        }
        code.load(RCX, thread::SAVED_RCX);
        let spilled = [other, operand.base];
        if direct.is_some() {
            self.take_base(&operand);
            let behind = self.code().here();
            let how = How { spilled, rcx_is_saved: true, why: watch::LOADED };
            self.mends(insn, at, behind, how);
            return true;
        }
        self.with_operand(insn, &operand.on_view());
        self.take_base(&operand);
        self.mends(insn, at, start, How { spilled, rcx_is_saved: true, why: watch::MEND });
        true
    }

    fn store_twice(&mut self, insn: &Instruction, i: usize) -> bool {
        let touched = self.touched(i);
        let Some(operand) = self.operand(insn, touched) else { return false };
        match operand.base {
            None => {
                self.boundary(insn, Kind::Plain, &[]);
                self.copy_or_reach(insn, None);
            }
            Some(base) => {
                self.boundary(insn, Kind::Scratch, &[base.0]);
                self.put_base(&operand);
                self.with_operand(insn, &operand.memory);
            }
        }
        self.with_operand(insn, &operand.on_view());
        self.take_base(&operand);
        true
    }

    /// What is loaded is changed in a register, and stored from there.
    fn change_in_register(&mut self, insn: &Instruction, i: usize, reference: &Reference) -> bool {
        let (touched, size) = (self.touched(i), reference.size);
        if !matches!(size, 1 | 2 | 4 | 8) || insn.memory_segment() == Register::FS {
            return false;
        }
        let register = match touched.contains(RCX) {
            false => Some(RCX),
            true => free(touched, GprSet::of(RCX)),
        };
        let Some(register) = register else { return false };
        let mut changed = *insn;
        replace_operand(&mut changed, sized(register, size));
        if insn.op0_kind() != OpKind::Memory || !self.can_encode(&changed) {
            return false;
        }
        let operand = Operand { memory: plain(insn), base: None };
        let other = Some(register).filter(|&r| r != RCX);
        let start = self.code().here();
        let borrowed = pair(other.unwrap_or(NOT_BORROWED), NOT_BORROWED);
        self.boundary(insn, Kind::Watched, &[borrowed]);
        self.code().store(thread::SAVED_RCX, RCX);
        if let Some(other) = other {
            self.code().store(Slot::First.offset(), other);
        }
        self.with_register(loading(size), loaded(register, size), &operand.memory);
        self.with_register(comparing(size), sized(register, size), &operand.on_view());
        let at = self.code().jcc(NOT_EQUAL);
        let spilled = [other, None];
        self.mends(insn, at, start, How { spilled, rcx_is_saved: true, why: watch::MEND });
        self.encode_or_trap(&changed);
        self.store_from(storing(size), &operand.memory, sized(register, size));
        self.store_from(storing(size), &operand.on_view(), sized(register, size));
        match other {
            Some(other) => self.code().load(other, Slot::First.offset()),
            None => self.code().load(RCX, thread::SAVED_RCX),
        }
        true
    }

    fn pop_quickly(&mut self, insn: &Instruction, dead: bool) -> bool {
        let popped = gpr_number(insn.op0_register());
        let Some(register) = popped.filter(|&r| r != RCX && r != RSP) else { return false };
        let top = on_stack(Register::FS);
        match dead {
            true => self.boundary(insn, Kind::Plain, &[]),
            false => {
                self.boundary(insn, Kind::Watched, &[pair(NOT_BORROWED, NOT_BORROWED)]);
                self.code().store(thread::SAVED_RCX, RCX);
            }
        }
        self.code().read(register, At(RSP, 0));
        let at = if dead {
            self.with_register(Op::Cmp_r64_rm64, sized(register, 8), &top);
            self.code().jcc(NOT_EQUAL)
        } else {
            self.with_register(Op::Mov_r64_rm64, Register::RCX, &top);
            let code = self.code();
            code.not(RCX);
            code.lea_sum(true, RCX, register, RCX, 1);
            let at = self.unless_equal();
            self.code().load(RCX, thread::SAVED_RCX);
            at
        };
        self.code().lea(RSP, At(RSP, 8));
        let behind = self.code().here();
        let how = How { spilled: [None; 2], rcx_is_saved: !dead, why: watch::LOADED };
        self.mends(insn, at, behind, how);
        true
    }

    /// `push` of a word in memory, as compilers that work while the program runs like it.
    fn push_loaded(&mut self, insn: &Instruction, i: usize) -> bool {
        let is_wide = |r: Register| matches!(r, Register::None | Register::RIP) || r.is_gpr64();
        let is_known = insn.code() == Op::Push_rm64
            && insn.op0_kind() == OpKind::Memory
            && !matches!(insn.memory_segment(), Register::FS | Register::GS)
            && is_wide(insn.memory_base())
            && is_wide(insn.memory_index());
        let Some(value) = free(self.touched(i), GprSet::of(RCX)).filter(|_| is_known) else {
            return false;
        };
        let operand = Operand { memory: plain(insn), base: None };
        let start = self.code().here();
        self.boundary(insn, Kind::Watched, &[pair(value, NOT_BORROWED)]);
        self.code().store(thread::SAVED_RCX, RCX);
        self.code().store(Slot::First.offset(), value);
        self.with_register(Op::Mov_r64_rm64, sized(value, 8), &operand.on_view());
        self.with_register(Op::Mov_r64_rm64, Register::RCX, &operand.memory);
        self.code().not(RCX);
        self.code().lea_sum(true, RCX, RCX, value, 1);
        let at = self.unless_equal();
        if let Ok(push) = Instruction::with1(Op::Push_r64, sized(value, 8)) {
            self.encode_or_trap(&push);
        }
        self.pushed(value);
        self.code().load(value, Slot::First.offset());
        self.load_rcx();
        let spilled = [Some(value), None];
        self.mends(insn, at, start, How { spilled, rcx_is_saved: true, why: watch::MEND });
        true
    }

    /// `lock add [rsp - 64], 0` and its like: a fence, of which memory stays as it is. It is carried out on the view.
    fn fence(&mut self, insn: &Instruction, i: usize, dead: bool) -> bool {
        let changes_nothing =
            matches!(insn.mnemonic(), Mnemonic::Add | Mnemonic::Or | Mnemonic::Sub | Mnemonic::Xor)
                && insn.op1_kind() != OpKind::Register
                && insn.immediate(1) == 0;
        // Elsewhere others may wait for it.
        let is_own = insn.memory_base() == Register::RSP
            && insn.memory_index() == Register::None
            && !matches!(insn.memory_segment(), Register::FS | Register::GS);
        if !insn.has_lock_prefix() || !changes_nothing || !is_own {
            return false;
        }
        let mut all = Vec::new();
        references(insn, self.factory(), &mut all);
        let Some(reference) = all.first() else { return false };
        match dead {
            true => self.load_with_flags(insn, i, reference),
            false => self.load_without_flags(insn, i, reference),
        }
    }

    /// A load under a mask of bytes or words: what is compared is what the mask lets through. (A processor that has
    /// such masks has all that is used here.)
    fn masked_load(&mut self, insn: &Instruction) -> bool {
        let Some((load, compare)) = masked(insn) else { return false };
        let is_free = |r: Register| (0..insn.op_count()).all(|n| insn.op_register(n) != r);
        let width = insn.memory_size().size();
        let is_scratch = self.manner.has_scratch_vector();
        let some = if is_scratch { [30; 3] } else { [31, 30, 29] };
        let vector = some.into_iter().find(|&n| {
            [Register::XMM0, Register::YMM0, Register::ZMM0].into_iter().all(|r| is_free(r + n))
        });
        let mask = [Register::K7, Register::K6, Register::K5]
            .into_iter()
            .find(|&k| is_free(k) && k != insn.op_mask());
        let (Some(vector), Some(mask)) = (vector, mask) else { return false };
        let narrow = match width {
            16 => Register::XMM0 + vector,
            32 => Register::YMM0 + vector,
            _ => Register::ZMM0 + vector,
        };
        let operand = Operand { memory: plain(insn), base: None };
        let (kept, kept_mask) = (in_block(thread::PROGRAM_ZMM30), in_block(thread::VIEW_SPILL));
        let start = self.code().here();
        self.boundary(insn, Kind::Watched, &[pair(NOT_BORROWED, NOT_BORROWED)]);
        self.code().store(thread::SAVED_RCX, RCX);
        let whole = Register::ZMM0 + vector;
        if !is_scratch {
            self.store_from(Op::EVEX_Vmovups_zmmm512_k1z_zmm, &kept, whole);
        }
        if let Ok(mut load) = Instruction::with2(load, narrow, operand.memory) {
            load.set_op_mask(insn.op_mask());
            load.set_zeroing_masking(true);
            self.encode_or_trap(&load);
        }
        self.store_from(Op::VEX_Kmovq_m64_kr, &kept_mask, mask);
        /// In place of "equal".
        const NOT: u32 = 4;
        if let Ok(mut compare) = Instruction::with4(compare, mask, narrow, operand.on_view(), NOT) {
            compare.set_op_mask(insn.op_mask());
            self.encode_or_trap(&compare);
        }
        if let Ok(take) = Instruction::with2(Op::VEX_Kmovq_r64_kr, Register::RCX, mask) {
            self.encode_or_trap(&take);
        }
        self.with_register(Op::VEX_Kmovq_kr_km64, mask, &kept_mask);
        if !is_scratch {
            self.with_register(Op::EVEX_Vmovups_zmm_k1z_zmmm512, whole, &kept);
        }
        let at = self.unless_equal();
        self.code().load(RCX, thread::SAVED_RCX);
        self.with_operand(insn, &operand.on_view());
        let how = How { spilled: [None; 2], rcx_is_saved: true, why: watch::MEND };
        self.mends(insn, at, start, how);
        true
    }

    /// What will be loaded from memory will be compared with the view.
    pub fn prefetch_view(&mut self, insn: &Instruction) {
        let operand = Operand { memory: plain(insn), base: None };
        self.with_operand(insn, &operand.on_view());
    }

    /// Instruction `i`, which uses vector registers that translated code claims.
    pub fn watched_with_own_vectors(&mut self, insn: &Instruction, i: usize) {
        let mut all = Vec::new();
        let watch = watch_of(insn, self.factory(), &mut all);
        let is_segmented = insn.memory_segment() == Register::FS || uses_gs(insn);
        match watch {
            Watch::Plain => self.with_own_vectors(insn, i, [None; 2]),
            Watch::Load(reference) if !is_segmented => {
                self.compare_operand(insn, i, &reference);
                self.exchanged(insn, i, false);
            }
            Watch::Store(_) if !is_segmented => {
                self.exchanged(insn, i, true);
            }
            Watch::Copied { .. } | Watch::Around { .. } if !is_segmented => {
                let here = self.code().here();
                let none = [pair(NOT_BORROWED, NOT_BORROWED)];
                self.boundary_at(here, 0, Kind::Watched, &none);
                self.code().watch(insn.ip(), watch::BEFORE);
                self.exchanged(insn, i, false);
                if all.iter().any(|reference| reference.write) {
                    self.code().watch(insn.ip(), watch::AFTER);
                }
            }
            _ => {
                let here = self.code().here();
                self.boundary_at(here, 0, Kind::SavedRcx, &[]);
                let behind = self.code().carry_out(insn.ip());
                self.with_own_vectors(insn, i, [None; 2]);
                self.code().bind_here(behind);
            }
        }
        self.forget_pointer();
    }

    /// The instruction on the view, with the program's own vector registers; before that on memory, if it `stores`.
    fn exchanged(&mut self, insn: &Instruction, i: usize, stores: bool) {
        let far = self.far_register(insn, i);
        let looks = self.begin_exchange(insn, far);
        let Some(holder) = self.manner.pointer_vector() else { return };
        let other = self.manner.has_scratch_vector().then_some(holder - 1);
        self.code().save_pointers(thread::POINTERS, holder);
        self.load_own(holder, thread::PROGRAM_ZMM31, looks);
        if let Some(other) = other {
            self.code().load_vector(thread::PROGRAM_ZMM30, other);
        }
        if stores {
            self.copy_or_reach(insn, far);
        }
        match far {
            None => {
                let operand = Operand { memory: plain(insn), base: None };
                self.with_operand(insn, &operand.on_view());
            }
            Some(reg) => {
                let mut on_view = *insn;
                on_view.set_segment_prefix(Register::FS);
                self.reach(&on_view, reg);
            }
        }
        if let Some(other) = other {
            self.code().save_vector(thread::PROGRAM_ZMM30, other);
        }
        self.code().save_vector(thread::PROGRAM_ZMM31, holder);
        self.code().load_pointers(thread::POINTERS, holder);
    }

    /// Goes on if rcx is zero; the jump whose distance is returned is taken otherwise.
    fn unless_equal(&mut self) -> CodeOff {
        let code = self.code();
        let same = code.jrcxz();
        let at = code.jump();
        code.bind_short(same);
        at
    }

    /// Compares a word that instruction `i` loads, without a flag, and puts all registers back: what `leave`
    /// pops, a return, or where an indirect call or jump goes. False if that has no short form. `length`: as the
    /// recipe has it.
    pub fn compare_word(&mut self, insn: &Instruction, i: usize, length: usize) -> bool {
        let touched = self.touched(i);
        let operand = match insn.mnemonic() {
            Mnemonic::Leave => Some(in_place(Register::RBP)),
            Mnemonic::Ret => Some(in_place(Register::RSP)),
            _ if self.far_register(insn, i).is_some() => None,
            _ => self.operand(insn, touched),
        };
        let Some(operand) = operand else { return false };
        let avoid = GprSet::of(RCX).union(operand.borrowed()).union(GprSet::of(RBP));
        let Some(other) = free(touched, avoid) else { return false };
        let start = self.code().here();
        let borrowed = pair(other, operand.base.unwrap_or(NOT_BORROWED));
        self.boundary_at(start, length, Kind::Watched, &[borrowed]);
        self.code().store(thread::SAVED_RCX, RCX);
        self.put_base(&operand);
        self.code().store(Slot::First.offset(), other);
        self.with_register(Op::Mov_r64_rm64, sized(other, 8), &operand.on_view());
        self.with_register(Op::Mov_r64_rm64, Register::RCX, &operand.memory);
        self.code().not(other);
        self.code().lea_sum(true, RCX, RCX, other, 1);
        self.code().load(other, Slot::First.offset());
        self.take_base(&operand);
        let at = self.unless_equal();
        self.load_rcx();
        let spilled = [Some(other), operand.base];
        self.mends(insn, at, start, How { spilled, rcx_is_saved: true, why: watch::MEND });
        true
    }

    /// `leave`, as far as that has a short form.
    pub fn leave_quickly(&mut self, insn: &Instruction, i: usize) -> bool {
        if !self.compare_word(insn, i, insn.len()) {
            return false;
        }
        self.code().lea(RSP, At(RBP, 8));
        let frame = in_place(Register::RBP).on_view();
        self.with_register(Op::Mov_r64_rm64, Register::RBP, &frame);
        true
    }

    /// Loads the target of an indirect call or jump into rcx, from the view; false if that has no short form.
    pub fn target_quickly(&mut self, insn: &Instruction, i: usize) -> bool {
        if insn.memory_segment() == Register::FS || self.far_register(insn, i).is_some() {
            return false;
        }
        let operand = Operand { memory: plain(insn), base: None };
        self.with_register(Op::Mov_r64_rm64, Register::RCX, &operand.on_view());
        true
    }

    /// Reads a half of the return address into rcx, from the view.
    pub fn return_on_view(&mut self, half: i8) {
        let mut place = in_place(Register::RSP).on_view();
        (place.displacement, place.displ_size) = (half.into(), u32::from(half != 0));
        self.with_register(Op::Mov_r32_rm32, Register::ECX, &place);
    }

    /// What has just been pushed goes to the view, too.
    pub fn pushed(&mut self, register: Gpr) {
        self.store_from(Op::Mov_rm64_r64, &on_stack(Register::FS), sized(register, 8));
    }

    /// The instructions that read and write the fs base, which is in the thread block; false if `insn` is none.
    pub fn program_fs(&mut self, insn: &Instruction) -> bool {
        let writes = match insn.mnemonic() {
            Mnemonic::Rdfsbase => false,
            Mnemonic::Wrfsbase => true,
            _ => return false,
        };
        let register = insn.op0_register();
        let (Some(number), wide) = (gpr_number(register), register.size() == 8) else {
            return false;
        };
        self.boundary(insn, Kind::Plain, &[]);
        match (writes, wide) {
            (false, true) => self.code().load(number, thread::PROGRAM_FS),
            (false, false) => self.code().load32(number, thread::PROGRAM_FS),
            (true, true) => self.code().store(thread::PROGRAM_FS, number),
            (true, false) => {
                self.code().store32(thread::PROGRAM_FS, number);
                self.code().store_imm(thread::PROGRAM_FS + 4, 0);
            }
        }
        true
    }

    fn can_encode(&mut self, insn: &Instruction) -> bool {
        let length = self.code().bytes.len();
        let encoded = self.encode(insn);
        self.code().bytes.truncate(length);
        encoded
    }
}

/// Where an operand lies in memory.
#[derive(Clone, Copy)]
struct Operand {
    memory: MemoryOperand,
    /// A register that is borrowed for the program's fs base.
    base: Option<Gpr>,
}

impl Operand {
    fn on_view(&self) -> MemoryOperand {
        MemoryOperand { segment_prefix: Register::FS, ..self.memory }
    }

    fn borrowed(&self) -> GprSet {
        self.base.map_or(GprSet::EMPTY, GprSet::of)
    }
}

/// How the registers are when the view turns out to be old.
struct How {
    spilled: [Option<Gpr>; 2],
    rcx_is_saved: bool,
    why: u32,
}

/// A register that is not touched, if possible one that goes with every encoding.
fn free(touched: GprSet, avoid: GprSet) -> Option<Gpr> {
    const ORDER: [Gpr; 14] = [
        Gpr(2),
        Gpr(0),
        Gpr(3),
        Gpr(6),
        Gpr(7),
        Gpr(8),
        Gpr(9),
        Gpr(10),
        Gpr(11),
        Gpr(12),
        Gpr(13),
        Gpr(14),
        Gpr(15),
        RBP,
    ];
    ORDER.into_iter().find(|&r| !touched.contains(r) && !avoid.contains(r))
}

fn in_place(base: Register) -> Operand {
    Operand { memory: MemoryOperand::with_base(base), base: None }
}

/// A word of the thread block.
fn in_block(offset: i32) -> MemoryOperand {
    MemoryOperand::new(Register::None, Register::None, 1, offset.into(), 8, false, Register::GS)
}

/// How a masked load is made again, and how what it has loaded is compared.
fn masked(insn: &Instruction) -> Option<(Op, Op)> {
    use Mnemonic::*;
    const LOADS: [Op; 6] = [
        Op::EVEX_Vmovdqu8_xmm_k1z_xmmm128,
        Op::EVEX_Vmovdqu8_ymm_k1z_ymmm256,
        Op::EVEX_Vmovdqu8_zmm_k1z_zmmm512,
        Op::EVEX_Vmovdqu16_xmm_k1z_xmmm128,
        Op::EVEX_Vmovdqu16_ymm_k1z_ymmm256,
        Op::EVEX_Vmovdqu16_zmm_k1z_zmmm512,
    ];
    const COMPARISONS: [Op; 6] = [
        Op::EVEX_Vpcmpub_kr_k1_xmm_xmmm128_imm8,
        Op::EVEX_Vpcmpub_kr_k1_ymm_ymmm256_imm8,
        Op::EVEX_Vpcmpub_kr_k1_zmm_zmmm512_imm8,
        Op::EVEX_Vpcmpuw_kr_k1_xmm_xmmm128_imm8,
        Op::EVEX_Vpcmpuw_kr_k1_ymm_ymmm256_imm8,
        Op::EVEX_Vpcmpuw_kr_k1_zmm_zmmm512_imm8,
    ];
    let size = match insn.mnemonic() {
        Vmovdqu8 | Vpcmpb | Vpcmpub | Vpcmpeqb | Vpcmpgtb | Vptestmb | Vptestnmb => 0,
        Vmovdqu16 | Vpcmpw | Vpcmpuw | Vpcmpeqw | Vpcmpgtw | Vptestmw | Vptestnmw => 3,
        _ => return None,
    };
    let width = match insn.memory_size().size() {
        16 => 0,
        32 => 1,
        64 => 2,
        _ => return None,
    };
    let is_plain = insn.has_op_mask()
        && !insn.is_broadcast()
        && insn.memory_segment() != Register::FS
        && !insn.memory_index().is_vector_register();
    is_plain.then_some((LOADS[size + width], COMPARISONS[size + width]))
}

fn on_stack(segment_prefix: Register) -> MemoryOperand {
    MemoryOperand { segment_prefix, ..MemoryOperand::with_base(Register::RSP) }
}

/// The operand without a segment, which means nothing.
fn plain(insn: &Instruction) -> MemoryOperand {
    let mut memory = memory_operand(insn);
    memory.segment_prefix = Register::None;
    if insn.is_ip_rel_memory_operand() {
        #[allow(clippy::cast_possible_wrap, reason = "an address, as the encoder takes it")]
        let at = insn.ip_rel_memory_address() as i64;
        (memory.base, memory.displacement, memory.displ_size) = (Register::RIP, at, 8);
    }
    memory
}

/// The size of a displacement that has been added to.
fn wide_displacement(memory: &MemoryOperand) -> u32 {
    match (memory.displacement, memory.base) {
        (0, Register::None) => 8,
        (0, _) => 0,
        (d, _) if i8::try_from(d).is_ok() => 1,
        _ => 8,
    }
}

fn set_operand(insn: &mut Instruction, memory: &MemoryOperand) {
    insn.set_segment_prefix(memory.segment_prefix);
    insn.set_memory_base(memory.base);
    insn.set_memory_index(memory.index);
    insn.set_memory_index_scale(memory.scale);
    #[allow(clippy::cast_sign_loss, reason = "the encoder takes the sign from there")]
    insn.set_memory_displacement64(memory.displacement as u64);
    insn.set_memory_displ_size(memory.displ_size);
}

/// The instruction with a register where its memory operand was.
fn replace_operand(insn: &mut Instruction, register: Register) {
    for n in 0..insn.op_count() {
        if insn.op_kind(n) == OpKind::Memory {
            insn.set_op_kind(n, OpKind::Register);
            insn.set_op_register(n, register);
        }
    }
    set_operand(
        insn,
        &MemoryOperand::new(Register::None, Register::None, 1, 0, 0, false, Register::None),
    );
}

/// Registers of the address.
fn addresses(insn: &Instruction) -> GprSet {
    [insn.memory_base(), insn.memory_index()].into_iter().filter_map(gpr_number).collect()
}

/// What the instruction loads, if it does nothing else and the address stays: not rcx, which tells how often a
/// repeated instruction has been repeated.
fn destination(insn: &Instruction) -> Option<Register> {
    let loads = matches!(
        insn.code(),
        Op::Mov_r8_rm8
            | Op::Mov_r16_rm16
            | Op::Mov_r32_rm32
            | Op::Mov_r64_rm64
            | Op::Movzx_r16_rm8
            | Op::Movzx_r32_rm8
            | Op::Movzx_r64_rm8
            | Op::Movzx_r32_rm16
            | Op::Movzx_r64_rm16
            | Op::Movsx_r16_rm8
            | Op::Movsx_r32_rm8
            | Op::Movsx_r64_rm8
            | Op::Movsx_r32_rm16
            | Op::Movsx_r64_rm16
            | Op::Movsxd_r64_rm32
    );
    let register = insn.op0_register();
    let number = gpr_number(register)?;
    let is_high = matches!(register, Register::AH | Register::BH | Register::CH | Register::DH);
    let stays = !addresses(insn).contains(number) && number != RCX && number != RSP;
    (loads && insn.op1_kind() == OpKind::Memory && stays && !is_high).then_some(register)
}

fn low_part(register: Register, size: u32) -> Register {
    gpr_number(register).map_or(register, |number| sized(number, size))
}

/// The register that [`loading`] loads.
fn loaded(register: Gpr, size: u32) -> Register {
    sized(register, size.max(4))
}

/// A load with zeros above.
fn loading(size: u32) -> Op {
    match size {
        1 => Op::Movzx_r32_rm8,
        2 => Op::Movzx_r32_rm16,
        4 => Op::Mov_r32_rm32,
        _ => Op::Mov_r64_rm64,
    }
}

fn comparing(size: u32) -> Op {
    match size {
        1 => Op::Cmp_r8_rm8,
        2 => Op::Cmp_r16_rm16,
        4 => Op::Cmp_r32_rm32,
        _ => Op::Cmp_r64_rm64,
    }
}

fn storing(size: u32) -> Op {
    match size {
        1 => Op::Mov_rm8_r8,
        2 => Op::Mov_rm16_r16,
        4 => Op::Mov_rm32_r32,
        _ => Op::Mov_rm64_r64,
    }
}
