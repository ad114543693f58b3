//! Which general-purpose registers an instruction reads and writes.

use crate::regs::{gpr_number, GprSet};
use iced_x86::{Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess};

/// What one instruction reads and certainly overwrites.
#[derive(Clone, Copy, Default)]
pub struct UseDef {
    /// What is read, wholly or in part.
    pub used: GprSet,
    /// What is overwritten wholly, and always.
    pub defined: GprSet,
    /// Everything that is written, wholly, in part or perhaps.
    pub written: GprSet,
}

/// Registers that `insn` reads, and those of which it overwrites all 64 bits.
pub fn use_def(insn: &Instruction, factory: &mut InstructionInfoFactory) -> UseDef {
    let info = factory.info_options(insn, InstructionInfoOptions::NO_MEMORY_USAGE);
    let mut out = UseDef::default();
    for used in info.used_registers() {
        let Some(number) = gpr_number(used.register()) else { continue };
        if !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::None) {
            out.written.insert(number);
        }
        match used.access() {
            OpAccess::Read | OpAccess::CondRead => out.used.insert(number),
            OpAccess::Write if used.register().size() >= 4 => out.defined.insert(number),
            OpAccess::ReadWrite | OpAccess::ReadCondWrite => out.used.insert(number),
            _ => {}
        }
    }
    // Without shadow stacks these are no-ops that leave their register as it was.
    if matches!(insn.mnemonic(), Mnemonic::Rdsspd | Mnemonic::Rdsspq) {
        out.defined = GprSet::EMPTY;
    }
    // Address registers count as read even where the access is a no-op (nop [rax]).
    for register in [insn.memory_base(), insn.memory_index()] {
        if let Some(number) = gpr_number(register) {
            out.used.insert(number);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regs::{RAX, RBX, RCX, RDI, RDX, RSI, RSP};
    use abi::ids::Gpr;
    use iced_x86::{Decoder, DecoderOptions};

    /// What no operand shows: registers that are read, and those that may keep their values.
    #[test]
    fn implicit_registers_are_known() {
        // Name, code, what it uses, what it defines.
        type Case<'a> = (&'a str, &'a [u8], &'a [Gpr], &'a [Gpr]);
        let cases: &[Case] = &[
            ("xsavec [rsp+40h]", &[0x0f, 0xc7, 0x64, 0x24, 0x40], &[RAX, RDX, RSP], &[]),
            ("xsave [rdi]", &[0x0f, 0xae, 0x27], &[RAX, RDX, RDI], &[]),
            ("xrstor [rdi]", &[0x0f, 0xae, 0x2f], &[RAX, RDX, RDI], &[]),
            ("xgetbv", &[0x0f, 0x01, 0xd0], &[RCX], &[RAX, RDX]),
            ("wrpkru", &[0x0f, 0x01, 0xef], &[RAX, RCX, RDX], &[]),
            ("cpuid", &[0x0f, 0xa2], &[RAX, RCX], &[RAX, RBX, RCX, RDX]),
            ("rep movsb", &[0xf3, 0xa4], &[RCX, RSI, RDI], &[]),
            ("repne scasb", &[0xf2, 0xae], &[RAX, RCX, RDI], &[]),
            ("rep lodsq", &[0xf3, 0x48, 0xad], &[RCX, RSI], &[]),
            ("lodsq", &[0x48, 0xad], &[RSI], &[RAX]),
            ("lodsb", &[0xac], &[RSI], &[]),
            ("maskmovdqu xmm0,xmm1", &[0x66, 0x0f, 0xf7, 0xc1], &[RDI], &[]),
            ("cmpxchg16b [rdi]", &[0x48, 0x0f, 0xc7, 0x0f], &[RAX, RBX, RCX, RDX, RDI], &[]),
            ("cmpxchg [rdi],esi", &[0x0f, 0xb1, 0x37], &[RAX, RSI, RDI], &[]),
            ("pcmpestri", &[0x66, 0x0f, 0x3a, 0x61, 0xc1, 0], &[RAX, RDX], &[RCX]),
            ("xlat", &[0xd7], &[RAX, RBX], &[]),
            ("mul rsi", &[0x48, 0xf7, 0xe6], &[RAX, RSI], &[RDX]),
            ("div esi", &[0xf7, 0xf6], &[RAX, RDX, RSI], &[]),
            ("sahf", &[0x9e], &[RAX], &[]),
            ("lahf", &[0x9f], &[], &[]),
            ("cmovne eax,esi", &[0x0f, 0x45, 0xc6], &[RSI], &[]),
            ("bsf eax,esi", &[0x0f, 0xbc, 0xc6], &[RSI], &[]),
            ("shl eax,cl", &[0xd3, 0xe0], &[RAX, RCX], &[]),
            ("monitorx", &[0x0f, 0x01, 0xfa], &[RAX, RCX, RDX], &[]),
            ("umwait ecx", &[0xf2, 0x0f, 0xae, 0xf1], &[RAX, RCX, RDX], &[]),
            ("clzero rax", &[0x0f, 0x01, 0xfc], &[RAX], &[]),
            ("mov al,1", &[0xb0, 1], &[], &[]),
            ("mov ax,1", &[0x66, 0xb8, 1, 0], &[], &[]),
            ("mov eax,1", &[0xb8, 1, 0, 0, 0], &[], &[RAX]),
        ];
        let mut factory = InstructionInfoFactory::new();
        for (name, bytes, used, defined) in cases {
            let insn = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode();
            assert!(!insn.is_invalid(), "{name}");
            let effect = use_def(&insn, &mut factory);
            let all = |set: &[Gpr]| set.iter().copied().collect::<GprSet>();
            assert!(all(used).minus(effect.used).is_empty(), "{name} uses {:?}", effect.used);
            // What is both read and overwritten is live before it anyway.
            let only = effect.defined.minus(effect.used);
            assert_eq!(only, all(defined).minus(all(used)), "{name} defines");
        }
    }
}
