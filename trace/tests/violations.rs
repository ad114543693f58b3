//! What `verify` finds, and how events change the course of a thread.

use std::io::Write;

use abi::event::{Kind, LAST_NOT_DONE, WHOLE_UNIT};
use abi::ids::{Gpr, LiveAddr, UnitId};
use abi::options::{ControlFlow, Memory, Options, RecordingOptions};
use abi::trace::{bits, tags, FrameKind, RegisterState, PROCESS};
use abi::unit::{flags, JitReason, JitUnit, Record as UnitRecord, UnitBody, What};
use trace::test_support::{event, Record, TraceWriter};
use trace::verify::{verify, Summary};
use trace::walk::{MemoryReference, Sink, Walker};
use trace::Trace;

/// Bytes of a wide tag.
const WIDE_TAG: u64 = 4;

fn unit(tag: u32, address: u64, records: &[(u8, What)], code: &[u8]) -> JitUnit {
    let records = records.iter().map(|&(insn, what)| UnitRecord { insn, what }).collect();
    let body = UnitBody { code_len: code.len() as u16, flags: flags::WIDE, records };
    let reason = JitReason::Library;
    let (id, address) = (UnitId(0x1_0000 | tag), LiveAddr(address));
    JitUnit { id, address, version: 0, reason, body, code: code.to_vec() }
}

fn wide(tags: &[u32]) -> Vec<u8> {
    let mut out = Vec::new();
    for tag in tags {
        out.extend_from_slice(&tags::wide(UnitId(0x1_0000 | tag)).to_le_bytes());
    }
    out
}

fn registers(rip: u64) -> RegisterState {
    let mut state = RegisterState { rip, valid: 0xffff, ..Default::default() };
    state.gpr = [0x1000; 16];
    state
}

fn open(units: &[JitUnit], records: &[Record], events: &[Vec<u8>]) -> Trace {
    open_as(ControlFlow::Tags, units, records, events)
}

fn open_as(
    control_flow: ControlFlow,
    units: &[JitUnit],
    records: &[Record],
    events: &[Vec<u8>],
) -> Trace {
    let options =
        RecordingOptions { memory: Memory::Registers, control_flow, ..RecordingOptions::default() };
    open_with(options, &[], units, records, events)
}

/// `of_process`: events of the process.
fn open_with(
    options: RecordingOptions,
    of_process: &[Vec<u8>],
    units: &[JitUnit],
    records: &[Record],
    events: &[Vec<u8>],
) -> Trace {
    let mut writer = TraceWriter::default();
    let mut process = u64::from(abi::trace::VERSION).to_le_bytes().to_vec();
    let options: Options = options.into();
    for word in [options.to_word(), 1, 0] {
        process.extend_from_slice(&word.to_le_bytes());
    }
    let mut file = event(Kind::Process, 0, 0, WHOLE_UNIT, &process);
    let mut xsave = 0b111u64.to_le_bytes().to_vec();
    for (size, offset) in [(0u32, 0u32), (0, 0), (256, 576)] {
        xsave.extend_from_slice(&size.to_le_bytes());
        xsave.extend_from_slice(&offset.to_le_bytes());
    }
    xsave.resize(8 + 64 * 8, 0);
    file.extend(event(Kind::Xsave, 0, 0, WHOLE_UNIT, &xsave));
    writer.payload(FrameKind::File, PROCESS, 0, &file);
    if !of_process.is_empty() {
        writer.payload(FrameKind::Events, PROCESS, 0, &of_process.concat());
    }
    let mut list = Vec::new();
    units.iter().for_each(|u| u.encode(&mut list));
    writer.payload(FrameKind::Units, PROCESS, 0, &list);
    let mut start = [7u32.to_le_bytes(), [0; 4]].concat();
    start.extend_from_slice(&records[0].registers.to_bytes());
    let mut all = event(Kind::ThreadStart, 0, 0, WHOLE_UNIT, &start);
    all.extend(events.concat());
    writer.payload(FrameKind::Events, 0, 0, &all);
    records.iter().for_each(|r| writer.record(r));
    let mut temporary = tempfile::NamedTempFile::new().expect("temporary file");
    temporary.write_all(&writer.bytes).expect("write");
    Trace::open(temporary.path()).expect("a trace")
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn record(rip: u64, tags: &[u32], memory: Vec<u8>) -> Record {
    Record { registers: registers(rip), control_flow: wide(tags), memory, ..Default::default() }
}

#[derive(Default)]
struct Seen(Vec<u64>, Vec<(bool, u64, u32)>);

impl Sink for Seen {
    const REFERENCES: bool = true;
    fn block(&mut self, LiveAddr(pc): LiveAddr, _uncertain: bool) {
        self.0.push(pc);
    }
    fn reference(&mut self, r: MemoryReference) {
        self.1.push((r.write, r.address.0, r.size));
    }
}

fn seen(trace: &Trace) -> Seen {
    let mut seen = Seen::default();
    let mut walker = Walker::new(trace);
    for chunk in 0..trace.threads[0].chunks.len() {
        walker.walk(&trace.threads[0], chunk, &mut seen).expect("no violation");
    }
    seen
}

fn wrong(trace: &Trace) -> String {
    verify(trace).expect_err("a violation").to_string()
}

/// jmp to 0x2000; mov rax,[rax] at 0x2000 with its result recorded, then ret.
fn jump_and_load() -> Vec<JitUnit> {
    vec![
        unit(0x10, 0x1000, &[], &[0xe9, 0xfb, 0x0f, 0, 0]),
        unit(0x11, 0x2000, &[(0, What::After(Gpr(0)))], &[0x48, 0x8b, 0x00, 0xc3]),
        unit(0x12, 0x3000, &[], &[0x48, 0x8b, 0x03, 0x48, 0x8b, 0x00]),
    ]
}

#[test]
fn a_right_trace_passes() {
    let trace = open(&jump_and_load(), &[record(0x1000, &[0x10, 0x11], words(&[5]))], &[]);
    let summary = verify(&trace).expect("right");
    let expected = Summary { units: 2, instructions: 3, blocks: 2, references: 2, ..summary };
    assert_eq!(summary, expected);
}

#[test]
fn each_broken_promise_is_named() {
    let units = jump_and_load();
    let one = |tags: &[u32], memory: &[u64]| {
        wrong(&open(&units, &[record(0x1000, tags, words(memory))], &[]))
    };
    assert!(one(&[0x11], &[5]).contains("cannot follow"));
    assert!(one(&[0x10, 0x12], &[]).contains("cannot follow"));
    assert!(one(&[0x10, 0x13], &[]).contains("unknown unit 0x10013"));
    assert!(one(&[0x10, 0x11], &[]).contains("the memory stream ends inside unit"));
    assert!(one(&[0x10, 0x11], &[1, 2]).contains("has 16 bytes, its units took 8"));
    // The second load needs what the first one loaded.
    assert!(one(&[0x10, 0x11, 0x12], &[5]).contains("register 0 is not known at 0x3003"));
    let mut second = record(0x2000, &[0x11], words(&[5]));
    second.seq = 1;
    second.registers.gpr[3] = 0x1001;
    let trace = open(&units, &[record(0x1000, &[0x10], Vec::new()), second.clone()], &[]);
    assert!(
        wrong(&trace).contains("register 3 is 0x1001 at the start of the chunk, computed 0x1000")
    );
    // Of no use to the program: the unit behind overwrites it.
    let mut units = jump_and_load();
    units.push(unit(0x13, 0x2000, &[], &[0x90, 0xbb, 0, 0, 0, 0, 0xc3]));
    let mut lost = second.clone();
    lost.control_flow = wide(&[0x13]);
    lost.memory = Vec::new();
    let first = record(0x1000, &[0x10], Vec::new());
    verify(&open(&units, &[first.clone(), lost.clone()], &[])).expect("right");
    // Half of it, or behind a use of it.
    for code in [&[0x66, 0xbb, 0, 0, 0xc3][..], &[0x53, 0xbb, 0, 0, 0, 0, 0xc3]] {
        *units.last_mut().expect("units") = unit(0x13, 0x2000, &[], code);
        assert!(wrong(&open(&units, &[first.clone(), lost.clone()], &[])).contains("register 3"));
    }
    second.registers.valid = 0;
    second.seq = 2;
    let trace = open(&units, &[record(0x1000, &[0x10], Vec::new()), second], &[]);
    assert!(wrong(&trace).contains("frames 1 to 1 of thread 0 are missing"));
}

#[test]
fn a_signal_cuts_a_unit_short_and_sets_registers() {
    // push rax; push rax; mov rax,[rax]. The handler at 0x5000: push rcx; ret.
    let units = [
        unit(0x10, 0x1000, &[], &[0x50, 0x50, 0x48, 0x8b, 0x00]),
        unit(0x11, 0x5000, &[], &[0x51, 0xc3]),
        unit(0x12, 0x1001, &[], &[0x50, 0x48, 0x8b, 0x00]),
    ];
    let mut handler = registers(0x5000);
    handler.gpr[4] = 0x900;
    let mut payload = [11u32.to_le_bytes(), 1i32.to_le_bytes()].concat();
    payload.extend(words(&[0, 0x1001]));
    payload.extend_from_slice(&handler.to_bytes());
    let mut back = registers(0x1001);
    back.gpr[4] = 0xff8;
    let events = [
        event(Kind::Signal, 0, WIDE_TAG, 1, &payload),
        event(Kind::Resume, 0, 2 * WIDE_TAG, WHOLE_UNIT, &back.to_bytes()),
    ];
    let trace = open(&units, &[record(0x1000, &[0x10, 0x11, 0x12], Vec::new())], &events);
    let seen = seen(&trace);
    assert_eq!(seen.0, [0x1000, 0x5000, 0x1001]);
    let expected = [(true, 0xff8, 8), (true, 0x8f8, 8), (false, 0x8f8, 8), (true, 0xff0, 8)];
    assert_eq!(seen.1[..4], expected);
    assert_eq!(seen.1[4..], [(false, 0x1000, 8)]);
    verify(&trace).expect("right");
}

/// Who is interrupted before the first instruction of a block has not executed it. A fault is an instruction's own.
#[test]
fn a_block_counts_when_its_first_instruction_is_executed() {
    // jmp to 0x1010; nop; ret. The handler at 0x5000: ret.
    let units = [
        unit(0x10, 0x1000, &[], &[0xeb, 0x0e]),
        unit(0x11, 0x1010, &[], &[0x90, 0xc3]),
        unit(0x12, 0x5000, &[], &[0xc3]),
    ];
    let here = |kind, payload: &[u8]| event(kind, 0, 2 * WIDE_TAG, 0, payload);
    let interrupted = || here(Kind::Interrupted, &registers(0x1010).to_bytes());
    let blocks = |tags: &[u32], events: &[Vec<u8>]| {
        let trace = open(&units, &[record(0x1000, tags, Vec::new())], events);
        let blocks = seen(&trace).0;
        assert_eq!(verify(&trace).expect("right").blocks, blocks.len() as u64);
        blocks
    };
    let (usr1, segv, chld) = (10u32, 11u32, 17u32);
    for (signal, code, faults) in
        [(usr1, 0i32, false), (segv, 0, false), (chld, 1, false), (segv, 1, true)]
    {
        let mut payload = [signal.to_le_bytes(), code.to_le_bytes()].concat();
        payload.extend(words(&[0, 0x1010]));
        payload.extend_from_slice(&registers(0x5000).to_bytes());
        let back = registers(0x1010).to_bytes();
        let events = [
            interrupted(),
            here(Kind::Signal, &payload),
            event(Kind::Resume, 0, 3 * WIDE_TAG, WHOLE_UNIT, &back),
        ];
        let found = blocks(&[0x10, 0x11, 0x12, 0x11], &events);
        let expected = [&[0x1000][..], if faults { &[0x1010] } else { &[] }, &[0x5000, 0x1010]];
        assert_eq!(found, expected.concat(), "signal {signal}, code {code}");
    }
    // Its process ends there, or it goes on as if nothing had been.
    let ends = |signal: u32| {
        let mut payload = [2u32.to_le_bytes(), signal.to_le_bytes()].concat();
        payload.extend(words(&[0]));
        [interrupted(), here(Kind::ProcessEnd, &payload)]
    };
    assert_eq!(blocks(&[0x10, 0x11], &ends(usr1)), [0x1000]);
    assert_eq!(blocks(&[0x10, 0x11], &ends(segv)), [0x1000, 0x1010]);
    assert_eq!(blocks(&[0x10, 0x11, 0x11], &[interrupted()]), [0x1000, 0x1010]);
}

/// While a thread stands in a system call others run, and then a signal keeps it from making the call: it is made again
/// behind the handler.
#[test]
fn a_call_that_is_made_again_is_executed_once() {
    // nop; syscall. The call alone. nop; ret. The handler at 0x5000: ret.
    let units = [
        unit(0x10, 0x1000, &[], &[0x90, 0x0f, 0x05]),
        unit(0x11, 0x1001, &[], &[0x0f, 0x05]),
        unit(0x12, 0x1003, &[], &[0x90, 0xc3]),
        unit(0x13, 0x5000, &[], &[0xc3]),
    ];
    let mut signal = [10u32.to_le_bytes(), 0u32.to_le_bytes()].concat();
    signal.extend(words(&[0, 0x1001]));
    signal.extend_from_slice(&registers(0x5000).to_bytes());
    let back = registers(0x1001).to_bytes();
    let (once, again) = (WIDE_TAG, 3 * WIDE_TAG);
    let runs = |at, number| event(Kind::Runs, 0, at, WHOLE_UNIT, &words(&[number]));
    let kept = |at| event(Kind::Signal, 0, at, LAST_NOT_DONE, &signal);
    let events = [
        runs(once, 2),
        kept(once),
        event(Kind::Resume, 0, 2 * WIDE_TAG, WHOLE_UNIT, &back),
        runs(again, 4),
        runs(again, 5),
        kept(again),
        event(Kind::Resume, 0, 4 * WIDE_TAG, WHOLE_UNIT, &back),
        runs(5 * WIDE_TAG, 7),
        event(Kind::Syscall, 0, 5 * WIDE_TAG, WHOLE_UNIT, &words(&[39, 0, 0, 0, 0, 0, 0, 7])),
    ];
    let tags = [0x10, 0x13, 0x11, 0x13, 0x11, 0x12];
    let trace = open(&units, &[record(0x1000, &tags, Vec::new())], &events);
    assert_eq!(seen(&trace).0, [0x1000, 0x5000, 0x5000, 0x1001, 0x1003]);
    assert_eq!(verify(&trace).expect("right").instructions, 1 + 1 + 1 + 1 + 2);
}

/// The same where a chunk starts in the midst of a block, which began in the one before.
#[test]
fn who_is_interrupted_at_the_start_of_a_chunk_goes_on_with_the_block() {
    // nop, and behind it nop; ret.
    let units = [unit(0x10, 0x1000, &[], &[0x90]), unit(0x11, 0x1001, &[], &[0x90, 0xc3])];
    let mut second = record(0x1001, &[0x11, 0x11], Vec::new());
    second.seq = 1;
    let here = registers(0x1001).to_bytes();
    let interrupted = event(Kind::Interrupted, 1, WIDE_TAG, 0, &here);
    let chunks = [record(0x1000, &[0x10], Vec::new()), second];
    let trace = open(&units, &chunks, &[interrupted]);
    let summary = verify(&trace).expect("right");
    assert_eq!((summary.blocks, summary.instructions), (1, 3));
}

#[test]
fn system_calls_inside_a_unit_start_blocks_and_fs_follows_events() {
    // syscall; mov rdx,fs:[8] in one unit, then the same with another base.
    let code = [0x0f, 0x05, 0x64, 0x48, 0x8b, 0x14, 0x25, 8, 0, 0, 0];
    let mut again = code.to_vec();
    again.drain(..2);
    let units = [unit(0x10, 0x1000, &[], &code), unit(0x11, 0x100b, &[], &again)];
    let base = event(Kind::FsBase, 0, WIDE_TAG, WHOLE_UNIT, &words(&[0x7000]));
    let trace = open(&units, &[record(0x1000, &[0x10, 0x11], Vec::new())], &[base]);
    let seen = seen(&trace);
    assert_eq!(seen.0, [0x1000, 0x1002]);
    assert_eq!(seen.1, [(false, 8, 8), (false, 0x7008, 8)]);
}

#[test]
fn rare_operands() {
    let mut vector = [0u8; 64];
    for (i, index) in [1i32, -1, 2, 3].iter().enumerate() {
        vector[4 * i..4 * i + 4].copy_from_slice(&index.to_le_bytes());
    }
    let code = [
        // vpgatherdd zmm1{k2},[rax+zmm3*4]
        &[0x62, 0xf2, 0x7d, 0x4a, 0x90, 0x0c, 0x98][..],
        // xsavec [rsp+40h]; bt [rsi],rax; pop [rsp+8]; std-direction rep stosq
        &[0x0f, 0xc7, 0x64, 0x24, 0x40],
        &[0x48, 0x0f, 0xa3, 0x06],
        &[0x8f, 0x44, 0x24, 0x08],
        &[0xf3, 0x48, 0xab],
        // xlat
        &[0xd7],
    ];
    let records = [
        (0, What::Vector(3)),
        (0, What::Mask(2)),
        (1, What::Before(Gpr(0))),
        (1, What::Before(Gpr(2))),
        (2, What::Before(Gpr(0))),
        (4, What::After(Gpr(7))),
    ];
    let unit = unit(0x10, 0x1000, &records, &code.concat());
    let mut memory = vector.to_vec();
    memory.extend(words(&[0b1011, !0, 0, (-65i64) as u64, 0x1000 - 16]));
    let trace = open(&[unit], &[record(0x1000, &[0x10], memory)], &[]);
    let expected = [
        (false, 0x1004, 4),
        (false, 0xffc, 4),
        (false, 0x100c, 4),
        (true, 0x1040, 832),
        (false, 0x1000 - 16, 8),
        (false, 0x1000, 8),
        (true, 0x1010, 8),
        (true, 0x1000, 8),
        (true, 0xff8, 8),
        (false, 0x1000 + 0xbf, 1),
    ];
    assert_eq!(seen(&trace).1, expected);
    verify(&trace).expect("right");
}

#[test]
fn recorded_addresses_are_taken_as_they_are() {
    // mov rax,fs:[rdi+8]; add [rbx],rax; push rax; wrfsbase rdx; mov rax,fs:[0]
    let code = [
        &[0x64, 0x48, 0x8b, 0x47, 0x08][..],
        &[0x48, 0x01, 0x03],
        &[0x50],
        &[0xf3, 0x48, 0x0f, 0xae, 0xd2],
        &[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0],
    ];
    let records = [
        (0, What::Address(1)),
        (1, What::Address(0)),
        (2, What::Before(Gpr(4))),
        (3, What::Before(Gpr(2))),
    ];
    let unit = unit(0x10, 0x1000, &records, &code.concat());
    let mut record = record(0x1000, &[0x10], words(&[0x1111, 0x2222, 0x8000, 0x7000]));
    record.registers.valid = 0;
    let trace = open(&[unit], &[record], &[]);
    let expected = [
        (false, 0x1111, 8),
        (false, 0x2222, 8),
        (true, 0x2222, 8),
        (true, 0x7ff8, 8),
        (false, 0x7000, 8),
    ];
    assert_eq!(seen(&trace).1, expected);
}

#[test]
fn loss_leaves_nothing_known() {
    let units = jump_and_load();
    let payload = [1u32.to_le_bytes(), 28u32.to_le_bytes()].concat();
    let lost = [event(Kind::Loss, 0, WIDE_TAG, WHOLE_UNIT, &payload)];
    let trace = open(&units, &[record(0x1000, &[0x10, 0x12], Vec::new())], &lost);
    assert!(wrong(&trace).contains("register 3 is not known"));
}

/// push rax; mov rax,[rbx] with rbx recorded and its result; mov rcx,[rax] with rax known; then the
/// rest of it as a unit of its own, a handler that reads [rax] at 0x5000, and what comes behind.
fn interrupted() -> (Vec<JitUnit>, impl Fn(u32, u64, RegisterState) -> Vec<u8>) {
    let code = [0x50, 0x48, 0x8b, 0x03, 0x48, 0x8b, 0x08];
    let units = vec![
        unit(0x10, 0x1000, &[(1, What::Before(Gpr(3))), (1, What::After(Gpr(0)))], &code),
        unit(0x11, 0x5000, &[], &[0x48, 0x8b, 0x00, 0xc3]),
        unit(0x12, 0x5000, &[(0, What::Before(Gpr(0)))], &[0x48, 0x8b, 0x00, 0xc3]),
    ];
    let signal = |insn, pc, handler: RegisterState| {
        let mut payload = [11u32.to_le_bytes(), 1i32.to_le_bytes()].concat();
        payload.extend(words(&[0, pc]));
        payload.extend_from_slice(&handler.to_bytes());
        event(Kind::Signal, 0, WIDE_TAG, insn, &payload)
    };
    (units, signal)
}

#[test]
fn an_interrupted_unit_has_claimed_memory_for_all_of_its_records() {
    let (units, signal) = interrupted();
    for (insn, pc, references) in [
        (0, 0x1000, &[][..]),
        (1, 0x1001, &[(true, 0xff8, 8)]),
        (2, 0x1004, &[(true, 0xff8, 8), (false, 0x700, 8)]),
    ] {
        // What instructions that were not executed would have written means nothing.
        let memory = words(&[if insn > 1 { 0x700 } else { 0xdead }, 0xbeef, 0x900]);
        let events = [signal(insn, pc, registers(0x5000))];
        let trace = open(&units, &[record(0x1000, &[0x10, 0x12], memory.clone())], &events);
        let seen = seen(&trace);
        assert_eq!(seen.0, [0x1000, 0x5000]);
        let (unit, handler) = seen.1.split_at(references.len());
        assert_eq!(unit, references);
        assert_eq!(handler[0], (false, 0x900, 8));
        verify(&trace).expect("right");
        let trace = open(&units, &[record(0x1000, &[0x10, 0x12], memory[..16].to_vec())], &events);
        assert!(wrong(&trace).contains("the memory stream ends inside unit"));
    }
}

#[test]
fn the_last_unit_of_a_process_that_was_ended_has_claimed_its_memory() {
    let (units, _) = interrupted();
    let payload = [2u32.to_le_bytes(), 11u32.to_le_bytes()].concat();
    let end = [payload, words(&[0x700])].concat();
    let ended = [event(Kind::ProcessEnd, 0, WIDE_TAG, 1, &end)];
    let trace = open(&units, &[record(0x1000, &[0x10], words(&[0, 0]))], &ended);
    assert_eq!(seen(&trace).1, [(true, 0xff8, 8)]);
    verify(&trace).expect("right");
    let trace = open(&units, &[record(0x1000, &[0x10], Vec::new())], &ended);
    assert!(wrong(&trace).contains("the memory stream ends inside unit"));
    // Killed from outside: nobody knows how far it came.
    let mut killed = record(0x1000, &[0x10], words(&[0, 0]));
    killed.open = true;
    let trace = open(&units, &[killed], &[]);
    let mut seen = Seen::default();
    let end = Walker::new(&trace).walk(&trace.threads[0], 0, &mut seen).expect("no violation");
    assert!(end.partial);
    assert_eq!((end.memory.0, seen.1.len()), (16, 0));
    verify(&trace).expect("right");
}

#[test]
fn registers_that_an_event_does_not_vouch_for_are_unknown() {
    let (units, signal) = interrupted();
    let mut handler = registers(0x5000);
    handler.valid = !1;
    let memory = words(&[0x700, 0, 0x900]);
    let flow = record(0x1000, &[0x10, 0x12], memory);
    let trace = open(&units, &[flow], &[signal(2, 0x1004, handler)]);
    verify(&trace).expect("it is recorded where it is needed");
    let flow = record(0x1000, &[0x10, 0x11], words(&[0x700, 0]));
    let trace = open(&units, std::slice::from_ref(&flow), &[signal(2, 0x1004, handler)]);
    assert!(wrong(&trace).contains("register 0 is not known at 0x5000"));
    let trace = open(&units, &[flow], &[signal(2, 0x1004, registers(0x5000))]);
    verify(&trace).expect("the handler knows it");
}

#[test]
fn a_chunk_may_start_with_a_narrow_tag_of_its_window() {
    let units = jump_and_load();
    let mut flow = record(0x1000, &[], words(&[5]));
    flow.control_flow = [0x10u16.to_le_bytes(), 0x11u16.to_le_bytes()].concat();
    flow.window = 1;
    verify(&open(&units, std::slice::from_ref(&flow), &[])).expect("right");
    flow.window = 2;
    assert!(wrong(&open(&units, std::slice::from_ref(&flow), &[])).contains("unknown unit 0x20010"));
    flow.window = 0;
    assert!(wrong(&open(&units, &[flow], &[])).contains("no window is current"));
}

#[test]
fn a_wide_tag_that_is_being_written_is_not_there_yet() {
    let units = jump_and_load();
    let mut flow = record(0x1000, &[0x10, 0x11, 0x12], words(&[5]));
    flow.control_flow.truncate(4 + 4 + 2);
    flow.control_flow.extend_from_slice(&[0; 6]);
    assert!(wrong(&open(&units, std::slice::from_ref(&flow), &[])).contains("an end mark inside"));
    flow.open = true;
    assert_eq!(verify(&open(&units, &[flow], &[])).expect("right").units, 2);
}

#[test]
fn bits_events_come_behind_the_silent_units_before_them() {
    // 1000: push rax; jmp 2000. 2000 (not wide): push rax; mov rax,[rbx]; je 2000. 5000: syscall.
    let mut loads = unit(
        0x11,
        0x2000,
        &[(1, What::Before(Gpr(3))), (1, What::After(Gpr(0)))],
        &[0x50, 0x48, 0x8b, 0x03, 0x74, 0xfa],
    );
    loads.body.flags = 0;
    let mut pushes = unit(0x13, 0x5001, &[], &[0x50, 0x0f, 0x05]);
    pushes.body.flags = 0;
    let units = [
        unit(0x10, 0x1000, &[], &[0x50, 0xe9, 0xfa, 0x0f, 0, 0]),
        loads,
        unit(0x12, 0x5000, &[], &[0x51]),
        pushes,
    ];
    let target = |address: u64| [vec![bits::TARGET], words(&[address])].concat();
    for (insn, pc, references) in [(0, 0x2000, &[][..]), (1, 0x2001, &[(true, 0xff0, 8)][..])] {
        let mut payload = [11u32.to_le_bytes(), 1i32.to_le_bytes()].concat();
        payload.extend(words(&[0, pc]));
        payload.extend_from_slice(&registers(0x5000).to_bytes());
        // The outcome of the interrupted unit's branch was claimed and never written.
        let flow = [target(0x1000), vec![0], target(0x5000)].concat();
        let back = registers(0x1000).to_bytes();
        let events = [
            event(Kind::Signal, 0, 10, insn, &payload),
            event(Kind::Resume, 0, 19, WHOLE_UNIT, &back),
            event(Kind::ThreadEnd, 0, 28, WHOLE_UNIT, &words(&[2])),
        ];
        let mut flow = Record { control_flow: flow, ..record(0x1000, &[], words(&[1, 2])) };
        flow.control_flow.extend(target(0x1000));
        let trace = open_as(ControlFlow::Bits, &units, &[flow], &events);
        let seen = seen(&trace);
        assert_eq!(seen.0, [0x1000, 0x2000, 0x5000, 0x1000]);
        assert_eq!(seen.1[..1], [(true, 0xff8, 8)]);
        let handler = [(true, 0xff8, 8), (true, 0xff0, 8), (true, 0xff8, 8)];
        assert_eq!(seen.1[1..], [references, &handler].concat());
        verify(&trace).expect("right");
    }
}

/// A thread that ends itself executes nothing behind that call, whatever is known of the code there; and all that comes
/// before the call, behind another one that returned.
#[test]
fn bits_ends_with_the_call_that_ends_the_thread() {
    let silent = |tag, address, code: &[u8]| {
        let mut unit = unit(tag, address, &[], code);
        unit.body.flags = 0;
        unit
    };
    // nop; syscall. nop; int 0x80. nop; ret.
    let units = [
        unit(0x10, 0x1000, &[], &[0x90, 0x0f, 0x05]),
        silent(0x11, 0x1003, &[0x90, 0xcd, 0x80]),
        silent(0x12, 0x1006, &[0x90, 0xc3]),
    ];
    let flow = [vec![bits::TARGET], words(&[0x1000])].concat();
    let here = flow.len() as u64;
    let events = [
        event(Kind::Syscall, 0, here, WHOLE_UNIT, &words(&[39, 0, 0, 0, 0, 0, 0, 7])),
        event(Kind::ThreadEnd, 0, here, WHOLE_UNIT, &words(&[1])),
    ];
    let flow = Record { control_flow: flow, ..record(0x1000, &[], Vec::new()) };
    let trace = open_as(ControlFlow::Bits, &units, &[flow], &events);
    assert_eq!(seen(&trace).0, [0x1000, 0x1003]);
    assert_eq!(verify(&trace).expect("right").instructions, 4);
}

/// A trap behind the last instruction of a unit has its place inside of that unit, not of the one that follows from it.
#[test]
fn bits_takes_what_happens_behind_the_last_instruction_of_a_unit() {
    // nop. push rax; ret. The handler: push rcx; ret.
    let mut pushes = unit(0x11, 0x1001, &[], &[0x50, 0xc3]);
    pushes.body.flags = 0;
    let units = [unit(0x10, 0x1000, &[], &[0x90]), pushes, unit(0x12, 0x5000, &[], &[0x51, 0xc3])];
    let target = |address: u64| [vec![bits::TARGET], words(&[address])].concat();
    let flow = [target(0x1000), target(0x5000)].concat();
    let mut payload = [5u32.to_le_bytes(), 2i32.to_le_bytes()].concat();
    payload.extend(words(&[0, 0x1001]));
    payload.extend_from_slice(&registers(0x5000).to_bytes());
    let events = [
        event(Kind::Signal, 0, 9, 1, &payload),
        event(Kind::Resume, 0, 18, WHOLE_UNIT, &registers(0x1001).to_bytes()),
    ];
    let flow = Record { control_flow: flow, ..record(0x1000, &[], Vec::new()) };
    let trace = open_as(ControlFlow::Bits, &units, &[flow], &events);
    let seen = seen(&trace);
    assert_eq!(seen.0, [0x1000, 0x5000, 0x1001]);
    assert_eq!(seen.1.iter().filter(|(write, ..)| *write).count(), 2);
    verify(&trace).expect("right");
}

/// A thread that is interrupted in front of a unit's first instruction has entered it, also where it has just come to it
/// behind another interruption.
#[test]
fn bits_enters_a_unit_each_time_that_it_is_interrupted_in_front_of_it() {
    // push rax; mov rax,[rbx]; push rax; and what goes on behind the first push, in two translations.
    let narrow = |mut unit: JitUnit| {
        unit.body.flags = 0;
        unit
    };
    let rest = |tag| unit(tag, 0x1001, &[(0, What::Before(Gpr(3)))], &[0x48, 0x8b, 0x03, 0x50]);
    let units = [
        unit(0x10, 0x1000, &[(1, What::Before(Gpr(3)))], &[0x50, 0x48, 0x8b, 0x03, 0x50]),
        narrow(rest(0x11)),
        rest(0x12),
    ];
    let state = registers(0x1001).to_bytes();
    let target = |address: u64| [vec![bits::TARGET], words(&[address])].concat();
    for (again, announced) in [(0, false), (1, false), (2, false), (1, true), (2, true)] {
        let mut control_flow = target(0x1000);
        if announced {
            control_flow.extend(target(0x1001));
        }
        let entered = [vec![1], vec![2; again], vec![0x7000]].concat();
        let interrupted = |insn| event(Kind::Interrupted, 0, 9, insn, &state);
        let mut events = vec![interrupted(1)];
        events.extend((0..again).map(|_| interrupted(0)));
        let end = control_flow.len() as u64;
        events.push(event(Kind::ThreadEnd, 0, end, WHOLE_UNIT, &words(&[2])));
        let flow = Record { control_flow, ..record(0x1000, &[], words(&entered)) };
        let trace = open_as(ControlFlow::Bits, &units, &[flow], &events);
        let references = [(true, 0xff8, 8), (false, 0x7000, 8), (true, 0xff8, 8)];
        assert_eq!(seen(&trace).1, references, "{again} times");
        assert_eq!(verify(&trace).expect("right").units, 2 + again as u64);
    }
}

#[test]
fn bits_goes_no_further_than_to_the_unit_in_which_a_fault_ends_the_process() {
    // push rax, and behind it, in a unit of its own that adds nothing: push rax; push rax.
    let mut rest = unit(0x11, 0x1001, &[], &[0x50, 0x50]);
    rest.body.flags = 0;
    let units = [unit(0x10, 0x1000, &[], &[0x50]), rest];
    let control_flow = [vec![bits::TARGET], words(&[0x1000])].concat();
    let end = [[2u32.to_le_bytes(), 11u32.to_le_bytes()].concat(), words(&[0x700])].concat();
    for done in 0..2 {
        let state = registers(0x1001 + u64::from(done)).to_bytes();
        let events = [
            event(Kind::Interrupted, 0, 9, done, &state),
            event(Kind::ProcessEnd, 0, 9, done, &end),
        ];
        let flow = Record { control_flow: control_flow.clone(), ..record(0x1000, &[], Vec::new()) };
        let trace = open_as(ControlFlow::Bits, &units, &[flow], &events);
        let references = [(true, 0xff8, 8), (true, 0xff0, 8)];
        assert_eq!(seen(&trace).1, references[..1 + done as usize], "{done} done");
        assert_eq!(verify(&trace).expect("right").units, 2);
    }
}

#[test]
fn an_interrupted_string_instruction_reports_what_it_completed() {
    // push rax; rep movsd; the handler at 0x5000: mov rax,[rcx] with rcx as the event says.
    let records = [(1, What::Before(Gpr(6))), (1, What::After(Gpr(7)))];
    let units = [
        unit(0x10, 0x1000, &records, &[0x50, 0xf3, 0xa5]),
        unit(0x12, 0x5000, &[], &[0x48, 0x8b, 0x01, 0xc3]),
    ];
    let mut signal = [11u32.to_le_bytes(), 1i32.to_le_bytes()].concat();
    signal.extend(words(&[0, 0x1001]));
    signal.extend_from_slice(&registers(0x5000).to_bytes());
    let moved = [(false, 0x700, 4), (true, 0x1000, 4), (false, 0x704, 4), (true, 0x1004, 4)];
    let back = [(false, 0x700, 4), (true, 0x1000, 4), (false, 0x6fc, 4), (true, 0xffc, 4)];
    for (rdi, valid, references) in [
        (0x1008u64, 0xffff, &moved[..]),
        (0xff8, 0xffff, &back[..]),
        (0x1000, 0xffff, &[]),
        (0x1008, 0xff7f, &[]),
    ] {
        let mut state = registers(0x1001);
        (state.gpr[7], state.valid) = (rdi, valid);
        // The record behind the instruction was claimed and never written.
        let memory = words(&[0x700, 0xdead]);
        let interrupted = event(Kind::Interrupted, 0, WIDE_TAG, 1, &state.to_bytes());
        let trace = open(
            &units,
            &[record(0x1000, &[0x10, 0x12], memory.clone())],
            &[interrupted.clone(), event(Kind::Signal, 0, WIDE_TAG, 1, &signal)],
        );
        let found = seen(&trace);
        assert_eq!(found.0, [0x1000, 0x5000]);
        assert_eq!(found.1[0], (true, 0xff8, 8));
        assert_eq!(found.1[1..1 + references.len()], *references);
        assert_eq!(found.1[1 + references.len()..], [(false, 0x1000, 8); 2]);
        verify(&trace).expect("right");
        let end = [[2u32.to_le_bytes(), 11u32.to_le_bytes()].concat(), words(&[0x700])].concat();
        let ended = event(Kind::ProcessEnd, 0, WIDE_TAG, 1, &end);
        let flow = record(0x1000, &[0x10], memory);
        let trace = open(&units, &[flow], &[interrupted, ended]);
        assert_eq!(seen(&trace).1[1..], *references);
        verify(&trace).expect("right");
    }
    // Half an iteration cannot be.
    let mut state = registers(0x1001);
    state.gpr[7] = 0x1002;
    let interrupted = event(Kind::Interrupted, 0, WIDE_TAG, 1, &state.to_bytes());
    let flow = record(0x1000, &[0x10], words(&[0x700, 0]));
    assert!(wrong(&open(&units, &[flow], &[interrupted])).contains("moved its pointer by 2"));
}

#[test]
fn bits_finds_units_that_are_not_announced_by_kind_and_version() {
    // 1000: jmp 2000. 2000: push rax; ret, in three translations, one of them not announced.
    let push = |tag: u32, version: u16, flags: u8, insns: usize| {
        let mut pushes = unit(tag, 0x2000, &[], &[vec![0x50; insns], vec![0xc3]].concat());
        (pushes.version, pushes.body.flags) = (version, flags);
        pushes
    };
    let units = [
        unit(0x10, 0x1000, &[], &[0xe9, 0xfb, 0x0f, 0, 0]),
        push(0x11, 2, 0, 2),
        push(0x12, 1, flags::WIDE, 1),
        push(0x13, 3, flags::WIDE, 3),
    ];
    let target = |word: u64| [vec![bits::TARGET], words(&[word])].concat();
    let announced = [target(0x1000), target(0x2000 | 3 << 48)].concat();
    for (rip, flow, references) in
        [(0x1000, target(0x1000), 3), (0x1000, announced, 4), (0x2000, Vec::new(), 3)]
    {
        let mut flow = Record { control_flow: flow, ..record(rip, &[], Vec::new()) };
        // Means nothing here.
        flow.window = 9;
        let at = flow.control_flow.len() as u64;
        let end = event(Kind::ThreadEnd, 0, at, WHOLE_UNIT, &words(&[2]));
        let trace = open_as(ControlFlow::Bits, &units, &[flow], &[end]);
        verify(&trace).expect("right");
        assert_eq!(seen(&trace).1.len(), references, "from {rip:#x}");
    }
    // Which of two that are not announced was meant, nothing tells.
    let two = [units[0].clone(), units[1].clone(), push(0x12, 1, 0, 1)];
    let flow = Record { control_flow: target(0x1000), ..record(0x1000, &[], Vec::new()) };
    let end = event(Kind::ThreadEnd, 0, flow.control_flow.len() as u64, WHOLE_UNIT, &words(&[2]));
    let error = verify(&open_as(ControlFlow::Bits, &two, &[flow], &[end])).expect_err("refused");
    assert!(error.to_string().contains("2000"), "{error}");
}

// --- a part of the code ---

fn mark(bits: u8) -> Vec<u8> {
    u16::from(abi::trace::outside::FIRST + bits).to_le_bytes().to_vec()
}

/// What is executed: blocks, and stays in code that is not recorded (0).
#[derive(Default)]
struct Stays(Vec<u64>);

impl Sink for Stays {
    const REFERENCES: bool = true;

    fn block(&mut self, pc: LiveAddr, _uncertain: bool) {
        self.0.push(pc.0);
    }

    fn outside(&mut self) {
        self.0.push(0);
    }

    fn reference(&mut self, r: MemoryReference) {
        self.0.push(r.address.0);
    }
}

/// `mov eax, [rsi]; nop` at 0x5000, which knows rsi only if it is told.
fn loads(tells: bool) -> JitUnit {
    let records = [(0, What::Before(Gpr(6)))];
    let records = if tells { &records[..] } else { &[] };
    unit(0x20, 0x5000, records, &[0x8b, 0x06, 0x90])
}

/// `jmp 0x6000` at 0x4000
fn jumps() -> JitUnit {
    unit(0x21, 0x4000, &[], &[0xe9, 0xfb, 0x1f, 0, 0])
}

fn walk_a_part(
    selective: bool,
    tells: bool,
    control_flow: &[Vec<u8>],
    memory: &[u64],
) -> (Result<Summary, String>, Vec<u64>) {
    let options = RecordingOptions { selective, ..RecordingOptions::default() };
    let record = Record {
        registers: registers(0x4000),
        control_flow: control_flow.concat(),
        memory: words(memory),
        ..Record::default()
    };
    let trace = open_with(options, &[], &[loads(tells), jumps()], &[record], &[]);
    let mut seen = Stays::default();
    let _ = Walker::new(&trace).walk(&trace.threads[0], 0, &mut seen);
    (verify(&trace).map_err(|e| e.to_string()), seen.0)
}

#[test]
fn behind_code_that_is_not_recorded_anything_may_follow_and_nothing_is_known() {
    let (outside, falls) = (mark(0), mark(abi::trace::outside::FALLS));
    let (ok, seen) =
        walk_a_part(true, true, &[wide(&[0x21]), outside.clone(), wide(&[0x20])], &[7]);
    assert!(ok.is_ok(), "{ok:?}");
    assert_eq!(seen, [0x4000, 0, 0x5000, 7]);
    // Several marks are one stay, and what it falls to continues its block.
    let stays = [wide(&[0x21]), outside.clone(), falls, wide(&[0x20])];
    assert_eq!(walk_a_part(true, true, &stays, &[7]).1, [0x4000, 0, 7]);
    // The jump leads to 0x6000.
    let (error, _) = walk_a_part(true, true, &[wide(&[0x21, 0x20])], &[7]);
    assert!(error.expect_err("a gap").contains("expected At(6000)"));
    let (error, _) =
        walk_a_part(true, false, &[wide(&[0x21]), outside.clone(), wide(&[0x20])], &[]);
    assert!(error.expect_err("a register").contains("register 6 is not known"));
    let (error, _) = walk_a_part(false, true, &[wide(&[0x21]), outside, wide(&[0x20])], &[7]);
    assert!(error.expect_err("a mark").contains("unknown control word 8"));
}

#[test]
fn a_mark_says_the_fs_base() {
    use abi::trace::outside::{FS_BASE, LOW_HALF};
    // mov eax, fs:[8]
    let code = [0x64, 0x8b, 0x04, 0x25, 8, 0, 0, 0];
    let options = RecordingOptions { selective: true, ..RecordingOptions::default() };
    for (bits, address) in [(FS_BASE, 0x1_2345_6008), (FS_BASE | LOW_HALF, 0x2345_6008)] {
        let record = Record {
            registers: registers(0x5000),
            control_flow: [mark(bits), wide(&[0x20])].concat(),
            memory: words(&[0x1_2345_6000]),
            ..Record::default()
        };
        let units = [unit(0x20, 0x5000, &[], &code)];
        let trace = open_with(options, &[], &units, &[record], &[]);
        verify(&trace).expect("a trace");
        let mut seen = Stays::default();
        let _ = Walker::new(&trace).walk(&trace.threads[0], 0, &mut seen);
        assert_eq!(seen.0, [0, 0x5000, address]);
    }
}

#[test]
fn a_unit_of_code_that_is_not_recorded_is_a_violation() {
    let options = RecordingOptions { selective: true, ..RecordingOptions::default() };
    let recorded = |pieces: &[u64]| {
        let mut payload = words(&[0x5000, 0x1000, 0x4000, 8 * pieces.len() as u64]);
        payload.extend(words(pieces));
        [event(Kind::Selected, 0, 0, WHOLE_UNIT, &payload)]
    };
    let verified = |pieces: &[u64]| {
        let record = Record {
            registers: registers(0x5000),
            control_flow: wide(&[0x20]),
            memory: words(&[7]),
            ..Record::default()
        };
        let trace = open_with(options, &recorded(pieces), &[loads(true)], &[record], &[]);
        verify(&trace).map_err(|e| e.to_string())
    };
    assert!(verified(&[0x1000, 0x1001]).is_ok());
    for pieces in [&[][..], &[0x1001, 0x1010], &[0, 0x1000]] {
        let error = verified(pieces).expect_err("it is not recorded");
        assert!(error.contains("is of code that is not recorded"), "{error}");
    }
}
