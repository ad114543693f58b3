//! Every input that is refused, with the line that says why; and nothing is left behind.

mod common;

use common::{compile, deprewrite, text};
use std::path::Path;

type Damage = fn(&mut Vec<u8>);

fn set(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Offset of the n-th PT_LOAD in the table of a file.
fn load(bytes: &[u8], n: usize) -> usize {
    (64..).step_by(56).filter(|&at| bytes[at..at + 4] == [1, 0, 0, 0]).nth(n).expect("a PT_LOAD")
}

const CASES: &[(&str, Damage, &str)] = &[
    ("empty", |b| b.clear(), "the file is empty"),
    ("text", |b| *b = b"#!/bin/sh\necho\n".to_vec(), "not an ELF file"),
    ("three bytes", |b| b.truncate(3), "not an ELF file"),
    ("half a header", |b| b.truncate(40), "truncated in the ELF header"),
    ("32 bits", |b| b[4] = 1, "not a 64-bit ELF file"),
    ("big endian", |b| b[5] = 2, "not a little-endian ELF file"),
    ("arm", |b| b[18] = 183, "not for x86-64 (machine 183)"),
    ("object", |b| b[16] = 1, "a relocatable object; link it first"),
    ("core", |b| b[16] = 4, "a core dump"),
    ("strange type", |b| b[16] = 9, "ELF type 9 is not a program"),
    ("no program headers", |b| set(b, 56, &[0, 0]), "no program headers"),
    ("odd program headers", |b| b[54] = 32, "program headers of 32 bytes"),
    (
        "too many program headers",
        |b| set(b, 56, &[0xfe, 0xff]),
        "truncated: the program headers lie behind the end",
    ),
    (
        "table behind the end",
        |b| set(b, 32, &u64::MAX.to_le_bytes()),
        "truncated: the program headers lie behind the end",
    ),
    ("segment behind the end", |b| b.truncate(0x2800), "truncated: the segment at 0x3"),
    (
        "segment wraps in the file",
        |b| {
            let at = load(b, 1);
            set(b, at + 32, &u64::MAX.to_le_bytes());
        },
        "the segment at 0x1000 wraps around",
    ),
    (
        "segment wraps in memory",
        |b| {
            let at = load(b, 1);
            set(b, at + 40, &u64::MAX.to_le_bytes());
        },
        "the segment at 0x1000 wraps around",
    ),
    (
        "overlap",
        |b| {
            let at = load(b, 0);
            set(b, at + 40, &0x1800u64.to_le_bytes());
        },
        "the segments at 0x0 and 0x1000 overlap",
    ),
    (
        "misaligned",
        |b| {
            let at = load(b, 1);
            set(b, at + 16, &0x1010u64.to_le_bytes());
        },
        "the segment at 0x1010 is not aligned with the file",
    ),
    (
        "smaller in memory",
        |b| {
            let at = load(b, 1);
            set(b, at + 40, &8u64.to_le_bytes());
        },
        "the segment at 0x1000 is larger in the file",
    ),
    (
        "too large",
        |b| {
            let at = load(b, 3);
            set(b, at + 40, &0x6000_0000u64.to_le_bytes());
        },
        "; the limit is 1.4 GiB",
    ),
    (
        "entry in data",
        |b| set(b, 24, &0x10u64.to_le_bytes()),
        "the entry point 0x10 is not in exec",
    ),
    (
        "packed",
        |b| {
            set(b, 0x3f0, b"UPX!");
            set(b, 40, &[0; 8]);
            set(b, 60, &[0; 4]);
        },
        "the program is packed",
    ),
];

fn refused(input: &Path, output: &Path, expected: &str, case: &str) {
    let result = deprewrite(&[&input.to_string_lossy(), "-o", &output.to_string_lossy()]);
    let said = text(&result.stderr);
    assert_eq!(result.status.code(), Some(1), "{case}: {said}");
    assert!(said.contains(expected), "{case}: {said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{case}: {said}");
    assert!(said.starts_with("deprewrite: "), "{case}: {said}");
    assert!(result.stdout.is_empty(), "{case}");
}

#[test]
fn damaged_files_are_refused_with_one_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let good = compile(directory.path(), "good", &["-fPIE", "-pie"]).expect("a compiler");
    let good = std::fs::read(good).expect("the program");
    let output = directory.path().join("output");
    for (case, damage, expected) in CASES {
        let mut bytes = good.clone();
        damage(&mut bytes);
        let input = directory.path().join("input");
        std::fs::write(&input, bytes).expect("written");
        refused(&input, &output, expected, case);
        assert!(!output.exists(), "{case}");
    }
    // No temporary file stays behind either.
    let hidden = std::fs::read_dir(directory.path()).expect("listed").flatten();
    assert!(!hidden.into_iter().any(|f| f.file_name().to_string_lossy().starts_with('.')));
}

#[test]
fn a_library_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let library = compile(directory.path(), "l.so", &["-shared", "-fPIC"]).expect("a compiler");
    refused(&library, &directory.path().join("o"), "a shared library", "library");
}

#[test]
fn what_was_rewritten_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
    compile(directory.path(), "good", &[]).expect("a compiler");
    assert!(deprewrite(&[&path("good"), "-o", &path("once")]).status.success());
    let (once, twice) = (path("once"), path("twice"));
    refused(once.as_ref(), twice.as_ref(), "was written by deprewrite", "rewritten");
    let strip = std::process::Command::new("strip").arg(&once).status();
    if strip.is_ok_and(|s| s.success()) {
        refused(once.as_ref(), twice.as_ref(), "was written by deprewrite", "stripped");
    }
}

#[test]
fn outputs_that_cannot_be_written_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let good = compile(directory.path(), "good", &[]).expect("a compiler");
    let before = std::fs::read(&good).expect("the program");
    refused(&good, &good, "the output is the input", "same name");
    let link = directory.path().join("link");
    std::fs::hard_link(&good, &link).expect("a link");
    refused(&good, &link, "the output is the input", "same file");
    assert_eq!(std::fs::read(&good).expect("the program"), before);
    refused(&good, "/nonexistent/output".as_ref(), "cannot write /nonexistent/output", "directory");
    refused(&good, "/dev/full".as_ref(), "not a regular file", "device");
    refused("/nonexistent".as_ref(), &link, "cannot read /nonexistent", "no input");
    refused(directory.path(), &link, "not a regular file", "directory as input");
}
