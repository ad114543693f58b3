//! One run that leaves inputs and its profile: what is listed of the replayed inputs is what the profile
//! has, line by line.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use common::*;
use serde_json::Value;
use tests::command::{dep, folder};
use tests::harness::{Tally, Tools};

/// Each program is recorded in one of these ways: that is enough of all of them.
const WAYS: [&[&str]; 8] = [
    &[],
    &["--torture", "tiny-buffers"],
    &["--translate", "dynamic", "--memory", "addresses"],
    &["--control-flow", "full-pc", "--torture", "spill"],
    &["--pointers", "thread-block", "--torture", "tiny-buffers,drop"],
    &["--control-flow", "bits"],
    &["--torture", "scattered,spill,tiny-buffers"],
    &["--translate", "dynamic", "--control-flow", "bits", "--torture", "tiny-buffers"],
];

/// What `dep` says of a recording whose replay ends before the recording does.
const NOT_SO_FAR: &str = "which is replayable";
/// And of a process that a child of vfork has forked.
const NO_START: &str = "its start is not in the trace, nor that of process";
const NO_FORK: &str = "the replay did not come to where the process was forked";

/// Lines that are compared, of each listing: some programs wait for seconds in loops. (The profile is verified to its
/// end, and a replay compares itself with the recording.)
const MOST: usize = 500_000;

/// What is known of a comparison.
#[derive(PartialEq, Eq, Debug)]
enum Compared {
    Whole,
    /// The recording is not replayable to its end.
    Prefix,
    /// It is not replayable at all.
    Nothing,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().take(2000).collect()
}

/// The lines of each thread, by the name that they begin with.
fn of_threads(listing: &[u8]) -> BTreeMap<&[u8], Vec<&[u8]>> {
    let mut threads: BTreeMap<&[u8], Vec<&[u8]>> = BTreeMap::new();
    for line in listing.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let end = line.iter().position(|&byte| byte == b' ').unwrap_or(line.len());
        threads.entry(&line[..end]).or_default().push(line);
    }
    threads
}

/// Compares what the profile has with what the replay did. Where a listing was cut, each thread has what came before
/// that: where not all of the recording is replayable, its threads have no common order to its end.
fn same(profile: &[u8], replayed: &[u8], whole: bool) -> Result<(), String> {
    if whole && profile == replayed {
        return Ok(());
    }
    let is_cut = |list: &[u8]| list.iter().filter(|&&byte| byte == b'\n').count() >= MOST;
    let cut = is_cut(profile) || is_cut(replayed);
    let (profile, replayed) = (of_threads(profile), of_threads(replayed));
    let nothing = Vec::new();
    for tid in profile.keys().chain(replayed.keys()) {
        let profile = profile.get(tid).unwrap_or(&nothing);
        let replayed = replayed.get(tid).unwrap_or(&nothing);
        let differs = profile.iter().zip(replayed).position(|(one, other)| one != other);
        let (lines, of) = (replayed.len(), profile.len());
        if let Some(at) = differs {
            let (one, other) = (text(profile[at]), text(replayed[at]));
            return Err(format!("line {at} of {of}: {one:?}, replayed {lines}: {other:?}"));
        }
        if !cut && (lines > of || whole && lines < of) {
            return Err(format!("thread {}: {of} lines, replayed {lines}", text(tid)));
        }
    }
    match whole && !cut {
        true => Err("the threads are in another order".into()),
        false => Ok(()),
    }
}

/// What `list` makes of a profile, and of the replay of the same run.
fn compare(lists: &[&str], list: impl Fn(&str, bool) -> Command) -> Result<Compared, String> {
    let mut compared = Compared::Whole;
    for &what in lists {
        let profile = list(what, false).output().expect("it runs");
        if !profile.status.success() || !profile.stderr.is_empty() {
            return Err(format!("{what} of the profile: {}", text(&profile.stderr)));
        }
        let Output { status, stdout, stderr } = list(what, true).output().expect("it runs");
        let said = text(&stderr);
        // What its parent did in front of the fork may not be replayable.
        if said.contains(NO_START) || said.contains(NOT_SO_FAR) && said.contains(NO_FORK) {
            return Ok(Compared::Nothing);
        }
        if said.contains(NOT_SO_FAR) && said.lines().count() == 1 {
            compared = Compared::Prefix;
        } else if !said.is_empty() {
            return Err(format!("{what} of the replay: {status}: {said}"));
        }
        if !status.success() {
            return Err(format!("{what} of the replay: {status}: {said}"));
        }
        same(&profile.stdout, &stdout, compared == Compared::Whole)
            .map_err(|e| format!("{what}: {e}"))?;
    }
    // Those of inputs are in the order of all threads, with further columns.
    let mut calls = |replayed| -> Result<Vec<String>, String> {
        let Output { status, stdout, stderr } =
            list("syscalls", replayed).output().expect("it runs");
        if text(&stderr).contains(NOT_SO_FAR) {
            // The other listings may have been cut in front of that.
            compared = Compared::Prefix;
        }
        if !status.success() {
            return Err(format!("syscalls: {status}: {}", text(&stderr)));
        }
        let all = String::from_utf8_lossy(&stdout).into_owned();
        let calls = all.lines().map(|line| line.split(" turn ").next().unwrap_or(line).to_owned());
        let mut calls: Vec<String> = calls.collect();
        // Each thread's own order stays.
        calls.sort_by_key(|line| line.split(' ').next().unwrap_or_default().to_owned());
        Ok(calls)
    };
    let (profile, replayed) = (calls(false)?, calls(true)?);
    match compared == Compared::Prefix || profile == replayed {
        true => Ok(compared),
        false => {
            let differs = profile.iter().zip(&replayed).find(|(one, other)| one != other);
            Err(format!("syscalls: {} and {}: {differs:?}", profile.len(), replayed.len()))
        }
    }
}

#[test]
fn replays_of_the_corpus_are_what_the_profile_says() {
    let mut tally = Tally::start("replays_of_the_corpus_are_what_the_profile_says");
    let (whole, prefix) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let every = std::env::var("WAYS").is_ok_and(|ways| ways == "all");
    let mut cases: Vec<_> = corpus().into_iter().enumerate().collect();
    // A fifth of the programs takes a minute; five and the number of ways have no common divisor.
    cases.retain(|(number, _)| every || number % 5 == 0);
    tally.side_by_side(&cases, |outcomes, (number, case)| {
        if let Some(why) = case.skip_reason_in("replay").or_else(|| case.skip_reason_in("inputs")) {
            return outcomes.skip(&case.name, &why);
        }
        if case.refused.is_some() {
            return outcomes.skip(&case.name, "the runtime stops it");
        }
        let ways = if every { &WAYS[..] } else { std::slice::from_ref(&WAYS[number % WAYS.len()]) };
        for flags in ways {
            let bits = flags.contains(&"bits").then(|| case.skip_reason_in("bits")).flatten();
            if let Some(why) = bits {
                outcomes.skip(&format!("{} {}", case.name, flags.join(" ")), &why);
                continue;
            }
            let dir = folder();
            let check = || -> Result<(), String> {
                let rewritten = dir.path().join("rewritten");
                let all = [&["--instrument", "inputs,dep"], *flags].concat();
                Tools::get().rewrite_sharing(&case.path, &rewritten, &all)?;
                let run =
                    spec(case).run(Some(&rewritten), dir.path()).map_err(|e| e.to_string())?;
                verify_all(&run.traces, Tools::get(), &rewritten)?;
                for trace in &run.traces {
                    let list = |what: &str, replayed: bool| {
                        let mut command =
                            dep(dir.path(), &[what, "--limit", &MOST.to_string(), "--output"]);
                        command.arg(&rewritten).arg("--program").arg(&case.path).arg(trace);
                        command.args(replayed.then_some("--replayed"));
                        command
                    };
                    let compared = compare(&["blocks", "memrefs"], list)
                        .map_err(|e| format!("{}: {e}", name_of(trace)))?;
                    match compared {
                        Compared::Whole => whole.fetch_add(1, Relaxed),
                        Compared::Prefix => prefix.fetch_add(1, Relaxed),
                        Compared::Nothing => 0,
                    };
                }
                Ok(())
            };
            outcomes.record(&format!("{} {}", case.name, flags.join(" ")), check());
        }
    });
    tally.finish();
    let (whole, prefix) = (whole.into_inner(), prefix.into_inner());
    println!("{whole} replayed to their ends, {prefix} not");
    // What cannot be followed is the exception.
    assert!(whole > 5 * prefix, "{whole} replayed to their ends, {prefix} not");
}

fn name_of(trace: &Path) -> String {
    trace.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The names of all images of a recording.
fn images(here: &Path, recording: &str) -> Vec<String> {
    let all = dep(here, &["ps", "--json", recording]).output().expect("it runs");
    let all = String::from_utf8_lossy(&all.stdout).into_owned();
    let processes = all.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let images = processes.flat_map(|p| p["images"].as_array().cloned().unwrap_or_default());
    images.map(|image| image["name"].as_str().expect("a name").to_owned()).collect()
}

/// Programs of the system, with threads, forks and signals.
#[test]
fn replays_of_programs_are_what_the_profile_says() {
    let mut tally = Tally::start("replays_of_programs_are_what_the_profile_says");
    let lines: String = (0..3000).map(|i| format!("line {i} {}\n", i * i % 97)).collect();
    let programs: [(&str, &[&str], &[&str]); 6] = [
        ("gzip", &["gzip", "-9c", "lines"], &["--control-flow", "full-pc"]),
        ("perl", &["perl", "-e", "$h{$_} = $_ * 2 for 1..500; print join ',', keys %h"], &[]),
        (
            "sqlite3",
            &["sqlite3", ":memory:", "create table t(a); insert into t values(1); select random()"],
            &["--memory", "addresses"],
        ),
        (
            "sh",
            &["sh", "-c", "sort lines | uniq -c | tail -n 2; (echo sub; exit 3) || echo $?"],
            &[],
        ),
        ("xz", &["xz", "-0", "-T2", "--block-size=8192", "-c", "lines"], &["--torture", "spill"]),
        (
            "python3",
            &["python3", "-SIc", "import json; print(json.dumps({'a': [1, hash('x')]}))"],
            &["--control-flow", "bits"],
        ),
    ];
    tally.side_by_side(&programs, |outcomes, &(name, command, flags)| {
        // What `python3` names may be a script that starts others.
        let file = match name {
            "python3" => PathBuf::from("/usr/bin/python3"),
            _ => PathBuf::from(name),
        };
        let there = Command::new("sh").args(["-c", "command -v \"$0\""]).arg(&file).output();
        if !there.expect("a shell").status.success() {
            return outcomes.skip(name, "it is not installed");
        }
        let here = folder();
        std::fs::write(here.path().join("lines"), &lines).expect("written");
        let check = || -> Result<(), String> {
            let record = ["record", "--instrument", "inputs,dep", "-o", "rec"];
            let mut record = dep(here.path(), &record);
            record.args(flags).arg(&file).args(&command[1..]);
            let Output { status, stderr, .. } = record.output().expect("it runs");
            if !status.success() || !stderr.is_empty() {
                return Err(format!("{status}: {}", text(&stderr)));
            }
            let images = images(here.path(), "rec");
            if images.is_empty() {
                return Err("nothing was recorded".into());
            }
            for image in &images {
                let list = |what: &str, replayed: bool| {
                    let mut command =
                        dep(here.path(), &[what, "--limit", &MOST.to_string(), "-p", image, "rec"]);
                    command.args(replayed.then_some("--replayed"));
                    command
                };
                match compare(&["blocks", "memrefs"], list).map_err(|e| format!("{image}: {e}"))? {
                    Compared::Whole => {}
                    other => return Err(format!("{image}: {other:?}")),
                }
            }
            let verified = dep(here.path(), &["verify", "rec"]).output().expect("it runs");
            match verified.status.success() {
                true => Ok(()),
                false => Err(text(&verified.stderr)),
            }
        };
        outcomes.record(name, check());
    });
    tally.finish();
}
