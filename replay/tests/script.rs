//! Scripts of traces that are made here.

use std::io::Cursor;
use std::path::{Path, PathBuf};

use abi::event::{End as Ended, Loss, Position, WHOLE_UNIT};
use abi::ids::{LiveAddr, StreamOff};
use abi::options::{Instrument, Options, RecordingOptions};
use abi::script::{EntryHeader, Header, ENTRY_HEADER_SIZE, HEADER_SIZE};
use abi::trace::{FrameKind, RegisterState, PROCESS};
use replay::{End, Lineage, Script};
use trace::events::Event;
use trace::test_support::{event, TraceWriter};

type Turn = (u64, Event);

const STACK: u64 = 0x7ffc_0000_1000;
const GETPID: u64 = 39;
const FORK: u64 = 57;

fn bytes(event: &Event, turns: u64) -> Vec<u8> {
    let mut payload = Vec::new();
    event.encode(&mut payload);
    self::event(event.kind(), 0, turns, WHOLE_UNIT, &payload)
}

fn start(tid: u32, parent: u32) -> Turn {
    (0, Event::ThreadStart { tid, parent, registers: Box::default() })
}

fn stack() -> Turn {
    (0, written(STACK, b"the stack"))
}

fn written(address: u64, bytes: &[u8]) -> Event {
    Event::Written { address: LiveAddr(address), bytes: bytes.into() }
}

fn call(turns: u64, number: u64, result: i64) -> Turn {
    (turns, Event::Syscall { number, arguments: [0; 6], result })
}

fn ended(turns: u64) -> Turn {
    (turns, Event::ProcessEnd { reason: Ended::Exit, status: 0, address: 0 })
}

/// A process as its trace has it.
#[derive(Clone, Default)]
struct Process {
    pid: u64,
    parent: Option<u64>,
    forked: bool,
    watched: bool,
    threads: Vec<Vec<Turn>>,
}

impl Process {
    fn trace(&self) -> Vec<u8> {
        let watched = self.watched;
        let options: Options =
            RecordingOptions { instrument: Instrument::Inputs, watched, ..Default::default() }
                .into();
        let mut described = vec![Event::Process {
            version: abi::trace::VERSION,
            options: options.to_word(),
            pid: self.pid,
            start_ns: self.pid,
        }];
        described.push(Event::Program(b"/nowhere/program".as_slice().into()));
        described.extend(self.parent.map(|pid| Event::Parent { pid }));
        if !self.forked {
            described.push(Event::Layout {
                window: LiveAddr(0x5555_0000_0000),
                brk: LiveAddr(0x5556_0000_0000),
                interpreter: LiveAddr(0),
                stack: LiveAddr(STACK),
                stack_end: LiveAddr(STACK + 0x1000),
            });
        }
        let mut writer = TraceWriter::default();
        let described: Vec<u8> = described.iter().flat_map(|event| bytes(event, 0)).collect();
        writer.payload(FrameKind::File, PROCESS, 0, &described);
        for (index, events) in (0u32..).zip(&self.threads) {
            let all: Vec<u8> = events.iter().flat_map(|(turns, e)| bytes(e, *turns)).collect();
            writer.payload(FrameKind::Events, index, 0, &all);
        }
        writer.bytes
    }

    fn path(&self, folder: &Path) -> PathBuf {
        folder.join(format!("program.{}.dep", self.pid))
    }
}

/// An entry: thread, turns, event.
type Entry = (u32, u64, Event);

fn script_of(processes: &[Process]) -> Result<(Script, Vec<Entry>), String> {
    let folder = tempfile::tempdir().expect("a folder");
    for process in processes {
        std::fs::write(process.path(folder.path()), process.trace()).expect("written");
    }
    let last = processes.last().expect("one").path(folder.path());
    let lineage = Lineage::of_file(&last).map_err(|e| e.to_string())?;
    let mut out = Cursor::new(Vec::new());
    let mut resolve = |wanted: &recording::originals::Wanted| match wanted.path.to_str() {
        Some("/there") => Ok(PathBuf::from("/elsewhere")),
        _ => Err(trace::Error(format!("{}: missing", wanted.path.display()))),
    };
    let script =
        replay::script::write(&lineage, None, &mut resolve, &mut out).map_err(|e| e.to_string())?;
    let bytes = out.into_inner();
    assert_eq!(Header::from_bytes(&bytes), Some(script.header));
    assert_eq!(script.header.len, (bytes.len() - HEADER_SIZE) as u64);
    let mut rest = &bytes[HEADER_SIZE..];
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let header = EntryHeader::from_bytes(rest).expect("a header");
        let len = header.event.len as usize;
        assert_eq!(len % 8, 0);
        let kind = abi::event::Kind::from_u16(header.event.kind).expect("a kind");
        let event = Event::decode(kind, &rest[ENTRY_HEADER_SIZE..][..len]).expect("an event");
        let Position { control_flow: StreamOff(turns), .. } = header.event.position;
        entries.push((header.thread, turns, event));
        rest = &rest[ENTRY_HEADER_SIZE + len..];
    }
    assert_eq!(script.events, entries.len() as u64);
    Ok((script, entries))
}

fn one(events: Vec<Turn>) -> Process {
    Process { pid: 7, threads: vec![events], ..Process::default() }
}

/// A process that another one has forked.
fn child_of(parent: u64, pid: u64, threads: Vec<Vec<Turn>>) -> Process {
    Process { pid, parent: Some(parent), forked: true, threads, ..Process::default() }
}

#[test]
fn one_thread_is_as_it_was() {
    let events = vec![
        start(7, 0),
        stack(),
        (3, Event::Runs(0)),
        (5, written(0x1000, &[1, 2, 3])),
        call(5, GETPID, 7),
        (9, Event::Answer { pc: LiveAddr(1), values: [1, 2, 3, 4] }),
        ended(12),
    ];
    let (script, entries) = script_of(&[one(events.clone())]).expect("a script");
    let expected: Vec<Entry> = events.into_iter().map(|(turns, event)| (0, turns, event)).collect();
    assert_eq!(entries, expected);
    assert_eq!((script.end, script.turns, script.header.pid), (End::Whole, 12, 7));
    assert_eq!(script.threads, [Some(7)]);
    assert_eq!(script.header.stack, STACK);
    let [free, end] = script.header.free;
    assert!(end - free >= 64 << 30 && free > 0x1_0000_0000);
}

#[test]
fn threads_run_in_the_order_of_their_numbers() {
    let first = vec![
        start(7, 0),
        stack(),
        (0, Event::Runs(0)),
        call(2, GETPID, 1),
        (3, Event::Yields),
        (3, Event::Runs(2)),
        call(4, GETPID, 2),
        ended(5),
    ];
    let second = vec![start(8, 0), (0, Event::Runs(1)), call(1, GETPID, 3), (2, Event::Yields)];
    // It was made and did nothing.
    let third = vec![start(9, 1)];
    let process = Process { pid: 7, threads: vec![first, second, third], ..Process::default() };
    let (script, entries) = script_of(std::slice::from_ref(&process)).expect("a script");
    let order: Vec<(u32, u64)> =
        entries.iter().map(|(thread, turns, _)| (*thread, *turns)).collect();
    let expected = [0, 0, 0, 2, 3].map(|turns| (0, turns));
    let then = [(1, 0), (1, 0), (1, 1), (1, 2), (0, 3), (0, 4), (0, 5)];
    assert_eq!(order, [expected.as_slice(), &then].concat());
    assert_eq!((script.end, script.turns), (End::Whole, 7));

    // One that has no place in the order.
    let mut lost = process.clone();
    lost.threads[2].push(call(1, GETPID, 4));
    let why = script_of(&[lost]).expect_err("no order");
    assert!(why.contains("the order of its threads was not recorded (thread 9)"), "{why}");
    // A stretch that is missing ends it, one that is there twice is damage.
    let mut gap = process.clone();
    gap.threads[1][1] = (0, Event::Runs(5));
    let (script, entries) = script_of(&[gap]).expect("a script");
    assert_eq!((script.end, entries.len()), (End::Missing(1), 5));
    let mut twice = process;
    twice.threads[1][1] = (0, Event::Runs(2));
    assert!(script_of(&[twice]).expect_err("damaged").contains("the number 2"));
}

/// The kernel tells the child its number, of which the recording has the bytes that were others before.
#[test]
fn a_forked_child_knows_its_number_when_the_call_returns() {
    const CLONE: u64 = 56;
    const CHILD_SETTID: u64 = 0x100_0000;
    let cloned = |result| {
        let arguments = [CHILD_SETTID | 17, 0, 0, 0x3000, 0, 0];
        Event::Syscall { number: CLONE, arguments, result }
    };
    let parent = vec![
        start(7, 0),
        stack(),
        (0, Event::Runs(0)),
        (6, Event::Fork { pid: 0x1208 }),
        (6, cloned(0x1208)),
        ended(10),
    ];
    let child = vec![
        start(0x1208, 0),
        (0, Event::Runs(0)),
        (0, written(0x3001, &[0x12])),
        call(4, GETPID, 0x1208),
        ended(6),
    ];
    let parent = Process { pid: 7, threads: vec![parent], ..Process::default() };
    let child = child_of(7, 0x1208, vec![child]);
    let (_, entries) = script_of(&[parent, child]).expect("a script");
    let told = entries.iter().position(|(.., e)| *e == written(0x3001, &[0x12]));
    let returned = entries.iter().position(|(.., e)| *e == cloned(0));
    assert!(told.is_some() && told < returned, "{entries:?}");
}

#[test]
fn a_forked_child_goes_on_where_its_parent_was() {
    let parent = vec![
        start(7, 0),
        stack(),
        call(2, GETPID, 7),
        (6, written(0x2000, &[8, 0, 0, 0])),
        (6, Event::Fork { pid: 8 }),
        call(6, FORK, 8),
        call(9, GETPID, 7),
        ended(10),
    ];
    let child = vec![
        start(8, 0),
        (0, written(0x3000, &[8, 0, 0, 0])),
        (0, written(0x4000, &[1, 2])),
        call(4, GETPID, 8),
        (5, Event::Fork { pid: 9 }),
        call(5, FORK, 9),
        ended(6),
    ];
    let grandchild = vec![start(9, 0), call(1, GETPID, 9)];
    let parent = Process { pid: 7, threads: vec![parent], ..Process::default() };
    let child = child_of(7, 8, vec![child]);
    let grandchild = child_of(8, 9, vec![grandchild]);
    let (script, entries) = script_of(&[parent.clone(), child.clone()]).expect("a script");
    let expected: Vec<Turn> = vec![
        start(7, 0),
        stack(),
        call(2, GETPID, 7),
        (6, written(0x3000, &[8, 0, 0, 0])),
        call(6, FORK, 0),
        (6, written(0x4000, &[1, 2])),
        call(10, GETPID, 8),
        (11, Event::Fork { pid: 9 }),
        call(11, FORK, 9),
        ended(12),
    ];
    let expected: Vec<Entry> = expected.into_iter().map(|(turns, e)| (0, turns, e)).collect();
    assert_eq!(entries, expected);
    assert_eq!((script.header.pid, script.end), (7, End::Whole));

    let all = [parent, child, grandchild];
    let (script, entries) = script_of(&all).expect("a script");
    let results: Vec<(u64, i64)> = entries
        .iter()
        .filter_map(|(_, turns, event)| match event {
            Event::Syscall { result, .. } => Some((*turns, *result)),
            _ => None,
        })
        .collect();
    assert_eq!(results, [(2, 7), (6, 0), (10, 8), (11, 0), (12, 9)]);
    assert_eq!(script.end, End::None);
    let why = script_of(&all[1..]).expect_err("its parent's parent is missing");
    assert!(why.contains("nor that of process 7"), "{why}");
}

#[test]
fn a_child_in_the_memory_of_its_parent_runs_during_the_call() {
    let parent = vec![start(7, 0), stack(), (4, Event::Fork { pid: 8 }), call(4, 58, 8), ended(5)];
    let child = vec![
        start(8, 0),
        (0, Event::OwnProcess { pid: 8 }),
        call(1, GETPID, 8),
        (2, Event::Exec(b"/bin/x".as_slice().into())),
    ];
    let process = Process { pid: 7, threads: vec![parent, child], ..Process::default() };
    let (script, entries) = script_of(&[process]).expect("a script");
    let threads: Vec<u32> = entries.iter().map(|(thread, _, _)| *thread).collect();
    assert_eq!(threads, [0, 0, 1, 1, 1, 1, 0, 0, 0]);
    assert_eq!(script.end, End::Whole);
}

#[test]
fn it_ends_where_nothing_can_be_replayed() {
    let with = |last: Vec<Turn>| {
        let events = [vec![start(7, 0), stack(), call(1, GETPID, 7)], last].concat();
        script_of(&[one(events)]).map(|(script, entries)| (script.end, entries.len()))
    };
    assert_eq!(with(vec![]), Ok((End::None, 3)));
    // What did not come to anything.
    assert_eq!(
        with(vec![(2, written(1, b"x")), (2, Event::Arrived(Box::default()))]),
        Ok((End::None, 3))
    );
    let unfollowed = Event::Unfollowed { pc: LiveAddr(0x1234), why: b"io_uring".as_slice().into() };
    let (end, len) = with(vec![(2, unfollowed), ended(3)]).expect("a script");
    assert_eq!((end.to_string().as_str(), len), ("up to at pc 0x1234: io_uring", 3));
    let lost = Event::Loss { reason: Loss::DiskFull, errno: 0 };
    assert_eq!(with(vec![(2, lost), ended(3)]), Ok((End::Lost(Loss::DiskFull), 3)));
    let exec = Event::Exec(b"/bin/x".as_slice().into());
    assert_eq!(with(vec![(2, exec)]), Ok((End::Whole, 4)));
}

#[test]
fn what_was_mapped_is_named_by_where_it_is() {
    let mapped = |path: &str, contents: &[u8]| Event::Mapped {
        file: [1, 2],
        size: 3,
        changed_ns: 4,
        contents: contents.into(),
        path: path.as_bytes().into(),
    };
    let with =
        |event: Event| script_of(&[one(vec![start(7, 0), stack(), (1, event), call(1, 9, 5)])]);
    let (_, entries) = with(mapped("/there", b"")).expect("a script");
    assert_eq!(entries[2].2, mapped("/elsewhere", b""));
    let (_, entries) = with(mapped("/gone", b"abc")).expect("its contents are there");
    assert_eq!(entries[2].2, mapped("/gone", b"abc"));
    assert_eq!(with(mapped("/gone", b"")).expect_err("missing"), "/gone: missing");
}

#[test]
fn the_interpreter_is_named_in_front_of_the_stack() {
    let folder = tempfile::tempdir().expect("a folder");
    let process = one(vec![start(7, 0), stack(), call(1, GETPID, 7)]);
    let path = process.path(folder.path());
    std::fs::write(&path, process.trace()).expect("written");
    let lineage = Lineage::of_file(&path).expect("a lineage");
    let mut out = Cursor::new(Vec::new());
    let mut resolve = |_: &_| Err(trace::Error("missing".into()));
    let interpreter = Some(Path::new("/lib/ld.so"));
    replay::script::write(&lineage, interpreter, &mut resolve, &mut out).expect("a script");
    let bytes = out.into_inner();
    let first = EntryHeader::from_bytes(&bytes[HEADER_SIZE..]).expect("an entry");
    let second = HEADER_SIZE + ENTRY_HEADER_SIZE + first.event.len as usize;
    let header = EntryHeader::from_bytes(&bytes[second..]).expect("an entry");
    let payload = &bytes[second + ENTRY_HEADER_SIZE..][..header.event.len as usize];
    let event = Event::decode(abi::event::Kind::Mapped, payload).expect("it is decoded");
    assert_eq!(header.event.kind, abi::event::Kind::Mapped as u16);
    assert!(matches!(event, Event::Mapped { path, .. } if *path == *b"/lib/ld.so"));
}

/// A trace has its number behind an exec, and of several that one is its parent's that says so.
#[test]
fn the_parent_of_a_trace_may_have_executed_programs() {
    let folder = tempfile::tempdir().expect("a folder");
    let forks = vec![start(7, 0), stack(), (2, Event::Fork { pid: 8 }), call(2, FORK, 8)];
    let before = one(vec![start(7, 0), stack(), call(1, GETPID, 7)]);
    let parent = Process { pid: 7, threads: vec![forks], ..Process::default() };
    let child = child_of(7, 8, vec![vec![start(8, 0)]]);
    let path = |number: &str| folder.path().join(format!("program.7.dep{number}"));
    for (number, process) in [("", &before), (".1", &parent), (".2", &before)] {
        std::fs::write(path(number), process.trace()).expect("written");
    }
    let last = child.path(folder.path());
    std::fs::write(&last, child.trace()).expect("written");
    let lineage = Lineage::of_file(&last).expect("a lineage");
    let pids: Vec<u64> = lineage.traces().iter().map(|trace| trace.pid).collect();
    assert_eq!(pids, [7, 8]);
    assert!(lineage.first().children().any(|pid| pid == 8));
    std::fs::remove_file(path(".1")).expect("removed");
    let why = Lineage::of_file(&last).expect_err("its parent is gone").to_string();
    assert!(why.contains("nor that of process 7"), "{why}");
}

/// A child whose thread was about to be watched has nothing to replay. One that nobody could watch has what it did.
#[test]
fn a_child_that_was_killed_before_it_was_watched_has_not_begun() {
    let parent = one(vec![start(7, 0), stack(), (4, Event::Fork { pid: 8 }), call(4, FORK, 8)]);
    let child = |events: Vec<Turn>| Process { watched: true, ..child_of(7, 8, vec![events]) };
    let killed = child(vec![start(8, 0), (4, Event::Actions(vec![0; 16].into()))]);
    let said = script_of(&[parent.clone(), killed]).expect_err("nothing");
    assert!(said.contains(trace::NOT_STARTED), "{said}");
    let unwatched = child(vec![start(8, 0), call(6, GETPID, 8)]);
    let (_, entries) = script_of(&[parent, unwatched]).expect("a script");
    assert!(entries.iter().any(|entry| entry.2 == call(6, GETPID, 8).1), "{entries:?}");
}

#[test]
fn what_is_no_recording_of_inputs_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.dep");
    let sample = trace::test_support::Sample {
        options: Options::default(),
        split: 99,
        carry_window: false,
        open: false,
        packed: false,
    };
    std::fs::write(&path, trace::test_support::sample(&sample)).expect("written");
    let why = Lineage::of_file(&path).expect_err("refused").to_string();
    assert!(why.contains("a.dep: it is no recording of inputs"), "{why}");
    // A child whose parent nobody knows.
    let orphan =
        Process { pid: 7, forked: true, threads: vec![vec![start(7, 0)]], ..Process::default() };
    let why = script_of(&[orphan]).expect_err("refused");
    assert!(why.contains("its start is not in the trace"), "{why}");
}

/// Numbers without a pattern.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % n as u64).expect("small")
    }
}

#[test]
fn damage_is_an_error_or_a_shorter_script() {
    let first = vec![
        start(7, 0),
        stack(),
        (0, Event::Runs(0)),
        (2, written(0x1000, &[9; 40])),
        call(2, 9, 0x7000_0000),
        (3, Event::Fork { pid: 8 }),
        call(3, FORK, 8),
        (3, Event::Yields),
        (3, Event::Runs(2)),
        (4, Event::Checked(Box::new(RegisterState::default()))),
        ended(5),
    ];
    let second = vec![start(9, 0), (0, Event::Runs(1)), call(1, GETPID, 3), (2, Event::Yields)];
    let child = vec![start(8, 0), (0, Event::Runs(0)), call(4, GETPID, 8), ended(6)];
    let parent = Process { pid: 7, threads: vec![first, second], ..Process::default() };
    let child = child_of(7, 8, vec![child]);
    let folder = tempfile::tempdir().expect("a folder");
    let paths = [parent.path(folder.path()), child.path(folder.path())];
    let whole = [parent.trace(), child.trace()];
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let (mut scripts, mut errors) = (0, 0);
    for round in 0..500 {
        let mut files = whole.clone();
        for _ in 0..1 + numbers.below(4) {
            let file = &mut files[numbers.below(2)];
            // Where there is something: frames are mostly empty.
            let filled: Vec<usize> = (0..file.len()).filter(|&at| file[at] != 0).collect();
            let Some(&at) = filled.get(numbers.below(filled.len().max(1))) else { continue };
            match numbers.below(4) {
                0 => file[at] ^= 1 << numbers.below(8),
                1 => file[at] = u8::try_from(numbers.below(256)).expect("a byte"),
                2 => file.truncate(at),
                _ => {
                    let len = 8.min(file.len() - at);
                    file[at..at + len].fill(if numbers.below(2) == 0 { 0xff } else { 0 });
                }
            }
        }
        for (path, bytes) in paths.iter().zip(&files) {
            std::fs::write(path, bytes).expect("written");
        }
        let made = Lineage::of_file(&paths[round % 2]).and_then(|lineage| {
            let mut resolve = |_: &_| Err(trace::Error("missing".into()));
            replay::script::write(&lineage, None, &mut resolve, &mut Cursor::new(Vec::new()))
        });
        match made {
            Ok(_) => scripts += 1,
            Err(error) => {
                errors += 1;
                assert_eq!(error.to_string().lines().count(), 1, "{error}");
            }
        }
    }
    assert!(scripts > 50 && errors > 50, "{scripts} scripts, {errors} errors");
}
