//! Where a program's function `main` is: its symbol says so, or what its start code hands to libc.

use crate::convert::index;
use crate::input::{word, Input};
use iced_x86::{Code, Decoder, DecoderOptions, OpKind, Register};
use object::elf;

/// The address of `main`, if it can be told.
pub fn address(input: &Input) -> Option<u64> {
    symbol(input, b"main").or_else(|| handed_to_libc(input)).filter(|&at| is_code(input, at))
}

fn is_code(input: &Input, address: u64) -> bool {
    input.loads().any(|p| p.is_executable() && (p.address..p.end()).contains(&address))
}

fn symbol(input: &Input, wanted: &[u8]) -> Option<u64> {
    let tables = [elf::SHT_SYMTAB.0, elf::SHT_DYNSYM.0];
    input.sections.iter().filter(|s| tables.contains(&s.kind)).find_map(|section| {
        let names = input.sections.get(section.link as usize)?;
        let names = input.section_bytes(names);
        input.section_bytes(section).chunks_exact(24).find_map(|symbol| {
            let name: [u8; 4] = symbol[..4].try_into().ok()?;
            let name = names.get(index(u32::from_le_bytes(name).into())..)?;
            let is_function = elf::SymbolType(symbol[4] & 15) == elf::STT_FUNC;
            let defined = symbol[6..8] != [0, 0];
            let named = name.strip_prefix(wanted)?.first() == Some(&0);
            (named && is_function && defined).then(|| word(symbol, 8))
        })
    })
}

/// What is in rdi when the program's first function makes its first call: libc's start function takes
/// `main` there.
fn handed_to_libc(input: &Input) -> Option<u64> {
    const START_CODE: usize = 32;
    let bytes = input.bytes_at(input.entry)?;
    let mut decoder = Decoder::with_ip(64, bytes, input.entry, DecoderOptions::NONE);
    let mut rdi = None;
    for insn in decoder.iter().take(START_CODE) {
        match insn.code() {
            Code::Call_rel32_64 | Code::Call_rm64 => return rdi,
            Code::Lea_r64_m
                if insn.op0_register() == Register::RDI && insn.is_ip_rel_memory_operand() =>
            {
                rdi = Some(insn.ip_rel_memory_address());
            }
            Code::Mov_rm64_imm32 | Code::Mov_r64_imm64 | Code::Mov_r32_imm32
                if insn.op0_kind() == OpKind::Register
                    && insn.op0_register().full_register() == Register::RDI =>
            {
                rdi = Some(insn.immediate(1));
            }
            _ if insn.is_invalid() => return None,
            _ => {}
        }
    }
    None
}
