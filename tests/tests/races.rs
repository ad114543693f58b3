//! `dep races`: programs whose threads synchronise have none, and a race is found, in whatever order the
//! threads ran.
//!
//! The sources are in `races/`. `//#race: ONE OTHER` names two functions whose instructions race.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tests::harness::Tally;

/// How threads run: one at a time, or all at once.
const WATCHED: &str = "watched";
const SCHEDULES: [&str; 5] = ["", "random:1", "random:2", WATCHED, WATCHED];

type Pairs = BTreeSet<(String, String)>;

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/races").join(name)
}

fn build(name: &str, here: &Path) -> Result<(), String> {
    let source = source(name);
    let mut command = match source.extension().and_then(|e| e.to_str()) {
        Some("rs") => Command::new("rustc"),
        Some("cc") => Command::new("g++"),
        _ => Command::new("gcc"),
    };
    match source.extension().is_some_and(|e| e == "rs") {
        true => command.args(["-O", "--edition=2021", "-Awarnings"]),
        false => command.args(["-O2", "-w", "-pthread"]),
    };
    let done = command.arg("-o").arg(here.join("program")).arg(source).output();
    let done = done.map_err(|e| e.to_string())?;
    done.status.success().then_some(()).ok_or_else(|| String::from_utf8_lossy(&done.stderr).into())
}

fn dep(here: &Path, arguments: &[&str]) -> Output {
    tests::command::dep(here, arguments).output().expect("it runs")
}

/// Records the program.
fn recorded(here: &Path, schedule: &str) -> Result<(), String> {
    let _ = fs::remove_dir_all(here.join("rec"));
    let mut arguments = vec!["record", "--replayable", "-o", "rec"];
    match schedule {
        "" => {}
        WATCHED => arguments.extend(["--threads", WATCHED]),
        _ => arguments.extend(["--schedule", schedule]),
    }
    arguments.push("./program");
    let run = dep(here, &arguments);
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    run.status.success().then_some(()).ok_or_else(|| format!("recorded: {}: {said}", run.status))
}

/// Without what follows the name.
fn function(access: &Value) -> String {
    let name = access["function"].as_str().unwrap_or_default();
    name.split('+').next().unwrap_or_default().to_owned()
}

/// The pairs of functions whose instructions race.
fn races(here: &Path) -> Result<Pairs, String> {
    let Output { status, stdout, stderr } = dep(here, &["races", "--json", "rec"]);
    let said = String::from_utf8_lossy(&stderr).into_owned();
    let mut pairs = Pairs::new();
    for line in String::from_utf8_lossy(&stdout).lines() {
        let race: Value = serde_json::from_str(line).map_err(|e| format!("{line}: {e}"))?;
        let (before, behind) = (&race["before"], &race["behind"]);
        if before["tid"] == behind["tid"] {
            return Err(format!("one thread: {line}"));
        }
        let is_store =
            |access: &Value| access["access"].as_str().is_some_and(|a| a.contains("store"));
        if !is_store(before) && !is_store(behind) {
            return Err(format!("two loads: {line}"));
        }
        let (one, other) = (function(before), function(behind));
        pairs.insert((one.clone().min(other.clone()), one.max(other)));
    }
    let expected = if pairs.is_empty() { (Some(0), said.is_empty()) } else { (Some(1), true) };
    match (status.code(), expected.1) == expected && (said.contains("race") || pairs.is_empty()) {
        true => Ok(pairs),
        false => Err(format!("{status}: {said}")),
    }
}

/// Records the program under each schedule and compares.
fn all_are(name: &str, expected: &Pairs) -> Result<(), String> {
    let dir = tempfile::tempdir().expect("a folder");
    build(name, dir.path())?;
    for schedule in SCHEDULES {
        recorded(dir.path(), schedule)?;
        let found = races(dir.path())?;
        if found != *expected {
            return Err(format!("{schedule}: {found:?}, expected {expected:?}"));
        }
    }
    Ok(())
}

#[test]
fn what_is_ordered_is_no_race() {
    let mut tally = Tally::start("what_is_ordered_is_no_race");
    for name in ["ordered.c", "ordered.cc", "ordered.rs", "stopped.c"] {
        tally.record(name, all_are(name, &Pairs::new()));
    }
    tally.finish();
}

#[test]
fn races_are_found_in_any_order() {
    let mut tally = Tally::start("races_are_found_in_any_order");
    for name in ["counter.c", "flag.c", "kernel.c", "late.c"] {
        let text = fs::read_to_string(source(name)).expect("a source");
        let named = text.lines().filter_map(|line| line.strip_prefix("//#race: "));
        let pair = |line: &str| {
            let (one, other) = line.split_once(' ').expect("two functions");
            (one.min(other).to_owned(), one.max(other).to_owned())
        };
        tally.record(name, all_are(name, &named.map(pair).collect()));
    }
    tally.finish();
}

#[test]
fn the_order_of_threads_has_to_be_recorded() {
    let dir = tempfile::tempdir().expect("a folder");
    let recorded = dep(dir.path(), &["record", "--instrument", "dep", "-o", "rec", "/bin/true"]);
    assert!(recorded.status.success(), "{recorded:?}");
    let Output { status, stderr, .. } = dep(dir.path(), &["races", "rec"]);
    let said = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!(status.code(), Some(1));
    assert!(said.contains("dep record --instrument inputs") && said.lines().count() == 1, "{said}");
}
