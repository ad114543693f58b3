//! The output as other tools see it.

mod common;

use abi::image::ImageHeader;
use abi::tables::JumpTable;
use common::{compile, deprewrite, run, text};
use object::{Object as _, ObjectSection as _};
use rewriter::elf::{FileHeader, ProgramHeader, LE};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const KINDS: &[(&str, &[&str])] = &[
    ("pie", &["-fPIE", "-pie"]),
    ("fixed", &["-no-pie"]),
    ("static", &["-static"]),
    ("static_pie", &["-static-pie"]),
    ("stripped", &["-static", "-s"]),
    ("one_segment", &["-no-pie", "-Wl,-z,noseparate-code"]),
    ("relr", &["-fPIE", "-pie", "-Wl,-z,pack-relative-relocs"]),
    // No room for our program headers.
    ("few_headers", &["-pie", "-Wl,-z,norelro,--no-eh-frame-hdr,--build-id=none"]),
    ("static_few_headers", &["-static", "-Wl,-z,norelro,--build-id=none"]),
];

fn each_kind(mut check: impl FnMut(&str, &Path, &Path)) {
    let directory = tempfile::tempdir().expect("a directory");
    let mut seen = 0;
    for (kind, flags) in KINDS {
        let Some(input) = compile(directory.path(), kind, flags) else { continue };
        let output = directory.path().join(format!("{kind}.out"));
        let done = deprewrite(&[&input.to_string_lossy(), "-o", &output.to_string_lossy()]);
        assert!(done.status.success(), "{kind}: {}", text(&done.stderr));
        check(kind, &input, &output);
        seen += 1;
    }
    assert!(seen >= 2);
}

fn program_headers(bytes: &[u8]) -> Vec<ProgramHeader> {
    use object::read::elf::FileHeader as _;
    let header = FileHeader::parse(bytes).expect("an ELF file");
    header.program_headers(LE, bytes).expect("headers").iter().map(ProgramHeader::read).collect()
}

/// The placeholder exits with 42, the real runtime runs the program.
fn works(output: &Path) -> bool {
    matches!(run(output), Some(42 | 7))
}

#[test]
fn nothing_of_the_input_is_executable_and_all_of_it_is_there() {
    each_kind(|kind, input, output| {
        let (before, after) =
            (std::fs::read(input).expect("input"), std::fs::read(output).expect("output"));
        let table = 64 + 56 * program_headers(&before).len();
        assert!(after[table..].starts_with(&before[table..]), "{kind}");
        let end = program_headers(&before).iter().map(|p| p.end()).max().expect("segments");
        for p in program_headers(&after) {
            let inside = p.address < end;
            assert!(!(inside && p.is_load() && p.is_executable()), "{kind} {p:x?}");
            assert!(!(p.is_writable() && p.is_executable()), "{kind} {p:x?}");
            assert!(p.kind != object::elf::PT_INTERP.0, "{kind}");
        }
        assert!(works(output), "{kind}");
    });
}

#[test]
fn the_header_describes_the_program() {
    each_kind(|kind, input, output| {
        let (before, after) =
            (std::fs::read(input).expect("input"), std::fs::read(output).expect("output"));
        let file = object::File::parse(&*after).expect("object reads it");
        let section = file.section_by_name(".deprewrite.header").expect("a header");
        let header = header_of(output);
        let original = object::File::parse(&*before).expect("object reads it");
        assert_eq!(header.entry, original.entry(), "{kind}");
        assert_ne!(file.entry(), original.entry(), "{kind}");
        assert!((header.runtime..header.runtime_end).contains(&file.entry()), "{kind}");
        assert_eq!(header.interpreter != 0, !kind.starts_with("sta") && *kind != *"stripped");
        let copy = (header.elf_header_copy - section.address()) as usize;
        let saved = &section.data().expect("bytes")[copy..];
        let table = 64 + 56 * header.program_header_count as usize;
        assert_eq!(saved[..table], before[..table], "{kind}");
        assert_eq!(header.exec_range_count, 1, "{kind}");
    });
}

fn header_of(output: &Path) -> ImageHeader {
    let bytes = std::fs::read(output).expect("output");
    let file = object::File::parse(&*bytes).expect("object reads it");
    let section = file.section_by_name(".deprewrite.header").expect("a header");
    ImageHeader::from_bytes(section.data().expect("bytes")).expect("a header")
}

#[test]
fn tables_take_few_bytes_for_each_unit() {
    // (Of the C library's code, which most of a static program is: about 12 and 9.)
    for (instrument, most, described) in
        [("dep", 14, true), ("none", 11, false), ("inputs", 11, false)]
    {
        let directory = tempfile::tempdir().expect("a directory");
        let Some(input) = compile(directory.path(), "static", &["-static"]) else { return };
        let output = directory.path().join("out");
        let paths = [&*input.to_string_lossy(), "-o", &*output.to_string_lossy()];
        let done = deprewrite(&[&paths[..], &["--instrument", instrument]].concat());
        assert!(done.status.success(), "{}", text(&done.stderr));
        let tables = header_of(&output).tables;
        let index = 12 * (tables.entry_count.div_ceil(32) + tables.unit_count.div_ceil(32));
        let bytes = tables.entries_len + tables.units_len + index + 8 * tables.header_count;
        let (units, said) = (tables.unit_count, tables.descriptions_len);
        println!(
            "{instrument}: {bytes} bytes of tables and {said} of descriptions for {units} units"
        );
        assert!(units > 10_000 && bytes < most * units, "{instrument}: {bytes} for {units}");
        // What no trace names is not described.
        assert_eq!(said != 0, described, "{instrument}");
        assert!(said < 6 * units, "{instrument}: {said} for {units}");
        assert!(works(&output), "{instrument}");
    }
}

#[test]
fn both_translations_have_the_slots_of_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(input) = compile(directory.path(), "pie", &["-fPIE", "-pie"]) else { return };
    let output = directory.path().join("out");
    let header = |flags: &[&str]| {
        let all = [&input.to_string_lossy(), "-o", &output.to_string_lossy()];
        let done = deprewrite(&[&all[..], flags].concat());
        assert!(done.status.success(), "{}", text(&done.stderr));
        header_of(&output)
    };
    let (one, both) = (header(&[]), header(&["--switchable"]));
    assert_ne!(one.tables.slot_count, 0);
    assert_eq!((one.plain.code_len, one.plain.slot_count), (0, 0));
    assert_eq!(both.tables.slot_count, one.tables.slot_count);
    assert_eq!(both.plain.slot_count, one.tables.slot_count);
    // Neither page of slots is code of the other.
    assert!(both.plain.code >= both.tables.code + both.tables.code_len);
    assert_eq!(both.plain.code % 4096, 0);
    assert!(works(&output));
}

/// Where the slots of the program's jump tables lead, relative to the window, each beside where it may.
fn jump_slots(output: &Path) -> Vec<(u64, [u64; 2])> {
    let bytes = std::fs::read(output).expect("output");
    let headers = program_headers(&bytes);
    let at = |address: u64, len: u64| {
        let holds = |p: &&ProgramHeader| {
            p.is_load() && p.address <= address && address + len <= p.address + p.file_size
        };
        let segment = headers.iter().find(holds).expect("a segment");
        let from = (segment.offset.0 + address - segment.address) as usize;
        &bytes[from..from + len as usize]
    };
    let tables = header_of(output).tables;
    let jumps = at(tables.jump_tables, tables.jump_table_count * JumpTable::SIZE as u64);
    let mut slots = Vec::new();
    for jump in jumps.chunks_exact(JumpTable::SIZE) {
        let word = |i: usize| u32::from_le_bytes(jump[4 * i..][..4].try_into().expect("4 bytes"));
        let (entries, slot, slow, first, how) = (word(1), word(2), word(3), word(4), word(5));
        let leads_to = if how & JumpTable::READ_ONLY == 0 { slow } else { first };
        let place = tables.code + tables.jump_slots + 8 * u64::from(slot);
        for slot in at(place, 8 * u64::from(entries)).chunks_exact(8) {
            let found = u64::from_le_bytes(slot.try_into().expect("8 bytes"));
            slots.push((found, [leads_to, slow].map(|to| tables.code + u64::from(to))));
        }
    }
    slots
}

#[test]
fn slots_of_a_program_at_fixed_addresses_are_in_the_file() {
    let directory = tempfile::tempdir().expect("a directory");
    // (The C library has jumps through tables.)
    for (kind, flags, is_fixed) in
        [("static", &["-static"], true), ("static_pie", &["-static-pie"], false)]
    {
        let Some(input) = compile(directory.path(), kind, flags) else { continue };
        let output = directory.path().join(format!("{kind}.out"));
        let done = deprewrite(&[&input.to_string_lossy(), "-o", &output.to_string_lossy()]);
        assert!(done.status.success(), "{kind}: {}", text(&done.stderr));
        let slots = jump_slots(&output);
        assert!(slots.len() > 100, "{kind}: {}", slots.len());
        for (found, [leads_to, slow]) in &slots {
            assert_eq!(found == leads_to, is_fixed, "{kind}: {found:x} {leads_to:x}");
            assert_eq!(found == slow, is_fixed && leads_to == slow, "{kind}");
        }
        // What asks is not what looks up.
        assert!(slots.iter().any(|(_, [leads_to, slow])| leads_to != slow), "{kind}");
        assert!(works(&output), "{kind}");
    }
}

#[test]
fn readelf_has_nothing_to_complain_about() {
    each_kind(|kind, input, output| {
        let complaints = |path: &Path| {
            let output = Command::new("readelf").args(["-a", "-W"]).arg(path).output();
            output.ok().map(|o| text(&o.stderr))
        };
        assert_eq!(
            complaints(output).map(|t| t.lines().count()),
            complaints(input).map(|t| t.lines().count()),
            "{kind}"
        );
    });
}

#[test]
fn strip_does_no_harm() {
    each_kind(|kind, _, output| {
        let stripped = PathBuf::from(format!("{}.stripped", output.display()));
        let Ok(strip) = Command::new("strip").arg(output).arg("-o").arg(&stripped).output() else {
            return;
        };
        assert!(strip.status.success(), "{kind}");
        assert_eq!(text(&strip.stderr), "", "{kind}");
        assert!(works(&stripped), "{kind}");
        let (whole, stripped) =
            (std::fs::read(output).expect("output"), std::fs::read(stripped).expect("stripped"));
        for name in [".deprewrite.header", ".deprewrite.runtime", ".deprewrite.runtime.data"] {
            let bytes = |file: &[u8]| {
                let file = object::File::parse(file).expect("an ELF file");
                let section = file.section_by_name(name).expect("a section");
                (section.address(), section.data().expect("bytes").to_vec())
            };
            assert_eq!(bytes(&whole), bytes(&stripped), "{kind} {name}");
        }
    });
}

/// As compilers and linkers do it.
#[test]
fn a_link_stays_and_what_it_leads_to_is_replaced() {
    let directory = tempfile::tempdir().expect("a directory");
    let input = compile(directory.path(), "input", &[]).expect("a compiler");
    let other = tempfile::tempdir().expect("a directory");
    let (real, link) = (other.path().join("real"), directory.path().join("link"));
    std::fs::write(&real, "old").expect("written");
    std::os::unix::fs::symlink(&real, &link).expect("a link");
    let done = deprewrite(&["-q", &input.to_string_lossy(), "-o", &link.to_string_lossy()]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(std::fs::read_link(&link).expect("still a link"), real);
    assert!(works(&real));
}

#[test]
fn the_mode_is_kept_and_the_bytes_are_the_same_each_time() {
    let directory = tempfile::tempdir().expect("a directory");
    let input = compile(directory.path(), "input", &[]).expect("a compiler");
    std::fs::set_permissions(&input, PermissionsExt::from_mode(0o751)).expect("mode");
    let mut files = Vec::new();
    for name in ["a", "b"] {
        let output = directory.path().join(name);
        let done = deprewrite(&[&input.to_string_lossy(), "-o", &output.to_string_lossy(), "-q"]);
        assert_eq!((text(&done.stdout), text(&done.stderr)), (String::new(), String::new()));
        let mode = std::fs::metadata(&output).expect("output").permissions().mode();
        assert_eq!(mode & 0o7777, 0o751);
        files.push(std::fs::read(output).expect("output"));
    }
    assert!(files[0] == files[1]);
}

#[test]
fn the_summary_is_there_for_programs_too() {
    let directory = tempfile::tempdir().expect("a directory");
    let input = compile(directory.path(), "input", &[]).expect("a compiler");
    let output = directory.path().join("output");
    let done =
        deprewrite(&[&input.to_string_lossy(), "-o", &output.to_string_lossy(), "--json", "-q"]);
    let json: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert!(json["blocks"].as_u64() > Some(10));
    assert_eq!(json["input_bytes"].as_u64(), std::fs::metadata(input).ok().map(|m| m.len()));
}
