//! The oracle's own operand rules: which memory an instruction refers to, from its decoded form
//! and the registers before it. Written from the architecture manuals, not from the lifter.
//!
//! Reads come before writes, except in `enter`, which pushes in between. References made by the kernel are not an instruction's.

mod access;
mod address;
#[cfg(test)]
mod check;

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};

use crate::listing::MemRef;
use crate::sys::Regs;
use crate::xstate::Layout;
use access::Access;

pub use access::ends_block;

/// What the rules may look at besides the instruction.
pub struct State<'a> {
    pub regs: &'a Regs,
    pub layout: &'a Layout,
    /// Fetches the extended state; called only for masks and vector indexes.
    pub xstate: &'a dyn Fn() -> Vec<u8>,
}

/// Appends the references of one execution of `insn` (of one iteration, if it is repeated).
pub fn references(insn: &Instruction, state: &State, out: &mut Vec<MemRef>) {
    if is_repeated(insn) && counter(insn, state.regs) == 0 {
        return;
    }
    let first = out.len();
    match insn.mnemonic() {
        Mnemonic::Clzero => {
            out.push(MemRef::write(state.regs.rax & !63, 64));
            return;
        }
        Mnemonic::Movdir64b => {
            let to = address::register(state.regs, insn.op0_register());
            out.push(MemRef::read(address::effective(insn, state.regs), 64));
            out.push(MemRef::write(to, 64));
            return;
        }
        _ => {}
    }
    for operand in 0..insn.op_count() {
        if is_memory(insn.op_kind(operand)) {
            explicit(insn, operand, state, out);
        }
    }
    stack(insn, state.regs, out);
    if insn.mnemonic() == Mnemonic::Enter {
        return;
    }
    // Stable: the order among reads and among writes stays that of the operands.
    out[first..].sort_by_key(|r| r.kind == crate::listing::Kind::Write);
}

/// A string instruction under a repeat prefix.
pub fn is_repeated(insn: &Instruction) -> bool {
    use Mnemonic::*;
    let string = match insn.mnemonic() {
        Movsb | Movsw | Movsq | Stosb | Stosw | Stosd | Stosq | Lodsb | Lodsw | Lodsd | Lodsq
        | Scasb | Scasw | Scasd | Scasq | Cmpsb | Cmpsw | Cmpsq | Insb | Insw | Insd | Outsb
        | Outsw | Outsd => true,
        // Shared with the SSE instructions of the same names.
        Movsd | Cmpsd => {
            insn.op_count() == 2
                && insn.op1_kind() != OpKind::Register
                && insn.op0_kind() != OpKind::Register
        }
        _ => false,
    };
    string && (insn.has_rep_prefix() || insn.has_repne_prefix())
}

/// The register that counts a repeated instruction's iterations.
pub fn counter(insn: &Instruction, regs: &Regs) -> u64 {
    use OpKind::*;
    let narrow = (0..insn.op_count())
        .any(|i| matches!(insn.op_kind(i), MemorySegESI | MemorySegEDI | MemoryESEDI));
    if narrow {
        regs.rcx & 0xffff_ffff
    } else {
        regs.rcx
    }
}

fn is_memory(kind: OpKind) -> bool {
    use OpKind::*;
    matches!(
        kind,
        Memory
            | MemorySegRSI
            | MemorySegRDI
            | MemoryESRDI
            | MemorySegESI
            | MemorySegEDI
            | MemoryESEDI
    )
}

/// A memory operand that is written in the instruction.
fn explicit(insn: &Instruction, operand: u32, state: &State, out: &mut Vec<MemRef>) {
    let access = access::of(insn, operand);
    let mut add = |addr, size| {
        if matches!(access, Access::Read | Access::ReadWrite) {
            out.push(MemRef::read(addr, size));
        }
        if matches!(access, Access::Write | Access::ReadWrite) {
            out.push(MemRef::write(addr, size));
        }
    };
    if matches!(access, Access::None) {
        return;
    }
    if insn.is_vsib() {
        return elements(insn, state, add);
    }
    let size = size(insn, state);
    let mut addr = match insn.op_kind(operand) {
        OpKind::Memory => address::effective(insn, state.regs),
        kind => address::string(insn, kind, state.regs),
    };
    match insn.mnemonic() {
        // The address is computed after the stack pointer has moved.
        Mnemonic::Pop if insn.memory_base().full_register() == Register::RSP => {
            addr += u64::from(size)
        }
        Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
            if insn.op1_kind() == OpKind::Register =>
        {
            let offset = address::signed(state.regs, insn.op1_register());
            let word = offset.div_euclid(8 * i64::from(size)) * i64::from(size);
            addr = addr.wrapping_add_signed(word);
        }
        _ => {}
    }
    add(addr, size);
}

/// The elements of a gather or scatter that its mask enables, in element order.
fn elements(insn: &Instruction, state: &State, mut add: impl FnMut(u64, u32)) {
    let image = (state.xstate)();
    let gather = insn.op0_kind() == OpKind::Register;
    let data = if gather { insn.op0_register() } else { insn.op1_register() };
    let size = insn.memory_size().element_size();
    let index_size = if insn.is_vsib64() { 8 } else { 4 };
    let count = (insn.memory_index().size() / index_size).min(data.size() / size);
    let index = state.layout.vector(&image, insn.memory_index().number());
    let enabled: Box<dyn Fn(usize) -> bool> = if insn.op_mask() != Register::None {
        let mask = state.layout.mask(&image, insn.op_mask().number());
        Box::new(move |i| mask >> i & 1 == 1)
    } else {
        let mask = state.layout.vector(&image, insn.op2_register().number());
        Box::new(move |i| mask[(i + 1) * size - 1] & 0x80 != 0)
    };
    for i in (0..count).filter(|i| enabled(*i)) {
        let bytes = &index[i * index_size..][..index_size];
        let offset = if index_size == 8 {
            i64::from_le_bytes(bytes.try_into().unwrap())
        } else {
            i64::from(i32::from_le_bytes(bytes.try_into().unwrap()))
        };
        add(address::element(insn, state.regs, offset), size as u32);
    }
}

fn size(insn: &Instruction, state: &State) -> u32 {
    use Mnemonic::*;
    let requested = (state.regs.rdx << 32) | (state.regs.rax & 0xffff_ffff);
    match insn.mnemonic() {
        Xsave | Xsave64 | Xsaveopt | Xsaveopt64 | Xrstor | Xrstor64 => {
            state.layout.standard_size(requested) as u32
        }
        Xsavec | Xsavec64 | Xsaves | Xsaves64 | Xrstors | Xrstors64 => {
            state.layout.compacted_size(requested) as u32
        }
        Fxsave | Fxsave64 | Fxrstor | Fxrstor64 => 512,
        // Under a mask the whole width counts.
        Vpcompressb | Vpcompressw | Vpcompressd | Vpcompressq | Vcompressps | Vcompresspd => {
            insn.op1_register().size() as u32
        }
        Vpexpandb | Vpexpandw | Vpexpandd | Vpexpandq | Vexpandps | Vexpandpd => {
            insn.op0_register().size() as u32
        }
        _ if insn.is_broadcast() => insn.memory_size().element_size() as u32,
        _ => insn.memory_size().size() as u32,
    }
}

/// Implicit references to the stack.
fn stack(insn: &Instruction, regs: &Regs, out: &mut Vec<MemRef>) {
    use Mnemonic::*;
    let mut push = |size: u32| out.push(MemRef::write(regs.rsp.wrapping_sub(size.into()), size));
    match insn.mnemonic() {
        Push => push(slot(insn)),
        Pushf => push(2),
        Pushfq => push(8),
        Call => push(if matches!(insn.code(), Code::Call_rel16 | Code::Call_rm16) { 2 } else { 8 }),
        Pop => out.push(MemRef::read(regs.rsp, slot(insn))),
        Popf => out.push(MemRef::read(regs.rsp, 2)),
        Popfq => out.push(MemRef::read(regs.rsp, 8)),
        Ret => {
            let narrow = matches!(insn.code(), Code::Retnw | Code::Retnw_imm16);
            out.push(MemRef::read(regs.rsp, if narrow { 2 } else { 8 }));
        }
        Leave => {
            let narrow = insn.code() == Code::Leavew;
            out.push(MemRef::read(regs.rbp, if narrow { 2 } else { 8 }));
        }
        Enter => enter(insn, regs, out),
        Iretq => out.extend((0..5).map(|i| MemRef::read(regs.rsp + 8 * i, 8))),
        _ => {}
    }
}

/// `enter`: saves rbp, copies the enclosing frames' pointers one by one, adds its own.
fn enter(insn: &Instruction, regs: &Regs, out: &mut Vec<MemRef>) {
    let size: u32 = if insn.code() == Code::Enterw_imm16_imm8 { 2 } else { 8 };
    let level = u32::from(insn.immediate8_2nd()) % 32;
    let push = |slot: u32| MemRef::write(regs.rsp.wrapping_sub(u64::from(slot * size)), size);
    out.push(push(1));
    for i in 1..level {
        out.push(MemRef::read(regs.rbp.wrapping_sub(u64::from(i * size)), size));
        out.push(push(i + 1));
    }
    if level > 0 {
        out.push(push(level + 1));
    }
}

/// Bytes that a push or pop moves.
fn slot(insn: &Instruction) -> u32 {
    match insn.code() {
        Code::Push_imm16
        | Code::Pushw_imm8
        | Code::Pushw_FS
        | Code::Pushw_GS
        | Code::Popw_FS
        | Code::Popw_GS => 2,
        Code::Push_r16 | Code::Pop_r16 | Code::Push_rm16 | Code::Pop_rm16 => 2,
        _ => 8,
    }
}
