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
    ("program headers counted elsewhere", |b| set(b, 56, &[0xff, 0xff]), "nothing to load"),
    (
        "65535 sections",
        |b| set(b, 60, &[0xff, 0xff]),
        "truncated: the section headers lie behind the end",
    ),
    (
        "sections that wrap around",
        |b| set(b, 40, &(u64::MAX - 100).to_le_bytes()),
        "truncated: the section headers lie behind the end",
    ),
    ("x32", |b| (b[4], b[18]) = (1, 62), "not a 64-bit ELF file"),
    ("no segments", |b| set(b, 56, &[1, 0]), "nothing to load"),
    (
        "a page that is not there",
        |b| {
            let at = load(b, 3);
            let inside = u64::from(b[at + 16]) | u64::from(b[at + 17] & 15) << 8;
            set(b, at + 16, &(u64::MAX - 0xfff + inside).to_le_bytes());
        },
        "wraps around",
    ),
    (
        "a segment far away",
        |b| {
            let at = load(b, 3);
            let address = 0x7fff_0000_0000 + (b[at + 16] as u64 | (b[at + 17] as u64) << 8);
            set(b, at + 16, &address.to_le_bytes());
        },
        "; the limit is 1.4 GiB",
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
    let arguments = [&input.to_string_lossy(), "-o", &output.to_string_lossy()];
    // What the file says about sizes is no reason to ask for memory.
    let result = std::process::Command::new("sh")
        .args(["-c", "ulimit -v 400000 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_deprewrite")])
        .args(arguments)
        .output()
        .expect("deprewrite starts");
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
    nothing_is_left(directory.path());
}

/// No temporary file stays behind.
fn nothing_is_left(directory: &Path) {
    let hidden = std::fs::read_dir(directory).expect("listed").flatten();
    assert!(!hidden.into_iter().any(|f| f.file_name().to_string_lossy().starts_with('.')));
}

/// Cut where any header, segment or section begins or ends, and just before.
#[test]
fn truncated_files_are_refused_wherever_they_end() {
    let directory = tempfile::tempdir().expect("a directory");
    for (kind, flags) in [("pie", &["-fPIE", "-pie"][..]), ("static", &["-static", "-g"])] {
        let good = compile(directory.path(), kind, flags).expect("a compiler");
        let good = std::fs::read(good).expect("the program");
        let (input, output) = (directory.path().join("input"), directory.path().join("output"));
        let places = boundaries(&good);
        assert!(places.len() > 60, "{kind}: {places:?}");
        for at in places {
            std::fs::write(&input, &good[..at]).expect("written");
            let expected = match at {
                0 => "the file is empty",
                1..4 => "not an ELF file",
                _ => "truncated",
            };
            refused(&input, &output, expected, &format!("{kind} cut at {at:#x}"));
            assert!(!output.exists());
        }
    }
    nothing_is_left(directory.path());
}

/// Ends and starts of everything that the file's tables name, short of the file's own end.
fn boundaries(elf: &[u8]) -> std::collections::BTreeSet<usize> {
    use object::read::elf::FileHeader as _;
    use rewriter::elf::{FileHeader, ProgramHeader, SectionHeader, LE};
    let header = FileHeader::parse(elf).expect("an ELF file");
    let segments = header.program_headers(LE, elf).expect("segments").iter();
    let segments = segments.map(ProgramHeader::read).map(|p| (p.offset.0, p.file_size));
    let sections = header.section_headers(LE, elf).expect("sections").iter();
    let sections = sections.map(SectionHeader::read).filter(|s| s.has_bytes());
    let parts = segments.chain(sections.map(|s| (s.offset.0, s.size))).chain([(0, 64)]);
    let ends = parts.flat_map(|(start, size)| [start, start + size]);
    let places = ends.chain([header.e_shoff.get(LE)]).flat_map(|at| [at, at.saturating_sub(1)]);
    places.map(|at| at as usize).filter(|&at| at < elf.len()).collect()
}

/// Files that nobody wants to have in memory.
#[test]
fn huge_files_are_not_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let (input, output) = (directory.path().join("huge"), directory.path().join("output"));
    let good = compile(directory.path(), "good", &[]).expect("a compiler");
    for (start, expected) in [
        (&b"text"[..], "not an ELF file"),
        (&std::fs::read(good).expect("bytes"), "limit is 4 GiB"),
    ] {
        std::fs::write(&input, start).expect("written");
        let file = std::fs::File::options().write(true).open(&input).expect("the file");
        file.set_len(100 << 30).expect("a hole");
        refused(&input, &output, expected, expected);
    }
    assert!(!output.exists());
}

/// What other tools make, not what was patched to look like it.
#[test]
fn files_that_are_no_programs_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = directory.path().join("output");
    let object = compile(directory.path(), "object.o", &["-c"]).expect("a compiler");
    refused(&object, &output, "a relocatable object; link it first", "object");
    let source = directory.path().join("start.s");
    std::fs::write(&source, ".globl _start\n_start: mov $1, %eax\n int $0x80\n").expect("written");
    let (object, program) = (directory.path().join("32.o"), directory.path().join("32"));
    let run = |command: &str, arguments: &[&std::ffi::OsStr]| {
        std::process::Command::new(command).args(arguments).status().is_ok_and(|s| s.success())
    };
    let assembled = run("as", &["--32".as_ref(), source.as_ref(), "-o".as_ref(), object.as_ref()]);
    let [m, o] = ["-melf_i386", "-o"].map(std::ffi::OsStr::new);
    assert!(assembled && run("ld", &[m, object.as_ref(), o, program.as_ref()]), "binutils");
    refused(&program, &output, "not a 64-bit ELF file", "32 bits");
    let archive = directory.path().join("archive.a");
    assert!(run("ar", &["rc".as_ref(), archive.as_ref(), object.as_ref()]), "binutils");
    refused(&archive, &output, "not an ELF file", "archive");
    assert!(!output.exists());
}

/// A crate panics over these.
#[test]
fn programs_whose_libraries_cannot_be_looked_for_are_refused() {
    use std::os::unix::ffi::OsStrExt;
    let directory = tempfile::tempdir().expect("a directory");
    let output = directory.path().join("output");
    let expected = "(--libraries runtime does not ask for them)";
    let nameless = compile(directory.path(), "nameless", &["-Wl,--dynamic-linker=/"]);
    let nameless = nameless.expect("a compiler");
    refused(&nameless, &output, expected, "an interpreter without a name");
    let origin = compile(directory.path(), "origin", &["-Wl,-rpath,$ORIGIN"]).expect("a compiler");
    let odd = directory.path().join(std::ffi::OsStr::from_bytes(b"\xff\xfe"));
    std::fs::create_dir(&odd).expect("a directory");
    std::fs::rename(&origin, odd.join("origin")).expect("moved");
    let run = |more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_deprewrite"));
        command.arg(odd.join("origin")).arg("-o").arg(&output).args(more);
        command.output().expect("a process")
    };
    let plain = run(&[]);
    assert_eq!(plain.status.code(), Some(1));
    let text = String::from_utf8_lossy(&plain.stderr);
    assert!(text.lines().count() == 1 && text.contains(expected), "{text}");
    assert!(!output.exists());
    assert!(run(&["--libraries", "runtime"]).status.success() && output.exists());
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

/// Nobody reads what is printed: that is said where it can be, and is no panic.
#[test]
fn full_and_closed_streams_are_no_panic() {
    let directory = tempfile::tempdir().expect("a directory");
    let good = compile(directory.path(), "good", &[]).expect("a compiler");
    let run = |redirection: &str, more: &str| {
        let line = format!(r#""$1" "$2" -o "$2.out" {more} {redirection}"#);
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &line, "sh", env!("CARGO_BIN_EXE_deprewrite")]).arg(&good);
        let output = command.output().expect("a shell");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (status, text) = run(">/dev/full", "--quiet --json");
    assert!(status == Some(1) && text.contains("cannot write to stdout"), "{text}");
    assert_eq!(run("2>/dev/full", "").0, Some(0));
    assert_eq!(run("2>&-", "").0, Some(0));
    let (status, text) = run("| true", "--quiet --json");
    assert!(status == Some(0) && text.is_empty(), "{text}");
}

/// The shell's `ulimit -f`, in kilobytes or blocks of 512 bytes.
#[test]
fn a_limit_of_file_sizes_is_an_error_like_any_other() {
    let directory = tempfile::tempdir().expect("a directory");
    let good = compile(directory.path(), "good", &[]).expect("a compiler");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", r#"ulimit -f 100; exec "$1" "$2" -o "$2.out""#, "sh"]);
    let output =
        command.arg(env!("CARGO_BIN_EXE_deprewrite")).arg(&good).output().expect("a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot write") && said.lines().count() == 1, "{said}");
    let left = std::fs::read_dir(directory.path()).expect("listed").flatten();
    let left: Vec<_> = left.map(|entry| entry.path()).filter(|path| *path != good).collect();
    assert!(left.iter().all(|path| path.extension().is_some_and(|e| e == "c")), "{left:?}");
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
    let symbolic = directory.path().join("symbolic");
    std::os::unix::fs::symlink("good", &symbolic).expect("a link");
    refused(&good, &symbolic, "the output is the input", "a link to the input");
    refused(&symbolic, &good, "the output is the input", "a link as input");
    assert_eq!(std::fs::read(&good).expect("the program"), before);
    let nowhere = directory.path().join("nowhere");
    std::os::unix::fs::symlink("nothing", &nowhere).expect("a link");
    refused(&good, &nowhere, "cannot write", "a link to nothing");
    let device = directory.path().join("device");
    std::os::unix::fs::symlink("/dev/full", &device).expect("a link");
    refused(&good, &device, "not a regular file", "a link to a device");
    refused(&good, "/nonexistent/output".as_ref(), "cannot write /nonexistent/output", "directory");
    refused(&good, directory.path(), "not a regular file", "directory as output");
    refused(&good, &good.join("output"), "cannot write", "a file as directory");
    refused(&good, "/proc/output".as_ref(), "cannot write /proc/output", "no files there");
    refused(&good, "/dev/full".as_ref(), "not a regular file", "device");
    refused("/nonexistent".as_ref(), &link, "cannot read /nonexistent", "no input");
    refused(directory.path(), &link, "not a regular file", "directory as input");
}
