//! Traces that are none: everything that `dep` does with one.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use abi::event::{Kind, WHOLE_UNIT};
use abi::ids::{Gpr, LiveAddr, UnitId};
use abi::options::{ControlFlow, Memory, Options, RecordingOptions};
use abi::packing::STREAMS;
use abi::trace::{tags, FrameHeader, FrameKind, RegisterState, HEADER_SIZE};
use abi::trace::{PACKED_FLOW, PROCESS, RECORD_DATA, RECORD_REGISTERS};
use abi::unit::{flags, JitReason, JitUnit, Record as UnitRecord, UnitBody, What};
use clap::Parser;
use dep::args::Args;
use dep::Stop;
use fuzz::word::{get, set, strange};
use fuzz::{mutate, Choices, Outcome, Target};
use trace::test_support::{event, inputs_sample, sample, Record, Sample, TraceWriter};

struct Traces;

/// Takes what a reader may want to see, then wants no more.
struct Reader(usize);

impl Write for Reader {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(std::io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

const COMMANDS: [&[&str]; 7] = [
    &["info"],
    &["info", "--json"],
    &["blocks"],
    &["blocks", "--json", "--range", "401000..402000"],
    &["memrefs"],
    &["syscalls"],
    &["verify"],
];

impl Target for Traces {
    const NAME: &'static str = "trace";
    const MEGABYTES: u64 = 1024;

    fn seeds(&mut self) -> Vec<Vec<u8>> {
        let mut seeds = Vec::new();
        for control_flow in [ControlFlow::Tags, ControlFlow::FullPc, ControlFlow::Bits] {
            for (memory, split, open) in [
                (Memory::Registers, 99, false),
                (Memory::None, 2, true),
                (Memory::Registers, 2, false),
            ] {
                let options: Options =
                    RecordingOptions { control_flow, memory, ..RecordingOptions::default() }.into();
                for packed in [false, true] {
                    let carry_window = split == 2;
                    seeds.push(sample(&Sample { options, split, carry_window, open, packed }));
                }
            }
        }
        seeds.extend([rare(false), rare(true), Vec::new(), vec![0; 8192], inputs_sample()]);
        seeds.extend(fuzz::kept("trace"));
        seeds
    }

    fn mutate(&mut self, choices: &mut Choices, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        for _ in 0..1 + choices.below(4) {
            match choices.below(16) {
                0 => mutate::length(choices, input),
                1 => mutate::splice(choices, input, corpus),
                2 => frames_moved(choices, input),
                _ => in_a_frame(choices, input),
            }
        }
        if !choices.one_in(12) {
            right_checksums(input);
        }
    }

    fn run(&mut self, _input: &[u8], file: &Path) -> Result<Outcome, String> {
        let mut name = String::new();
        let mut accepted = false;
        for command in COMMANDS {
            let arguments = ["dep"].iter().chain(command).map(|word| word.as_ref());
            let arguments = arguments.chain([file.as_os_str()]);
            match dep::run(&Args::parse_from(arguments), &mut Reader(4 << 20)) {
                Ok(()) | Err(Stop::Quiet) => accepted |= command[0] == "verify",
                Err(Stop::Error(error)) => {
                    let said = error.to_string().replace(&*file.to_string_lossy(), "TRACE");
                    if said.lines().count() != 1 {
                        return Err(format!("not one line: {said}"));
                    }
                    // A verified trace has nothing that another command could complain about.
                    name = said;
                }
            }
        }
        // Of one of inputs, whatever it says: a script, or an error.
        let mut resolve = |wanted: &recording::originals::Wanted| Ok(wanted.path.clone());
        let lineage = replay::Lineage::of_file(file);
        let of_inputs =
            trace::Trace::open_alone(file).is_ok_and(|trace| trace.options.recording.inputs());
        let script = lineage.and_then(|lineage| {
            let mut out = std::io::Cursor::new(Vec::new());
            replay::script::write(&lineage, None, &mut resolve, &mut out)
        });
        if let Some(error) = script.err().filter(|e| e.to_string().lines().count() != 1) {
            return Err(format!("not one line: {error}"));
        }
        // A listing of a recording of inputs is made by a replay, which needs more than one trace has: the
        // program, the files that it mapped, the traces of its ancestors.
        let may_refuse = of_inputs || name.contains("without memory references");
        match accepted && !name.is_empty() && !may_refuse {
            true => Err(format!("verified, but: {name}")),
            false => {
                Ok(Outcome { accepted, name: if accepted { "verified".into() } else { name } })
            }
        }
    }
}

/// Offset and header of every frame.
fn frames(bytes: &[u8]) -> Vec<(usize, FrameHeader)> {
    let starts = (0..bytes.len()).step_by(4096);
    starts.filter_map(|at| Some((at, FrameHeader::from_bytes(&bytes[at..])?))).collect()
}

/// A frame left out, put elsewhere, or there twice.
fn frames_moved(choices: &mut Choices, bytes: &mut Vec<u8>) {
    let frames = frames(bytes);
    if frames.is_empty() {
        return;
    }
    let &(at, header) = choices.pick(&frames);
    let end = at.saturating_add(header.frame_len as usize).min(bytes.len());
    let frame: Vec<u8> = match choices.one_in(2) {
        true => bytes.drain(at..end).collect(),
        false => bytes[at..end].to_vec(),
    };
    if choices.one_in(3) || bytes.len() > 1 << 20 {
        return;
    }
    let to = 4096 * choices.below(bytes.len() / 4096 + 1);
    bytes.splice(to..to, frame);
}

/// A field of a header, an event, a unit, or a byte of a stream.
fn in_a_frame(choices: &mut Choices, bytes: &mut [u8]) {
    let (frames, len) = (frames(bytes), bytes.len());
    if frames.is_empty() {
        return mutate::in_place(choices, bytes, 0..len);
    }
    let &(at, header) = choices.pick(&frames);
    let record = header.kind == FrameKind::Record as u16;
    match choices.below(8) {
        0 => {
            let fields =
                [(4, 2), (6, 2), (8, 4), (12, 4), (16, 8), (24, 8), (32, 8), (40, 8), (56, 4)];
            let (offset, size) = *choices.pick(&fields);
            let value = strange(choices, get(bytes, at + offset, size), len);
            set(bytes, at + offset, size, value);
        }
        1 if record => {
            let start = at + RECORD_REGISTERS;
            mutate::in_place(choices, bytes, start..start + 168);
        }
        7 if header.is_packed() => {
            let value = strange(choices, get(bytes, at + PACKED_FLOW, 8), len);
            set(bytes, at + PACKED_FLOW, 8, value);
        }
        2..=4 if record => {
            let start = at + if header.is_packed() { STREAMS } else { RECORD_DATA };
            mutate::in_place(
                choices,
                bytes,
                start..start + header.used_memory.clamp(8, 256) as usize,
            );
        }
        _ if record => {
            let start = at + (header.split as usize).min(len);
            mutate::in_place(choices, bytes, start..start + header.used.clamp(8, 256) as usize);
        }
        1..=3 if header.kind != FrameKind::Units as u16 => {
            // A field of an event: kind, length, chunk, instruction, position.
            let mut event = at + HEADER_SIZE;
            for _ in 0..choices.below(12) {
                let next = event + 24 + get(bytes, event + 4, 4) as usize;
                if get(bytes, next, 2) != 0 {
                    event = next;
                }
            }
            let (offset, size) = *choices.pick(&[(0, 2), (4, 4), (8, 4), (12, 4), (16, 8)]);
            let value = strange(choices, get(bytes, event + offset, size), len);
            set(bytes, event + offset, size, value);
        }
        _ => {
            let start = at + HEADER_SIZE;
            mutate::in_place(choices, bytes, start..start + header.used.clamp(8, 4096) as usize);
        }
    }
}

/// What a checksum guards is reached only if it is right.
fn right_checksums(bytes: &mut [u8]) {
    let starts: Vec<usize> = (0..bytes.len()).step_by(4096).collect();
    for at in starts {
        if get(bytes, at, 4) != u64::from(abi::trace::FRAME_MAGIC) || at + HEADER_SIZE > bytes.len()
        {
            continue;
        }
        // The checksum of the header counts only if the header is read as one.
        let mut header = header(&bytes[at..]);
        header.header_checksum = header.fixed_checksum();
        if header.is_complete() {
            header.checksum = payload_checksum(&bytes[at..], &header);
        }
        bytes[at..at + HEADER_SIZE].copy_from_slice(&header.to_bytes());
    }
}

fn header(bytes: &[u8]) -> FrameHeader {
    let word = |at: usize, size: usize| get(bytes, at, size);
    FrameHeader {
        magic: word(0, 4) as u32,
        kind: word(4, 2) as u16,
        state: word(6, 2) as u16,
        thread: word(8, 4) as u32,
        seq: word(12, 4) as u32,
        frame_len: word(16, 8),
        split: word(24, 8),
        used: word(32, 8),
        used_memory: word(40, 8),
        checksum: word(48, 4) as u32,
        header_checksum: word(52, 4) as u32,
        window: word(56, 4) as u32,
        reserved: 0,
    }
}

fn payload_checksum(frame: &[u8], header: &FrameHeader) -> u32 {
    let mut sum = abi::trace::Checksum::default();
    let parts = match header.kind == FrameKind::Record as u16 {
        true if header.is_packed() => {
            let len = header.split.saturating_add(get(frame, PACKED_FLOW, 8));
            vec![(RECORD_REGISTERS as u64, len.saturating_sub(RECORD_REGISTERS as u64))]
        }
        true => vec![
            (RECORD_REGISTERS as u64, 168),
            (RECORD_DATA as u64, header.used_memory),
            (header.split, header.used),
        ],
        false => vec![(HEADER_SIZE as u64, header.used)],
    };
    for (start, len) in parts {
        let start = (start as usize).min(frame.len());
        let part = &frame[start..start.saturating_add(len as usize).min(frame.len())];
        let mut padded = part.to_vec();
        padded.resize(part.len().next_multiple_of(8), 0);
        sum.add(&padded);
    }
    sum.finish()
}

/// A trace with what the samples lack: gathers, xsave, interrupted string instructions, signals,
/// threads, and (`lost`) a loss.
fn rare(lost: bool) -> Vec<u8> {
    let mut writer = TraceWriter::default();
    let words = |list: &[u64]| -> Vec<u8> { list.iter().flat_map(|w| w.to_le_bytes()).collect() };
    let mut process = u64::from(abi::trace::VERSION).to_le_bytes().to_vec();
    process.extend(words(&[Options::default().to_word(), 1, 0]));
    let mut file = event(Kind::Process, 0, 0, WHOLE_UNIT, &process);
    let mut xsave = 0b111u64.to_le_bytes().to_vec();
    xsave.extend(words(&[0, 0, 256 | 576 << 32]));
    xsave.resize(8 + 64 * 8, 0);
    file.extend(event(Kind::Xsave, 0, 0, WHOLE_UNIT, &xsave));
    let loss = words(&[1 | 28 << 32]);
    if lost {
        file.extend(event(Kind::Loss, 0, 0, 0, &loss));
    }
    writer.payload(FrameKind::File, PROCESS, 0, &file);
    let code = [
        // vpgatherdd zmm1{k2},[rax+zmm3*4]; xsavec [rsp+40h]; bt [rsi],rax; pop [rsp+8]; rep stosq;
        // xlat; mov rdx,fs:[8]; syscall; rep movsd
        &[0x62, 0xf2, 0x7d, 0x4a, 0x90, 0x0c, 0x98][..],
        &[0x0f, 0xc7, 0x64, 0x24, 0x40],
        &[0x48, 0x0f, 0xa3, 0x06],
        &[0x8f, 0x44, 0x24, 0x08],
        &[0xf3, 0x48, 0xab],
        &[0xd7],
        &[0x64, 0x48, 0x8b, 0x14, 0x25, 8, 0, 0, 0],
        &[0x0f, 0x05],
    ];
    let unit = |id: u32, address: u64, records: &[(u8, What)], code: &[u8]| {
        let records = records.iter().map(|&(insn, what)| UnitRecord { insn, what }).collect();
        let body = UnitBody { code_len: code.len() as u16, flags: flags::WIDE, records };
        let reason = JitReason::Library;
        let (id, address) = (UnitId(id), LiveAddr(address));
        JitUnit { id, address, version: 0, reason, body, code: code.to_vec() }
    };
    let first = [
        (0, What::Vector(3)),
        (0, What::Mask(2)),
        (1, What::Before(Gpr(0))),
        (1, What::Before(Gpr(2))),
        (2, What::Before(Gpr(0))),
        (4, What::After(Gpr(7))),
    ];
    let string = [(1, What::Before(Gpr(6))), (1, What::After(Gpr(7)))];
    let units = [
        unit(0x1_0010, 0x1000, &first, &code.concat()),
        unit(0x1_0011, 0x2000, &string, &[0x50, 0xf3, 0xa5]),
        unit(0x1_0012, 0x5000, &[(0, What::Address(1))], &[0x48, 0x8b, 0x01, 0xc3]),
    ];
    let mut list = Vec::new();
    units.iter().for_each(|u| u.encode(&mut list));
    writer.payload(FrameKind::Units, PROCESS, 0, &list);
    let registers = |rip: u64| {
        let mut state = RegisterState { rip, valid: 0xffff, ..Default::default() };
        state.gpr = [0x1000; 16];
        state
    };
    let wide = |ids: &[u32]| -> Vec<u8> {
        let one = |id: &u32| tags::wide(abi::ids::UnitId(*id)).to_le_bytes();
        ids.iter().flat_map(one).collect()
    };
    let mut memory = vec![3; 64];
    memory.extend(words(&[0b1011, !0, 0, (-65i64) as u64, 0xf00]));
    let chunk = Record {
        registers: registers(0x1000),
        control_flow: wide(&[0x1_0010]),
        memory,
        ..Record::default()
    };
    writer.record(&chunk);
    writer.record(&Record {
        seq: 1,
        registers: registers(0x2000),
        control_flow: wide(&[0x1_0011, 0x1_0012, 0x1_0099]),
        memory: words(&[0x700, 0xdead, 0x1234]),
        ..Record::default()
    });
    writer.record(&Record { thread: 1, ..chunk });
    let start = |tid: u32| {
        let state = registers(0x1000).to_bytes();
        let payload = [&tid.to_le_bytes()[..], &[0; 4], &state].concat();
        event(Kind::ThreadStart, 0, 0, WHOLE_UNIT, &payload)
    };
    let mut signal = [11u32.to_le_bytes(), 1i32.to_le_bytes()].concat();
    signal.extend(words(&[0, 0x2001]));
    signal.extend_from_slice(&registers(0x5000).to_bytes());
    let mut interrupted = registers(0x2001);
    interrupted.gpr[7] = 0x1008;
    let mut events = start(7);
    events.extend(event(Kind::FsBase, 0, 6, WHOLE_UNIT, &words(&[0x7000])));
    events.extend(event(Kind::Registers, 0, 6, WHOLE_UNIT, &registers(0x2000).to_bytes()));
    events.extend(event(Kind::Interrupted, 1, 6, 1, &interrupted.to_bytes()));
    events.extend(event(Kind::Signal, 1, 6, 1, &signal));
    events.extend(event(Kind::Resume, 1, 12, WHOLE_UNIT, &registers(0x1000).to_bytes()));
    if lost {
        events.extend(event(Kind::Loss, 1, 18, WHOLE_UNIT, &loss));
    }
    writer.payload(FrameKind::Events, 0, 0, &events);
    writer.payload(FrameKind::Events, 1, 0, &start(8));
    let mut process = Vec::new();
    for kind in [Kind::Map, Kind::Unmap, Kind::Exec, Kind::Fork] {
        let payload = [words(&[0x1000, 0x2000, 0, 5 | 4 << 32]), vec![9; 40]].concat();
        process.extend(event(kind, 0, 0, 0, &payload));
    }
    writer.payload(FrameKind::Events, PROCESS, 0, &process);
    writer.bytes
}

fn main() -> ExitCode {
    fuzz::main(Traces)
}
