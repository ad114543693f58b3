//! Ahead-of-time units: descriptions and code come from the output file.

use std::path::{Path, PathBuf};

use abi::event::{Kind, WHOLE_UNIT};
use abi::ids::{Gpr, LiveAddr, OrigAddr};
use abi::image::{self, ImageHeader};
use abi::options::{Memory, Options, RecordingOptions};
use abi::tables::Tables;
use abi::trace::{tags, words_check, FrameKind, RegisterState, PROCESS};
use abi::unit::{encode_static, unit_id, Record as UnitRecord, UnitBody, What};
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

/// An ELF file with the code, the header's section and the descriptions.
fn output_file() -> Vec<u8> {
    let mut descriptions = Vec::new();
    let body = |code_len, records: &[(u8, What)]| UnitBody {
        code_len,
        flags: 1,
        records: records.iter().map(|&(insn, what)| UnitRecord { insn, what }).collect(),
    };
    let first = body(6, &[(0, What::Before(Gpr(7))), (0, What::After(Gpr(0)))]);
    let at = OrigAddr(CODE_ADDRESS);
    encode_static(&mut descriptions, OrigAddr(0), at, &first);
    encode_static(&mut descriptions, at, at.plus(6), &body(3, &[]));
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
    put(&mut file, 0x200, &CODE);
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
    let statics = [LOAD, IDENTITY[0], IDENTITY[1], windows, 2];
    let statics = words(&[&statics[..], &[words_check(&statics)]].concat());
    file.extend(event(Kind::StaticUnits, 0, 0, WHOLE_UNIT, &statics));
    writer.payload(FrameKind::File, PROCESS, 0, &file);
    let mut registers =
        RegisterState { rip: LOAD + CODE_ADDRESS, valid: 0x10, ..Default::default() };
    registers.gpr[4] = 0x8000;
    let mut start = words(&[7]);
    start.extend_from_slice(&registers.to_bytes());
    writer.payload(FrameKind::Events, 0, 0, &event(Kind::ThreadStart, 0, 0, WHOLE_UNIT, &start));
    let mut control_flow = Vec::new();
    for n in 0..2 {
        control_flow.extend_from_slice(&tags::wide(unit_id(3, n)).to_le_bytes());
    }
    let memory = words(&[0x500, 0x600]);
    writer.record(&Record { registers, control_flow, memory, ..Default::default() });
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
    assert_eq!(
        trace.units.images().collect::<Vec<_>>(),
        [(3, LiveAddr(LOAD + 0x1000)..LiveAddr(LOAD + 0x2000))]
    );
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
