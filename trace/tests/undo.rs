//! The undo log of a small trace: what it lists, in which order, and what it does not know.

use std::io::Write;

use abi::options::{Instrument, Options, RecordingOptions};
use trace::test_support::{undo_sample, A, B};
use trace::undo::{Item, Log};
use trace::verify::verify;
use trace::{Error, Trace};

fn open(bytes: &[u8]) -> Result<Trace, Error> {
    let mut file = tempfile::NamedTempFile::new().expect("temporary file");
    file.write_all(bytes).expect("write");
    Trace::open(file.path())
}

fn undo() -> Options {
    RecordingOptions { instrument: Instrument::Undo, ..RecordingOptions::default() }.into()
}

/// A thread's stores: pc, address, size.
fn stores(log: &Log, thread: usize) -> Vec<(u64, u64, u32)> {
    let items = log.threads[thread].items.iter();
    items
        .filter_map(|item| match item {
            Item::Store(s) => Some((s.pc, s.address, s.size)),
            _ => None,
        })
        .collect()
}

#[test]
fn stores_entries_and_losses_are_listed() {
    let trace = open(&undo_sample(undo())).expect("a trace");
    assert_eq!(verify(&trace).expect("valid").references, 9);
    let log = Log::new(&trace).expect("a log");
    let unit = [(A, 0x5000, 4), (A + 2, 0x6000, 4), (A + 5, 0x5008, 8), (A + 9, 0x7ff8, 8)];
    assert_eq!(stores(&log, 1), unit);
    assert_eq!(stores(&log, 0)[..4], unit);
    assert_eq!(stores(&log, 0)[4], (B, 0x5100, 3));
    let entered = log.threads[0].items.iter().find_map(|item| match item {
        Item::Enter(entered) => Some(entered),
        _ => None,
    });
    let entered = entered.expect("a call");
    assert_eq!((entered.pc, entered.to), (A + 9, B));
    assert_eq!((entered.registers[4], entered.registers[7]), (0x7ff8, 0x5000));
    assert_eq!(entered.registers[15], 0x10f);
    let lost: Vec<_> = log.lost().collect();
    assert_eq!(lost, [(0x9000..0xa000, "munmap"), (0x9000..0xa000, "munmap")]);
}

/// The first stores of the threads lie in overlapping intervals; the locked ones, and those behind
/// them, do not.
#[test]
fn what_has_no_order_is_said() {
    let trace = open(&undo_sample(undo())).expect("a trace");
    let log = Log::new(&trace).expect("a log");
    let mut unordered: Vec<_> = log.unordered().iter().map(|u| u.address).collect();
    unordered.sort_unstable();
    assert_eq!(unordered, [0x5000]);
    let mut written = Vec::new();
    log.backwards(|address, old| written.push((address, old[0])));
    // Thread 0 came last at the lock: its later stores are undone first.
    let of = |address| written.iter().filter(move |w| w.0 == address).map(|w| w.1);
    assert_eq!(of(0x6000).collect::<Vec<_>>(), [0x11, 0x22]);
    assert_eq!(of(0x5008).collect::<Vec<_>>(), [0x11, 0x22]);
    assert_eq!(of(0x5100).collect::<Vec<_>>(), [b'a']);
    let about = Log::new_about(&trace, 0x5009).expect("a log");
    assert_eq!(about.newest_first().filter(|(_, i)| matches!(i, Item::Store(_))).count(), 2);
    assert!(about.unordered().is_empty());
}

/// Losses lie where they happened; of a thread whose first chunks have given way, everything older
/// may be missing.
#[test]
fn newest_first_says_what_is_not_known() {
    let kinds = |options| {
        let trace = open(&undo_sample(options)).expect("a trace");
        let about = Log::new_about(&trace, 0x9000).expect("a log");
        let all = Log::new(&trace).expect("a log");
        let name = |(thread, item): (usize, &Item)| match item {
            Item::Store(s) => Some((thread, s.address)),
            Item::Lost { start, .. } => Some((thread, *start)),
            Item::Forgotten => Some((thread, 0)),
            Item::Enter(_) | Item::Stopped(_) => None,
        };
        assert_eq!(about.newest_first().filter_map(name).filter(|n| n.1 == 0x9000).count(), 2);
        all.newest_first().filter_map(name).collect::<Vec<_>>()
    };
    // Thread 0 has the numbers 1, 5, 6, thread 1 has 2, 3, 4.
    let newer = [(0, 0x9000), (0, 0x5100), (0, 0x7ff8), (0, 0x5008), (0, 0x6000)];
    let older = [(1, 0x9000), (1, 0x7ff8), (1, 0x5008), (1, 0x6000), (1, 0x5000), (0, 0x5000)];
    assert_eq!(kinds(undo()), [&newer[..], &older].concat());
    let ring = kinds(RecordingOptions { ring: true, ..undo().recording }.into());
    assert_eq!(ring, [&newer[..], &older, &[(0, 0)]].concat());
}

#[test]
fn a_profile_has_no_undo_log() {
    let trace = open(&undo_sample(Options::default())).expect("a trace");
    assert!(Log::new(&trace).is_err());
    // Records of stores are a violation there.
    assert!(verify(&trace).is_err());
}
