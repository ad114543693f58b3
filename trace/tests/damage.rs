//! Damaged files: never a panic, never more than the file's size in memory, and a report.

use std::io::Write;

use abi::options::{ControlFlow, Options, RecordingOptions};
use abi::trace::{Checksum, FrameHeader};
use trace::test_support::{sample, Sample};
use trace::{verify, Trace};

fn whole(control_flow: ControlFlow, packed: bool) -> Vec<u8> {
    let options: Options = RecordingOptions { control_flow, ..RecordingOptions::default() }.into();
    sample(&Sample { options, split: 2, carry_window: false, open: false, packed })
}

/// Opens and recovers; returns whether everything was right.
fn survive(bytes: &[u8]) -> bool {
    let mut file = tempfile::NamedTempFile::new().expect("temporary file");
    file.write_all(bytes).expect("write");
    Trace::open(file.path()).is_ok_and(|trace| verify::verify(&trace).is_ok())
}

/// A small generator of reproducible noise.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

const FORMATS: [ControlFlow; 3] = [ControlFlow::Tags, ControlFlow::FullPc, ControlFlow::Bits];

#[test]
fn truncation_anywhere_is_survived() {
    let bytes = whole(ControlFlow::Tags, true);
    assert!(survive(&bytes));
    let mut noise = Noise(1);
    for at in (0..bytes.len()).step_by(4096) {
        for cut in [at, at + 1, at + 63, at + 64, at + (noise.next() % 4096) as usize] {
            let _ = survive(&bytes[..cut.min(bytes.len())]);
        }
    }
    assert!(!survive(&bytes[..bytes.len() - 4096]), "the thread's events are gone");
}

#[test]
fn flipped_bytes_are_survived_and_found_by_checksums() {
    for (format, packed) in FORMATS.into_iter().flat_map(|format| [(format, false), (format, true)])
    {
        let bytes = whole(format, packed);
        let mut noise = Noise(7);
        let used: Vec<usize> = (0..bytes.len()).filter(|&i| bytes[i] != 0).collect();
        for _ in 0..300 {
            let mut bad = bytes.clone();
            let at = used[noise.next() as usize % used.len()];
            bad[at] ^= 1 << (noise.next() % 8);
            let in_header = at % 4096 < 64;
            let right = survive(&bad);
            assert!(in_header || !right, "a flip at {at:#x} went unnoticed");
        }
    }
}

/// With right checksums, so that what is behind them is reached.
#[test]
fn nonsense_in_streams_and_lengths_is_survived() {
    for (format, packed) in FORMATS.into_iter().flat_map(|format| [(format, false), (format, true)])
    {
        let bytes = whole(format, packed);
        let frames: Vec<usize> = (0..bytes.len())
            .step_by(4096)
            .filter(|&at| FrameHeader::from_bytes(&bytes[at..]).is_some())
            .collect();
        let mut noise = Noise(99);
        for round in 0..600 {
            let mut bad = bytes.clone();
            let at = frames[noise.next() as usize % frames.len()];
            let mut header = FrameHeader::from_bytes(&bad[at..]).expect("a header");
            let word = match noise.next() % 4 {
                0 => u64::MAX - noise.next() % 64,
                1 => noise.next(),
                2 => 4096 * (noise.next() % 9),
                _ => noise.next() % 9000,
            };
            match round % 7 {
                0 => header.frame_len = word,
                1 => header.split = word,
                2 => header.used = word,
                3 => header.used_memory = word,
                4 => header.seq = word as u32,
                5 if header.is_packed() => {
                    // Noise in a packed frame, whose checksum is right.
                    let frame = at + 64..at + header.frame_len as usize;
                    let start = frame.start + 168 + (noise.next() % 140) as usize;
                    for byte in &mut bad[start..start + 1 + word as usize % 9] {
                        *byte = noise.next() as u8;
                    }
                    let len = u64::from_le_bytes(bad[at + 232..at + 240].try_into().expect("8"));
                    let end = header.split.saturating_add(len).min(header.frame_len);
                    let mut sum = Checksum::default();
                    sum.add(&bad[frame.start..at + (end as usize & !7).max(64)]);
                    header.checksum = sum.finish();
                }
                _ => {
                    // Noise in the payload of a frame that claims to be open.
                    header.state = 0;
                    let start = at + 64 + (noise.next() % 400) as usize;
                    for byte in &mut bad[start..start + 16] {
                        *byte = noise.next() as u8;
                    }
                }
            }
            header.header_checksum = header.fixed_checksum();
            bad[at..at + 64].copy_from_slice(&header.to_bytes());
            let _ = survive(&bad);
        }
    }
}

#[test]
fn noise_is_no_trace() {
    let mut noise = Noise(3);
    let bytes: Vec<u8> = (0..40_000).map(|_| noise.next() as u8).collect();
    assert!(!survive(&bytes));
    // An empty file is what a process leaves that was killed before it recorded anything.
    assert!(survive(&[]));
}
