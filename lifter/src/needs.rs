//! Which values the reader must have to compute the addresses of an instruction's references.

use alloc::vec::Vec;

use abi::unit::What;
use iced_x86::{Instruction, Mnemonic, OpKind};

use crate::operands::{GatherMask, Index, Reference, Shape};
use crate::regs::{gpr_number, GprSet, RAX, RDI, RDX, RSI};

/// What has to be known about one instruction.
///
/// A recorded [`What::Before`] or [`What::After`] makes the register known from there on, for the
/// reader and so for the planner.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Needs {
    /// Registers whose values before the instruction must be known.
    pub registers: GprSet,
    /// Values that are recorded each time, whatever is known.
    pub always: Vec<What>,
}

/// The needs of `insn`, whose [`crate::operands::references`] are `refs`.
pub fn needs(insn: &Instruction, refs: &[Reference]) -> Needs {
    let mut needs = Needs::default();
    for reference in refs {
        if let Some(base) = reference.base {
            needs.registers.insert(base);
        }
        match reference.index {
            Index::Gpr { number, .. } | Index::LowByte { number } => needs.registers.insert(number),
            Index::BitOffset { number, index, .. } => {
                needs.registers.insert(number);
                if let Some((number, _)) = index {
                    needs.registers.insert(number);
                }
            }
            Index::Vector { number, .. } => add(&mut needs.always, What::Vector(number)),
            Index::None => {}
        }
        match reference.shape {
            // How often and in which direction is the way that the pointer moved.
            Shape::Repeated => {
                let uses_rdi = refs.iter().any(|r| r.base == Some(RDI));
                add(&mut needs.always, What::After(if uses_rdi { RDI } else { RSI }));
            }
            Shape::Gather { mask: GatherMask::Bits(k), .. } => {
                add(&mut needs.always, What::Mask(k));
            }
            Shape::Gather { mask: GatherMask::Signs(v), .. } => {
                add(&mut needs.always, What::Vector(v));
            }
            Shape::Xsave { .. } => {
                add(&mut needs.always, What::Before(RAX));
                add(&mut needs.always, What::Before(RDX));
            }
            Shape::Plain | Shape::String => {}
        }
    }
    if matches!(insn.mnemonic(), Mnemonic::Wrfsbase | Mnemonic::Wrgsbase)
        && insn.op0_kind() == OpKind::Register
    {
        needs.always.extend(gpr_number(insn.op0_register()).map(What::Before));
    }
    needs
}

fn add(always: &mut Vec<What>, what: What) {
    if !always.contains(&what) {
        always.push(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operands::references;
    use crate::regs::{RBP, RSP};
    use abi::ids::Gpr;
    use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory};

    fn needs_of(bytes: &[u8]) -> Needs {
        let insn = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode();
        let mut factory = InstructionInfoFactory::new();
        let mut refs = Vec::new();
        references(&insn, &mut factory, &mut refs);
        needs(&insn, &refs)
    }

    fn set(numbers: &[Gpr]) -> GprSet {
        numbers.iter().copied().collect()
    }

    #[test]
    fn addresses_need_their_registers() {
        // mov rax,[rsi+rdi*4]
        assert_eq!(needs_of(&[0x48, 0x8b, 0x04, 0xbe]).registers, set(&[RSI, RDI]));
        // push [rbp]
        assert_eq!(needs_of(&[0xff, 0x75, 0x00]).registers, set(&[RSP, RBP]));
        // bt [rsi],rax
        assert_eq!(needs_of(&[0x48, 0x0f, 0xa3, 0x06]).registers, set(&[RSI, RAX]));
        // mov rax,fs:[0]
        assert_eq!(needs_of(&[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0]), Needs::default());
        // movsb: no count, so only the pointers
        assert_eq!(needs_of(&[0xa4]), Needs { registers: set(&[RSI, RDI]), always: Vec::new() });
    }

    #[test]
    fn what_pointers_cannot_tell_is_always_recorded() {
        // rep movsb, rep lodsb
        assert_eq!(needs_of(&[0xf3, 0xa4]).always, [What::After(RDI)]);
        assert_eq!(needs_of(&[0xf3, 0xac]).always, [What::After(RSI)]);
        // vpgatherdd zmm1{k2},[rax+zmm3*4]
        let gather = needs_of(&[0x62, 0xf2, 0x7d, 0x4a, 0x90, 0x0c, 0x98]);
        assert_eq!(gather.always, [What::Vector(3), What::Mask(2)]);
        assert_eq!(gather.registers, set(&[RAX]));
        // vpgatherdd xmm1,[rax+xmm3*4],xmm2
        let gather = needs_of(&[0xc4, 0xe2, 0x69, 0x90, 0x0c, 0x98]);
        assert_eq!(gather.always, [What::Vector(3), What::Vector(2)]);
        // xsavec [rsp+40h]
        let xsave = needs_of(&[0x0f, 0xc7, 0x64, 0x24, 0x40]);
        assert_eq!(xsave.always, [What::Before(RAX), What::Before(RDX)]);
        assert_eq!(xsave.registers, set(&[RSP]));
        // wrfsbase rdx
        assert_eq!(needs_of(&[0xf3, 0x48, 0x0f, 0xae, 0xd2]).always, [What::Before(RDX)]);
    }
}
