//! Stages as text.

use crate::error::{unsupported, Error, Result};
use crate::input::{word, Input};
use lifter::discover::{Function, Program};
use object::elf;
use std::fmt::Write as _;
use std::io::Write as _;

/// The functions that `wanted` (a symbol or an address) selects; all of them without it.
pub fn select<'a>(
    input: &Input,
    program: &'a Program,
    wanted: Option<&str>,
) -> Result<&'a [Function]> {
    let Some(wanted) = wanted else { return Ok(&program.functions) };
    let digits = wanted.strip_prefix("0x").unwrap_or(wanted);
    let address = symbol(input, wanted)
        .or_else(|| u64::from_str_radix(digits, 16).ok())
        .ok_or_else(|| unsupported!("no function named {wanted}"))?;
    let index = program.functions.partition_point(|f| f.start <= address).checked_sub(1);
    match index {
        Some(i) => Ok(&program.functions[i..=i]),
        None => Err(unsupported!("no function at {address:#x}")),
    }
}

/// Writes to stdout; a reader that has seen enough is no error.
pub fn print(text: &str) -> Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::File(format!("cannot write to stdout: {e}")))
        }
        _ => Ok(()),
    }
}

/// Functions and blocks, a line each.
pub fn cfg(functions: &[Function]) -> String {
    let mut out = String::new();
    for function in functions {
        let _ = writeln!(out, "function {:x}", function.start);
        for block in &function.blocks {
            let mark = if block.indirect { '*' } else { ' ' };
            let _ = writeln!(out, " {mark}{:x} +{} {:x?}", block.start, block.len, block.end);
        }
    }
    out
}

fn symbol(input: &Input, wanted: &str) -> Option<u64> {
    input
        .sections
        .iter()
        .filter(|s| s.kind == elf::SHT_SYMTAB.0 || s.kind == elf::SHT_DYNSYM.0)
        .find_map(|section| {
            let strings = input.section_bytes(input.sections.get(section.link as usize)?);
            input.section_bytes(section).chunks_exact(24).find_map(|symbol| {
                let name = u32::from_le_bytes(symbol[..4].try_into().ok()?) as usize;
                let rest = strings.get(name..)?.strip_prefix(wanted.as_bytes())?;
                (rest.first() == Some(&0) && symbol[6..8] != [0, 0]).then(|| word(symbol, 8))
            })
        })
}
