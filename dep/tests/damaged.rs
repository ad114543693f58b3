//! Traces that are none, or not whole: what each command says about them, and how it ends, as one
//! table. Everything runs with little address space, so that no length in a file is believed.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use abi::options::Options;
use abi::trace::{FrameHeader, FrameKind, PAYLOAD};
use trace::test_support::{sample, Sample};

const COMMANDS: [&str; 5] = ["info", "blocks", "memrefs", "syscalls", "verify"];

struct Seen {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

fn dep(command: &str, trace: &Path) -> Seen {
    let output = Command::new("sh")
        .args(["-c", "ulimit -v 600000 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_dep"), command])
        .arg(trace)
        .output()
        .expect("dep runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let named = trace.to_string_lossy();
    Seen {
        status: output.status.code(),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr).replace(&*named, "TRACE"),
    }
}

/// File, Units, two chunks, Events.
fn whole(packed: bool) -> Vec<u8> {
    let options = Options::default();
    sample(&Sample { options, split: 2, carry_window: false, open: false, packed })
}

/// Offsets of all frames.
fn frames(trace: &[u8]) -> Vec<usize> {
    let (mut at, mut out) = (0, Vec::new());
    while let Some(header) = trace.get(at..).and_then(FrameHeader::from_bytes) {
        out.push(at);
        at += header.frame_len as usize;
    }
    out
}

fn is_record(trace: &[u8], at: usize) -> bool {
    kind(trace, at).starts_with("Record")
}

fn kind(trace: &[u8], at: usize) -> String {
    let header = FrameHeader::from_bytes(&trace[at..]).expect("a frame");
    let kind = FrameKind::from_u16(header.kind).expect("a kind");
    let packed = if header.is_packed() { ", packed" } else { "" };
    format!("{kind:?} {}{packed}", header.seq)
}

/// Changes the header of the frame at `at` so that it is believed.
fn with_header(trace: &[u8], at: usize, change: impl FnOnce(&mut FrameHeader)) -> Vec<u8> {
    let mut trace = trace.to_vec();
    let mut header = FrameHeader::from_bytes(&trace[at..]).expect("a frame");
    change(&mut header);
    header.header_checksum = header.fixed_checksum();
    trace[at..at + 64].copy_from_slice(&header.to_bytes());
    trace
}

/// Changes the payload of a frame, which then claims to be open, so that no checksum guards it.
fn with_payload(trace: &[u8], at: usize, offset: usize, bytes: &[u8]) -> Vec<u8> {
    let mut trace = with_header(trace, at, |header| header.state = 0);
    let from = at + PAYLOAD + offset;
    trace[from..from + bytes.len()].copy_from_slice(bytes);
    trace
}

fn cases() -> Vec<(String, Vec<u8>)> {
    let (good, packed) = (whole(false), whole(true));
    let frames = frames(&good);
    let mut cases: Vec<(String, Vec<u8>)> = vec![
        ("text".into(), b"#!/bin/sh\necho no trace\n".to_vec()),
        ("an ELF header".into(), b"\x7fELF\x02\x01\x01\0".repeat(1000)),
    ];
    let mut add = |name: String, bytes: Vec<u8>| cases.push((name, bytes));
    let packed_records = crate::frames(&packed).into_iter().filter(|&at| is_record(&packed, at));
    let all = frames.iter().map(|&at| (&good, at)).chain(packed_records.map(|at| (&packed, at)));
    for (good, at) in all {
        let name = kind(good, at);
        if at > 0 {
            add(format!("ends before {name}"), good[..at].to_vec());
        }
        add(format!("ends in the header of {name}"), good[..at + 20].to_vec());
        add(format!("ends in {name}"), good[..at + 100].to_vec());
        let mut flipped = good.clone();
        flipped[at + PAYLOAD + 9] ^= 4;
        add(format!("a flipped bit in {name}"), flipped);
        let mut unreadable = good.clone();
        unreadable[at + 5] ^= 0x40;
        add(format!("a flipped bit in the header of {name}"), unreadable);
        if is_record(good, at) {
            let mut elsewhere = good.clone();
            elsewhere[at + 56] ^= 1;
            add(format!("a flipped bit in the window of {name}"), elsewhere);
        }
        type Field = (&'static str, fn(&mut FrameHeader));
        let fields: [Field; 8] = [
            ("length of 2^63", |h| h.frame_len = 1 << 63),
            ("length of 32 MiB", |h| h.frame_len = 32 << 20),
            ("length of 0", |h| h.frame_len = 0),
            ("split of 2^64 - 4096", |h| h.split = u64::MAX - 4095),
            ("2^64 - 1 bytes in use", |h| (h.used, h.used_memory) = (u64::MAX, u64::MAX)),
            ("number of 2^32 - 1", |h| h.seq = u32::MAX),
            ("thread of 2^31", |h| h.thread = 1 << 31),
            ("state of 7", |h| h.state = 7),
        ];
        for (what, change) in fields {
            // Means nothing in the others.
            if !is_record(good, at) && (what.contains("split") || what.contains("thread")) {
                continue;
            }
            add(format!("{name} with a {what}"), with_header(good, at, change));
        }
    }
    let (file, units, events) = (frames[0], frames[1], *frames.last().expect("frames"));
    // Payload of the first event: its header takes 24 bytes.
    add("version 2".into(), with_payload(&good, file, 24, &[2]));
    add("unknown options".into(), with_payload(&good, file, 32, &[0xff; 8]));
    for (name, at) in [("File", file), ("Events", events)] {
        add(
            format!("an event of 4 GiB in {name}"),
            with_payload(&good, at, 4, &[0xf8, 0xff, 0xff, 0xff]),
        );
    }
    add("a unit of 4 GiB".into(), with_payload(&good, units, 0, &[0xfc, 0xff, 0xff, 0xff]));
    let many = [&[0xff; 9][..], &[1]].concat();
    add("a unit with 2^64 - 1 bytes of code".into(), with_payload(&good, units, 20, &many));
    add("a unit with 2^64 - 1 records".into(), with_payload(&good, units, 22, &many));
    let twice = [&good[..], &good[frames[2]..]].concat();
    add("frames that are there twice".into(), twice);
    cases
}

/// One clear line at the end, and above it only warnings.
fn check(name: &str, command: &str, seen: &Seen) {
    let at = format!("{name}: {command}: {}", seen.stderr);
    if command == "syscalls" && seen.status == Some(0) {
        // It needs no chunks, and all the rest is whole.
        assert_eq!((seen.stdout.lines().count(), &*seen.stderr), (4, ""), "{at}");
        return;
    }
    assert_eq!(seen.status, Some(1), "{at}");
    let lines: Vec<&str> = seen.stderr.lines().collect();
    let (last, others) = lines.split_last().expect("a line");
    assert!(last.starts_with("dep: ") && !last.contains("warning"), "{at}");
    assert!(others.iter().all(|line| line.starts_with("dep: warning: ")), "{at}");
    assert!(!seen.stderr.contains("panicked"), "{at}");
}

#[test]
fn each_damage_has_its_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut table = String::new();
    let file = directory.path().join("trace");
    for (name, bytes) in cases() {
        std::fs::write(&file, &bytes).expect("written");
        let _ = writeln!(table, "{name}");
        let mut last = String::new();
        for command in COMMANDS {
            let seen = dep(command, &file);
            check(&name, command, &seen);
            // Most commands say the same.
            if !seen.stderr.is_empty() && seen.stderr != last {
                let lines = seen.stderr.lines().map(|line| format!("    {line}\n"));
                let _ = write!(table, "  {command}\n{}", lines.collect::<String>());
                last = seen.stderr;
            }
        }
    }
    let pipe = directory.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().is_ok_and(|status| status.success()));
    for (name, path) in
        [("a directory", directory.path()), ("a pipe", &pipe), ("nothing", "/nonexistent".as_ref())]
    {
        let _ = writeln!(table, "{name}");
        for command in COMMANDS {
            let seen = dep(command, path);
            check(name, command, &seen);
            let _ = writeln!(table, "  {command}\n    {}", seen.stderr.trim_end());
        }
    }
    insta::assert_snapshot!(table);
}

#[test]
fn what_lies_around_the_damage_is_listed() {
    for packed in [false, true] {
        is_listed(&whole(packed));
    }
}

fn is_listed(good: &[u8]) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("trace");
    std::fs::write(&file, good).expect("written");
    let lists = |command: &str| dep(command, &file).stdout;
    let (blocks, memrefs) = (lists("blocks"), lists("memrefs"));
    let chunks: Vec<usize> = frames(good).into_iter().filter(|&at| is_record(good, at)).collect();
    assert_eq!(chunks.len(), 2);
    let mut parts = Vec::new();
    for &at in &chunks {
        let mut bad = good.to_vec();
        let header = FrameHeader::from_bytes(&good[at..]).expect("a frame");
        bad[at + header.split as usize] ^= 0xff;
        std::fs::write(&file, &bad).expect("written");
        let seen = dep("blocks", &file);
        assert!(seen.stderr.contains("wrong checksum"), "{}", seen.stderr);
        assert_eq!(seen.status, Some(1));
        parts.push((seen.stdout, dep("memrefs", &file).stdout));
    }
    // Without the second chunk the first is there, and the other way round. The second starts
    // inside of a block; without the first nobody knows, and no block is claimed to start there.
    assert_eq!(blocks, format!("{}{}", parts[1].0, parts[0].0));
    assert_eq!(memrefs, format!("{}{}", parts[1].1, parts[0].1));
    assert!(parts.iter().all(|(blocks, memrefs)| !blocks.is_empty() && !memrefs.is_empty()));
}
