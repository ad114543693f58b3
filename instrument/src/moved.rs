//! Instructions of the program, moved: copied byte for byte, with another distance where an operand
//! is pc-relative, re-encoded only where that is out of reach.

use crate::emit::At;
use crate::manner::claims;
use crate::operand::{displacement_offset, register64, uses_gs};
use crate::recipe::Kind;
use crate::refusal::refusal;
use crate::weaver::{Slot, Weaver};
use abi::ids::Gpr;
use abi::options::Pointers;
use abi::thread;
use iced_x86::{
    Instruction, InstructionInfoFactory, InstructionInfoOptions, OpAccess, OpKind, Register,
};
use lifter::regs::{GprSet, RAX, RCX, RSP};

/// Bytes by which a distance may grow until it is emitted.
const MARGIN: u64 = 256;

impl Weaver<'_> {
    fn original(&self, insn: &Instruction, bytes: &mut [u8; 15]) -> usize {
        let len = insn.len().min(15);
        let from = self.offset_of(insn);
        bytes[..len].copy_from_slice(&self.unit.bytes[from..from + len]);
        len
    }

    /// Where the instruction lies in the unit's bytes.
    #[allow(clippy::cast_possible_truncation, reason = "a unit is smaller than 64 KiB")]
    pub fn offset_of(&self, insn: &Instruction) -> usize {
        (insn.ip() - self.unit.block.start.0) as usize
    }

    /// Instruction `i`, in the middle of its unit.
    pub fn moved(&mut self, insn: &Instruction, i: usize) {
        if let Some(why) = refusal(insn) {
            return self.refuse(insn, why);
        }
        if self.manner.watches && self.watched(insn, i) {
            return;
        }
        if self.manner.watches && self.program_fs(insn) {
            return;
        }
        if self.marked(insn, i) {
            return;
        }
        if self.is_answered(insn) {
            self.ask(insn);
        }
        if !insn.is_ip_rel_memory_operand() && !uses_gs(insn) {
            match self.used_up(i) {
                None => self.boundary(insn, Kind::Plain, &[]),
                Some(both) => self.boundary(insn, Kind::UsedUp, &[both]),
            }
            if self.gs_base(insn) {
                return;
            }
            self.copy(insn);
            if self.manner.watches && is_prefetch(insn) {
                self.prefetch_view(insn);
            }
            if loads_flags(insn) {
                // Two places that belong to no instruction: see `loads_flags`.
                self.code().nop(1);
                self.code().nop(1);
            }
            return;
        }
        let far = self.far_register(insn, i);
        match far {
            None => self.boundary(insn, Kind::Plain, &[]),
            Some(reg) => self.boundary(insn, Kind::Scratch, &[reg.0]),
        }
        self.copy_or_reach(insn, far);
    }

    /// The instruction with whatever its operand needs.
    pub fn copy_or_reach(&mut self, insn: &Instruction, far: Option<Gpr>) {
        match far {
            Some(reg) => self.reach(insn, reg),
            None if insn.is_ip_rel_memory_operand() => self.pc_relative(insn),
            None => self.copy(insn),
        }
    }

    fn copy(&mut self, insn: &Instruction) {
        if insn.is_invalid() {
            // What the decoder does not know is not run: it raises what the processor raises.
            return self.code().ud2();
        }
        let mut bytes = [0; 15];
        let len = self.original(insn, &mut bytes);
        self.code().copy(&bytes[..len]);
    }

    /// A register to address an operand through, if it has one that is pc-relative and out of reach from here,
    /// or relative to the gs base.
    pub fn far_register(&mut self, insn: &Instruction, i: usize) -> Option<Gpr> {
        let is_far = || {
            let distance = insn.ip_rel_memory_address().wrapping_sub(self.here()) as i64;
            distance.unsigned_abs() > (1 << 31) - MARGIN
        };
        (uses_gs(insn) || insn.is_ip_rel_memory_operand() && is_far())
            .then(|| GprSet::ALL.minus(self.touched(i)).iter().find(|&r| r != RSP).unwrap_or(RAX))
    }

    /// Whether code that is emitted here reaches `target` with a distance of 32 bits.
    pub fn reaches(&self, target: u64) -> bool {
        (target.wrapping_sub(self.here()) as i64).unsigned_abs() < (1 << 31) - MARGIN
    }

    /// Emits an instruction with a pc-relative operand that is in reach.
    #[allow(clippy::cast_possible_truncation, reason = "a distance that is in reach has 32 bits")]
    fn pc_relative(&mut self, insn: &Instruction) {
        let target = insn.ip_rel_memory_address();
        let mut bytes = [0; 15];
        let len = self.original(insn, &mut bytes);
        let next = self.here().wrapping_add(len as u64);
        let distance = target.wrapping_sub(next) as u32;
        if let Some(at) = displacement_offset(insn, &bytes[..len]) {
            bytes[at..at + 4].copy_from_slice(&distance.to_le_bytes());
        }
        self.code().copy(&bytes[..len]);
    }

    /// Emits an instruction whose operand is addressed through `reg`, whose value waits in the thread block
    /// meanwhile.
    pub fn reach(&mut self, insn: &Instruction, reg: Gpr) {
        self.code().store(Slot::Second.offset(), reg);
        let through = match uses_gs(insn) {
            true => self.through_gs(insn, reg),
            false => {
                self.code().constant(reg, insn.ip_rel_memory_address());
                let mut through = *insn;
                // (What a bit's number adds to an address of 32 bits is cut to as many.)
                let has_32_bits = insn.memory_base() == Register::EIP;
                let base = register64(reg);
                through.set_memory_base(if has_32_bits { base.full_register32() } else { base });
                through.set_memory_displacement64(0);
                through.set_memory_displ_size(0);
                through
            }
        };
        if !self.encode(&through) {
            // Never seen; traps rather than doing something else.
            self.code().ud2();
        }
        self.code().load(reg, Slot::Second.offset());
        self.forget_pointer_in(reg);
    }

    /// Runs an instruction with the program's own vector registers in place of those that it uses and translated code
    /// claims; `record_at`: which of them are recorded before, and where.
    pub fn with_own_vectors(
        &mut self,
        insn: &Instruction,
        i: usize,
        record_at: [Option<(u8, i32)>; 2],
    ) {
        let far = self.far_register(insn, i);
        // The boundary lies before all that is borrowed; a fault inside puts the pointers back.
        let looks = self.begin_exchange(insn, far);
        let pointer = record_at.iter().any(Option::is_some).then(|| {
            let live = self.unit.live.before(i);
            let touched = self.touched(i);
            let scratch = self.take(live, touched, Slot::First);
            self.load_memory_pointer(scratch.reg);
            scratch
        });
        let exchange = self.exchange(insn);
        let own = |number: u8| match number {
            15 => thread::PROGRAM_YMM15,
            _ => thread::program_vector(number.into()),
        };
        let holder = self.manner.pointer_vector().filter(|&holder| exchange.has(holder));
        if let Some(holder) = holder {
            self.code().save_pointers(thread::POINTERS, holder);
        }
        for number in numbers(exchange.loaded) {
            self.load_own(number, own(number), looks);
        }
        if let Some(pointer) = pointer {
            for (vector, at) in record_at.into_iter().flatten() {
                self.code().write_vector(At(pointer.reg, at), vector, vector < 16);
            }
            self.give_back(pointer);
            self.forget_pointer();
        }
        self.copy_or_reach(insn, far);
        for number in numbers(exchange.stored) {
            self.code().save_vector(own(number), number);
        }
        for number in numbers(exchange.all) {
            let held = usize::from(number).checked_sub(thread::FIRST_VECTOR);
            if let Some(&offset) = held.and_then(|held| thread::HELD_OFFSETS.get(held)) {
                self.code().load_pointers(offset, number);
            }
        }
        if let Some(holder) = holder {
            self.code().load_pointers(thread::POINTERS, holder);
        }
    }

    /// The boundary of an exchange around `insn`, whose operand is reached through `far`. Whether [`Weaver::load_own`] looks
    /// at what it loads, for which the exchange borrows rcx.
    ///
    /// What is loaded into the upper half of ymm15 the processor takes to be in use, whatever it is. `xsave` says so, and
    /// leaves the place of what is not in use as it is; so zeros are not loaded there.
    pub fn begin_exchange(&mut self, insn: &Instruction, far: Option<Gpr>) -> bool {
        let looks = self.counts_as_used(insn) && far.is_none_or(|reg| reg == RCX);
        match far.or(looks.then_some(RCX)) {
            None => self.boundary(insn, Kind::Pointers, &[]),
            Some(reg) => self.boundary(insn, Kind::PointersScratch, &[reg.0]),
        }
        looks
    }

    /// Loads vector register `number`, which the thread block has at `offset`; its upper half only if that is not zero, if
    /// it `looks`.
    pub fn load_own(&mut self, number: u8, offset: i32, looks: bool) {
        if !looks {
            return self.code().load_vector(offset, number);
        }
        let code = self.code();
        code.store(Slot::Second.offset(), RCX);
        code.load_pointers(offset, number);
        code.load(RCX, offset + 16);
        let low = code.jrcxz();
        let used = code.branch_short(None);
        code.bind_short(low);
        code.load(RCX, offset + 24);
        let unused = code.jrcxz();
        code.bind_short(used);
        code.load_vector(offset, number);
        code.bind_short(unused);
        code.load(RCX, Slot::Second.offset());
        self.forget_pointer_in(RCX);
    }

    /// Whether `insn` says of registers that are exchanged for it whether they are in use, and the exchange would decide.
    fn counts_as_used(&self, insn: &Instruction) -> bool {
        use iced_x86::Mnemonic::{Xsave, Xsave64, Xsavec, Xsavec64, Xsaveopt, Xsaveopt64};
        let says =
            matches!(insn.mnemonic(), Xsave | Xsave64 | Xsavec | Xsavec64 | Xsaveopt | Xsaveopt64);
        says && self.manner.pointers == Pointers::Xmm15
    }

    /// What is exchanged around the instruction.
    fn exchange(&mut self, insn: &Instruction) -> Exchange {
        let (pointers, in_memory) = (self.manner.pointers, self.manner.increments_in_memory);
        Exchange::around(insn, pointers, in_memory, self.factory())
    }

    /// Whether the instruction uses the vector registers that translated code claims.
    pub fn needs_own_vectors(&self, insn: &Instruction) -> bool {
        used(insn, self.manner.pointers, self.manner.increments_in_memory) != 0
    }
}

/// Whether the instruction tells the processor what will be loaded.
fn is_prefetch(insn: &Instruction) -> bool {
    use iced_x86::Mnemonic::{Prefetchnta, Prefetcht0, Prefetcht1, Prefetcht2, Prefetchw};
    let is_one =
        matches!(insn.mnemonic(), Prefetchnta | Prefetcht0 | Prefetcht1 | Prefetcht2 | Prefetchw);
    is_one && insn.segment_prefix() == Register::None
}

/// Whether the instruction may set or clear the trap flag. Two instructions that do nothing stand behind its
/// translation, wherever the program goes on: the processor's trap in front of the first one is the program's,
/// behind an instruction that had the flag set; the one behind it comes of a flag that was loaded right now,
/// before the program has executed anything with it.
pub fn loads_flags(insn: &Instruction) -> bool {
    use iced_x86::Mnemonic::{Popf, Popfd, Popfq};
    matches!(insn.mnemonic(), Popf | Popfd | Popfq)
}

/// Vector registers, a bit for each, around an instruction that uses those of the program that translated code claims.
pub struct Exchange {
    /// Its own, all of which hold what is translated code's behind it.
    pub all: u32,
    /// Of these, those whose values it may read or keep: they are the program's in front of it. The others are not, and
    /// are neither if it faults.
    pub loaded: u32,
    /// Those that it may write.
    stored: u32,
}

impl Exchange {
    /// What is exchanged around the instruction in code of this kind.
    pub fn around(
        insn: &Instruction,
        pointers: Pointers,
        increments_in_memory: bool,
        factory: &mut InstructionInfoFactory,
    ) -> Exchange {
        let all = used(insn, pointers, increments_in_memory);
        let mut exchange = Exchange { all, loaded: all, stored: all };
        // What writes xmm15 may leave the upper half alone, and what is meant is told by memory.
        if all == 0 || pointers != Pointers::Vector || meant(insn) != 0 {
            return exchange;
        }
        let (mut read, mut written) = (0, 0);
        let info = factory.info_options(insn, InstructionInfoOptions::NO_MEMORY_USAGE);
        for register in info.used_registers() {
            let bit = bit(register.register());
            match register.access() {
                // Its upper part is cleared, as by all that know these registers.
                OpAccess::Write => written |= bit,
                OpAccess::Read | OpAccess::CondRead => read |= bit,
                _ => (read, written) = (read | bit, written | bit),
            }
        }
        // One that is not listed may be anything; one of indices is read, whatever the list says of memory.
        let unknown = all & !(read | written);
        exchange.loaded &= read | unknown | bit(insn.memory_index());
        exchange.stored &= written | unknown;
        exchange
    }

    fn has(&self, number: u8) -> bool {
        self.all >> number & 1 == 1
    }
}

/// The numbers of these registers, the last one first.
fn numbers(registers: u32) -> impl Iterator<Item = u8> {
    (0..32u8).rev().filter(move |n| registers >> n & 1 == 1)
}

fn bit(register: Register) -> u32 {
    match register.is_vector_register() {
        true => 1 << (register.number() & 31),
        false => 0,
    }
}

/// The vector registers that the instruction reads or writes and does not name.
fn meant(insn: &Instruction) -> u32 {
    use iced_x86::Mnemonic::{
        Fxrstor, Fxrstor64, Fxsave, Fxsave64, Vzeroall, Vzeroupper, Xrstor, Xrstor64, Xsave,
        Xsave64, Xsavec, Xsavec64, Xsaveopt, Xsaveopt64,
    };
    match insn.mnemonic() {
        Xsave | Xsave64 | Xsavec | Xsavec64 | Xsaveopt | Xsaveopt64 | Xrstor | Xrstor64 => u32::MAX,
        // These know the first 16 only.
        Fxsave | Fxsave64 | Fxrstor | Fxrstor64 | Vzeroall | Vzeroupper => 0xffff,
        _ => 0,
    }
}

/// The vector registers that the instruction reads or writes and that are not the program's in code of this kind.
fn used(insn: &Instruction, pointers: Pointers, increments_in_memory: bool) -> u32 {
    let operands = (0..insn.op_count()).filter(|&i| insn.op_kind(i) == OpKind::Register);
    let named = operands.fold(bit(insn.memory_index()), |bits, i| bits | bit(insn.op_register(i)));
    match named | meant(insn) {
        0 => 0,
        used => numbers(used)
            .filter(|&n| claims(pointers, increments_in_memory, n.into()))
            .fold(0, |bits, n| bits | 1 << n),
    }
}
