//! Instructions that ask the machine ([`lifter::asks`]), executed for the program.
//!
//! In two steps: the answer is made (or comes out of a recording), and then it is given to the program.
//! An instruction that the processor refuses, or whose memory cannot be reached, is left to the
//! processor: translated code has it behind the way here, and it faults there as it does natively.

use crate::base::attempt::{copy, given_up_at};
use crate::base::program::read_program_bytes;
use crate::base::signal::{block_all, set_real_mask, SYNCHRONOUS};
use crate::code::writing::write_program;
use crate::kernel::replay::{answers::recorded, is_replay};
use crate::logs::extent::extent;
use crate::logs::log;
use crate::thread::{Ranges, Thread};
use alloc::vec::Vec;
use core::arch::naked_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use iced_x86::{
    Code, CodeSize, Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpKind,
};
use lifter::operands::references;
use lifter::regs::gpr_number;

/// Bytes of the longest instruction.
const LONGEST: usize = 15;
const ZERO: u64 = 0x40;
/// OF, SF, ZF, AF, PF, CF.
const ARITHMETIC: u64 = 0x8d5;

/// Bits of what the processor was seen to refuse (`rdtsc` and `cpuid` can be forbidden).
static REFUSED: AtomicU32 = AtomicU32::new(0);

/// What an instruction that asks says, as [`abi::event::Event::Answer`] has it.
pub type Values = [u64; 4];

/// The instruction at `pc` asks the machine: is answered, and returned. `None`: it is to be executed where it
/// stands, and faults.
pub fn ask(thread: &mut Thread, pc: u64) -> Option<Instruction> {
    let insn = fetch(pc);
    let values = match is_replay() {
        true => recorded(thread, pc)?,
        false => answer(thread, &insn)?,
    };
    log().answered(thread, pc, &values);
    give(thread, &insn, &values).then_some(insn)
}

/// Where code goes on that has the answered instruction at `at`. It stands there as it is, unless its memory
/// operand is pc-relative and far away: then a register is borrowed for the address, and given back
/// behind it.
pub fn behind(at: u64, answered: &Instruction) -> u64 {
    /// No more instructions put an address into a register.
    const MOST: usize = 4;
    let mut next = instruction_or(at, answered);
    if next.mnemonic() == answered.mnemonic() {
        return next.next_ip();
    }
    for _ in 0..MOST {
        next = fetch(next.next_ip());
        if next.mnemonic() == answered.mnemonic() {
            return fetch(next.next_ip()).next_ip();
        }
    }
    crate::die!(
        "internal error: an instruction that asks is not where it is translated to ({at:#x})"
    )
}

/// The instruction at `at` in translated code: `answered`, if that can only have been copied.
fn instruction_or(at: u64, answered: &Instruction) -> Instruction {
    if answered.is_ip_rel_memory_operand() {
        return fetch(at);
    }
    let mut copied = *answered;
    copied.set_ip(at);
    copied
}

/// The instruction at `pc`, without a system call where it can be reached. Not for the handler of signals.
pub fn fetch(pc: u64) -> Instruction {
    let mut bytes = [0u8; LONGEST];
    // SAFETY: the bytes are borrowed; the rest is code.
    match unsafe { copy(bytes.as_mut_ptr() as u64, pc, LONGEST as u64) } {
        true => common(&bytes, pc)
            .unwrap_or_else(|| Decoder::with_ip(64, &bytes, pc, DecoderOptions::NONE).decode()),
        // It lies at the end of what is mapped.
        false => instruction(pc),
    }
}

/// The instruction at `pc`, which has just been executed.
pub fn instruction(pc: u64) -> Instruction {
    let mut bytes = [0u8; LONGEST];
    let mut len = bytes.len();
    while len > 0 && !bytes.get_mut(..len).is_some_and(|b| read_program_bytes(pc, b)) {
        len -= 1;
    }
    common(&bytes, pc).unwrap_or_else(|| {
        let bytes = bytes.get(..len).unwrap_or_default();
        Decoder::with_ip(64, bytes, pc, DecoderOptions::NONE).decode()
    })
}

/// What every program asks when it starts, without a decoder: the tables of that are big, and many programs need no other.
fn common(bytes: &[u8; LONGEST], pc: u64) -> Option<Instruction> {
    let (code, len) = match bytes {
        [0x0f, 0xa2, ..] => (Code::Cpuid, 2),
        [0x0f, 0x31, ..] => (Code::Rdtsc, 2),
        [0x0f, 0x01, 0xd0, ..] => (Code::Xgetbv, 3),
        [0x0f, 0x01, 0xf9, ..] => (Code::Rdtscp, 3),
        _ => return None,
    };
    let mut insn = Instruction::default();
    insn.set_code(code);
    insn.set_code_size(CodeSize::Code64);
    insn.set_len(len);
    insn.set_next_ip(pc + len as u64);
    Some(insn)
}

/// The registers that the answer is put into as they are: rax, rbx, rcx, rdx.
fn is_in_four(insn: &Instruction) -> bool {
    use Mnemonic::{Cpuid, Rdpmc, Rdpru, Rdtsc, Rdtscp, Xgetbv};
    matches!(insn.mnemonic(), Rdtsc | Rdtscp | Rdpmc | Rdpru | Cpuid | Xgetbv)
}

/// Makes the answer; `None` if there is none.
fn answer(thread: &Thread, insn: &Instruction) -> Option<Values> {
    let registers = &thread.block.registers;
    let [a, c, d, b, ..] = registers.gpr;
    let mut io = Io { a, b, c, d, ..Io::default() };
    let (what, changed) = match insn.mnemonic() {
        Mnemonic::Rdtsc => (what::RDTSC, 0),
        Mnemonic::Rdtscp => (what::RDTSCP, 0),
        Mnemonic::Rdpmc => (what::RDPMC, 0),
        Mnemonic::Rdpru => (what::RDPRU, ARITHMETIC),
        Mnemonic::Cpuid => (what::CPUID, 0),
        Mnemonic::Xgetbv => (what::XGETBV, 0),
        Mnemonic::Rdpid => (what::RDPID, 0),
        Mnemonic::Rdrand => (what::RDRAND, ARITHMETIC),
        Mnemonic::Rdseed => (what::RDSEED, ARITHMETIC),
        Mnemonic::Sgdt => (what::SGDT, 0),
        Mnemonic::Sidt => (what::SIDT, 0),
        Mnemonic::Sldt => (sized(insn, what::SLDT), 0),
        Mnemonic::Str => (sized(insn, what::STR), 0),
        Mnemonic::Smsw => (sized(insn, what::SMSW), 0),
        Mnemonic::Lsl => (what::LSL, ZERO),
        Mnemonic::Lar => (what::LAR, ZERO),
        Mnemonic::Verr => (what::VERR, ZERO),
        Mnemonic::Verw => (what::VERW, ZERO),
        Mnemonic::Umwait => (what::UMWAIT, ARITHMETIC),
        Mnemonic::Tpause => (what::TPAUSE, ARITHMETIC),
        _ => return None,
    };
    match insn.mnemonic() {
        Mnemonic::Lsl | Mnemonic::Lar => io.c = selector(thread, insn, 1)?,
        Mnemonic::Verr | Mnemonic::Verw => io.c = selector(thread, insn, 0)?,
        Mnemonic::Umwait | Mnemonic::Tpause => {
            io.b = *registers.gpr.get(gpr_number(insn.op0_register())?.index())?;
        }
        _ => {}
    }
    if is_sized(insn) && insn.op0_kind() == OpKind::Register {
        // Where the kernel answers in the processor's place it leaves more of the register alone.
        io.a = *registers.gpr.get(destination(insn)?.index())?;
    }
    carry_out(thread, &mut io, what)?;
    if is_in_four(insn) {
        return Some([io.a, io.b, io.c, io.d]);
    }
    let flags = registers.rflags & !changed | io.flags & changed;
    if matches!(insn.mnemonic(), Mnemonic::Sgdt | Mnemonic::Sidt) {
        let [low, high] = io.table;
        return Some([low, flags, high & 0xffff, 0]);
    }
    let whole = match insn.op0_kind() {
        OpKind::Register => match destination(insn) {
            Some(_)
                if matches!(insn.mnemonic(), Mnemonic::Lsl | Mnemonic::Lar)
                    && io.flags & ZERO == 0 =>
            {
                *registers.gpr.get(destination(insn)?.index())?
            }
            Some(_) if is_sized(insn) => io.a,
            Some(to) => {
                let old = *registers.gpr.get(to.index())?;
                match insn.op0_register().size() {
                    2 => old & !0xffff | io.a & 0xffff,
                    4 => io.a & 0xffff_ffff,
                    _ => io.a,
                }
            }
            None => 0,
        },
        // `sldt`, `str` and `smsw` store 16 bits.
        _ if matches!(insn.mnemonic(), Mnemonic::Sldt | Mnemonic::Str | Mnemonic::Smsw) => {
            io.a & 0xffff
        }
        _ => 0,
    };
    Some([whole, flags, 0, 0])
}

/// Whether the width of the destination is a matter of [`attempt`].
fn is_sized(insn: &Instruction) -> bool {
    matches!(insn.mnemonic(), Mnemonic::Sldt | Mnemonic::Str | Mnemonic::Smsw)
}

/// The one of three numbers from `first` on for the width of the destination.
fn sized(insn: &Instruction, first: u32) -> u32 {
    match (insn.op0_kind(), insn.op0_register().size()) {
        (OpKind::Register, 4) => first + 1,
        (OpKind::Register, 8) => first + 2,
        _ => first,
    }
}

/// Executes it; `None` if the processor refuses.
fn carry_out(thread: &Thread, io: &mut Io, what: u32) -> Option<()> {
    let bit = 1 << what;
    let certain = match what {
        what::RDTSC | what::RDTSCP | what::CPUID | what::RDPID | what::RDRAND | what::RDSEED => {
            true
        }
        what::XGETBV => io.c & 0xffff_ffff < 2,
        _ => false,
    };
    if certain && REFUSED.load(Relaxed) & bit == 0 {
        // SAFETY: `io` is borrowed; what is executed changes nothing but the registers in it.
        let refused = unsafe { attempt(io, what) } != 0;
        if refused {
            REFUSED.fetch_or(bit, Relaxed);
        }
        return (!refused).then_some(());
    }
    // A signal that comes in first would have all others wait, and the kernel does not let a fault
    // wait: it kills.
    let before = block_all();
    set_real_mask(!SYNCHRONOUS);
    // SAFETY: as above.
    let refused = unsafe { attempt(io, what) } != 0;
    block_all();
    if !thread.mailbox.is_pending() {
        set_real_mask(before);
    }
    (!refused).then_some(())
}

/// The register that the answer goes to.
fn destination(insn: &Instruction) -> Option<abi::ids::Gpr> {
    use Mnemonic::{Tpause, Umwait, Verr, Verw};
    match insn.mnemonic() {
        Verr | Verw | Umwait | Tpause => None,
        _ => gpr_number(insn.op0_register()),
    }
}

/// The selector in operand `n`.
fn selector(thread: &Thread, insn: &Instruction, n: u32) -> Option<u64> {
    if insn.op_kind(n) == OpKind::Register {
        let number = gpr_number(insn.op_register(n))?;
        return Some(thread.block.registers.gpr.get(number.index())? & 0xffff);
    }
    let mut bytes = [0u8; 2];
    read_program_bytes(operand(thread, insn)?, &mut bytes).then_some(())?;
    Some(u16::from_le_bytes(bytes).into())
}

/// The address of the instruction's memory operand.
fn operand(thread: &Thread, insn: &Instruction) -> Option<u64> {
    let (mut all, mut ranges) = (Vec::new(), Ranges::new());
    references(insn, &mut InstructionInfoFactory::new(), &mut all);
    extent(thread, insn, all.first()?, &mut ranges);
    ranges.first().map(|&(at, _)| at)
}

/// Gives the program the answer of `insn`. False if its memory cannot be written: nothing has changed.
pub fn give(thread: &mut Thread, insn: &Instruction, values: &Values) -> bool {
    let &[first, second, third, fourth] = values;
    if is_in_four(insn) {
        let [a, c, d, b, ..] = &mut thread.block.registers.gpr;
        (*a, *b, *c, *d) = (first, second, third, fourth);
        return true;
    }
    if let Some(to) = destination(insn) {
        if let Some(register) = thread.block.registers.gpr.get_mut(to.index()) {
            *register = first;
        }
    } else {
        let mut bytes = [0u8; 16];
        for (to, from) in bytes.iter_mut().zip([first, third].iter().flat_map(|w| w.to_le_bytes()))
        {
            *to = from;
        }
        let len = match insn.mnemonic() {
            Mnemonic::Sgdt | Mnemonic::Sidt => 10,
            Mnemonic::Sldt | Mnemonic::Str | Mnemonic::Smsw => 2,
            _ => 0,
        };
        if len > 0 {
            let Some(at) = operand(thread, insn) else { return false };
            // SAFETY: the instruction writes there.
            if !unsafe { write_program(at, bytes.get(..len).unwrap_or_default()) } {
                return false;
            }
        }
    }
    thread.block.registers.rflags = second;
    true
}

/// What is executed, and what comes of it.
#[repr(C)]
#[derive(Default)]
struct Io {
    a: u64,
    b: u64,
    c: u64,
    d: u64,
    flags: u64,
    table: [u64; 2],
}

/// Numbers of what [`attempt`] executes.
mod what {
    pub const RDTSC: u32 = 0;
    pub const RDTSCP: u32 = 1;
    pub const RDPMC: u32 = 2;
    pub const RDPRU: u32 = 3;
    pub const CPUID: u32 = 4;
    pub const XGETBV: u32 = 5;
    pub const RDPID: u32 = 6;
    pub const RDRAND: u32 = 7;
    pub const RDSEED: u32 = 8;
    pub const SGDT: u32 = 9;
    pub const SIDT: u32 = 10;
    pub const SLDT: u32 = 11;
    pub const STR: u32 = 14;
    pub const SMSW: u32 = 17;
    pub const LSL: u32 = 20;
    pub const LAR: u32 = 21;
    pub const VERR: u32 = 22;
    pub const VERW: u32 = 23;
    pub const UMWAIT: u32 = 24;
    pub const TPAUSE: u32 = 25;
}

/// Executes an instruction with the registers in `io`, what it says goes to the first one. Not 0: the
/// processor has refused.
///
/// # Safety
/// `io` is valid, `what` a number of [`what`].
#[unsafe(naked)]
unsafe extern "C" fn attempt(io: *mut Io, what: u32) -> u64 {
    // The instructions lie 16 bytes apart. The handler moves a pc in `first..last` to `refused`.
    naked_asm!(
        "push rbx",
        "mov r8, rdi",
        "mov eax, esi",
        "lea r9, [rip + deprewrite_ask_first]",
        "shl eax, 4",
        "add r9, rax",
        "mov rax, [r8]",
        "mov rbx, [r8 + 8]",
        "mov rcx, [r8 + 16]",
        "mov rdx, [r8 + 24]",
        "jmp r9",
        ".globl deprewrite_ask_first",
        ".globl deprewrite_ask_last",
        ".globl deprewrite_ask_refused",
        ".balign 16",
        "deprewrite_ask_first:",
        "rdtsc", "jmp 2f", ".balign 16",
        "rdtscp", "jmp 2f", ".balign 16",
        "rdpmc", "jmp 2f", ".balign 16",
        ".byte 0x0f, 0x01, 0xfd", "jmp 2f", ".balign 16",
        "cpuid", "jmp 2f", ".balign 16",
        "xgetbv", "jmp 2f", ".balign 16",
        ".byte 0xf3, 0x0f, 0xc7, 0xf8", "jmp 2f", ".balign 16",
        ".byte 0x48, 0x0f, 0xc7, 0xf0", "jmp 2f", ".balign 16",
        ".byte 0x48, 0x0f, 0xc7, 0xf8", "jmp 2f", ".balign 16",
        "sgdt [r8 + {table}]", "jmp 2f", ".balign 16",
        "sidt [r8 + {table}]", "jmp 2f", ".balign 16",
        "sldt ax", "jmp 2f", ".balign 16",
        "sldt eax", "jmp 2f", ".balign 16",
        "sldt rax", "jmp 2f", ".balign 16",
        "str ax", "jmp 2f", ".balign 16",
        "str eax", "jmp 2f", ".balign 16",
        "str rax", "jmp 2f", ".balign 16",
        "smsw ax", "jmp 2f", ".balign 16",
        "smsw eax", "jmp 2f", ".balign 16",
        "smsw rax", "jmp 2f", ".balign 16",
        "lsl eax, ecx", "jmp 2f", ".balign 16",
        "lar eax, ecx", "jmp 2f", ".balign 16",
        "verr cx", "jmp 2f", ".balign 16",
        "verw cx", "jmp 2f", ".balign 16",
        ".byte 0xf2, 0x0f, 0xae, 0xf3", "jmp 2f", ".balign 16",
        ".byte 0x66, 0x0f, 0xae, 0xf3", "jmp 2f", ".balign 16",
        "deprewrite_ask_last:",
        "2:",
        "pushfq",
        "pop qword ptr [r8 + {flags}]",
        "mov [r8], rax",
        "mov [r8 + 8], rbx",
        "mov [r8 + 16], rcx",
        "mov [r8 + 24], rdx",
        "pop rbx",
        "xor eax, eax",
        "ret",
        "deprewrite_ask_refused:",
        "pop rbx",
        "mov eax, 1",
        "ret",
        table = const offset_of!(Io, table),
        flags = const offset_of!(Io, flags),
    )
}

/// If the instruction at `pc` is one that is attempted for the program, here or on its memory: where it is given
/// up.
pub fn refused_of(pc: u64) -> Option<u64> {
    let first = deprewrite_ask_first as *const () as u64;
    let last = deprewrite_ask_last as *const () as u64;
    let asked = (first..last).contains(&pc).then_some(deprewrite_ask_refused as *const () as u64);
    asked.or_else(|| given_up_at(pc))
}

extern "C" {
    fn deprewrite_ask_first();
    fn deprewrite_ask_last();
    fn deprewrite_ask_refused();
}

#[cfg(test)]
#[allow(clippy::disallowed_macros, reason = "tests may panic")]
mod tests {
    use super::*;

    #[test]
    fn what_is_common_is_what_a_decoder_says() {
        let all: [&[u8]; 4] =
            [&[0x0f, 0xa2], &[0x0f, 0x31], &[0x0f, 0x01, 0xd0], &[0x0f, 0x01, 0xf9]];
        for bytes in all {
            let mut there = [0x90; 15];
            there[..bytes.len()].copy_from_slice(bytes);
            let decoded = Decoder::with_ip(64, &there, 0x1234, DecoderOptions::NONE).decode();
            let insn = common(&there, 0x1234).unwrap();
            assert!(insn.eq_all_bits(&decoded), "{decoded:?}");
        }
        assert_eq!(common(&[0xf3, 0x0f, 0xc7, 0xf8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0), None);
    }
}
