//! Writes small traces, for tests: frames with right checksums from parts.

use abi::event::{EventHeader, Kind, Position, WHOLE_UNIT};
use abi::ids::{Gpr, LiveAddr, StreamOff, UnitId};
use abi::packing;
use abi::trace::{
    Checksum, FrameHeader, FrameKind, RegisterState, FRAME_MAGIC, HEADER_SIZE, PACKED, PAYLOAD,
    PROCESS, RECORD_DATA, RECORD_REGISTERS, SEALED,
};
use abi::unit::{JitReason, JitUnit, Record as UnitRecord, UnitBody, What};

/// A trace under construction.
#[derive(Default)]
pub struct TraceWriter {
    /// The file.
    pub bytes: Vec<u8>,
}

/// One Record frame.
#[derive(Clone, Default)]
pub struct Record {
    /// Dense index of the thread.
    pub thread: u32,
    /// Counts the frames of the thread.
    pub seq: u32,
    /// At the start.
    pub registers: RegisterState,
    /// The control-flow stream.
    pub control_flow: Vec<u8>,
    /// The memory stream.
    pub memory: Vec<u8>,
    /// Current window at the start of the control-flow stream.
    pub window: u32,
    /// It is not complete.
    pub open: bool,
    /// If it is complete, its streams are packed.
    pub packed: bool,
}

/// A number that is small in a test.
fn small<From, To: TryFrom<From>>(number: From) -> To {
    To::try_from(number).unwrap_or_else(|_| unreachable!("samples are small"))
}

/// An event with this payload, which need not make sense.
pub fn event(kind: Kind, chunk: u32, control_flow: u64, insn: u32, payload: &[u8]) -> Vec<u8> {
    let mut payload = payload.to_vec();
    payload.resize(payload.len().next_multiple_of(8), 0);
    let position = Position { chunk, control_flow: StreamOff(control_flow), insn };
    let header = EventHeader { kind: kind as u16, len: small(payload.len()), position };
    [header.to_bytes().as_slice(), &payload].concat()
}

fn checksum(parts: &[&[u8]]) -> u32 {
    let mut sum = Checksum::default();
    for part in parts {
        let mut padded = part.to_vec();
        padded.resize(part.len().next_multiple_of(8), 0);
        sum.add(&padded);
    }
    sum.finish()
}

impl TraceWriter {
    fn frame(&mut self, mut header: FrameHeader, start: usize, body: &[u8]) {
        header.magic = FRAME_MAGIC;
        header.frame_len = (start + body.len() + 8).next_multiple_of(4096) as u64;
        header.header_checksum = header.fixed_checksum();
        let at = self.bytes.len();
        self.bytes.resize(at + usize::try_from(header.frame_len).expect("small"), 0);
        self.bytes[at..at + HEADER_SIZE].copy_from_slice(&header.to_bytes());
        self.bytes[at + start..at + start + body.len()].copy_from_slice(body);
    }

    /// Adds a sealed File, Events or Units frame.
    pub fn payload(&mut self, kind: FrameKind, thread: u32, seq: u32, payload: &[u8]) {
        let header = FrameHeader {
            kind: kind as u16,
            state: SEALED,
            thread,
            seq,
            used: payload.len() as u64,
            checksum: checksum(&[payload]),
            ..FrameHeader::default()
        };
        self.frame(header, PAYLOAD, payload);
    }

    /// Adds a Record frame.
    pub fn record(&mut self, record: &Record) {
        let registers = record.registers.to_bytes();
        if record.packed && !record.open {
            return self.packed(record, &registers);
        }
        let split = RECORD_DATA + (record.memory.len() + 8).next_multiple_of(4096);
        let mut header = FrameHeader {
            kind: FrameKind::Record as u16,
            thread: record.thread,
            seq: record.seq,
            split: split as u64,
            window: record.window,
            ..FrameHeader::default()
        };
        if !record.open {
            header.state = SEALED;
            header.used = record.control_flow.len() as u64;
            header.used_memory = record.memory.len() as u64;
            header.checksum = checksum(&[&registers, &record.memory, &record.control_flow]);
        }
        let mut body = vec![0; split - RECORD_REGISTERS];
        body[..registers.len()].copy_from_slice(&registers);
        let memory_at = RECORD_DATA - RECORD_REGISTERS;
        body[memory_at..memory_at + record.memory.len()].copy_from_slice(&record.memory);
        body.extend_from_slice(&record.control_flow);
        self.frame(header, RECORD_REGISTERS, &body);
    }

    fn packed(&mut self, record: &Record, registers: &[u8]) {
        let words = |bytes: &[u8]| -> Vec<u64> {
            let word = |bytes: &[u8]| {
                bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
            };
            bytes.chunks(8).map(word).collect()
        };
        let (memory, flow) = (words(&record.memory), words(&record.control_flow));
        let mut codes = vec![0; packing::codes(memory.len())];
        let mut differences = vec![0; memory.len() * 8];
        let put = |out: &mut Vec<u8>, at: usize, word: u64| {
            out[at..at + 8].copy_from_slice(&word.to_le_bytes());
        };
        let len =
            packing::pack_memory(&memory, &mut codes, |at, word| put(&mut differences, at, word));
        differences.truncate(len);
        differences.resize(len.next_multiple_of(8), 0);
        let mut bits = vec![0; packing::bits(flow.len())];
        let mut others = vec![0; flow.len() * 8];
        let mut followers = vec![0; size_of::<packing::Followers>() / 8];
        let Some(followers) = followers.first_chunk_mut() else { unreachable!("it is as long") };
        let len = packing::pack_flow(&flow, followers, &mut bits, |at, word| {
            put(&mut others, at, word);
        });
        others.truncate(len);
        let flow_len = ((bits.len() + others.len()) as u64).to_le_bytes();
        let mut body = [registers, &flow_len].concat();
        body.resize(packing::STREAMS - RECORD_REGISTERS, 0);
        body.extend([codes, differences].concat());
        let split = RECORD_REGISTERS + body.len();
        body.extend([bits, others].concat());
        let header = FrameHeader {
            kind: FrameKind::Record as u16,
            state: PACKED,
            thread: record.thread,
            seq: record.seq,
            split: split as u64,
            window: record.window,
            used: record.control_flow.len() as u64,
            used_memory: record.memory.len() as u64,
            checksum: checksum(&[&body]),
            ..FrameHeader::default()
        };
        self.frame(header, RECORD_REGISTERS, &body);
    }
}

/// What [`sample`] varies.
pub struct Sample {
    /// How it is recorded.
    pub options: abi::options::Options,
    /// Where the recording is split into chunks: after this many units.
    pub split: usize,
    /// Chunks start with the window that was current, instead of none.
    pub carry_window: bool,
    /// The last chunk is not complete.
    pub open: bool,
    /// Chunks that are complete are packed.
    pub packed: bool,
}

/// System calls that [`sample`] claims to have made at its end: number, arguments, result.
pub const SAMPLE_CALLS: [(u64, [u64; 6], i64); 4] = [
    (1, [1, 0x5000, 12, 0, 0, 0], 12),
    (9, [0, 4096, 3, 0x22, u64::MAX, 0], 0x7f12_3456_7000),
    (334, [0x6000, 32, 0, 0, 0, 0], 0),
    (1, [1, 0x5000, 12, 0, 0, 0], -9),
];

/// Addresses of the sample's units.
pub const A: u64 = 0x40_1000;
/// A procedure that the first one calls.
pub const B: u64 = 0x40_2000;
/// The loop in it.
pub const C: u64 = 0x40_200c;

fn unit(id: u32, address: u64, wide: bool, records: &[(u8, What)], code: &[u8]) -> JitUnit {
    let records = records.iter().map(|&(insn, what)| UnitRecord { insn, what }).collect();
    JitUnit {
        id: UnitId(id),
        address: LiveAddr(address),
        version: 0,
        reason: JitReason::Library,
        body: UnitBody {
            code_len: small(code.len()),
            flags: if wide { abi::unit::flags::WIDE } else { 0 },
            records,
        },
        code: code.to_vec(),
    }
}

/// The units of [`sample`]: A calls B; B copies three bytes and falls through to C, which counts
/// rcx down with `loop` to itself and returns to A's second half.
pub fn sample_units() -> Vec<JitUnit> {
    let call_b = small::<_, i32>(B - (A + 13)).to_le_bytes();
    let mut a = vec![0x55, 0x48, 0x8b, 0x47, 0x08, 0xff, 0x30]; // push rbp; mov rax,[rdi+8]; push [rax]
    a.extend_from_slice(&[0x90, 0xe8]); // nop; call B
    a.extend_from_slice(&call_b);
    vec![
        unit(0x1_0010, A, true, &[(1, What::Before(Gpr(7))), (1, What::After(Gpr(0)))], &a),
        // 48 ff cf: dec rdi; f3 a4: rep movsb; 66 90 ..: nops
        unit(
            0x1_0011,
            B,
            true,
            &[(1, What::Before(Gpr(6))), (1, What::After(Gpr(7)))],
            &[0x48, 0xff, 0xcf, 0xf3, 0xa4, 0x66, 0x90, 0x0f, 0x1f, 0x44, 0x00, 0x00],
        ),
        // add [rdi+8],eax; loop C
        unit(0x2_0010, C, false, &[], &[0x01, 0x47, 0x08, 0xe2, 0xfb]),
        // ret
        unit(0x2_0011, C + 5, false, &[], &[0xc3]),
        // syscall
        unit(0x1_0012, A + 13, true, &[], &[0x0f, 0x05]),
    ]
}

/// A small trace of the units above, with one thread.
pub fn sample(what: &Sample) -> Vec<u8> {
    match what.open {
        true => sample_of_length(what, None),
        // As long as one that says how long it is.
        false => sample_of_length(what, Some(sample_of_length(what, Some(0)).len())),
    }
}

fn sample_of_length(what: &Sample, length: Option<usize>) -> Vec<u8> {
    let mut writer = TraceWriter::default();
    let mut described = Vec::new();
    let mut process = abi::trace::VERSION.to_le_bytes().to_vec();
    process.extend_from_slice(&[0; 4]);
    for word in [what.options.to_word(), 42, 0] {
        process.extend_from_slice(&word.to_le_bytes());
    }
    described.extend(event(Kind::Process, 0, 0, WHOLE_UNIT, &process));
    described.extend(event(Kind::Program, 0, 0, WHOLE_UNIT, b"/bin/sample"));
    described.extend(event(Kind::Arguments, 0, 0, WHOLE_UNIT, b"sample\0-x\0"));
    if let Some(length) = length {
        described.extend(event(Kind::Length, 0, 0, WHOLE_UNIT, &(length as u64).to_le_bytes()));
    }
    writer.payload(FrameKind::File, PROCESS, 0, &described);
    let mut units = Vec::new();
    sample_units().iter().for_each(|u| u.encode(&mut units));
    writer.payload(FrameKind::Units, PROCESS, 0, &units);

    let mut registers =
        RegisterState { rip: A, fs_base: 0x7000, valid: 0xffff, ..Default::default() };
    registers.gpr = [0x100; 16];
    registers.gpr[1] = 2; // rcx
    registers.gpr[4] = 0x8000; // rsp
    let mut start = 77u32.to_le_bytes().to_vec();
    start.extend_from_slice(&0u32.to_le_bytes());
    start.extend_from_slice(&registers.to_bytes());
    let mut events = event(Kind::ThreadStart, 0, 0, WHOLE_UNIT, &start);

    // (unit, memory stream, registers behind it)
    let all = sample_units();
    let runs: [(usize, &[u64]); 6] =
        [(0, &[0x500, 0x600]), (1, &[0x700, 0x502]), (2, &[]), (2, &[]), (3, &[]), (4, &[])];
    let mut record = Record { registers, packed: what.packed, ..Default::default() };
    let mut window = None;
    for (number, &(index, memory)) in runs.iter().enumerate() {
        if number == what.split {
            let seq = record.seq;
            writer.record(&record);
            // Nothing but the return address's place is claimed to be known.
            let mut registers =
                RegisterState { rip: all[index].address.0, fs_base: 0x7000, ..Default::default() };
            registers.gpr[4] = 0x8000 - 24 + if index == 4 { 8 } else { 0 };
            registers.gpr[7] = if index == 1 { 0x500 } else { 0x502 };
            registers.gpr[4] += if index == 0 { 24 } else { 0 };
            registers.valid = 1 << 4 | 1 << 7;
            record = Record { seq: seq + 1, registers, packed: what.packed, ..Default::default() };
            if what.carry_window {
                record.window = window.unwrap_or(0);
            } else {
                window = None;
            }
        }
        let unit = &all[index];
        let out = &mut record.control_flow;
        match what.options.recording.control_flow {
            abi::options::ControlFlow::Tags => {
                let wide = unit.body.flags != 0 || window != Some(unit.id.window());
                if wide {
                    out.extend_from_slice(&abi::trace::tags::wide(unit.id).to_le_bytes());
                    window = Some(unit.id.window());
                } else {
                    out.extend_from_slice(&unit.id.tag().to_le_bytes());
                }
            }
            abi::options::ControlFlow::FullPc => {
                out.extend_from_slice(&unit.address.0.to_le_bytes())
            }
            abi::options::ControlFlow::Bits => {
                if unit.body.flags != 0 {
                    out.push(abi::trace::bits::TARGET);
                    out.extend_from_slice(&unit.address.0.to_le_bytes());
                }
                if index == 2 {
                    let taken = runs[number + 1].0 == 2;
                    out.push(if taken {
                        abi::trace::bits::TAKEN
                    } else {
                        abi::trace::bits::NOT_TAKEN
                    });
                }
            }
        }
        record.memory.extend(memory.iter().flat_map(|w| w.to_le_bytes()));
    }
    record.open = what.open;
    if !what.open {
        let at = record.control_flow.len() as u64;
        for (number, arguments, result) in SAMPLE_CALLS {
            let words = [&[number][..], &arguments, &[result as u64]].concat();
            let payload: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            events.extend(event(Kind::Syscall, record.seq, at, WHOLE_UNIT, &payload));
        }
        let mut end = 1u32.to_le_bytes().to_vec();
        end.extend_from_slice(&3i32.to_le_bytes());
        events.extend(event(Kind::ThreadEnd, record.seq, at, WHOLE_UNIT, &end));
        end.extend_from_slice(&[0; 8]);
        events.extend(event(Kind::ProcessEnd, record.seq, at, WHOLE_UNIT, &end));
    }
    writer.record(&record);
    writer.payload(FrameKind::Events, 0, 0, &events);
    writer.bytes
}

/// A small undo log: two threads run the same unit, which stores, synchronises, stores and calls; the
/// first one's call leads to a repeated store.
pub fn undo_sample(options: abi::options::Options) -> Vec<u8> {
    let words = |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
    let mut writer = TraceWriter::default();
    let mut process = abi::trace::VERSION.to_le_bytes().to_vec();
    process.extend_from_slice(&[0; 4]);
    process.extend(words(&[options.to_word(), 42, 0]));
    let mut described = event(Kind::Process, 0, 0, WHOLE_UNIT, &process);
    described.extend(event(Kind::Program, 0, 0, WHOLE_UNIT, b"/bin/sample"));
    writer.payload(FrameKind::File, PROCESS, 0, &described);

    // mov [rdi],eax; lock inc dword [rsi]; mov [rdi+8],rax; call B
    let mut code = vec![0x89, 0x07, 0xf0, 0xff, 0x06, 0x48, 0x89, 0x47, 0x08, 0xe8];
    code.extend_from_slice(&small::<_, i32>(B - (A + 14)).to_le_bytes());
    let mut records = vec![(0, What::Before(Gpr(7))), (0, What::Old(1)), (1, What::Before(Gpr(6)))];
    records.extend([(1, What::Order), (1, What::Old(1)), (2, What::Old(1))]);
    let others = [0u8, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];
    records.extend(others.map(|r| (3, What::Before(Gpr(r)))));
    records.push((3, What::Old(1)));
    let mut units = Vec::new();
    unit(0x1_0010, A, true, &records, &code).encode(&mut units);
    unit(0x1_0011, B, true, &[], &[0xf3, 0xaa]).encode(&mut units); // rep stosb
    writer.payload(FrameKind::Units, PROCESS, 0, &units);

    for (thread, [start, lock, end]) in [(0u32, [1, 5, 6]), (1, [2, 3, 4])] {
        // In a ring, what came first of thread 0 is gone.
        let seq = u32::from(options.recording.ring && thread == 0);
        let wide = |id| abi::trace::tags::wide(abi::ids::UnitId(id)).to_le_bytes();
        let registers = RegisterState { rip: A, valid: 0xffff, ..Default::default() };
        let mut begin = (77 + thread).to_le_bytes().to_vec();
        begin.extend_from_slice(&0u32.to_le_bytes());
        begin.extend_from_slice(&registers.to_bytes());
        let mut events = event(Kind::ThreadStart, 0, 0, WHOLE_UNIT, &begin);
        events.extend(event(Kind::Order, seq, 0, WHOLE_UNIT, &words(&[start])));
        let mut record = Record { thread, seq, registers, ..Default::default() };
        record.control_flow = wide(0x1_0010).to_vec();
        let old = 0x1111_1111_1111_1111 * u64::from(thread + 1);
        record.memory = words(&[0x5000, old, 0x6000, lock, old, old]);
        let values = others.map(|r| if r == 4 { 0x8000 } else { 0x100 + u64::from(r) });
        record.memory.extend(words(&values));
        record.memory.extend(words(&[old]));
        if thread == 0 {
            let overwritten = [words(&[B, 0x5100, 3]), b"abc".to_vec()].concat();
            events.extend(event(Kind::Undo, seq, 4, WHOLE_UNIT, &overwritten));
            record.control_flow.extend(wide(0x1_0011));
        }
        let at = record.control_flow.len() as u64;
        let lost = [words(&[B, 0x9000, 0x1000]), b"munmap".to_vec()].concat();
        events.extend(event(Kind::Lost, seq, at, WHOLE_UNIT, &lost));
        events.extend(event(Kind::Order, seq, at, WHOLE_UNIT, &words(&[end])));
        writer.record(&record);
        writer.payload(FrameKind::Events, thread, 0, &events);
    }
    writer.bytes
}

/// A small recording of inputs: two threads that take turns, a child that is forked, a file that is
/// mapped.
pub fn inputs_sample() -> Vec<u8> {
    use crate::events::Event;
    use abi::event::End;
    use abi::options::{Instrument, RecordingOptions};

    let put = |turns: u64, one: &Event| {
        let mut payload = Vec::new();
        one.encode(&mut payload);
        event(one.kind(), 0, turns, WHOLE_UNIT, &payload)
    };
    let options: abi::options::Options =
        RecordingOptions { instrument: Instrument::Inputs, ..Default::default() }.into();
    let stack = LiveAddr(0x7ffc_0000_1000);
    let described = [
        Event::Process {
            version: abi::trace::VERSION,
            options: options.to_word(),
            pid: 42,
            start_ns: 1,
        },
        Event::Program(b"/nowhere/sample".as_slice().into()),
        Event::Layout {
            window: LiveAddr(0x5555_0000_0000),
            brk: LiveAddr(0x5556_0000_0000),
            interpreter: LiveAddr(0),
            stack,
            stack_end: LiveAddr(stack.0 + 0x1000),
        },
    ];
    let start = |tid, parent| Event::ThreadStart { tid, parent, registers: Box::default() };
    let written = |address, bytes: &[u8]| Event::Written { address, bytes: bytes.into() };
    let call = |number, result| Event::Syscall { number, arguments: [0x1000; 6], result };
    let mapped = Event::Mapped {
        file: [1, 2],
        size: 3,
        changed_ns: 4,
        contents: Box::default(),
        path: b"/nowhere/file".as_slice().into(),
    };
    let first = [
        (0, start(42, 0)),
        (0, written(stack, b"the stack")),
        (0, Event::Runs(0)),
        (3, Event::Answer { pc: LiveAddr(0x1000), values: [1, 2, 3, 4] }),
        (4, mapped),
        (4, call(9, 0x7000_0000_0000)),
        (5, Event::Fork { pid: 44 }),
        (5, call(57, 44)),
        (6, Event::Yields),
        (6, Event::Runs(2)),
        (7, Event::ProcessEnd { reason: End::Exit, status: 0, address: 0 }),
    ];
    let second = [
        (0, start(43, 0)),
        (0, Event::Runs(1)),
        (1, written(LiveAddr(0x2000), b"read")),
        (1, call(0, 4)),
        (2, Event::Arrived(Box::default())),
        (2, Event::Yields),
    ];
    let mut writer = TraceWriter::default();
    let all: Vec<u8> = described.iter().flat_map(|event| put(0, event)).collect();
    writer.payload(FrameKind::File, PROCESS, 0, &all);
    for (thread, events) in [(0, first.as_slice()), (1, &second)] {
        let all: Vec<u8> = events.iter().flat_map(|(turns, event)| put(*turns, event)).collect();
        writer.payload(FrameKind::Events, thread, 0, &all);
    }
    writer.bytes
}
