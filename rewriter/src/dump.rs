//! Stages as text.

use crate::convert::low;
use crate::error::{unsupported, Error, Result};
use crate::input::{word, Input};
use crate::translate::Inspection;
use abi::ids::Gpr;
use instrument::plan::AtEntry;
use lifter::flow::End;
use lifter::program::{Function, Program};
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
    let index = program.functions.partition_point(|f| f.start.0 <= address).checked_sub(1);
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
            let _ = writeln!(out, " {mark}{:x} +{} {}", block.start, block.len, end(block.end));
        }
    }
    out
}

fn end(end: End) -> String {
    match end {
        End::Jump(target) => format!("Jump({target:x})"),
        End::Branch(target) => format!("Branch({target:x})"),
        End::Call(target) => format!("Call({target:x})"),
        other => format!("{other:?}"),
    }
}

/// Each instruction with the registers that are live before it.
pub fn live(function: &Function, inspection: &Inspection) -> String {
    let mut out = format!("function {:x}\n", function.start);
    for block in &inspection.blocks {
        for (insn, live) in block.insns.iter().zip(&block.live) {
            let names: Vec<&str> = live.iter().map(Gpr::name).collect();
            let _ = writeln!(out, "  {:8x} {:<40} {}", insn.ip(), text(insn), names.join(" "));
        }
        out.push('\n');
    }
    out
}

/// Each instruction with what is recorded at it.
pub fn plan(function: &Function, inspection: &Inspection) -> String {
    let mut out = format!("function {:x}\n", function.start);
    for (block, unit) in inspection.blocks.iter().zip(&inspection.fragment.units) {
        let kind = match unit.control.entry {
            AtEntry::Silent => "silent",
            _ if unit.wide => "wide",
            _ => "narrow",
        };
        let closed = if block.plan.closed { ", relies on its predecessors" } else { "" };
        let _ = writeln!(out, " unit {:x} id {:x} {kind}{closed}", unit.start, unit.id);
        for (i, insn) in block.insns.iter().enumerate() {
            let here = block.plan.records.iter().filter(|r| usize::from(r.insn) == i);
            let records: Vec<String> = here.map(|r| what(r.what)).collect();
            let _ = writeln!(out, "  {:8x} {:<40} {}", insn.ip(), text(insn), records.join(", "));
        }
    }
    out
}

/// Original instructions beside the code that stands for them.
pub fn code(function: &Function, inspection: &Inspection) -> String {
    let fragment = &inspection.fragment;
    let mut out = format!("function {:x}\n", function.start);
    for (block, unit) in inspection.blocks.iter().zip(&fragment.units) {
        let _ = writeln!(out, " unit {:x} id {:x}", unit.start, unit.id);
        let bytes = &fragment.code.bytes[unit.entry.0 as usize..unit.end.0 as usize];
        let base = fragment.code.address(unit.entry);
        let mut starts = instrument::fragment::recipe_of(unit, &fragment.recipes)
            .map(|recipe| recipe.entries().map(|e| (e.code, e.insn)).collect::<Vec<_>>())
            .unwrap_or_default()
            .into_iter()
            .peekable();
        for insn in &mut iced_x86::Decoder::with_ip(64, bytes, base, 0) {
            let at = low(insn.ip() - base);
            let mut original = String::new();
            while let Some((_, i)) = starts.next_if(|&(code, _)| code <= at) {
                original = block.insns.get(i as usize).map(text).unwrap_or_default();
            }
            let _ = writeln!(out, "  {original:<40} | {}", text(&insn));
        }
    }
    out
}

fn text(insn: &iced_x86::Instruction) -> String {
    use iced_x86::Formatter;
    let mut out = String::new();
    iced_x86::IntelFormatter::new().format(insn, &mut out);
    out
}

fn what(what: abi::unit::What) -> String {
    use abi::unit::What;
    match what {
        What::Before(r) => r.name().to_string(),
        What::After(r) => format!("{} behind it", r.name()),
        What::Address(n) => format!("address of operand {n}"),
        What::Vector(v) => format!("vector register {v}"),
        What::Order => "order".into(),
        What::Old(words) => format!("{} old bytes", 8 * words),
        What::Mask(k) => format!("mask register {k}"),
    }
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
