//! What an instruction stores to, as the undo log sees it.
//!
//! Decided from the instruction alone, by the planner, the weaver, the reader and the runtime alike.
//! Most stores are one reference of a known size, whose old bytes the unit records itself. What is
//! rarer has an extent that only registers tell; there the runtime saves the old bytes before the
//! instruction, which is the first of its unit ([`Stores::AtRunTime`]).

use iced_x86::{Instruction, Mnemonic, OpKind};

use crate::operands::{Index, Reference, Shape};

/// What one instruction stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stores {
    /// Nothing.
    None,
    /// This, and nothing else.
    One(Reference),
    /// Repeated, masked, scattered, more than one piece, or more than 64 bytes.
    AtRunTime,
}

/// The stores of `insn`, whose [`crate::operands::references`] are `refs`.
pub fn stores(insn: &Instruction, refs: &[Reference]) -> Stores {
    if is_undescribed(insn) {
        return Stores::AtRunTime;
    }
    let mut written = refs.iter().filter(|r| r.write);
    let Some(&one) = written.next() else { return Stores::None };
    let plain = matches!(one.shape, Shape::Plain | Shape::String)
        && matches!(one.index, Index::None | Index::Gpr { .. })
        && matches!(one.size, 1 | 2 | 4 | 8..=64);
    if written.next().is_some() || !plain || is_masked(insn) {
        return Stores::AtRunTime;
    }
    Stores::One(one)
}

/// Whether [`stores`] is [`Stores::AtRunTime`].
pub fn at_run_time(
    insn: &Instruction,
    factory: &mut iced_x86::InstructionInfoFactory,
    refs: &mut alloc::vec::Vec<Reference>,
) -> bool {
    refs.clear();
    crate::operands::references(insn, factory, refs);
    stores(insn, refs) == Stores::AtRunTime
}

/// Stores of which the operand rules say nothing.
fn is_undescribed(insn: &Instruction) -> bool {
    matches!(insn.mnemonic(), Mnemonic::Tilestored | Mnemonic::Clzero)
}

/// Whether a mask decides which bytes of the operand are stored.
pub fn is_masked(insn: &Instruction) -> bool {
    use Mnemonic::*;
    insn.has_op_mask()
        || matches!(
            insn.mnemonic(),
            Maskmovq | Maskmovdqu | Vmaskmovdqu | Vmaskmovps | Vmaskmovpd | Vpmaskmovd | Vpmaskmovq
        )
}

/// Instructions that order the memory accesses of threads: locked ones, and `mfence`.
pub fn is_synchronising(insn: &Instruction) -> bool {
    match insn.mnemonic() {
        Mnemonic::Mfence => true,
        Mnemonic::Xchg => insn.op0_kind() == OpKind::Memory || insn.op1_kind() == OpKind::Memory,
        _ => insn.has_lock_prefix(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory};

    fn of(bytes: &[u8]) -> (Stores, bool) {
        let insn = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode();
        assert!(!insn.is_invalid());
        let mut refs = Vec::new();
        crate::operands::references(&insn, &mut InstructionInfoFactory::new(), &mut refs);
        (stores(&insn, &refs), is_synchronising(&insn))
    }

    #[test]
    fn sizes_of_single_stores() {
        let cases: &[(&str, &[u8], u32)] = &[
            ("mov [rax],cl", &[0x88, 0x08], 1),
            ("add [rax],cx", &[0x66, 0x01, 0x08], 2),
            ("push rax", &[0x50], 8),
            ("push [rbp]", &[0xff, 0x75, 0], 8),
            ("pop [rax]", &[0x8f, 0x00], 8),
            ("call", &[0xe8, 0, 0, 0, 0], 8),
            ("enter 16,0", &[0xc8, 16, 0, 0], 8),
            ("movsd", &[0xa5], 4),
            ("movups [rax],xmm0", &[0x0f, 0x11, 0x00], 16),
            ("fstp tbyte [rax]", &[0xdb, 0x38], 10),
            ("fnstenv [rax]", &[0xd9, 0x30], 28),
            ("vmovups [rax],zmm0", &[0x62, 0xf1, 0x7c, 0x48, 0x11, 0x00], 64),
            ("bts dword [rax],3", &[0x0f, 0xba, 0x28, 3], 4),
        ];
        for (name, bytes, size) in cases {
            match of(bytes).0 {
                Stores::One(r) => assert_eq!(r.size, *size, "{name}"),
                other => panic!("{name}: {other:?}"),
            }
        }
        assert_eq!(of(&[0x8b, 0x00]).0, Stores::None); // mov eax,[rax]
        assert_eq!(of(&[0x84, 0x08]).0, Stores::None); // test [rax],cl
    }

    #[test]
    fn extents_that_only_registers_tell() {
        let cases: &[(&str, &[u8])] = &[
            ("rep stosb", &[0xf3, 0xaa]),
            ("enter 16,2", &[0xc8, 16, 0, 2]),
            ("bts [rax],ecx", &[0x0f, 0xab, 0x08]),
            ("xsave [rax]", &[0x0f, 0xae, 0x20]),
            ("fxsave [rax]", &[0x0f, 0xae, 0x00]),
            ("fnsave [rax]", &[0xdd, 0x30]),
            ("maskmovdqu xmm0,xmm1", &[0x66, 0x0f, 0xf7, 0xc1]),
            ("vmaskmovps [rax],xmm1,xmm0", &[0xc4, 0xe2, 0x71, 0x2e, 0x00]),
            ("vmovdqu8 [rax]{k1},zmm0", &[0x62, 0xf1, 0x7f, 0x49, 0x7f, 0x00]),
            ("vpscatterdd [rax+zmm1*4]{k1},zmm0", &[0x62, 0xf2, 0x7d, 0x49, 0xa0, 0x04, 0x88]),
            ("clzero", &[0x0f, 0x01, 0xfc]),
        ];
        for (name, bytes) in cases {
            assert_eq!(of(bytes).0, Stores::AtRunTime, "{name}");
        }
    }

    #[test]
    fn locked_instructions_synchronise() {
        assert!(of(&[0xf0, 0xff, 0x00]).1); // lock inc [rax]
        assert!(of(&[0x87, 0x08]).1); // xchg [rax],ecx
        assert!(!of(&[0x87, 0xc8]).1); // xchg eax,ecx
        assert!(of(&[0x0f, 0xae, 0xf0]).1); // mfence
        assert!(!of(&[0xff, 0x00]).1); // inc [rax]
    }
}
