//! Compressed traces: the same traces, in fewer bytes, whatever happens to whoever compresses them.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tests::command::{dep, folder, text};
use tests::harness::Tools;

/// Something that gzip has to work on: chunks of full size, more than one piece.
fn input(here: &Path, len: usize) -> PathBuf {
    let mut state = 1u32;
    let bytes: Vec<u8> = (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            b"etaoin shrdlu\\n cmfwyp"[(state >> 24) as usize % 22]
        })
        .collect();
    let path = here.join("input");
    fs::write(&path, bytes).expect("a file");
    path
}

/// The traces of a recording with their sizes on the disk, and no files beside them.
fn traces(recording: &Path) -> Vec<(PathBuf, u64)> {
    use std::os::unix::fs::MetadataExt;
    let entries = fs::read_dir(recording.join("traces")).expect("a folder");
    let mut all: Vec<_> = entries
        .map(|entry| {
            let entry = entry.expect("a file");
            (entry.path(), entry.metadata().expect("a file").blocks() * 512)
        })
        .collect();
    all.sort();
    assert!(!all.is_empty());
    all
}

fn one_trace(recording: &Path) -> PathBuf {
    let all = traces(recording);
    assert_eq!(all.len(), 1, "{all:?}");
    all[0].0.clone()
}

/// What can be read of each trace.
fn lists(here: &Path, recording: &str) -> Vec<String> {
    let ps = text(here, &["ps", "--json", recording]);
    let mut all = vec![text(here, &["verify", recording])];
    for process in ps.lines() {
        let process: serde_json::Value = serde_json::from_str(process).expect("JSON");
        for image in process["images"].as_array().expect("images") {
            let name = image["name"].as_str().expect("a name");
            all.push(text(here, &["blocks", "-p", name, recording]));
            all.push(text(here, &["syscalls", "-p", name, recording]));
        }
    }
    all
}

#[test]
fn a_compressed_recording_is_the_same_in_fewer_bytes() {
    let here = folder();
    input(here.path(), 20_000);
    let script = "gzip -c input | sort | wc -c; gzip -dc </dev/null 2>/dev/null; true";
    text(here.path(), &["record", "--instrument", "dep", "-o", "plain", "sh", "-c", script]);
    let before = lists(here.path(), "plain");
    let recording = here.path().join("plain");
    let sizes = traces(&recording);
    for level in ["fast", "small"] {
        text(here.path(), &["compress", "plain", "--level", level]);
        assert_eq!(lists(here.path(), "plain"), before, "{level}");
    }
    let compressed = traces(&recording);
    assert_eq!(compressed.len(), sizes.len());
    for ((path, before), (same, after)) in sizes.into_iter().zip(compressed) {
        assert_eq!(path, same);
        assert!(after * 2 < before, "{}: {after} of {before}", path.display());
    }
    let info = text(here.path(), &["info", "--json", "-p", &first_name(here.path()), "plain"]);
    let info: serde_json::Value = serde_json::from_str(info.lines().next().unwrap()).expect("JSON");
    assert!(info["compressed_bytes"].as_u64() < info["file_bytes"].as_u64(), "{info}");
    text(here.path(), &["pack", "plain", "-o", "packed"]);
    assert_eq!(lists(here.path(), "packed"), before);
}

fn first_name(here: &Path) -> String {
    let ps = text(here, &["ps", "--json", "plain"]);
    let first: serde_json::Value = serde_json::from_str(ps.lines().next().unwrap()).expect("JSON");
    first["images"][0]["name"].as_str().expect("a name").to_owned()
}

/// Starts the recording of a program that goes on until its standard input ends.
fn record_cat(here: &Path, options: &[&str]) -> Child {
    let mut command = dep(here, &["record", "--instrument", "dep", "-o", "live", "--no-follow"]);
    command.args(options).args(["gzip", "-c"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it runs")
}

/// Waits until `what` holds.
fn await_that(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(120), "not within two minutes: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn pieces_of(here: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(here.join("live/traces")) else { return 0 };
    let is_pieces = |entry: &fs::DirEntry| entry.path().extension().is_some_and(|e| e == "pieces");
    let lens = entries.flatten().filter(is_pieces).map(|e| e.metadata().map_or(0, |m| m.len()));
    lens.sum()
}

/// Some pieces are there, and the trace is read meanwhile.
fn feed(child: &mut Child, here: &Path, bytes: &[u8]) {
    let stdin = child.stdin.as_mut().expect("a pipe");
    stdin.write_all(bytes).expect("it reads");
    stdin.flush().expect("it reads");
    await_that("some of it is compressed", || pieces_of(here) > 64 << 10);
}

/// Instructions of the one trace, which must verify.
fn instructions(here: &Path) -> u64 {
    let said = text(here, &["verify", "live"]);
    let number = said.split(" instructions").next().and_then(|s| s.rsplit(' ').next());
    number.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{said}"))
}

#[test]
fn what_is_compressed_meanwhile_is_read_meanwhile_and_survives_the_recorder() {
    let here = folder();
    let bytes = fs::read(input(here.path(), 300_000)).expect("a file");
    let mut recorder = record_cat(here.path(), &["--compress", "fast"]);
    feed(&mut recorder, here.path(), &bytes);
    let first = instructions(here.path());
    assert!(first > 1_000_000, "{first}");
    // Killed, it can do nothing for the program, whose input ends with it.
    let stdin = recorder.stdin.take();
    recorder.kill().expect("it is there");
    recorder.wait().expect("it was there");
    assert!(instructions(here.path()) >= first);
    let said = dep(here.path(), &["compress", "live"]).output().expect("it runs");
    let why = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(!said.status.success() && why.contains("1 of 1 traces are still recorded"), "{why}");
    drop(stdin);
    await_that("the program has ended", || text(here.path(), &["ps", "live"]).contains("exit 0"));
    let all = instructions(here.path());
    assert!(all > first);
    text(here.path(), &["compress", "live"]);
    assert_eq!(instructions(here.path()), all);
    assert_eq!(pieces_of(here.path()), 0);
    let trace = one_trace(&here.path().join("live"));
    assert_eq!(fs::read(trace).expect("a file")[..4], *b"DEPZ");
}

#[test]
fn it_ends_with_all_of_it_compressed() {
    let here = folder();
    let bytes = fs::read(input(here.path(), 300_000)).expect("a file");
    let mut recorder = record_cat(here.path(), &["--compress", "fast"]);
    feed(&mut recorder, here.path(), &bytes);
    drop(recorder.stdin.take());
    assert!(recorder.wait().expect("it runs").success());
    assert!(instructions(here.path()) > 1_000_000);
    let trace = one_trace(&here.path().join("live"));
    assert_eq!(fs::read(trace).expect("a file")[..4], *b"DEPZ");
}

/// A command of `dep` that fails; what it says.
fn complaint(here: &Path, arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } = dep(here, arguments).output().expect("it runs");
    let said = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
    assert_eq!(status.code(), Some(1), "{arguments:?}: {said}");
    said
}

#[test]
fn damage_is_named_and_a_full_disk_loses_nothing() {
    let here = folder();
    input(here.path(), 20_000);
    text(
        here.path(),
        &["record", "--instrument", "dep", "-o", "live", "--no-follow", "gzip", "-k", "input"],
    );
    let all = instructions(here.path());
    let trace = one_trace(&here.path().join("live"));
    // A file may not become larger than 64 KiB.
    let limited =
        format!("trap '' XFSZ; ulimit -f 128; exec {} compress live", Tools::get().dep.display());
    let said = Command::new("sh").args(["-c", &limited]).current_dir(here.path()).output();
    let said = said.expect("a shell");
    let why = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(!said.status.success() && why.contains("cannot compress it"), "{why}");
    assert_eq!(why.lines().count(), 1, "{why}");
    assert_eq!((instructions(here.path()), traces(&here.path().join("live")).len()), (all, 1));

    text(here.path(), &["compress", "live"]);
    let whole = fs::read(&trace).expect("a file");
    let file = fs::File::options().write(true).open(&trace).expect("a file");
    // (A piece of what the process never wrote is not read.)
    for at in (whole.len() / 16..whole.len()).step_by(whole.len() / 16) {
        file.write_all_at(&[!whole[at]], at as u64).expect("it is written");
    }
    let said = complaint(here.path(), &["verify", "live"]);
    assert!(said.contains("damaged") || said.contains("compressed trace"), "{said}");
    fs::write(&trace, &whole[..whole.len() / 2]).expect("it is written");
    let said = complaint(here.path(), &["verify", "live"]);
    assert!(said.contains("the compressed trace"), "{said}");
    fs::write(&trace, &whole).expect("it is written");
    assert_eq!(instructions(here.path()), all);
}
