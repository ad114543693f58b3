//! What small synthetic traces say, in every format.

use std::io::Write;

use abi::ids::LiveAddr;
use abi::options::{ControlFlow, Memory, Options, RecordingOptions};
use trace::pipeline::{self, BatchSink, Outlet, Piece};
use trace::test_support::{sample, Sample, A, B, C};
use trace::walk::{MemoryReference, Sink};
use trace::{verify, Trace};

/// Collects everything, and puts chunks together as a reader of the library must.
#[derive(Default)]
struct Seen {
    blocks: Vec<(u64, bool)>,
    references: Vec<MemoryReference>,
}

struct Collect(Outlet<Seen>, Seen);

impl Sink for Collect {
    const REFERENCES: bool = true;
    fn block(&mut self, LiveAddr(pc): LiveAddr, uncertain: bool) {
        self.1.blocks.push((pc, uncertain));
    }
    fn reference(&mut self, reference: MemoryReference) {
        self.1.references.push(reference);
    }
}

impl BatchSink for Collect {
    type Batch = Seen;
    type Kept = ();
    fn finish(mut self) -> Outlet<Seen> {
        self.0.send(self.1);
        self.0
    }
}

fn open(bytes: &[u8]) -> Trace {
    let mut file = tempfile::NamedTempFile::new().expect("temporary file");
    file.write_all(bytes).expect("write");
    Trace::open(file.path()).expect("a trace")
}

fn recover(trace: &Trace) -> (Vec<u64>, Vec<String>) {
    let (mut blocks, mut references) = (Vec::new(), Vec::new());
    let mut falls = trace::walk::Falls::Nowhere;
    let jobs = pipeline::jobs(trace, |_| true);
    pipeline::run(
        trace,
        &jobs,
        |_, o| Collect(o, Seen::default()),
        |_, piece| {
            match piece {
                Piece::Batch(seen) => {
                    let new = seen
                        .blocks
                        .iter()
                        .filter(|&&(pc, u)| !(u && falls.reaches(abi::ids::LiveAddr(pc))));
                    blocks.extend(new.map(|&(pc, _)| pc));
                    references.extend(seen.references.iter().map(|r| {
                        let direction = if r.write { 'W' } else { 'R' };
                        format!("{:x} {direction} {:x} {}", r.pc, r.address, r.size)
                    }));
                }
                Piece::End(end) => falls = end.expect("no violation").falls,
            }
            true
        },
    );
    (blocks, references)
}

fn options(control_flow: ControlFlow) -> Options {
    let memory = Memory::Registers;
    RecordingOptions { control_flow, memory, ..RecordingOptions::default() }.into()
}

const REFERENCES: [&str; 15] = [
    "401000 W 7ff8 8",
    "401001 R 508 8",
    "401005 R 600 8",
    "401005 W 7ff0 8",
    "401008 W 7fe8 8",
    "402003 R 700 1",
    "402003 W 4ff 1",
    "402003 R 701 1",
    "402003 W 500 1",
    "402003 R 702 1",
    "402003 W 501 1",
    "40200c R 50a 4",
    "40200c W 50a 4",
    "40200c R 50a 4",
    "40200c W 50a 4",
];

#[test]
fn all_formats_and_splits_say_the_same() {
    for control_flow in [ControlFlow::Tags, ControlFlow::FullPc, ControlFlow::Bits] {
        for (split, carry_window, packed) in [99, 1, 2, 3, 4, 5]
            .iter()
            .flat_map(|&s| [(s, false), (s, true)])
            .flat_map(|(split, carry)| [(split, carry, false), (split, carry, true)])
        {
            let options = options(control_flow);
            let sample = Sample { options, split, carry_window, open: false, packed };
            let trace = open(&crate::sample(&sample));
            assert_eq!(trace.damage, []);
            let (blocks, references) = recover(&trace);
            let at = format!("{control_flow:?} {split} carry {carry_window} packed {packed}");
            let is_packed = |chunk: &trace::Chunk| chunk.frame.header.is_packed() == packed;
            assert!(trace.threads[0].chunks.iter().all(is_packed), "{at}");
            assert_eq!(blocks, [A, B, C, C + 5, A + 13], "{at}");
            assert_eq!(references[..15], REFERENCES, "{at}");
            assert_eq!(references[15..], ["402011 R 7fe8 8"], "{at}");
            let summary = verify::verify(&trace).unwrap_or_else(|e| panic!("{at}: {e}"));
            assert_eq!((summary.blocks, summary.references), (5, 16), "{at}");
            assert_eq!(summary.instructions, 5 + 4 + 2 * 2 + 1 + 1, "{at}");
        }
    }
}

#[test]
fn the_last_unit_of_an_open_chunk_is_only_a_block() {
    let trace = open(&sample(&Sample {
        options: options(ControlFlow::Tags),
        split: 1,
        carry_window: false,
        open: true,
        packed: false,
    }));
    let (blocks, references) = recover(&trace);
    assert_eq!(blocks, [A, B, C, C + 5, A + 13]);
    assert_eq!(references.len(), 16);
    verify::verify(&trace).expect("an open trace is a right one");
}

#[test]
fn the_process_is_described() {
    let trace = open(&sample(&Sample {
        options: options(ControlFlow::Tags),
        split: 1,
        carry_window: false,
        open: false,
        packed: false,
    }));
    assert_eq!(trace.program.to_str(), Some("/bin/sample"));
    assert_eq!(trace.arguments, [b"sample".to_vec(), b"-x".to_vec()]);
    assert_eq!((trace.pid, trace.threads.len(), trace.threads[0].tid), (42, 1, Some(77)));
}
