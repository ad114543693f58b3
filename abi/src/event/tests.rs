use super::*;
use alloc::vec;
use alloc::vec::Vec;

type Owned = Event<Vec<u8>, RegisterState>;

fn registers() -> RegisterState {
    let mut gpr = [0; 16];
    for (i, value) in (1..).zip(&mut gpr) {
        *value = 0x1111 * i;
    }
    RegisterState { gpr, rip: 5, rflags: 6, fs_base: 7, gs_base: 8, valid: 0xffff }
}

/// An event of each kind: a new kind does not compile without one.
fn sample(kind: Kind) -> Owned {
    let (pc, at) = (LiveAddr(0x40_1000), LiveAddr(0x7fff_0000_1000));
    let path = b"/usr/lib/x.so".to_vec();
    match kind {
        Kind::Process => Event::Process { version: 1, options: 2, pid: 3, start_ns: 4 },
        Kind::Program => Event::Program(path),
        Kind::Arguments => Event::Arguments(b"sample\0\0-x\0".to_vec()),
        Kind::StaticUnits => Event::StaticUnits {
            load: at,
            identity: [2, 3],
            first_window: 4,
            jit_window: 0x8000_0005,
            count: 6,
        },
        Kind::Xsave => {
            let mut components = [(0, 0); XSAVE_COMPONENTS];
            components[2] = (256, 576);
            Event::Xsave { xcr0: 7, components: xsave_to_bytes(&components).to_vec() }
        }
        Kind::Length => Event::Length(0x1_2345_6000),
        Kind::EndTime => Event::EndTime(1_700_000_000_123_456_789),
        Kind::Map => {
            Event::Map { start: at, len: 2, offset: 3, protection: 4, build_id: vec![9; 20], path }
        }
        Kind::Unmap => Event::Unmap { start: at, len: 2 },
        Kind::Library => Event::Library {
            load: at,
            identity: [2, 3],
            first_window: 4,
            count: 5,
            address: OrigAddr(0),
            path,
        },
        Kind::Selection => Event::Selection(b"only main\nskip :f\n".to_vec()),
        Kind::Layout => Event::Layout {
            window: at,
            brk: pc,
            interpreter: LiveAddr(0),
            stack: at,
            stack_end: at,
        },
        Kind::StackLimit => Event::StackLimit(8 << 20),
        Kind::Written => Event::Written { address: at, bytes: vec![1, 2, 0] },
        Kind::Answer => Event::Answer { pc, values: [1, 2, 3, 4] },
        Kind::Arrived => Event::Arrived(registers()),
        Kind::Yields => Event::Yields,
        Kind::Watched => Event::Watched,
        Kind::Anew => Event::Anew,
        Kind::Stamp => Event::Stamp { pc, number: 13, moment: Moment::BehindCall },
        Kind::Runs => Event::Runs(12),
        Kind::Checked => Event::Checked(registers()),
        Kind::Mapped => {
            Event::Mapped { file: [1, 2], size: 3, changed_ns: 4, contents: vec![5, 6, 0], path }
        }
        Kind::Unfollowed => Event::Unfollowed { pc, why: b"shared memory".to_vec() },
        Kind::Passed => Event::Passed { bytes: 5, digest: 6 },
        Kind::Snapshot => Event::Snapshot { stretch: 7, brk: at },
        Kind::Region => {
            Event::Region { start: at, len: 2, offset: 3, protection: 4, kind: RegionKind::Stack }
        }
        Kind::State => Event::State {
            index: 1,
            tid: 2,
            parent: 3,
            turns: 4,
            mask: 5,
            alternate: [6, 7, 8],
            clear_tid: 9,
            registers: registers(),
            vectors: vec![1, 2, 0],
        },
        Kind::Untouched => Event::Untouched { start: at, len: 0x3000 },
        Kind::Seen => Event::Seen { pc, rcx: 3, address: at, bytes: vec![1, 2, 0] },
        Kind::Actions => Event::Actions(vec![1, 2, 0]),
        Kind::Selected => Event::Selected { start: pc, len: 2, base: at, pieces: vec![7; 32] },
        Kind::Cost => Event::Cost { what: Cost::Closed, count: 2, pcs: [3; COST_PCS] },
        Kind::LibraryLeft => Event::LibraryLeft { load: at, reason: Left::Elsewhere },
        Kind::Switch => Event::Switch {
            on: true,
            why: Why::SecondThread,
            time_ns: 3,
            took_ns: 4,
            threads: 5,
            interrupted: 6,
        },
        Kind::Mark => Event::Mark { time_ns: 1, on: true, text: b"here".to_vec() },
        Kind::ThreadStart => Event::ThreadStart { tid: 1, parent: 2, registers: registers() },
        Kind::ThreadEnd => Event::ThreadEnd { reason: End::Signal, status: -1 },
        Kind::Syscall => {
            Event::Syscall { number: 1, arguments: [2, 3, 4, 5, 6, u64::MAX], result: -22 }
        }
        Kind::Signal => {
            Event::Signal { signal: 11, code: -6, address: 3, pc, registers: registers() }
        }
        Kind::Resume => Event::Resume(registers()),
        Kind::FsBase => Event::FsBase(0x7000),
        Kind::GsBase => Event::GsBase(0x8000),
        Kind::Turns => Event::Turns(100),
        Kind::Fork => Event::Fork { pid: 77 },
        Kind::Parent => Event::Parent { pid: 76 },
        Kind::OwnProcess => Event::OwnProcess { pid: 78 },
        Kind::Reaped => Event::Reaped { pid: 79, status: 15 },
        Kind::Loss => Event::Loss { reason: Loss::FileSizeLimit, errno: 27 },
        Kind::ProcessEnd => Event::ProcessEnd { reason: End::Exit, status: 3, address: 4 },
        Kind::Exec => Event::Exec(path),
        Kind::NotFollowed => Event::NotFollowed(b"a set-user-id program".to_vec()),
        Kind::Registers => Event::Registers(registers()),
        Kind::Interrupted => Event::Interrupted(registers()),
        Kind::Undo => Event::Undo { pc, address: at, old: vec![1, 0, 2, 0, 0] },
        Kind::Lost => Event::Lost { pc, start: at, len: 4096, why: b"munmap".to_vec() },
        Kind::Order => Event::Order(9),
    }
}

fn payload(event: &Owned) -> Vec<u8> {
    let mut bytes = Vec::new();
    event.encode(&mut bytes);
    bytes
}

fn decode(kind: Kind, payload: &[u8]) -> Result<Owned, BadEvent> {
    Event::decode(kind, payload)
}

#[test]
fn every_event_survives_encoding() {
    for &kind in Kind::ALL {
        let event = sample(kind);
        assert_eq!(event.kind(), kind);
        let mut bytes = payload(&event);
        assert_eq!(event.payload_len(), bytes.len());
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        assert_eq!(event.size(), EVENT_HEADER_SIZE + bytes.len());
        assert_eq!(decode(kind, &bytes), Ok(event));
    }
}

/// Bytes that an event has without those of its texts.
fn fixed_len(kind: Kind) -> usize {
    let text = match sample(kind) {
        Event::Program(text)
        | Event::Arguments(text)
        | Event::Exec(text)
        | Event::NotFollowed(text) => text.len(),
        Event::Map { path, .. } | Event::Library { path, .. } => path.len(),
        Event::Mark { text, .. } => text.len(),
        Event::Selection(rules) => rules.len(),
        Event::Undo { old, .. } => old.len(),
        Event::Written { bytes, .. } | Event::Seen { bytes, .. } | Event::Actions(bytes) => {
            bytes.len()
        }
        Event::State { vectors, .. } => vectors.len(),
        Event::Mapped { contents, path, .. } => contents.len() + path.len(),
        Event::Unfollowed { why, .. } => why.len(),
        Event::Selected { pieces, .. } => pieces.len(),
        Event::Lost { why, .. } => why.len(),
        _ => 0,
    };
    sample(kind).payload_len() - text
}

#[test]
fn short_payloads_are_no_events() {
    for &kind in Kind::ALL {
        let bytes = payload(&sample(kind));
        for len in 0..fixed_len(kind) {
            let error = decode(kind, &bytes[..len]).expect_err("too short");
            let guarded = matches!(kind, Kind::StaticUnits | Kind::Library);
            assert_eq!(error, if guarded { BadEvent::Check } else { BadEvent::Short });
        }
    }
    let undo = payload(&sample(Kind::Undo));
    assert_eq!(decode(Kind::Undo, &undo[..undo.len() - 1]), Err(BadEvent::Short));
}

#[test]
fn what_places_units_is_checked() {
    for kind in [Kind::StaticUnits, Kind::Library] {
        let bytes = payload(&sample(kind));
        for at in 0..fixed_len(kind) {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            assert_eq!(decode(kind, &bytes), Err(BadEvent::Check));
        }
    }
}

#[test]
fn a_build_id_that_is_too_long_is_no_event() {
    let mut bytes = payload(&sample(Kind::Map));
    bytes[28] = 33;
    assert_eq!(decode(Kind::Map, &bytes), Err(BadEvent::Short));
}

#[test]
fn kinds_and_reasons_have_one_number_each() {
    for number in 0..=u16::MAX {
        let kinds = Kind::ALL.iter().filter(|&&kind| kind as u16 == number);
        assert_eq!(kinds.count(), usize::from(Kind::from_u16(number).is_some()));
    }
    for number in 0..100 {
        assert_eq!(End::from_u32(number).to_u32(), number);
        assert_eq!(Left::from_u32(number).to_u32(), number);
        assert_eq!(Cost::from_u32(number).to_u32(), number);
        assert_eq!(Loss::from_u32(number).to_u32(), number);
    }
    assert!(!End::ALL.iter().any(|reason| matches!(reason, End::Unknown(_))));
    assert_eq!(Loss::from_u32(8), Loss::Unknown(8));
}

#[test]
fn headers_survive_encoding() {
    let position = Position { chunk: 2, control_flow: StreamOff(3), insn: LAST_NOT_DONE };
    let header = EventHeader { kind: 44, len: 64, position };
    assert_eq!(EventHeader::from_bytes(&header.to_bytes()), Some(header));
    assert_eq!(EventHeader::from_bytes(&header.to_bytes()[..23]), None);
}

#[test]
fn positions_are_ordered_as_what_happened() {
    let at =
        |chunk, control_flow, insn| Position { chunk, control_flow: StreamOff(control_flow), insn };
    let in_order =
        [at(0, 9, WHOLE_UNIT), at(1, 0, 5), at(1, 2, 1), at(1, 2, LAST_NOT_DONE), at(1, 2, !0)];
    assert!(in_order.is_sorted());
}

#[test]
fn components_of_xsave_survive_encoding() {
    let mut components = [(0, 0); XSAVE_COMPONENTS];
    components[63] = (1, u32::MAX);
    let bytes = xsave_to_bytes(&components);
    assert!(xsave_from_bytes(&bytes).eq(components));
}

// --- docs/format.md ---

const FORMAT: &str = include_str!("../../../docs/format.md");

/// Bytes that a description of a payload speaks of: `u64 start, 64 pairs of u32, register state`.
/// What it says in parentheses and behind a colon or full stop is explanation.
fn described_len(text: &str) -> usize {
    let mut plain = alloc::string::String::new();
    let mut depth = 0;
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            c if depth == 0 => plain.push(c),
            _ => {}
        }
    }
    // `u64 identity (two)`
    let plain = plain.replace(':', " ").replace("u64 identity ", "2 u64 identity ");
    let size = |word: &str| match word {
        "u32" | "i32" => Some(4),
        "u64" | "i64" => Some(8),
        _ => None,
    };
    let mut sum = 0;
    for field in plain.split(',') {
        let words: Vec<&str> = field.split_whitespace().collect();
        let number = |i: usize| words.get(i).and_then(|word| word.parse::<usize>().ok());
        sum += match words.as_slice() {
            ["register", "state", ..] => REGISTER_STATE_SIZE,
            [_, "pairs", "of", each, ..] => number(0).unwrap() * 2 * size(each).unwrap(),
            [_, "bytes", ..] if number(0).is_some() => number(0).unwrap(),
            [_, each, ..] if number(0).is_some() => number(0).unwrap() * size(each).unwrap_or(0),
            words => words.iter().take(1).filter_map(|word| size(word)).sum(),
        };
    }
    sum
}

#[test]
fn the_document_has_every_kind_with_its_number_name_and_size() {
    let table = FORMAT.split_once("| kind | name | payload |\n").expect("the table of events").1;
    let rows: Vec<Vec<&str>> = table
        .lines()
        .skip(1)
        .map_while(|line| Some(line.strip_prefix("| ")?.split(" | ").collect()))
        .collect();
    let numbers: Vec<u16> = rows.iter().map(|row| row[0].parse().unwrap()).collect();
    let kinds: Vec<u16> = Kind::ALL.iter().map(|&kind| kind as u16).collect();
    assert_eq!(numbers, kinds);
    for (row, &kind) in rows.iter().zip(Kind::ALL) {
        assert_eq!(row[1], kind.name());
        assert_eq!(described_len(row[2]), fixed_len(kind), "{}: {}", row[1], row[2]);
    }
}

/// That the document lists the reasons as `1 exit, 2 signal`.
fn assert_lists(start: &str, numbers: impl Iterator<Item = u32>) {
    let list = FORMAT.split_once(start).unwrap_or_else(|| panic!("{start}")).1;
    let list = list.split([')', '.', '|']).next().unwrap();
    let found: Vec<u32> =
        list.split(',').filter_map(|each| each.split_whitespace().next()?.parse().ok()).collect();
    assert_eq!(found, numbers.collect::<Vec<u32>>(), "{start}");
}

#[test]
fn the_document_has_every_reason() {
    assert_lists("End reasons: ", End::ALL.iter().map(|reason| reason.to_u32()));
    assert_lists("library's pack is not used: ", Left::ALL.iter().map(|reason| reason.to_u32()));
    assert_lists("| LOSS | u32 reason (", Loss::ALL.iter().map(|reason| reason.to_u32()));
}
