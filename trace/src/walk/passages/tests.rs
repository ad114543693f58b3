//! Passages are what their units are one by one: a trace whose units are named by tags, which are found many at once,
//! has the same in it as one with whole addresses, which are followed unit by unit.

use std::collections::HashMap;
use std::io::Write;

use crate::columns::{Column, References};
use abi::event::{Kind, WHOLE_UNIT};
use abi::ids::{Gpr, LiveAddr, UnitId};
use abi::options::{ControlFlow, Memory, Options, RecordingOptions};
use abi::trace::{tags, FrameKind, RegisterState, PROCESS};
use abi::unit::{flags, JitReason, JitUnit, Record as UnitRecord, UnitBody, What};

use crate::test_support::{event, Record, TraceWriter};
use crate::walk::{unit_by_unit, ChunkEnd, MemoryReference, Passed, Sink, Walker};
use crate::Trace;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next()).expect("48 bits") % end
    }
}

/// Units and where each may lead: anywhere, or to these.
struct Program(Vec<(JitUnit, Option<[usize; 2]>)>);

/// Number of a unit, where it is, its code, what it records, and where it may lead.
type Line<'a> = (u32, u64, &'a [u8], &'a [(u8, What)], Option<[usize; 2]>);

impl Program {
    fn new() -> Program {
        let before = |insn, r| (insn, What::Before(Gpr(r)));
        let after = |insn, r| (insn, What::After(Gpr(r)));
        // The numbers of windows and tags are not in the order of the units.
        let lines: [Line<'_>; 7] = [
            // mov rax,[rbx+rcx*8]; add rcx,3; jmp rax
            (
                0x1_0010,
                0x1000,
                &[0x48, 0x8b, 0x04, 0xcb, 0x48, 0x83, 0xc1, 0x03, 0xff, 0xe0],
                &[after(0, 0)],
                None,
            ),
            // push rax; pop rdx; and ecx,0xff; mov [rax+rcx],cl; jmp rax
            (
                0x1_0011,
                0x1100,
                &[0x50, 0x5a, 0x81, 0xe1, 0xff, 0, 0, 0, 0x88, 0x0c, 0x08, 0xff, 0xe0],
                &[after(1, 2)],
                None,
            ),
            // test [rdx],al; jne 0x1300
            (
                0x2_0010,
                0x1200,
                &[0x84, 0x02, 0x0f, 0x85, 0xf8, 0, 0, 0],
                &[before(0, 2)],
                Some([3, 4]),
            ),
            // mov [rsp-8],rdx; jmp rax
            (0x1_0020, 0x1208, &[0x48, 0x89, 0x54, 0x24, 0xf8, 0xff, 0xe0], &[], None),
            // xchg rbx,rdx; shl rdx,4; movups [rbx+rdx],xmm0; jmp rax
            (
                0x2_0011,
                0x1300,
                &[0x48, 0x87, 0xd3, 0x48, 0xc1, 0xe2, 4, 0x0f, 0x11, 0x04, 0x13, 0xff, 0xe0],
                &[],
                None,
            ),
            // mov rbx,[rax]; call 0x1500
            (
                0x7_0010,
                0x1400,
                &[0x48, 0x8b, 0x18, 0xe8, 0xf8, 0, 0, 0],
                &[after(0, 3)],
                Some([6, 6]),
            ),
            // rep stosb, which is no sum; mov ecx,3; ret
            (
                0x7_0011,
                0x1500,
                &[0xf3, 0xaa, 0xb9, 3, 0, 0, 0, 0xc3],
                &[before(0, 1), before(0, 7), after(0, 7)],
                None,
            ),
        ];
        let unit = |(id, address, code, records, leads): Line<'_>| {
            // What only a branch or a call leads to.
            let flags = if [0x1208, 0x1500].contains(&address) { 0 } else { flags::WIDE };
            let records = records.iter().map(|&(insn, what)| UnitRecord { insn, what }).collect();
            let code_len = u16::try_from(code.len()).expect("it is short");
            let body = UnitBody { code_len, flags, records };
            let (id, address, reason) = (UnitId(id), LiveAddr(address), JitReason::Library);
            (JitUnit { id, address, version: 0, reason, body, code: code.to_vec() }, leads)
        };
        Program(lines.into_iter().map(unit).collect())
    }

    /// Units that may follow each other: a few of them again and again, then others.
    fn path(&self, random: &mut Random, len: usize) -> Vec<usize> {
        let mut path = Vec::new();
        let next = |at: usize, random: &mut Random| match self.0[at].1 {
            Some(both) => both[random.below(2)],
            None => [0, 1, 2, 4, 5][random.below(5)],
        };
        while path.len() < len {
            // It goes round from a unit that may lead anywhere.
            let mut round = vec![[0, 1, 2, 4, 5][random.below(5)]];
            for _ in 0..random.below(12) {
                round.push(next(round[round.len() - 1], random));
            }
            while self.0[round[round.len() - 1]].1.is_some() {
                round.push(next(round[round.len() - 1], random));
            }
            for _ in 0..1 + random.below(60) {
                path.extend_from_slice(&round);
            }
        }
        path
    }
}

/// What the units of a path record, and how long the streams are in front of each of them.
fn streams(program: &Program, path: &[usize], format: ControlFlow) -> (Vec<u8>, Vec<u64>) {
    let (mut bytes, mut starts, mut window) = (Vec::new(), Vec::new(), None);
    for &unit in path {
        starts.push(bytes.len() as u64);
        let unit = &program.0[unit].0;
        if format == ControlFlow::FullPc {
            bytes.extend_from_slice(&unit.address.0.to_le_bytes());
        } else if window == Some(unit.id.window()) && unit.body.flags & flags::WIDE == 0 {
            bytes.extend_from_slice(&unit.id.tag().to_le_bytes());
        } else {
            bytes.extend_from_slice(&tags::wide(unit.id).to_le_bytes());
            window = Some(unit.id.window());
        }
    }
    (bytes, starts)
}

fn open(
    program: &Program,
    path: &[usize],
    format: ControlFlow,
    memory: &[u8],
    changes: &[(usize, RegisterState)],
) -> Trace {
    let (control_flow, starts) = streams(program, path, format);
    let mut registers =
        RegisterState { rip: program.0[path[0]].0.address.0, valid: 0xffff, ..Default::default() };
    registers.gpr = std::array::from_fn(|n| 0x1_0000 * n as u64);
    let mut writer = TraceWriter::default();
    let options: Options = RecordingOptions {
        memory: Memory::Registers,
        control_flow: format,
        ..RecordingOptions::default()
    }
    .into();
    let words = [abi::trace::VERSION.into(), options.to_word(), 1, 0];
    let words = words.map(u64::to_le_bytes).concat();
    let described = event(Kind::Process, 0, 0, WHOLE_UNIT, &words);
    writer.payload(FrameKind::File, PROCESS, 0, &described);
    let mut list = Vec::new();
    program.0.iter().for_each(|(unit, _)| unit.encode(&mut list));
    writer.payload(FrameKind::Units, PROCESS, 0, &list);
    let mut start = [7u32.to_le_bytes(), [0; 4]].concat();
    start.extend_from_slice(&registers.to_bytes());
    let mut events = event(Kind::ThreadStart, 0, 0, WHOLE_UNIT, &start);
    for (at, state) in changes {
        let state = RegisterState { rip: program.0[path[*at]].0.address.0, ..*state };
        events.extend(event(Kind::Registers, 0, starts[*at], WHOLE_UNIT, &state.to_bytes()));
    }
    writer.payload(FrameKind::Events, 0, 0, &events);
    let memory = memory.to_vec();
    writer.record(&Record { registers, control_flow, memory, ..Default::default() });
    let mut temporary = tempfile::NamedTempFile::new().expect("temporary file");
    temporary.write_all(&writer.bytes).expect("write");
    Trace::open(temporary.path()).expect("a trace")
}

/// Everything, and how many units were in passages.
#[derive(Default)]
struct Seen<const REFERENCES: bool>(Vec<Result<MemoryReference, LiveAddr>>, usize, Known);

/// The units of passages, by how often all were forgotten and by their numbers.
type Known = HashMap<(u32, u32), Vec<u32>>;

impl<const REFERENCES: bool> Sink for Seen<REFERENCES> {
    const REFERENCES: bool = REFERENCES;
    fn reference(&mut self, reference: MemoryReference) {
        self.0.push(Ok(reference));
    }
    fn block(&mut self, pc: LiveAddr, _uncertain: bool) {
        self.0.push(Err(pc));
    }
    fn passage(&mut self, passed: &Passed<'_>) {
        let before = self.0.len();
        let units: Vec<u32> = passed.units().map(|(number, ..)| number).collect();
        self.1 += units.len();
        let known = self.2.entry((passed.forgotten, passed.number));
        assert_eq!(*known.or_insert_with(|| units.clone()), units);
        unit_by_unit(passed, self);
        let mut told = self.0[before..].to_vec();
        if passed.begins {
            assert_eq!(told.remove(0), Err(passed.start()));
        }
        let blocks: Vec<_> = told.iter().filter_map(|seen| seen.err()).collect();
        assert_eq!(blocks, passed.blocks().collect::<Vec<_>>());
        assert_eq!(blocks.len() as u64, passed.block_count());
        let mut column = Column::default();
        column.blocks(passed);
        if !REFERENCES {
            let begun = passed.begins.then(|| passed.start()).into_iter().chain(blocks);
            assert!(begun.map(|pc| pc.0).eq(column.values().iter().copied()));
        }
        let mut columns = References::default();
        columns.passage(passed);
        assert_eq!(columns.rows(), passed.references());
        let rows = (0..columns.rows()).map(|row| MemoryReference {
            pc: LiveAddr(columns.pcs.values()[row]),
            address: LiveAddr(columns.addresses.values()[row]),
            size: columns.sizes.values()[row],
            write: columns.writes.has(row),
        });
        assert!(rows.eq(told.into_iter().filter_map(Result::ok)));
    }
}

fn walk<const REFERENCES: bool>(trace: &Trace) -> (Seen<REFERENCES>, Result<ChunkEnd, String>) {
    let mut seen = Seen::default();
    let end = Walker::new(trace).walk(&trace.threads[0], 0, &mut seen);
    (seen, end.map_err(|violation| violation.what))
}

/// Units in passages, whether the trace is right, and how often passages were forgotten.
fn same<const REFERENCES: bool>(by_tags: &Trace, by_addresses: &Trace) -> (usize, bool, u32) {
    let (found, end) = walk::<REFERENCES>(by_tags);
    let (expected, expected_end) = walk::<REFERENCES>(by_addresses);
    let differs = found.0.iter().zip(&expected.0).position(|(one, other)| one != other);
    assert_eq!(differs, None);
    assert_eq!(found.0.len(), expected.0.len());
    assert_eq!(expected.1, 0);
    let is_right = end.is_ok();
    let short = |end: Result<ChunkEnd, String>| {
        end.map(|end| {
            let known: Vec<_> = end.known.known.iter().map(|r| (r, end.known.get(r))).collect();
            (end.units, end.instructions, end.memory, end.next, end.falls, known)
        })
    };
    assert_eq!(short(end), short(expected_end));
    let forgotten = found.2.keys().map(|&(forgotten, _)| forgotten).max();
    (found.1, is_right, forgotten.unwrap_or(0))
}

#[test]
fn passages_are_what_their_units_are() {
    let program = Program::new();
    let mut random = Random(0x1357_9bdf_0246_8ace);
    let (mut passed, mut wrong, mut units, mut forgotten) = (0, 0, 0, 0);
    for round in 0..60 {
        let path = program.path(&mut random, 4_000);
        let mut memory: Vec<u8> = Vec::new();
        for &unit in &path {
            for record in &program.0[unit].0.body.records {
                // The string instruction moves its pointer a little.
                let value = match record.what {
                    What::Before(Gpr(1 | 7)) => 0x5000,
                    What::After(Gpr(7)) => 0x5000 + random.next() % 4,
                    _ => random.next(),
                };
                memory.extend_from_slice(&value.to_le_bytes());
            }
        }
        let mut changes = Vec::new();
        for at in 1..path.len() {
            // (Where the branch leads is certain only to its own two ways.)
            if random.below(if round % 2 == 0 { 40 } else { 900 }) == 0 {
                let mut gpr = [0; 16];
                gpr.fill_with(|| random.next());
                // Now and then the address of a reference is not known.
                let valid = if round % 3 == 0 && random.below(9) == 0 { 0xffef } else { 0xffff };
                changes.push((at, RegisterState { gpr, valid, ..Default::default() }));
            }
        }
        if round % 5 == 4 {
            memory.truncate(memory.len() / 2);
        }
        let [by_tags, by_addresses] = [ControlFlow::Tags, ControlFlow::FullPc]
            .map(|format| open(&program, &path, format, &memory, &changes));
        let (both, is_right, times) = same::<true>(&by_tags, &by_addresses);
        forgotten += times;
        passed += both;
        wrong += usize::from(!is_right);
        passed += same::<false>(&by_tags, &by_addresses).0;
        units += 2 * path.len();
    }
    // The test is of what it is meant to be of.
    assert!(passed > units / 4, "{passed} of {units} units");
    assert!(wrong > 10 && wrong < 50 && forgotten > 10, "{wrong} wrong traces, {forgotten}");
}

#[test]
fn limits_rise_where_little_comes_again_and_fall_where_it_does() {
    let behind = super::patience_behind;
    let mut patience = 0;
    for _ in 0..9 {
        patience = behind(patience, 10, 100);
    }
    assert_eq!(patience, super::MOST_PATIENCE);
    assert_eq!(behind(patience, 60, 100), patience);
    for _ in 0..9 {
        patience = behind(patience, 80, 100);
    }
    assert_eq!(patience, 0);
}
