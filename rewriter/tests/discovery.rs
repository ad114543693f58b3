//! Discovery measured against a disassembler that sees symbols and sections.

use iced_x86::{Decoder, DecoderOptions};
use lifter::discover::discover;
use lifter::region::Rules;
use rewriter::{input::Input, roots};
use std::collections::HashSet;
use std::process::Command;

/// Instruction addresses that objdump lists, without padding.
fn listed(path: &str) -> Option<Vec<u64>> {
    let output = Command::new("objdump").args(["-d", "--no-show-raw-insn", path]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut out = Vec::new();
    for line in text.lines() {
        let Some((address, insn)) = line.trim_start().split_once(":\t") else { continue };
        let Ok(address) = u64::from_str_radix(address, 16) else { continue };
        let padding =
            insn.contains("nop") || insn.starts_with("int3") || insn.contains("xchg   %ax");
        if !padding && !insn.contains("(bad)") {
            out.push(address);
        }
    }
    Some(out)
}

/// Instruction addresses in blocks; checks what holds for every block.
fn discovered(path: &str) -> Option<HashSet<u64>> {
    let input = Input::parse(std::fs::read(path).ok()?).expect("a program");
    let image = roots::image(&input);
    let program = discover(&image, &mut |done, total| assert!(done <= total));
    let mut out = HashSet::new();
    let mut starts = HashSet::new();
    for function in &program.functions {
        let mut end = 0;
        for block in &function.blocks {
            assert!(starts.insert(block.start.0) && block.start.0 >= end);
            end = block.behind().0;
            let bytes = &image.bytes_at(block.start.0).expect("bytes")[..block.len as usize];
            let insns: Vec<u64> = Decoder::with_ip(64, bytes, block.start.0, DecoderOptions::NONE)
                .iter()
                .map(|i| i.ip())
                .collect();
            assert!(
                insns.len() <= Rules::AHEAD_OF_TIME.insns
                    && block.len <= Rules::AHEAD_OF_TIME.bytes
            );
            out.extend(insns);
        }
    }
    Some(out)
}

fn coverage(path: &str) -> Option<f64> {
    let (listed, found) = (listed(path)?, discovered(path)?);
    let hits = listed.iter().filter(|a| found.contains(a)).count();
    let share = hits as f64 / listed.len() as f64;
    println!("{path}: {hits} of {} instructions, {share:.5}", listed.len());
    Some(share)
}

#[test]
fn what_objdump_lists_is_found() {
    for path in ["/usr/bin/gzip", "/usr/bin/bzip2", "/usr/bin/xz", "/usr/bin/sqlite3"] {
        match coverage(path) {
            Some(share) => assert!(share >= 0.99, "{path}: {share}"),
            None => println!("skipped {path}: it or objdump is not installed"),
        }
    }
}

#[test]
fn what_objdump_lists_is_found_in_large_programs() {
    for path in ["/usr/bin/perl", "/usr/bin/python3.11"] {
        match coverage(path) {
            Some(share) => assert!(share >= 0.99, "{path}: {share}"),
            None => println!("skipped {path}: it or objdump is not installed"),
        }
    }
}
