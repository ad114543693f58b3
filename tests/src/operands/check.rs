//! The rules against a second opinion: the decoder's own table of operand accesses. It has no part
//! in the oracle, but an instruction on which the two disagree deserves a look; those on which
//! they may are listed with the reason.

use iced_x86::{Code, Decoder, DecoderOptions, InstructionInfoFactory, Mnemonic, OpAccess, OpKind};

use super::access::{of, Access};

/// Where a rule of the project, or what a program cannot execute, makes the difference.
fn may_differ(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    let no_reference = matches!(
        mnemonic,
        Bndmov | Bndldx | Bndstx | Invlpg | Cldemote | Clwb | Clflush | Clflushopt
    );
    // The image's header, which is also read, does not count apart.
    let save = matches!(mnemonic, Xsave | Xsave64 | Xsaveopt | Xsaveopt64);
    let faults = matches!(mnemonic, Ud0 | Ud1);
    let privileged = matches!(mnemonic, Vmptrld | Vmclear | Vmxon | Lkgs | Rstorssp | Clrssbsy);
    no_reference || save || faults || privileged
}

fn simplified(access: OpAccess) -> Access {
    match access {
        OpAccess::None | OpAccess::NoMemAccess => Access::None,
        OpAccess::Read | OpAccess::CondRead => Access::Read,
        OpAccess::Write | OpAccess::CondWrite => Access::Write,
        OpAccess::ReadWrite | OpAccess::ReadCondWrite => Access::ReadWrite,
    }
}

/// Decodes systematically made bytes, and returns every distinct instruction form with memory.
fn forms(mut visit: impl FnMut(&iced_x86::Instruction)) {
    let mut seen = std::collections::HashSet::<Code>::new();
    let prefixes: &[&[u8]] =
        &[&[], &[0x66], &[0xf2], &[0xf3], &[0x48], &[0x66, 0x48], &[0xf3, 0x48]];
    let maps: &[&[u8]] = &[&[], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]];
    let mut heads: Vec<Vec<u8>> = Vec::new();
    for prefix in prefixes {
        heads.extend(maps.iter().map(|map| [*prefix, *map].concat()));
    }
    for map in 1..=3u8 {
        for low in 0..8u8 {
            for w in [0x00, 0x80] {
                heads.push(vec![0xc4, 0xe0 | map, w | 0x78 | low]); // VEX
            }
        }
    }
    for map in [1, 2, 3, 5, 6u8] {
        for pp in 0..4u8 {
            for w in [0x00, 0x80] {
                for length in [0x00, 0x20, 0x40] {
                    for broadcast in [0x00, 0x10] {
                        for mask in [0, 1] {
                            let last = length | broadcast | 0x08 | mask;
                            heads.push(vec![0x62, 0xf0 | map, w | 0x7c | pp, last]);
                        }
                    }
                }
            }
        }
    }
    for head in heads {
        for opcode in 0..=255u8 {
            for reg in 0..8u8 {
                for rm in [3, 4] {
                    let mut bytes = head.clone();
                    bytes.extend([opcode, reg << 3 | rm, 0x0b, 0x11, 0x22, 0x33, 0x44, 0x55]);
                    bytes.truncate(15);
                    let insn = Decoder::new(64, &bytes, DecoderOptions::NONE).decode();
                    if !insn.is_invalid() && seen.insert(insn.code()) {
                        visit(&insn);
                    }
                }
            }
        }
    }
}

#[test]
fn accesses_agree_with_the_decoders_table() {
    let mut factory = InstructionInfoFactory::new();
    let (mut compared, mut wrong) = (0, Vec::new());
    forms(|insn| {
        let info = factory.info(insn);
        for operand in 0..insn.op_count() {
            if insn.op_kind(operand) != OpKind::Memory || may_differ(insn.mnemonic()) {
                continue;
            }
            compared += 1;
            let ours = of(insn, operand);
            let theirs = info.op_access(operand);
            if ours != simplified(theirs) {
                wrong.push(format!("{:?}: {ours:?}, but {theirs:?}", insn.code()));
            }
        }
    });
    assert!(compared > 2000, "only {compared} forms were found");
    assert!(wrong.is_empty(), "{} of {compared}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn sizes_are_known() {
    let regs = crate::sys::no_registers();
    let layout = crate::xstate::Layout::of_this_cpu();
    let state = super::State { regs: &regs, layout: &layout, xstate: &Vec::new };
    let mut wrong = Vec::new();
    forms(|insn| {
        let has_memory = (0..insn.op_count()).any(|i| insn.op_kind(i) == OpKind::Memory);
        let tiles = matches!(
            insn.mnemonic(),
            Mnemonic::Tileloadd | Mnemonic::Tileloaddt1 | Mnemonic::Tilestored
        );
        if !has_memory || insn.is_vsib() || tiles || of(insn, 0) == Access::None {
            return;
        }
        let mut refs = Vec::new();
        super::references(insn, &state, &mut refs);
        if refs.is_empty() || refs.iter().any(|r| r.size == 0) {
            wrong.push(format!("{:?}: {refs:?}", insn.code()));
        }
    });
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn enter_pushes_before_and_between_its_reads() {
    let mut regs = crate::sys::no_registers();
    (regs.rsp, regs.rbp) = (0x8000, 0x9000);
    let layout = crate::xstate::Layout::of_this_cpu();
    let state = super::State { regs: &regs, layout: &layout, xstate: &Vec::new };
    let of = |level: u8| {
        let bytes = [0xc8, 0x10, 0, level];
        let insn = Decoder::new(64, &bytes, DecoderOptions::NONE).decode();
        let mut refs = Vec::new();
        super::references(&insn, &state, &mut refs);
        refs
    };
    let (read, write) = (super::MemRef::read, super::MemRef::write);
    assert_eq!(of(0), [write(0x7ff8, 8)]);
    assert_eq!(of(1), [write(0x7ff8, 8), write(0x7ff0, 8)]);
    let nested = [write(0x7ff8, 8), read(0x8ff8, 8), write(0x7ff0, 8), write(0x7fe8, 8)];
    assert_eq!(of(2), nested);
}
