//! Recordings that end where nobody planned it: killed, or on a full disk. What is left is a valid
//! trace that says that something is missing, and what it holds is what happened.
//!
//! MOMENTS=N takes N moments for each program, SEED=N others than usual.

mod common;

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::*;
use tests::harness::{difference, RunSpec, Tally, Tools};
use tests::launch::standard_env;
use tests::moments::{kill_at, stops, Moment, Noise};
use tests::sys::{self, Status};

fn number(name: &str, usual: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")),
        Err(_) => usual,
    }
}

/// A program, and how it is rewritten.
struct Subject {
    name: &'static str,
    spec: RunSpec,
    flags: &'static [&'static str],
    /// Two runs record the same.
    repeats: bool,
}

fn subjects() -> Vec<Subject> {
    const TINY: &[&str] = &["--torture", "tiny-buffers"];
    const BITS: &[&str] = &["--torture", "tiny-buffers", "--control-flow", "bits"];
    const FULL_PC: &[&str] = &["--control-flow", "full-pc", "--memory", "addresses"];
    let lines = |n: u32| -> Vec<u8> {
        (0..n)
            .flat_map(|i| format!("line {i} {}\n", i.wrapping_mul(i * 7919)).into_bytes())
            .collect()
    };
    let gzip = |n| RunSpec::new("/usr/bin/gzip").args(&["-nc"]).stdin(&lines(n));
    let xz = RunSpec::new("/usr/bin/xz").args(&["-T2", "-1", "--block-size=4096", "-c"]);
    let threads = corpus().into_iter().find(|c| c.name == "c/threads.pie").expect("a case");
    vec![
        Subject { name: "gzip", spec: gzip(1000), flags: &[], repeats: true },
        Subject { name: "gzip tiny", spec: gzip(60), flags: TINY, repeats: true },
        Subject { name: "gzip bits", spec: gzip(60), flags: BITS, repeats: true },
        Subject { name: "gzip full-pc", spec: gzip(200), flags: FULL_PC, repeats: true },
        Subject { name: "xz", spec: xz.stdin(&lines(1200)), flags: &[], repeats: false },
        Subject { name: "threads tiny", spec: spec(&threads), flags: TINY, repeats: false },
    ]
}

/// A recording of a subject that came to its end.
struct Whole {
    rewritten: PathBuf,
    blocks: PathBuf,
    seconds: f64,
    bytes: u64,
}

fn dep(command: &str, trace: &Path, rewritten: &Path) -> Result<String, String> {
    let mut dep = Command::new(&Tools::get().dep);
    dep.args([command, "--output"]).arg(rewritten).arg(trace);
    let output = dep.output().map_err(|e| e.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(format!("{}{}", text(&output.stdout), text(&output.stderr))),
        false => Err(text(&output.stderr)),
    }
}

fn whole(subject: &Subject, dir: &Path) -> Result<Whole, String> {
    let rewritten = dir.join("rewritten");
    Tools::get().rewrite_sharing(&subject.spec.program, &rewritten, subject.flags)?;
    let start = Instant::now();
    let run = subject.spec.run(Some(&rewritten), dir).map_err(|e| e.to_string())?;
    let seconds = start.elapsed().as_secs_f64();
    let trace = first_trace(&run.traces)?;
    let bytes = std::fs::metadata(trace).map_err(|e| e.to_string())?.len();
    let blocks = dir.join("whole.blocks");
    if subject.repeats {
        Tools::get().list("blocks", trace, &rewritten, &blocks)?;
    }
    std::fs::remove_file(trace).map_err(|e| e.to_string())?;
    Ok(Whole { rewritten, blocks, seconds, bytes })
}

/// What holds of every trace that was cut short. Returns how many blocks it has.
fn is_valid_prefix(
    subject: &Subject,
    whole: &Whole,
    trace: &Path,
    dir: &Path,
) -> Result<u64, String> {
    Tools::get().verify(trace, &whole.rewritten)?;
    let part = dir.join("part.blocks");
    Tools::get().list("blocks", trace, &whole.rewritten, &part)?;
    let blocks = match subject.repeats {
        true => same_listing(&part, &whole.blocks, None, true)?,
        // Threads interleave differently: there is nothing to compare with.
        false => {
            let text = std::fs::read(&part).map_err(|e| e.to_string())?;
            text.iter().filter(|&&byte| byte == b'\n').count() as u64
        }
    };
    std::fs::remove_file(part).map_err(|e| e.to_string())?;
    Ok(blocks)
}

fn killed(subject: &Subject, whole: &Whole, moment: Moment, dir: &Path) -> Result<u64, String> {
    let trouble = |e: std::io::Error| e.to_string();
    let (launch, run) = subject.spec.launch(Some(&whole.rewritten), dir).map_err(trouble)?;
    let status = kill_at(&launch, moment).map_err(trouble)?;
    let prefix = format!("run{run:06}.");
    let entries = std::fs::read_dir(dir).map_err(trouble)?.flatten().map(|e| e.path());
    let mut traces: Vec<PathBuf> = entries.collect();
    traces.retain(|p| {
        let name = p.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with(&prefix) && name.contains(".dep")
    });
    // Killed before it had a trace, it has left none.
    let Ok(trace) = first_trace(&traces) else { return Ok(0) };
    let blocks = is_valid_prefix(subject, whole, trace, dir)?;
    let info = dep("info", trace, &whole.rewritten)?;
    let says = info.contains("ended: killed, or still running");
    if status == Status::Killed(9) && blocks > 0 && !says && !info.contains("ended: exit status") {
        return Err(format!("its end is not marked:\n{info}"));
    }
    for trace in &traces {
        std::fs::remove_file(trace).map_err(trouble)?;
    }
    Ok(blocks)
}

#[test]
fn killed_at_any_moment() {
    let mut tally = Tally::start("killed_at_any_moment");
    let mut noise = Noise::new(number("SEED", 1));
    for subject in subjects() {
        let dir = tempfile::tempdir().unwrap();
        let prepare = || -> Result<(Whole, u64), String> {
            let whole = whole(&subject, dir.path())?;
            let launch = subject.spec.launch(Some(&whole.rewritten), dir.path());
            let (launch, run) = launch.map_err(|e| e.to_string())?;
            let stops = stops(&launch).map_err(|e| e.to_string())?;
            let traces = std::fs::read_dir(dir.path()).map_err(|e| e.to_string())?.flatten();
            let name = format!("run{run:06}.");
            for entry in traces.filter(|e| e.file_name().to_string_lossy().starts_with(&name)) {
                std::fs::remove_file(entry.path()).map_err(|e| e.to_string())?;
            }
            Ok((whole, stops))
        };
        let (whole, stops) = match prepare() {
            Ok(prepared) => prepared,
            Err(e) => {
                tally.record(subject.name, Err(e));
                continue;
            }
        };
        let mut with_blocks = 0;
        for n in 0..number("MOMENTS", 12) {
            let moment = match n % 2 {
                0 => {
                    let most = (whole.seconds * 1e6) as u64;
                    Moment::After(Duration::from_micros(noise.below(most)))
                }
                _ => Moment::Stop(1 + noise.below(stops)),
            };
            let outcome = killed(&subject, &whole, moment, dir.path());
            with_blocks += u64::from(outcome.as_ref().is_ok_and(|&blocks| blocks > 0));
            tally.record(&format!("{} {moment:?} of {stops}", subject.name), outcome.map(drop));
        }
        eprintln!("{}: {with_blocks} recordings hold blocks", subject.name);
        let enough =
            if with_blocks == 0 { Err("never killed while it recorded".into()) } else { Ok(()) };
        tally.record(&format!("{} was recorded", subject.name), enough);
    }
    tally.finish();
}

/// Reads the trace again and again until the process that writes it has ended.
fn read_meanwhile(subject: &Subject, dir: &Path) -> Result<u64, String> {
    let trouble = |e: std::io::Error| e.to_string();
    // Names of one length, because the environment's size decides where the stack begins.
    let [at_once, running] = ["at-once", "running"].map(|name| dir.join(name));
    for folder in [&at_once, &running] {
        std::fs::create_dir_all(folder).map_err(trouble)?;
    }
    let whole = whole(subject, &at_once)?;
    let traces = || -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&running).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        paths.filter(|path| path.to_string_lossy().contains(".dep")).collect()
    };
    std::thread::scope(|scope| {
        let run = scope.spawn(|| subject.spec.run(Some(&whole.rewritten), &running));
        let mut most = 0;
        let mut ended = false;
        loop {
            // Once more behind the end.
            let is_last = std::mem::replace(&mut ended, run.is_finished());
            if let Ok(trace) = first_trace(&traces()) {
                most = is_valid_prefix(subject, &whole, trace, dir)?.max(most);
            }
            if is_last {
                break;
            }
        }
        run.join().map_err(|_| "the run panicked".to_string())?.map_err(trouble)?;
        Ok(most)
    })
}

#[test]
fn read_while_it_is_written() {
    let mut tally = Tally::start("read_while_it_is_written");
    for subject in subjects() {
        let dir = tempfile::tempdir().unwrap();
        let outcome = match read_meanwhile(&subject, dir.path()) {
            Ok(0) => Err("no reader found a block".into()),
            other => other.map(drop),
        };
        tally.record(subject.name, outcome);
    }
    tally.finish();
}

/// Runs the subject with its trace on a file system of `size` bytes.
fn filled(
    subject: &Subject,
    native: &tests::harness::Run,
    whole: &Whole,
    size: u64,
    dir: &Path,
) -> Result<bool, String> {
    let trouble = |e: std::io::Error| e.to_string();
    let disk = dir.join("disk");
    std::fs::create_dir_all(&disk).map_err(trouble)?;
    let place = CString::new(disk.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
    sys::mount_small(&place, size).map_err(trouble)?;
    let outcome = || -> Result<bool, String> {
        let (mut launch, run) =
            subject.spec.launch(Some(&whole.rewritten), dir).map_err(trouble)?;
        // As long as the usual name, because the environment's size decides where the stack begins.
        let usual = RunSpec::dep_file(dir, run).len();
        let mut name = disk.join("t").into_os_string();
        while name.len() < usual - "%p.dep".len() {
            name.push("t");
        }
        name.push("%p.dep");
        launch.env = standard_env(&name);
        let (status, timed_out) = launch.run_for(subject.spec.timeout).map_err(trouble)?;
        let read = |what: &str| std::fs::read(dir.join(format!("run{run:06}.{what}")));
        let (stdout, stderr) = (read("out").map_err(trouble)?, read("err").map_err(trouble)?);
        let said = String::from_utf8_lossy(&stderr).into_owned();
        let (ours, theirs): (Vec<&str>, Vec<&str>) =
            said.lines().partition(|line| line.starts_with("deprewrite: "));
        let stderr = theirs.iter().flat_map(|line| [line.as_bytes(), b"\n"]).flatten().copied();
        let (stderr, traces) = (stderr.collect(), Vec::new());
        let run = tests::harness::Run { status, stdout, stderr, timed_out, traces };
        difference(native, &run)?;
        let traces: Vec<PathBuf> =
            std::fs::read_dir(&disk).map_err(trouble)?.flatten().map(|e| e.path()).collect();
        let trace = first_trace(&traces)?;
        let is_lost = !ours.is_empty();
        if is_lost && (ours.len() != 1 || !ours[0].contains("no space left for the trace")) {
            return Err(format!("expected one line about the loss:\n{said}"));
        }
        is_valid_prefix(subject, whole, trace, dir)?;
        let info = dep("info", trace, &whole.rewritten)?;
        // A disk without room for the first frame holds an empty file.
        let empty = info.contains("warning: nothing was recorded");
        if is_lost != (empty || info.contains("recording lost disk full")) {
            return Err(format!("a loss: {is_lost}, but the trace says:\n{info}"));
        }
        let ended = match native.status {
            Status::Exited(status) => format!("ended: exit status {status}"),
            Status::Killed(signal) => format!("ended: signal {signal}"),
            other => return Err(format!("the original ended with {other:?}")),
        };
        if !empty && !info.contains(&ended) {
            return Err(format!("not {ended}, says the trace:\n{info}"));
        }
        Ok(is_lost)
    };
    let outcome = outcome();
    sys::unmount(&place).map_err(trouble)?;
    outcome
}

#[test]
fn full_disk_at_any_moment() {
    let mut tally = Tally::start("full_disk_at_any_moment");
    if let Err(e) = sys::own_mounts() {
        tally.skip("all", &format!("no mounts of our own: {e}"));
        return tally.finish();
    }
    let mut noise = Noise::new(number("SEED", 2));
    for subject in subjects() {
        let dir = tempfile::tempdir().unwrap();
        let native = subject.spec.run(None, dir.path()).map_err(|e| e.to_string());
        let prepared = native.and_then(|native| Ok((native, whole(&subject, dir.path())?)));
        let (native, whole) = match prepared {
            Ok(prepared) => prepared,
            Err(e) => {
                tally.record(subject.name, Err(e));
                continue;
            }
        };
        let mut losses = 0;
        for n in 0..number("MOMENTS", 12) {
            // What is said at the start takes little room and comes in many pieces.
            let most = if n % 2 == 0 { whole.bytes } else { whole.bytes.min(1 << 20) };
            let size = 4096 * (1 + noise.below(most / 4096));
            let outcome = filled(&subject, &native, &whole, size, dir.path());
            losses += u64::from(outcome.as_ref() == Ok(&true));
            tally.record(&format!("{} with {size} bytes", subject.name), outcome.map(drop));
        }
        eprintln!("{}: {losses} recordings were cut short", subject.name);
        let enough = if losses == 0 { Err("no disk was ever full".into()) } else { Ok(()) };
        tally.record(&format!("{} was cut short", subject.name), enough);
    }
    tally.finish();
}

/// An output appears whole or not at all, and one that was there stays.
#[test]
fn outputs_without_room_leave_nothing() {
    let mut tally = Tally::start("outputs_without_room_leave_nothing");
    if let Err(e) = sys::own_mounts() {
        tally.skip("all", &format!("no mounts of our own: {e}"));
        return tally.finish();
    }
    let trouble = |e: std::io::Error| e.to_string();
    let dir = tempfile::tempdir().unwrap();
    let place = CString::new(dir.path().as_os_str().as_bytes()).unwrap();
    let output = dir.path().join("output");
    for (name, size, read_only) in [
        ("no room at all", 4096, false),
        ("room for a part", 256 << 10, false),
        ("read-only", 64 << 20, true),
    ] {
        let check = || -> Result<(), String> {
            sys::mount_small(&place, size).map_err(trouble)?;
            std::fs::write(&output, "old").map_err(trouble)?;
            if read_only {
                sys::make_read_only(&place).map_err(trouble)?;
            }
            let mut command = Command::new(&Tools::get().deprewrite);
            let done = command.arg("/usr/bin/gzip").arg("-o").arg(&output).output();
            let done = done.map_err(trouble)?;
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            let expected = format!("cannot write {}: ", output.display());
            if done.status.code() != Some(1)
                || said.lines().count() != 1
                || !said.contains(&expected)
            {
                return Err(format!("{:?}: {said}", done.status));
            }
            let left = std::fs::read_dir(dir.path()).map_err(trouble)?.count();
            match (left, std::fs::read(&output).map_err(trouble)?.as_slice()) {
                (1, b"old") => Ok(()),
                (left, now) => {
                    Err(format!("{left} files, and the old one has {} bytes", now.len()))
                }
            }
        };
        tally.record(name, check());
        if let Err(e) = sys::unmount(&place) {
            tally.record(&format!("{name}, unmounted"), Err(e.to_string()));
        }
    }
    tally.finish();
}
