//! Where an operand lies whose extent only registers tell: what a store overwrites.

use crate::base::facts::facts;
use crate::base::processor::mask_register;
use crate::thread::{claims, Ranges, Thread};
use abi::ids::Gpr;
use abi::thread::FIRST_VECTOR;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use lifter::masks::{self, lets, Lets};
use lifter::operands::{bit_word_offset, xsave_size, GatherMask, Index, Reference, Segment, Shape};
use lifter::regs::{RAX, RCX, RDX};
use lifter::stores::is_masked;

const DIRECTION_FLAG: u64 = 0x400;

/// Adds what one reference stores.
pub fn extent(thread: &Thread, insn: &Instruction, r: &Reference, ranges: &mut Ranges) {
    let registers = &thread.block.registers;
    let get = |register: Gpr| registers.gpr[register.index()];
    let size = u64::from(r.size);
    let scaled = |register, scale: u8| get(register).wrapping_mul(u64::from(scale));
    let mut sum = (r.displacement as u64).wrapping_add(r.base.map_or(0, get));
    match r.index {
        Index::Gpr { number, scale } => sum = sum.wrapping_add(scaled(number, scale)),
        Index::BitOffset { number, operand_bytes, index } => {
            if let Some((number, scale)) = index {
                sum = sum.wrapping_add(scaled(number, scale));
            }
            sum = sum.wrapping_add(bit_word_offset(get(number), operand_bytes));
        }
        Index::LowByte { number } => sum = sum.wrapping_add(get(number) & 0xff),
        Index::Vector { .. } | Index::None => {}
    }
    let segment = match r.segment {
        Segment::Fs => thread.fs_base(),
        Segment::Gs => thread.block.program_gs,
        Segment::None => 0,
    };
    let linear = |sum: u64| {
        let sum = if r.address32 { sum & 0xffff_ffff } else { sum };
        sum.wrapping_add(segment)
    };
    match (r.shape, r.index) {
        (Shape::Repeated, _) => {
            let count = if r.address32 { get(RCX) & 0xffff_ffff } else { get(RCX) };
            let len = count.saturating_mul(size).min(1 << 47);
            let at = linear(sum);
            match registers.rflags & DIRECTION_FLAG {
                _ if count == 0 => {}
                0 => ranges.push((at, len)),
                _ => ranges.push((at.wrapping_add(size).wrapping_sub(len), len)),
            }
        }
        (Shape::Gather { elements, mask }, Index::Vector { number, scale, element_bytes }) => {
            let state = Vectors::take(thread);
            let indices = state.vector(thread, number);
            for element in 0..usize::from(elements) {
                let enabled = match mask {
                    GatherMask::Bits(k) => state.mask(k) >> element & 1 == 1,
                    GatherMask::Signs(v) => {
                        let last = (element + 1) * r.size as usize - 1;
                        state.vector(thread, v)[last] & 0x80 != 0
                    }
                };
                if enabled {
                    let from = element * usize::from(element_bytes);
                    let index = match element_bytes {
                        4 => i32::from_le_bytes(array(&indices[from..])) as u64,
                        _ => u64::from_le_bytes(array(&indices[from..])),
                    };
                    let offset = index.wrapping_mul(u64::from(scale));
                    ranges.push((linear(sum.wrapping_add(offset)), size));
                }
            }
        }
        (Shape::Xsave { compacted }, _) => {
            let requested = get(RDX) << 32 | get(RAX) & 0xffff_ffff;
            let xsave = &facts().xsave;
            let size = xsave_size(compacted, requested, xsave.xcr0, &xsave.components);
            ranges.push((linear(sum), u64::from(size)));
        }
        _ if is_masked(insn) => masked(thread, insn, linear(sum), size, ranges),
        _ => ranges.push((linear(sum), size)),
    }
}

/// Adds what of a contiguous operand a mask lets through.
fn masked(thread: &Thread, insn: &Instruction, at: u64, size: u64, ranges: &mut Ranges) {
    use Mnemonic::*;
    let mut element = masks::element(insn);
    let bytes = matches!(insn.mnemonic(), Maskmovq | Maskmovdqu | Vmaskmovdqu);
    if bytes {
        element = 1;
    }
    let count = size / element;
    let bits = match insn.has_op_mask() {
        true => {
            let number = insn.op_mask().number() as u8;
            // (The kernel empties those of the processor in front of a handler.)
            let at_hand = if thread.interrupted.is_some() { None } else { mask_register(number) };
            at_hand.unwrap_or_else(|| Vectors::take(thread).mask(number))
        }
        false => {
            // maskmov: the last operand; vmaskmov, vpmaskmov: the one behind the destination.
            let operand = if bytes { insn.op_count() - 1 } else { 1 };
            debug_assert!(insn.op_kind(operand) == OpKind::Register);
            let signs = vector(thread, insn.op_register(operand));
            let is_set = |i: &u64| signs[((i + 1) * element - 1) as usize & 63] & 0x80 != 0;
            (0..count).filter(is_set).fold(0, |bits, i| bits | 1 << i)
        }
    };
    let enabled = |i: u64| bits >> i & 1 == 1;
    let lets = lets(insn);
    match lets {
        Lets::Each | Lets::Repeated => {}
        Lets::Packed => {
            let some = (0..count).filter(|&i| enabled(i)).count() as u64;
            return ranges.push((at, some * element));
        }
        Lets::All => return ranges.push((at, size)),
    }
    let result = (0..insn.op_count()).map(|n| insn.op_register(n).size() as u64).max().unwrap_or(0);
    // One element is repeated for elements of the result that may be smaller, of a byte even. (Where there are fewer, a bit of
    // none lets it through that is not needed.)
    let lanes = if insn.is_broadcast() { result.min(64) } else { result / element };
    let enabled = |i: u64| match lets {
        Lets::Repeated => (i..lanes).step_by(count.max(1) as usize).any(&enabled),
        _ => enabled(i),
    };
    let mut run: Option<u64> = None;
    for i in 0..=count {
        match run {
            _ if i < count && enabled(i) => {
                run.get_or_insert(i);
            }
            Some(first) => {
                ranges.push((at.wrapping_add(first * element), (i - first) * element));
                run = None;
            }
            None => {}
        }
    }
}

/// What a vector register of the program has, or one of MMX.
pub fn vector(thread: &Thread, register: Register) -> [u8; 64] {
    Vectors::take(thread).register(thread, register)
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[..N]);
    out
}

/// The program's vector and mask registers: the runtime uses nothing but xmm0 to xmm15, which are in
/// the thread, unless all of them are in the frame of a signal that has interrupted it.
#[repr(C, align(64))]
struct Vectors([u8; 4096]);

impl Vectors {
    /// x87, SSE, AVX, masks, both parts of AVX-512.
    const COMPONENTS: u64 = 0xe7;

    fn take(thread: &Thread) -> Vectors {
        let mut state = Vectors([0; 4096]);
        if let Some(interrupted) = thread.interrupted {
            interrupted.copy_to(&mut state.0);
            return state;
        }
        let wanted = Self::COMPONENTS & facts().xsave.xcr0;
        if wanted != 0 {
            let at = &raw mut state as u64;
            // SAFETY: aligned, and larger than these components in the standard format.
            unsafe {
                core::arch::asm!("xsave64 [{}]", in(reg) at, in("eax") wanted as u32,
                    in("edx") (wanted >> 32) as u32, options(nostack));
            }
        }
        state
    }

    fn register(&self, thread: &Thread, register: Register) -> [u8; 64] {
        if register.is_mm() {
            let mut out = [0; 64];
            out[..8].copy_from_slice(&self.mmx(register.number()));
            return out;
        }
        self.vector(thread, register.number() as u8)
    }

    fn component(&self, number: usize, from: usize, len: usize) -> &[u8] {
        let offset = facts().xsave.components[number].1 as usize + from;
        if facts().xsave.xcr0 >> number & 1 == 0 {
            return &[];
        }
        self.0.get(offset..offset + len).unwrap_or(&[])
    }

    fn mask(&self, k: u8) -> u64 {
        let bytes = self.component(5, 8 * usize::from(k & 7), 8);
        bytes.try_into().map_or(0, u64::from_le_bytes)
    }

    fn mmx(&self, number: usize) -> [u8; 8] {
        // The registers lie there as the stack has them: the top first.
        let top = usize::from(self.0[3] >> 3 & 7);
        array(&self.0[32 + 16 * (number.wrapping_sub(top) & 7)..])
    }

    fn vector(&self, thread: &Thread, number: u8) -> [u8; 64] {
        let mut out = [0; 64];
        let n = usize::from(number & 31);
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        match n {
            _ if claims::first(thread.vector).is_some_and(|first| n >= first) => {
                let own = thread.block.program_vectors.get(n - FIRST_VECTOR);
                for (i, word) in own.into_iter().flatten().enumerate() {
                    put(8 * i, &word.to_le_bytes());
                }
            }
            16.. => put(0, self.component(7, 64 * (n - 16), 64)),
            _ => {
                match thread.interrupted {
                    Some(_) => put(0, &self.0[160 + 16 * n..][..16]),
                    None => {
                        put(0, &thread.xmm[n][0].to_le_bytes());
                        put(8, &thread.xmm[n][1].to_le_bytes());
                    }
                }
                put(16, self.component(2, 16 * n, 16));
                put(32, self.component(6, 32 * n, 32));
            }
        }
        out
    }
}
