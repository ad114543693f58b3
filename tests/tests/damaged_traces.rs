//! Real recordings, damaged afterwards: cut at each frame, and with bytes changed. No command
//! believes them, none fails in another way than with its line, and what is listed is what happened.
//!
//! DAMAGES=N takes N places for each program.

mod common;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::*;
use tests::harness::{RunSpec, Tally, Tools};
use tests::moments::Noise;

const COMMANDS: [&str; 5] = ["info", "blocks", "memrefs", "syscalls", "verify"];

struct Recording {
    rewritten: PathBuf,
    trace: Vec<u8>,
    /// Offsets of its frames.
    frames: Vec<usize>,
    blocks: PathBuf,
}

fn record(spec: &RunSpec, dir: &Path) -> Result<Recording, String> {
    let rewritten = dir.join("rewritten");
    Tools::get().rewrite_sharing(&spec.program, &rewritten, &["--torture", "tiny-buffers"])?;
    let run = spec.run(Some(&rewritten), dir).map_err(|e| e.to_string())?;
    let file = first_trace(&run.traces)?;
    let blocks = dir.join("blocks");
    Tools::get().list("blocks", file, &rewritten, &blocks)?;
    let trace = std::fs::read(file).map_err(|e| e.to_string())?;
    let (mut at, mut frames) = (0, Vec::new());
    while let Some(len) = trace.get(at + 16..at + 24) {
        match u64::from_le_bytes(len.try_into().unwrap()) {
            // The slot of a thread that has ended.
            0 => at += 4096,
            len => {
                frames.push(at);
                at += len as usize;
            }
        }
    }
    Ok(Recording { rewritten, trace, frames, blocks })
}

/// Runs a command with little address space; its status and both outputs.
fn dep(
    command: &str,
    trace: &Path,
    rewritten: &Path,
) -> Result<(Option<i32>, String, String), String> {
    let output = Command::new("timeout")
        .args(["120", "sh", "-c", "ulimit -v 1500000 && exec \"$@\"", "sh"])
        .arg(&Tools::get().dep)
        .args([command, "--output"])
        .args([rewritten, trace])
        .output()
        .map_err(|e| e.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((output.status.code(), text(&output.stdout), text(&output.stderr)))
}

/// Each command ends with its line; the list of blocks has none that the whole one does not have.
fn is_read_around(
    whole: &Recording,
    bad: &[u8],
    known: &HashSet<String>,
    dir: &Path,
) -> Result<(), String> {
    let file = dir.join("bad.dep");
    std::fs::write(&file, bad).map_err(|e| e.to_string())?;
    for command in COMMANDS {
        let (status, stdout, stderr) = dep(command, &file, &whole.rewritten)?;
        let (last, warnings) = match stderr.trim_end().rsplit_once('\n') {
            Some((warnings, last)) => (last, warnings),
            None => (stderr.trim_end(), ""),
        };
        let clear = last.starts_with("dep: ")
            && !last.contains("warning")
            && warnings.lines().all(|line| line.starts_with("dep: warning: "));
        // A list that needs nothing of what is damaged is whole.
        let unharmed = command == "syscalls" && status == Some(0) && stderr.is_empty();
        if !(status == Some(1) && clear || unharmed) {
            return Err(format!("{command} ended with {status:?}:\n{stderr}"));
        }
        if command == "blocks" {
            if let Some(line) = stdout.lines().find(|line| !known.contains(pc(line))) {
                return Err(format!("{line} was never executed:\n{stderr}"));
            }
        }
    }
    Ok(())
}

fn pc(line: &str) -> &str {
    line.split_once(' ').map_or(line, |(_, pc)| pc)
}

#[test]
fn damaged_recordings_are_read_around_the_damage() {
    let mut tally = Tally::start("damaged_recordings_are_read_around_the_damage");
    let damages = match std::env::var("DAMAGES") {
        Ok(text) => text.parse().expect("DAMAGES is a number"),
        Err(_) => 8,
    };
    let mut noise = Noise::new(11);
    let gzip = RunSpec::new("/usr/bin/gzip").args(&["-nc"]).stdin(b"a few words a few words");
    let threads = corpus().into_iter().find(|c| c.name == "c/threads.pie").expect("a case");
    for (name, spec) in [("gzip", gzip), ("threads", spec(&threads))] {
        let dir = tempfile::tempdir().unwrap();
        let whole = match record(&spec, dir.path()) {
            Ok(whole) => whole,
            Err(e) => {
                tally.record(name, Err(e));
                continue;
            }
        };
        let blocks = std::fs::read_to_string(&whole.blocks).unwrap();
        let known: HashSet<String> = blocks.lines().map(|line| pc(line).to_owned()).collect();
        let frames = &whole.frames;
        for _ in 0..damages {
            // The end of the file itself is no damage.
            let frame = 1 + noise.below(frames.len() as u64 - 1) as usize;
            let cut = |at: usize| is_read_around(&whole, &whole.trace[..at], &known, dir.path());
            tally.record(&format!("{name} without frames from {frame} on"), cut(frames[frame]));
            let at = frames[frame - 1] + 1 + noise.below(4095) as usize;
            tally.record(&format!("{name} cut at {at:#x}"), cut(at));
            // A used byte, behind the header: what is in a header is not all guarded.
            let at = loop {
                let at = noise.below(whole.trace.len() as u64) as usize;
                let start = frames[frames.partition_point(|&f| f <= at) - 1];
                let guarded = at - start >= 64 && is_sealed(&whole.trace, start);
                if whole.trace[at] != 0 && guarded && in_use(&whole.trace, start, at) {
                    break at;
                }
            };
            let mut flipped = whole.trace.clone();
            flipped[at] ^= 1 << noise.below(8);
            let read = is_read_around(&whole, &flipped, &known, dir.path());
            let kind = whole.trace[frames[frames.partition_point(|&f| f <= at) - 1] + 4];
            let what = format!("{name} with a bit flipped at {at:#x}, in a frame of kind {kind}");
            tally.record(&what, read);
        }
    }
    tally.finish();
}

fn is_sealed(trace: &[u8], frame: usize) -> bool {
    matches!(trace[frame + 6], 1 | 2)
}

/// Whether a byte of a sealed frame is among those that its checksum covers.
fn in_use(trace: &[u8], frame: usize, at: usize) -> bool {
    let word = |offset: usize| {
        u64::from_le_bytes(trace[frame + offset..frame + offset + 8].try_into().unwrap()) as usize
    };
    let (split, used, used_memory, at) = (word(24), word(32), word(40), at - frame);
    let parts = match split {
        0 => vec![64..64 + used, 0..0],
        // Packed: all of it.
        _ if trace[frame + 6] == 2 => vec![64..split + word(232), 0..0],
        _ => vec![64..64 + 168, 4096..4096 + used_memory, split..split + used],
    };
    parts.iter().any(|part| part.contains(&at))
}
