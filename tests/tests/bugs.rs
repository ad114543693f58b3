//! Programs with the errors of BugNet's Table 1: each crashes, is recorded, and is replayed to its crash;
//! and `dep window` says how far that is from the instruction that is to blame.
//!
//! CORPUS=NAME: only the programs whose name contains NAME.

mod common;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tests::harness::Tally;
use tests::launch::Launch;
use tests::sys::Status;

const SEGV: i32 = 11;

fn sources() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus/bugs");
    let all = fs::read_dir(folder).expect("the folder of programs");
    let mut all: Vec<PathBuf> = all.map(|entry| entry.expect("a file").path()).collect();
    let wanted = std::env::var("CORPUS").unwrap_or_default();
    let is_one = |path: &PathBuf| {
        path.extension().is_some_and(|e| e == "c") && path.to_string_lossy().contains(&wanted)
    };
    all.retain(is_one);
    all.sort();
    all
}

/// The errors are to be what they were when nothing in a program looked for them.
fn build(source: &Path, several: bool, program: &Path) -> Result<(), String> {
    let mut command = Command::new("gcc");
    command.args(["-O1", "-w", "-g", "-fno-stack-protector", "-U_FORTIFY_SOURCE"]);
    command.args(["-fno-pie", "-no-pie", "-pthread"]);
    if several {
        command.arg("-DSEVERAL");
    }
    let done = command.arg("-o").arg(program).arg(source).status().map_err(|e| e.to_string())?;
    done.success().then_some(()).ok_or_else(|| "it is not built".into())
}

fn dep(here: &Path, arguments: &[&str]) -> Output {
    tests::command::dep(here, arguments).output().expect("it runs")
}

fn json(output: &Output) -> Result<Value, String> {
    let said = || String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        return Err(format!("{}: {}", output.status, said()));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("{e}: {}", said()))
}

/// Address of a label, as the linker has put it.
fn address_of(label: &str, program: &Path) -> Result<u64, String> {
    let output = Command::new("nm").arg(program).output().map_err(|e| e.to_string())?;
    let all = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = all.lines().find(|line| line.ends_with(&format!(" {label}")));
    let digits = line.and_then(|line| line.split(' ').next()).ok_or("no such label")?;
    u64::from_str_radix(digits, 16).map_err(|e| e.to_string())
}

/// Records the program, replays it to its crash, and returns what `dep window` says.
fn window(program: &str, here: &Path) -> Result<Value, String> {
    let recording = format!("{program}.rec");
    let run = dep(here, &["record", "--replayable", "-o", &recording, &format!("./{program}")]);
    if run.status.signal() != Some(SEGV) {
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        return Err(format!("recorded: {}: {said}", run.status));
    }
    let replay = json(&dep(here, &["replay", "--json", &recording]))?;
    let text = replay["text"].as_str().unwrap_or_default();
    if replay["equal"] != true || !text.contains("signal 11 ends the process") {
        return Err(format!("replayed: {replay}"));
    }
    let window = json(&dep(here, &["window", "--from", "root_cause", "--json", &recording]))?;
    if window["all_turns"] != replay["turns"] {
        return Err(format!("{window}, and the recording has {} turns", replay["turns"]));
    }
    Ok(window)
}

/// What stepping the program natively counts.
fn is_counted(program: &Path, here: &Path, window: &Value) -> Result<(), String> {
    let mut launch = Launch::new(program);
    launch.dir = Some(here.to_owned());
    let from = address_of("root_cause", program)?;
    let counted = tests::window::count(&launch, from).map_err(|e| e.to_string())?;
    if counted.status != Status::Killed(SEGV) {
        return Err(format!("stepped: {:?}", counted.status));
    }
    let said = [&window["instructions"], &window["times"]].map(Value::as_u64);
    match said == [Some(counted.instructions), Some(counted.times)] {
        true => Ok(()),
        false => Err(format!("{window}, and stepping counts {counted:?}")),
    }
}

#[test]
fn crashes_are_replayed_from_their_causes() {
    let mut tally = Tally::start("crashes_are_replayed_from_their_causes");
    tally.side_by_side(&sources(), |outcomes, source| {
        let name = source.file_stem().expect("a name").to_string_lossy().into_owned();
        let text = fs::read_to_string(source).expect("a source");
        // Some have threads of their own.
        let threads = text.contains("//#threads");
        for several in [false, true] {
            if threads && several {
                continue;
            }
            let dir = tempfile::tempdir().expect("a folder");
            let program = dir.path().join("buggy");
            let check = || -> Result<(), String> {
                build(source, several, &program)?;
                let window = window("buggy", dir.path())?;
                let (thread, last) = (&window["thread"], &window["last_thread"]);
                match threads || several {
                    // Two threads of their own: one errs, and another one crashes.
                    true if threads == (thread != last) => Ok(()),
                    true => Err(format!("other threads than expected: {window}")),
                    false => is_counted(&program, dir.path(), &window),
                }
            };
            let name = format!("{name}{}", if several { " (several threads)" } else { "" });
            outcomes.record(&name, check());
        }
    });
    tally.finish();
}

/// Counts from the addresses of a trace, and counts of a replay that is stepped, do not share what counts them.
#[test]
fn first_loads_are_those_that_stepping_finds() {
    let dir = tempfile::tempdir().expect("a folder");
    let program = dir.path().join("buggy");
    for bug in ["heap_bounds", "loop_bound"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus/bugs");
        build(&folder.join(bug).with_extension("c"), false, &program).expect("it is built");
        let run = dep(dir.path(), &["record", "--replayable", "-o", bug, "./buggy"]);
        assert_eq!(run.status.signal(), Some(SEGV), "{run:?}");
        let of = |arguments: &[&str]| {
            let arguments = [&["window", "--json"], arguments, &[bug]].concat();
            json(&dep(dir.path(), &arguments)).expect("a window")
        };
        let window = of(&["--from", "root_cause", "--log", "--loads=10M"]);
        assert_eq!(window["left_out"], 0, "{window}");
        assert!(window["loads"].as_u64().is_some_and(|loads| loads > 0), "{window}");
        let interval = &window["intervals_of"][0];
        assert_eq!(window["loaded_words"], window["loads"], "{window}");
        for what in ["logged", "intervals", "plain_log_bytes"] {
            assert_eq!(interval[what], window[what], "{what}: {window}");
        }

        // The same instructions, counted from the end.
        let last = window["instructions"].to_string();
        let counted = of(&["--last", &last, "--loads=10M,100"]);
        let instructions = counted["instructions"].as_u64().expect("a number");
        let wanted = window["instructions"].as_u64().expect("a number");
        // Instructions are told unit by unit, and a thousand at once where nothing refers to memory.
        assert!((wanted.saturating_sub(1100)..=wanted).contains(&instructions), "{counted}");
        let logged = |at: usize| counted["intervals_of"][at]["logged"].as_u64();
        assert!(logged(0) <= logged(1), "short intervals have more first loads: {counted}");
        let all = of(&["--last", "1G", "--loads"]);
        assert_eq!(all["instructions"], all["all_instructions"], "{all}");
        assert_eq!(all["intervals_of"].as_array().map(Vec::len), Some(5), "{all}");
    }
}

#[test]
fn a_window_needs_an_instruction_that_was_executed() {
    let dir = tempfile::tempdir().expect("a folder");
    let recorded = dep(dir.path(), &["record", "--replayable", "-o", "true.rec", "/bin/true"]);
    assert!(recorded.status.success(), "{recorded:?}");
    for (from, what) in [
        ("nowhere", "no function or label is called nowhere"),
        ("0x12", "was not executed"),
        ("0xz", "0xz: "),
    ] {
        let Output { status, stderr, .. } =
            dep(dir.path(), &["window", "--from", from, "true.rec"]);
        let said = String::from_utf8_lossy(&stderr).into_owned();
        assert_eq!(status.code(), Some(1), "{said}");
        assert!(said.contains(what) && said.lines().count() == 1, "{said}");
    }
}
