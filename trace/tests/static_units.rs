//! Ahead-of-time units: descriptions and code come from the output file.

use std::path::{Path, PathBuf};

use abi::event::{in_silent_unit, Kind, WHOLE_UNIT};
use abi::ids::{Gpr, LiveAddr, OrigAddr};
use abi::image::{self, ImageHeader};
use abi::options::{Memory, Options, RecordingOptions};
use abi::tables::Tables;
use abi::trace::{tags, words_check, FrameKind, RegisterState, PROCESS};
use abi::unit::{encode_static, flags, unit_id, Record as UnitRecord, UnitBody, What};
use trace::compile::CompiledUnit;
use trace::test_support::{event, Record, TraceWriter};
use trace::units::Origin;
use trace::verify::verify;
use trace::walk::{MemoryReference, Sink, Walker};
use trace::Trace;

const IDENTITY: [u64; 2] = [0x1111, 0x2222];
const LOAD: u64 = 0x7f00_0000_0000;
/// mov rax,[rdi+8]; jmp next / push [rax]; ret
const CODE: [u8; 9] = [0x48, 0x8b, 0x47, 0x08, 0xeb, 0x00, 0xff, 0x30, 0xc3];
const CODE_ADDRESS: u64 = 0x1200;

fn put(bytes: &mut Vec<u8>, at: usize, part: &[u8]) {
    bytes.resize(bytes.len().max(at + part.len()), 0);
    bytes[at..at + part.len()].copy_from_slice(part);
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn body(code_len: u16, flags: u8, records: &[(u8, What)]) -> UnitBody {
    let records = records.iter().map(|&(insn, what)| UnitRecord { insn, what }).collect();
    UnitBody { code_len, flags, records }
}

fn output_file() -> Vec<u8> {
    let first = body(6, flags::WIDE, &[(0, What::Before(Gpr(7))), (0, What::After(Gpr(0)))]);
    output_file_of(&CODE, &[(0, first), (6, body(3, flags::WIDE, &[]))])
}

/// An ELF file with the code, the header's section and the descriptions.
fn output_file_of(code: &[u8], units: &[(u64, UnitBody)]) -> Vec<u8> {
    let mut descriptions = Vec::new();
    let mut previous = OrigAddr(0);
    for (offset, body) in units {
        let at = OrigAddr(CODE_ADDRESS).plus(*offset);
        encode_static(&mut descriptions, previous, at, body);
        previous = at;
    }
    let descriptions = zstd::bulk::compress(&descriptions, 1).expect("one frame");
    let header = ImageHeader {
        magic: image::MAGIC,
        version: image::VERSION,
        identity: IDENTITY,
        image_start: 0x1000,
        image_end: 0x2000,
        tables: Tables {
            descriptions: 0x400,
            descriptions_len: descriptions.len() as u64,
            ..Tables::default()
        },
        ..ImageHeader::default()
    };
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    put(&mut file, 16, &[3, 0, 62, 0, 1]);
    put(&mut file, 32, &words(&[64, 0x900])); // program headers, section headers
    put(&mut file, 52, &[64, 0, 56, 0, 1, 0, 64, 0, 3, 0, 2, 0]);
    put(&mut file, 64, &[1, 0, 0, 0, 5, 0, 0, 0]); // PT_LOAD
    put(&mut file, 72, &words(&[0x200, 0x1200, 0x1200, 0x100, 0x100, 0x1000]));
    put(&mut file, 0x200, code);
    put(&mut file, 0x400, &header.to_bytes());
    put(&mut file, 0x800, &descriptions);
    // Sections: null, the header's, names.
    let names = b"\0.deprewrite.header\0.shstrtab\0";
    let mut section = |n: usize, name: u32, kind: u32, offset: u64, len: u64| {
        let at = 0x900 + 64 * n;
        put(&mut file, at, &[name.to_le_bytes(), kind.to_le_bytes()].concat());
        put(&mut file, at + 8, &words(&[0, 0x5000, offset, len, 0, 1, 0]));
    };
    section(1, 1, 1, 0x400, image::HEADER_SIZE as u64);
    section(2, 20, 3, 0xa00, names.len() as u64);
    put(&mut file, 0xa00, names);
    file
}

fn trace_of(program: &Path) -> Vec<u8> {
    let wide = |n| tags::wide(unit_id(3, n)).to_le_bytes();
    let control_flow = [wide(0), wide(1)].concat();
    let memory = words(&[0x500, 0x600]);
    trace_with(
        program,
        2,
        &[Record { registers: at_start(), control_flow, memory, ..Default::default() }],
        &[],
    )
}

/// The registers with which the thread starts.
fn at_start() -> RegisterState {
    let mut registers =
        RegisterState { rip: LOAD + CODE_ADDRESS, valid: 0x10, ..Default::default() };
    registers.gpr[4] = 0x8000;
    registers
}

/// A trace of a program with so many units. `events`: of the thread.
fn trace_with(program: &Path, units: u64, records: &[Record], events: &[Vec<u8>]) -> Vec<u8> {
    let mut writer = TraceWriter::default();
    let options: Options =
        RecordingOptions { memory: Memory::Registers, ..RecordingOptions::default() }.into();
    let mut file = event(
        Kind::Process,
        0,
        0,
        WHOLE_UNIT,
        &words(&[abi::trace::VERSION.into(), options.to_word(), 1, 0]),
    );
    let path = program.to_str().expect("a path").as_bytes();
    file.extend(event(Kind::Program, 0, 0, WHOLE_UNIT, path));
    let windows = 3 | 9 << 32;
    let statics = [LOAD, IDENTITY[0], IDENTITY[1], windows, units];
    let statics = words(&[&statics[..], &[words_check(&statics)]].concat());
    file.extend(event(Kind::StaticUnits, 0, 0, WHOLE_UNIT, &statics));
    writer.payload(FrameKind::File, PROCESS, 0, &file);
    let mut start = words(&[7]);
    start.extend_from_slice(&at_start().to_bytes());
    let mut all = event(Kind::ThreadStart, 0, 0, WHOLE_UNIT, &start);
    all.extend(events.concat());
    writer.payload(FrameKind::Events, 0, 0, &all);
    for record in records {
        writer.record(record);
    }
    writer.bytes
}

#[derive(Default)]
struct Seen(Vec<String>);

impl Sink for Seen {
    const REFERENCES: bool = true;
    fn unit(&mut self, unit: &CompiledUnit, _partial: bool) {
        assert_eq!(unit.origin, Origin::Static);
    }
    fn reference(&mut self, r: MemoryReference) {
        self.0.push(format!(
            "{:x} {} {:x}",
            r.pc.0 - LOAD,
            if r.write { 'W' } else { 'R' },
            r.address
        ));
    }
}

struct Files {
    _directory: tempfile::TempDir,
    output: PathBuf,
    trace: PathBuf,
}

fn files() -> Files {
    let directory = tempfile::tempdir().expect("temporary directory");
    let (output, trace) = (directory.path().join("out.elf"), directory.path().join("x.dep"));
    std::fs::write(&output, output_file()).expect("write");
    std::fs::write(&trace, trace_of(&output)).expect("write");
    Files { _directory: directory, output, trace }
}

#[test]
fn units_come_from_the_output_file() {
    let files = files();
    let trace = Trace::open(&files.trace).expect("a trace");
    assert_eq!(trace.units.static_count(), 2);
    assert_eq!(trace.units.images(), [(3, LiveAddr(LOAD + 0x1000)..LiveAddr(LOAD + 0x2000))]);
    let mut seen = Seen::default();
    Walker::new(&trace).walk(&trace.threads[0], 0, &mut seen).expect("no violation");
    assert_eq!(seen.0, ["1200 R 508", "1206 R 600", "1206 W 7ff8", "1208 R 7ff8"]);
    assert_eq!(verify(&trace).expect("right").blocks, 2);
}

#[test]
fn another_or_no_output_file_is_said_clearly() {
    let files = files();
    let message = |files: &Files| Trace::open(&files.trace).expect_err("an error").to_string();
    let mut other = output_file();
    let words = IDENTITY.map(u64::to_le_bytes).concat();
    let header = &other[0x400..0x400 + image::HEADER_SIZE];
    let identity = header.windows(words.len()).position(|w| w == words).expect("its identity");
    other[0x400 + identity] ^= 1;
    std::fs::write(&files.output, other).expect("write");
    assert!(message(&files).contains("identities differ"), "{}", message(&files));
    std::fs::write(&files.output, b"#!/bin/sh").expect("write");
    assert!(message(&files).contains("not an ELF file"), "{}", message(&files));
    let mut cut = output_file();
    cut.truncate(0x801);
    std::fs::write(&files.output, cut).expect("write");
    assert!(message(&files).contains("out.elf"), "{}", message(&files));
    std::fs::remove_file(&files.output).expect("remove");
    assert!(message(&files).contains("the trace needs the output file that ran"));
}

#[test]
fn the_output_file_may_have_moved() {
    let files = files();
    let moved = files.output.with_extension("moved");
    std::fs::rename(&files.output, &moved).expect("rename");
    let trace = Trace::open_with(&files.trace, Some(&moved)).expect("a trace");
    verify(&trace).expect("right");
}

/// jne to the third; the second (silent): push rax, jmp to the last; the third: push rcx; the last: push
/// rdx, ret. With `circle` the second one jumps to itself.
fn silent(circle: bool) -> (Vec<u8>, Vec<(u64, UnitBody)>) {
    let back = if circle { 0xfd } else { 1 };
    let code = vec![0x75, 0x03, 0x50, 0xeb, back, 0x51, 0x52, 0xc3];
    let units = vec![
        (0, body(2, flags::WIDE, &[])),
        (2, body(3, flags::SILENT, &[(0, What::Before(Gpr(0)))])),
        (5, body(1, 0, &[])),
        (6, body(2, 0, &[])),
    ];
    (code, units)
}

/// What was referenced in a trace of [`silent`], or what is wrong with it.
fn silently(circle: bool, records: &[Record], events: &[Vec<u8>]) -> Result<Vec<String>, String> {
    let directory = tempfile::tempdir().expect("temporary directory");
    let (output, path) = (directory.path().join("out.elf"), directory.path().join("x.dep"));
    let (code, units) = silent(circle);
    std::fs::write(&output, output_file_of(&code, &units)).expect("write");
    std::fs::write(&path, trace_with(&output, 4, records, events)).expect("write");
    let trace = Trace::open(&path).expect("a trace");
    let mut seen = Seen::default();
    let mut walker = Walker::new(&trace);
    for chunk in 0..trace.threads[0].chunks.len() {
        walker.walk(&trace.threads[0], chunk, &mut seen).map_err(|wrong| wrong.what)?;
    }
    verify(&trace).map_err(|wrong| wrong.to_string())?;
    Ok(seen.0)
}

/// A chunk with the first unit and then these, of which the first one is wide.
fn chunk_of(narrow: &[u32], memory: &[u64]) -> Record {
    let mut control_flow = tags::wide(unit_id(3, 0)).to_le_bytes().to_vec();
    control_flow.extend(narrow.iter().flat_map(|&n| unit_id(3, n).tag().to_le_bytes()));
    Record { registers: at_start(), control_flow, memory: words(memory), ..Default::default() }
}

const LAST: [&str; 2] = ["1206 W 7ff0", "1207 R 7ff0"];

#[test]
fn a_silent_unit_ran_unless_the_next_tag_is_of_the_other_way() {
    let with = |first: &str| [&[first.to_string()][..], &LAST.map(String::from)].concat();
    let through = silently(false, &[chunk_of(&[3], &[7])], &[]);
    assert_eq!(through, Ok(with("1202 W 7ff8")));
    let around = silently(false, &[chunk_of(&[2, 3], &[])], &[]);
    assert_eq!(around, Ok(with("1205 W 7ff8")));
}

#[test]
fn the_start_of_the_next_chunk_tells_the_way_as_a_tag_does() {
    let next = |offset: u64, rsp: u64, units: &[u32]| {
        let mut record = chunk_of(&[], &[]);
        record.seq = 1;
        record.registers.rip = LOAD + CODE_ADDRESS + offset;
        record.registers.gpr[4] = rsp;
        record.control_flow =
            units.iter().flat_map(|&n| tags::wide(unit_id(3, n)).to_le_bytes()).collect();
        record
    };
    let through = silently(false, &[chunk_of(&[], &[7]), next(6, 0x7ff8, &[3])], &[]);
    assert_eq!(through.expect("right")[0], "1202 W 7ff8");
    let around = silently(false, &[chunk_of(&[], &[]), next(5, 0x8000, &[2, 3])], &[]);
    assert_eq!(around.expect("right")[0], "1205 W 7ff8");
    // The next chunk is not there yet.
    let cut = silently(false, &[chunk_of(&[], &[7])], &[]);
    assert_eq!(cut, Ok(vec!["1202 W 7ff8".to_string()]));
    let wrong = silently(false, &[chunk_of(&[], &[]), next(6, 0x7ff8, &[3])], &[]);
    assert!(wrong.expect_err("its record is missing").contains("memory stream ends inside"));
}

#[test]
fn what_happens_in_a_silent_unit_names_it() {
    let ended = [2u32.to_le_bytes(), 11u32.to_le_bytes()].concat();
    let ended = [ended, words(&[0])].concat();
    let end = |insn| [event(Kind::ProcessEnd, 0, 4, insn, &ended)];
    let tag = unit_id(3, 1).tag();
    let inside = |insn| silently(false, &[chunk_of(&[], &[7])], &end(in_silent_unit(tag, insn)));
    assert_eq!(inside(0), Ok(vec![]));
    assert_eq!(inside(1), Ok(vec!["1202 W 7ff8".to_string()]));
    // In the unit in front of it.
    assert_eq!(silently(false, &[chunk_of(&[], &[])], &end(1)), Ok(vec![]));
}

/// The same code, but that the last unit jumps to the first: so many rounds, `around` the silent unit or through
/// it. What was referenced, and what had to be.
fn rounds(around: &[bool]) -> (Vec<String>, Vec<String>) {
    let directory = tempfile::tempdir().expect("temporary directory");
    let (output, path) = (directory.path().join("out.elf"), directory.path().join("x.dep"));
    let (mut code, mut units) = silent(false);
    code.truncate(7);
    code.extend_from_slice(&[0xeb, 0xf7]);
    units[0].1.flags = 0;
    units[3].1.code_len = 3;
    std::fs::write(&output, output_file_of(&code, &units)).expect("write");
    let (mut narrow, mut memory, mut expected) = (Vec::new(), Vec::new(), Vec::new());
    let mut rsp = 0x8000u64;
    let mut push = |pc: u64| {
        rsp = rsp.wrapping_sub(8);
        expected.push(format!("{pc:x} W {rsp:x}"));
    };
    for (n, &around) in around.iter().enumerate() {
        if n > 0 {
            narrow.push(0);
        }
        if around {
            narrow.push(2);
        } else {
            memory.push(n as u64);
        }
        push(if around { 0x1205 } else { 0x1202 });
        narrow.push(3);
        push(0x1206);
    }
    let records = [chunk_of(&narrow, &memory)];
    std::fs::write(&path, trace_with(&output, 4, &records, &[])).expect("write");
    let trace = Trace::open(&path).expect("a trace");
    let mut seen = Seen::default();
    Walker::new(&trace).walk(&trace.threads[0], 0, &mut seen).expect("no violation");
    assert_eq!(verify(&trace).expect("right").references, expected.len() as u64);
    (seen.0, expected)
}

#[test]
fn a_silent_unit_ran_whatever_runs_again_and_again() {
    // Each row of ways comes often, and is followed by other ones.
    let ways: Vec<bool> = (0..6000u32).map(|n| (n / 7).is_multiple_of(3) || n % 5 == 1).collect();
    for around in [&ways[..], &[true; 500], &[false; 500]] {
        let (seen, expected) = rounds(around);
        assert_eq!(seen, expected);
    }
}

#[test]
fn silent_units_do_not_go_round() {
    let wrong = silently(true, &[chunk_of(&[3], &[7; 100])], &[]).expect_err("wrong");
    assert!(wrong.contains("too many units in a row"), "{wrong}");
}
