//! Replays of recordings of inputs: they do what was recorded, and say so when they do not.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use abi::layout::TOO_FEW_ADDRESSES;
use common::*;
use serde_json::Value;
use tests::command::{folder, turns_of};
use tests::harness::{cache, Mode, Run, RunSpec, Tally, Tools};
use tests::inputs;

const INPUTS: Mode = Mode { name: "static-inputs", flags: &["--instrument", "inputs"] };

fn dep(here: &Path) -> Command {
    tests::command::dep(here, &[])
}

fn output(command: &mut Command) -> Output {
    command.output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A run that was recorded, with what is needed to replay it.
struct Recorded {
    run: Run,
    original: PathBuf,
    rewritten: PathBuf,
}

fn recorded(spec: &RunSpec, dir: &Path) -> Result<Recorded, String> {
    let rewritten = dir.join(INPUTS.name);
    Tools::get().rewrite_sharing(&spec.program, &rewritten, INPUTS.flags)?;
    let run = spec.run(Some(&rewritten), dir).map_err(|e| e.to_string())?;
    Ok(Recorded { run, original: spec.program.clone(), rewritten })
}

impl Recorded {
    fn dep(&self, what: &str, trace: &Path, dir: &Path) -> Command {
        let mut command = dep(dir);
        command.arg(what).arg("--program").arg(&self.original).arg(trace);
        command
    }

    /// Replays a process and shows its output.
    fn replay(&self, trace: &Path, dir: &Path) -> Output {
        let mut command = self.dep("replay", trace, dir);
        output(command.arg("--output").arg("--rewritten").arg(&self.rewritten))
    }

    /// What is listed of a replay.
    fn list(&self, what: &str, trace: &Path, dir: &Path) -> Result<PathBuf, String> {
        let mut command = self.dep(what, trace, dir);
        let Output { status, stdout, stderr } =
            output(command.arg("--output").arg(&self.rewritten));
        if !status.success() || !stderr.is_empty() {
            return Err(format!("{what}: {status}: {}", text(&stderr)));
        }
        let listing = dir.join(format!("replayed.{what}"));
        fs::write(&listing, stdout).map_err(|e| e.to_string())?;
        Ok(listing)
    }
}

/// The last line that `dep replay` writes to stderr, and what the program wrote there.
fn said(stderr: &[u8]) -> (String, String) {
    let all = text(stderr);
    let at = all.rfind("dep: ").unwrap_or(all.len());
    (all[at..].trim_end().to_owned(), all[..at].to_owned())
}

/// A replay did all that was recorded.
fn is_equal(Output { status, stderr, .. }: &Output) -> Result<(), String> {
    let (line, _) = said(stderr);
    match status.success() && line.contains(": equal to the recording") {
        true => Ok(()),
        false => Err(format!("{status}: {line}")),
    }
}

#[test]
fn corpus_replays() {
    let mut tally = Tally::start("corpus_replays");
    let (to_their_ends, not_so_far) = (AtomicUsize::new(0), AtomicUsize::new(0));
    tally.side_by_side(&corpus(), |outcomes, case| {
        if let Some(why) = case.skip_reason_in("replay") {
            return outcomes.skip(&case.name, &why);
        }
        if case.refused.is_some() {
            return outcomes.skip(&case.name, "the runtime stops it");
        }
        let dir = folder();
        let mut forked_by_vfork = false;
        let mut check = || -> Result<(), String> {
            let recorded = recorded(&spec(case), dir.path())?;
            let first = first_trace(&recorded.run.traces)?;
            for trace in &recorded.run.traces {
                let replay = recorded.replay(trace, dir.path());
                if text(&replay.stderr)
                    .contains("its start is not in the trace, nor that of process")
                {
                    forked_by_vfork = true;
                    continue;
                }
                is_equal(&replay)?;
                // One process writes all, unless there are more.
                let whole = !text(&replay.stderr).contains("which is replayable");
                (if whole { &to_their_ends } else { &not_so_far }).fetch_add(1, Relaxed);
                if recorded.run.traces.len() == 1 && whole && replay.stdout != recorded.run.stdout {
                    return Err(format!("{}: other output", first.display()));
                }
            }
            Ok(())
        };
        let outcome = check();
        if forked_by_vfork {
            outcomes.skip(&case.name, "one process: a child of vfork that forks is not replayed");
        }
        outcomes.record(&case.name, outcome);
    });
    tally.finish();
    let (to_their_ends, not_so_far) = (to_their_ends.into_inner(), not_so_far.into_inner());
    // What cannot be followed is the exception.
    assert!(
        to_their_ends > 5 * not_so_far,
        "{to_their_ends} replayed to their ends, {not_so_far} not"
    );
}

/// What is listed of a replay is what the program does natively, as the oracle sees it.
#[test]
fn replayed_listings_are_the_truth() {
    let mut tally = Tally::start("replayed_listings_are_the_truth");
    for case in oracle_cases(&mut tally) {
        // Others see in the auxiliary vector whether there is a vdso.
        if !case.name.starts_with("asm/") {
            continue;
        }
        if case.refused.is_some() {
            tally.skip(&case.name, "the runtime stops it");
            continue;
        }
        let dir = folder();
        let mut check = || -> Result<(), String> {
            let truth = oracle(&spec(&case), dir.path(), ORACLE_LIMIT)?;
            let recorded = recorded(&spec(&case), dir.path())?;
            let trace = first_trace(&recorded.run.traces)?;
            if truth.summary.cut_short {
                tally.prefix_only(&case.name);
            }
            for (what, expected, maps) in [
                ("memrefs", &truth.memrefs, Some(truth.maps.as_path())),
                ("blocks", &truth.blocks, None),
            ] {
                let listing = recorded.list(what, trace, dir.path())?;
                same_listing(expected, &listing, maps, truth.summary.cut_short)
                    .map_err(|e| format!("{what}: {e}"))?;
            }
            Ok(())
        };
        let outcome = check();
        tally.record(&case.name, outcome);
    }
    tally.finish();
}

fn record(here: &Path, recording: &str, command: &[&str]) -> Output {
    let mut record = dep(here);
    output(record.args(["record", "--replayable", "-o", recording]).args(command))
}

fn names(here: &Path, recording: &str) -> Vec<String> {
    let Output { stdout, .. } = output(dep(here).args(["ps", "--json", recording]));
    let lines = text(&stdout);
    let all = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    all.flat_map(|process| {
        let images = process["images"].as_array().cloned().unwrap_or_default();
        images.into_iter().map(|image| image["name"].as_str().expect("a name").to_owned())
    })
    .collect()
}

/// Programs of the system, with all that they start.
#[test]
fn programs_of_the_system_replay() {
    let mut tally = Tally::start("programs_of_the_system_replay");
    let lines: String = (0..3000).map(|i| format!("line {i} {}\n", i * i % 97)).collect();
    let programs: [(&str, &[&str]); 7] = [
        ("gzip", &["gzip", "-9c", "lines"]),
        ("perl", &["perl", "-e", "$h{$_} = $_ * 2 for 1..500; print join ',', keys %h"]),
        (
            "python3",
            &["python3", "-c", "import json, os; print(json.dumps({'a': [1, hash('x')]}))"],
        ),
        (
            "sqlite3",
            &[
                "sqlite3",
                ":memory:",
                "create table t(a); insert into t values(1); select sum(a), random() from t",
            ],
        ),
        ("sh", &["sh", "-c", "sort lines | uniq -c | tail -n 2; (echo sub; exit 3) || echo $?"]),
        ("date", &["date", "+%N"]),
        ("xz", &["xz", "-T2", "--block-size=8192", "-c", "lines"]),
    ];
    for (name, command) in programs {
        let there = Command::new("sh").args(["-c", &format!("command -v {name}")]).output();
        if !there.expect("a shell").status.success() {
            tally.skip(name, "it is not installed");
            continue;
        }
        let here = folder();
        fs::write(here.path().join("lines"), &lines).expect("written");
        let check = || -> Result<(), String> {
            let recorded = record(here.path(), "rec", command);
            if !recorded.status.success() || !recorded.stderr.is_empty() {
                return Err(format!("{}: {}", recorded.status, text(&recorded.stderr)));
            }
            let all = names(here.path(), "rec");
            if all.is_empty() {
                return Err("nothing was recorded".into());
            }
            let replayed = output(dep(here.path()).args(["replay", "rec"]));
            let lines = text(&replayed.stdout);
            let equal = lines.lines().filter(|l| l.contains(": equal to the recording")).count();
            if !replayed.status.success() || equal != all.len() {
                return Err(format!("{}: {lines}{}", replayed.status, text(&replayed.stderr)));
            }
            if all.len() > 1 {
                return Ok(());
            }
            let shown = output(dep(here.path()).args(["replay", "--output", "rec"]));
            match shown.stdout == recorded.stdout {
                true => Ok(()),
                false => Err("other output".into()),
            }
        };
        tally.record(name, check());
    }
    tally.finish();
}

/// Where a process forked, its replay does: so what they write comes in the order in which it did.
#[test]
fn a_tree_replays_at_once() {
    let here = folder();
    let script = "x=0; echo one; (echo two; (x=7; echo three); echo four $x); \
        (exit 3) || echo $?; (echo a; echo b) | while read line; do echo $line; done; echo five";
    let recorded = record(here.path(), "rec", &["sh", "-c", script]);
    assert_eq!(text(&recorded.stdout), "one\ntwo\nthree\nfour 0\n3\na\nb\nfive\n");
    let all = names(here.path(), "rec");
    assert!(all.len() > 5, "{all:?}");
    for flags in [&["replay", "rec"][..], &["replay", "--output", "rec"]] {
        let replayed = output(dep(here.path()).args(flags));
        let said = if flags.len() == 2 { &replayed.stdout } else { &replayed.stderr };
        let equal: Vec<String> = text(said).lines().map(str::to_owned).collect();
        assert!(replayed.status.success(), "{equal:?}");
        assert!(equal.iter().all(|line| line.contains(": equal to the recording")), "{equal:?}");
        assert_eq!(equal.len(), all.len(), "{equal:?}");
        if flags.len() == 3 {
            assert_eq!(text(&replayed.stdout), text(&recorded.stdout));
        }
    }
}

const C: &str = "
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
    void *library = dlopen(\"./plugin.so\", RTLD_NOW);
    int (*answer)(void) = library ? (int (*)(void))dlsym(library, \"answer\") : 0;
    if (!answer) return 1;
    printf(\"%d\\n\", answer());
    return 0;
}
";

fn compile(here: &Path, source: &str, name: &str, flags: &[&str]) {
    let file = here.join("source.c");
    fs::write(&file, source).expect("written");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-o"]).arg(here.join(name)).arg(&file).args(flags);
    assert!(gcc.status().expect("gcc").success(), "{name}");
}

/// What a program changes by way of a mapped file is replayed to its end; if another process has written
/// there, too, the replay says so.
#[test]
fn files_that_are_changed_through_memory_replay() {
    const C: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (ftruncate(fd, 300000)) return 1;
    unsigned char *at = mmap(0, 300000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    for (int i = 0; i < 300000; i += 1000) at[i] = i / 1000;
    pwrite(fd, "abc", 3, 5000);
    if (argc > 1) system("printf foreign | dd of=file conv=notrunc bs=7 seek=1 2>dd.err");
    printf("%d %d\n", at[9000], at[5002]);
    unlink("file");
    return 0;
}
"#;
    let here = folder();
    let here = here.path();
    compile(here, C, "program", &[]);
    for (name, command) in [("alone", &["./program"][..]), ("two", &["./program", "two"])] {
        let recorded = record(here, name, command);
        let shown = (text(&recorded.stdout), text(&recorded.stderr));
        assert_eq!(shown, ("9 99\n".into(), String::new()), "{name}");
    }
    let alone = output(dep(here).args(["replay", "--output", "alone"]));
    is_equal(&alone).unwrap();
    assert!(!text(&alone.stderr).contains("which is replayable"), "{}", text(&alone.stderr));
    assert_eq!(text(&alone.stdout), "9 99\n");
    let two = output(dep(here).args(["replay", "two"]));
    let lines = text(&two.stdout) + &text(&two.stderr);
    assert_eq!(two.status.code(), Some(1), "{lines}");
    let differs = lines.lines().find(|line| line.contains("differs")).unwrap_or_default();
    assert!(differs.contains("somebody else may have changed it"), "{lines}");
}

/// An upgrade changes the program and a library: a packed recording does not mind, another one says
/// which file it is.
#[test]
fn a_packed_recording_replays_behind_an_upgrade() {
    let here = folder();
    let here = here.path();
    compile(here, C, "program", &["-ldl"]);
    compile(here, "int answer(void) { return 42; }", "plugin.so", &["-shared", "-fPIC"]);
    // (A program that was made just now is kept.)
    std::thread::sleep(std::time::Duration::from_secs(3));
    let recorded = record(here, "rec", &["./program"]);
    assert_eq!((text(&recorded.stdout), text(&recorded.stderr)), ("42\n".into(), String::new()));
    let packed = output(dep(here).args(["pack", "rec", "-o", "packed"]));
    assert!(packed.status.success() && packed.stderr.is_empty(), "{}", text(&packed.stderr));
    let replay = |recording: &str| output(dep(here).args(["replay", "--output", recording]));
    is_equal(&replay("rec")).expect("nothing has changed");

    let refused = |recording: &str, file: &str| {
        let Output { status, stdout, stderr } = replay(recording);
        let said = text(&stderr);
        assert_eq!((status.code(), text(&stdout)), (Some(2), String::new()), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains(file) && said.contains("dep pack"), "{said}");
        let info = output(dep(here).args(["info", "-p", &names(here, recording)[0], recording]));
        let info = text(&info.stdout);
        assert!(info.contains("replayable     to its end, but not here") && info.contains(file));
    };
    // Another one of the same size, too.
    for upgrade in ["int answer(void) { return 43; }", "int answer(void) { return 1; } int more;"] {
        fs::remove_file(here.join("plugin.so")).expect("it was there");
        compile(here, upgrade, "plugin.so", &["-shared", "-fPIC"]);
        refused("rec", "plugin.so");
    }
    let kept = fs::read(here.join("program")).expect("the program");
    fs::write(here.join("program"), [&kept[..], b"x"].concat()).expect("written");
    refused("rec", "program");
    fs::remove_file(here.join("program")).expect("removed");
    refused("rec", "program");
    let again = replay("packed");
    is_equal(&again).expect("the packed files serve");
    assert_eq!(text(&again.stdout), "42\n");
    let info = output(dep(here).args(["info", "-p", &names(here, "packed")[0], "packed"]));
    assert!(text(&info.stdout).contains("replayable     to its end\n"), "{}", text(&info.stdout));
}

/// What a script has made, run and thrown away replays: `configure` does nothing else.
#[test]
fn a_program_that_was_made_just_now_is_kept() {
    let here = folder();
    let here = here.path();
    let line = "cp /bin/echo tried && ./tried one && rm tried && cp /bin/cat tried && ./tried ../text && rm tried";
    fs::write(here.join("text"), "two\n").expect("written");
    fs::create_dir(here.join("work")).expect("made");
    let line = format!("cd work; {line}");
    let recorded = record(here, "rec", &["sh", "-c", &line]);
    assert_eq!(
        (text(&recorded.stdout), text(&recorded.stderr)),
        ("one\ntwo\n".into(), String::new())
    );
    let replay = || output(dep(here).args(["replay", "rec"]));
    let Output { status, stdout, stderr } = replay();
    let said = text(&stdout) + &text(&stderr);
    assert!(status.success(), "{said}");
    let equal = said.lines().filter(|line| line.contains("equal to the recording")).count();
    // The shell, what it executes, and its child that is the last command.
    assert!(equal >= 5, "{said}");
    // Both, under one name; and what was there before is not.
    let kept: Vec<_> = fs::read_dir(here.join("rec/originals"))
        .expect("lists")
        .flatten()
        .map(|folder| folder.path().join("tried"))
        .filter(|kept| kept.exists())
        .collect();
    assert_eq!(kept.len(), 2);
    fs::write(&kept[0], "something else").expect("written");
    let refused = replay();
    let said = text(&refused.stderr);
    assert!(!refused.status.success() && said.contains("damaged"), "{said}");
}

/// A recording that was damaged is never replayed without a word.
#[test]
fn damage_is_never_passed_over() {
    let here = folder();
    let here = here.path();
    let recorded = record(here, "rec", &["sh", "-c", "read a </proc/self/stat; echo $$"]);
    assert!(recorded.status.success());
    let name = names(here, "rec").remove(0);
    let trace =
        here.join("rec/traces").join(format!("{}.dep", name.split('.').next().expect("a pid")));
    let whole = fs::read(&trace).expect("a trace");
    // What is zero may be room that nothing uses.
    let used: Vec<usize> = (4096..whole.len()).filter(|&at| whole[at] != 0).collect();
    for part in 1..40 {
        let mut damaged = whole.clone();
        damaged[used[used.len() * part / 40]] ^= 0x10;
        fs::write(&trace, damaged).expect("written");
        let Output { status, stdout, stderr } = output(dep(here).args(["replay", "rec"]));
        assert!(!status.success(), "{}", text(&stdout));
        let said = text(&stderr);
        assert!(said.lines().all(|line| line.starts_with("dep: ")) && !said.is_empty(), "{said}");
    }
    fs::write(&trace, &whole).expect("written");
    let replayed = output(dep(here).args(["replay", "rec"]));
    assert!(replayed.status.success(), "{}", text(&replayed.stderr));
}

/// Sends `signal` to the first process of a recording that goes on.
fn kill_recorded(recording: &Path, signal: i32) {
    // The recorder says which process it is, a moment after it has started it.
    let pid = loop {
        let manifest = fs::read(recording.join("recording.json")).expect("JSON");
        let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
        if let Some(pid) = manifest["pid"].as_i64() {
            break i32::try_from(pid).expect("a pid");
        }
        std::thread::yield_now();
    };
    // SAFETY: no memory is involved.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// A program that hands on what it was given without looking at it: only what it writes tells that it was
/// given something else.
#[test]
fn a_replay_that_writes_something_else_differs() {
    const C: &str = r#"
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>
int main(void) {
    static char text[300], copy[300];
    struct iovec pieces[2] = {{"got: ", 5}, {copy, sizeof copy}};
    read(0, text, sizeof text);
    memcpy(copy, text, sizeof copy);
    writev(1, pieces, 2);
    write(1, "!", 1);
    pause();
}
"#;
    const GIVEN: [u8; 300] = [b'a'; 300];
    let here = folder();
    let here = here.path();
    compile(here, C, "program", &[]);
    fs::write(here.join("given"), GIVEN).expect("written");
    let mut record = dep(here);
    record.args(["record", "--replayable", "-o", "rec", "./program"]);
    record.stdin(fs::File::open(here.join("given")).expect("written just now"));
    let mut recorder = record.stdout(Stdio::piped()).spawn().expect("it runs");
    // The first call is over when the second has written.
    let mut written = [0; 306];
    recorder.stdout.take().expect("a pipe").read_exact(&mut written).expect("it writes");
    // What nobody has ended has no checksums.
    kill_recorded(&here.join("rec"), libc::SIGKILL);
    assert!(!recorder.wait().expect("it ends").success());
    let replay = || output(dep(here).args(["replay", "--output", "rec"]));
    let equal = replay();
    is_equal(&equal).expect("nothing has changed");
    assert!(equal.stdout.starts_with(&written[..305]), "{}", text(&equal.stdout));

    inputs::lie(&here.join("rec"), &GIVEN);
    let Output { status, stderr, .. } = replay();
    let (line, _) = said(&stderr);
    assert_eq!(status.code(), Some(1), "{line}");
    assert!(
        line.contains("differs from the recording at turn")
            && line.contains("writev (20) with 0x1, ")
            && line
                .contains("passes 337 bytes to the kernel that are not the 337 of the recording"),
        "{line}"
    );
}

/// What a program was given keeps it in a loop that makes no calls, if it is something else: the replay ends all the same,
/// and so does a listing.
#[test]
fn a_replay_that_runs_past_its_recording_ends() {
    const C: &str = r#"
#include <unistd.h>
int main(void) {
    static char text[300];
    read(0, text, sizeof text);
    for (volatile unsigned char n = text[299]; n != 'a'; n += 2);
    write(1, text, 5);
}
"#;
    const GIVEN: [u8; 300] = [b'a'; 300];
    let here = folder();
    let here = here.path();
    compile(here, C, "program", &[]);
    fs::write(here.join("given"), GIVEN).expect("written");
    for schedule in [&[][..], &["--threads", "watched"]] {
        let _ = fs::remove_dir_all(here.join("rec"));
        let mut record = dep(here);
        record.args(["record", "--replayable", "-o", "rec"]).args(schedule).arg("./program");
        record.stdin(fs::File::open(here.join("given")).expect("written just now"));
        assert!(output(&mut record).status.success());
        is_equal(&output(dep(here).args(["replay", "--output", "rec"])))
            .expect("nothing has changed");

        inputs::lie(&here.join("rec"), &GIVEN);
        for command in
            [&["replay", "--output", "rec"][..], &["blocks", "rec"], &["when", "rec", "pc == 1"]]
        {
            let Output { status, stderr, .. } = output(dep(here).args(command));
            let said = text(&stderr);
            assert_eq!(status.code(), Some(1), "{command:?}: {said}");
            assert!(said.contains("the thread comes to turn "), "{command:?}: {said}");
            assert!(said.contains("the recording has write (1) with 0x1, "), "{command:?}: {said}");
        }
    }
}

/// Libraries are translated once, for all replays, also those that were opened in the midst of it.
#[test]
fn a_replay_uses_the_translations_of_libraries() {
    const C: &str = r#"
#include <dlfcn.h>
int main(void) {
    void *library = dlopen("./plugin.so", RTLD_NOW);
    void (*talk)(void) = library ? (void (*)(void))dlsym(library, "talk") : 0;
    if (!talk) return 1;
    talk();
}
"#;
    const PLUGIN: &str = r#"
#include <stdio.h>
void talk(void) { for (int i = 0; i < 100000; i++) puts("more than a pipe has room for"); }
"#;
    let here = folder();
    let here = here.path();
    compile(here, C, "program", &["-ldl"]);
    compile(here, PLUGIN, "plugin.so", &["-shared", "-fPIC"]);
    let recorded = record(here, "rec", &["./program"]);
    assert!(recorded.status.success(), "{}", text(&recorded.stderr));
    let mut replay = dep(here);
    replay.args(["replay", "--output", "rec"]);
    let mut running = replay.stdout(Stdio::piped()).spawn().expect("it runs");
    let mut out = running.stdout.take().expect("a pipe");
    // It waits for somebody to read.
    let mut written = vec![0];
    out.read_exact(&mut written).expect("it writes");
    let id = running.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    let child = children.expect("a list").trim().to_owned();
    let maps = fs::read_to_string(format!("/proc/{child}/maps")).expect("one child, which runs");
    let packs =
        maps.lines().filter(|l| l.ends_with(".dep-library") && l.contains(" r-xp ")).count();
    // ld.so, libc, the plugin.
    assert!(packs >= 3, "{maps}");
    out.read_to_end(&mut written).expect("it writes");
    assert!(running.wait().expect("it ends").success());
    assert_eq!(written, recorded.stdout);
}

/// A process of one thread is watched from where others may write to its memory, if that cannot be closed for good: it replays to
/// its end, as its child does, and every command answers.
#[test]
fn memory_that_processes_share_is_followed() {
    const C: &str = r#"
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
static long counted;
static void *count(void *p) { for (int i = 0; i < 1000; i++) counted += i; return p; }
int main(int argc, char **argv) {
    long sum = 0;
    char own[3000];
    pthread_t threads[2];
    // Threads and a child of vfork that have ended.
    for (int i = 0; i < 2 && argc > 1; i++) pthread_create(&threads[i], 0, count, 0);
    for (int i = 0; i < 2 && argc > 1; i++) pthread_join(threads[i], 0);
    if (argc > 1 && system("exit 3") != 3 << 8) return 1;
    // So much, and so low, that both are watched for it.
    volatile long *both = mmap((void *)0x100000000000, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(own, 3, sizeof own);
    int child = fork();
    for (long i = 0; i < 500; i++) {
        while (*both != 2 * i + (child == 0)) sched_yield();
        sum += own[i] + *both;
        *both = *both + 1;
        __atomic_fetch_add(both + 1, i, __ATOMIC_SEQ_CST);
    }
    if (child == 0) return sum % 100;
    int status;
    waitpid(child, &status, 0);
    printf("%ld %ld %ld %d\n", *both, both[1], sum, WEXITSTATUS(status));
}
"#;
    let here = folder();
    let here = here.path();
    compile(here, C, "program", &["-pthread"]);
    // The first part of the parent, the rest, and the child; and the shell.
    for (recording, arguments, lines) in [("one", &[][..], 3), ("more", &["threads"], 4)] {
        let recorded = record(here, recording, &[&["./program"], arguments].concat());
        let said = text(&recorded.stdout);
        assert_eq!((&*said, &*text(&recorded.stderr)), ("1000 249500 251000 0\n", ""));
        let replay = output(dep(here).args(["replay", recording]));
        let all = text(&replay.stdout);
        assert_eq!(all.lines().count(), lines, "{all}{}", text(&replay.stderr));
        assert!(all.lines().all(|line| line.contains("equal to the recording")), "{all}");
        let info = text(&output(dep(here).args(["info", recording])).stdout);
        assert!(info.contains(&format!("all {} to their ends", lines - 1)), "{info}");
        for name in names(here, recording) {
            for command in ["blocks", "memrefs", "syscalls"] {
                let listed = output(dep(here).args([command, "-p", &name, recording]));
                assert!(listed.status.success(), "{command}: {}", text(&listed.stderr));
                assert!(!listed.stdout.is_empty(), "{command} {name}");
            }
        }
    }
}

/// A page that processes share, and use now and then: no thread is watched for it, and all commands know what others have
/// stored.
#[test]
fn a_little_memory_that_processes_share_is_followed() {
    const C: &str = r#"
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#define PLACE (void *)0x100000000000
static volatile long *both;
static long sum;
static void take_turns(int from, int to, int first) {
    char byte = 0;
    for (long i = 0; i < 100; i++) {
        if ((!first || i) && read(from, &byte, 1) != 1) _exit(9);
        sum += *both;
        *both = *both + i;
        __atomic_fetch_add(both + 1, sum, __ATOMIC_SEQ_CST);
        if (write(to, &byte, 1) != 1) _exit(9);
    }
}
int main(void) {
    int down[2], up[2], status;
    both = mmap(PLACE, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_ANONYMOUS, -1, 0);
    if (pipe(down) || pipe(up)) return 1;
    int child = fork();
    if (child == 0) {
        take_turns(down[0], up[1], 0);
        return sum % 100;
    }
    take_turns(up[0], down[1], 1);
    waitpid(child, &status, 0);
    printf("%ld %ld %ld %d\n", *both, both[1], sum, WEXITSTATUS(status));
}
"#;
    let here = folder();
    let here = here.path();
    compile(here, C, "program", &["-g"]);
    let native = output(Command::new(here.join("program")).current_dir(here));
    let recorded = record(here, "rec", &["./program"]);
    assert_eq!((text(&recorded.stdout), text(&recorded.stderr)), (text(&native.stdout), "".into()));
    let replay = output(dep(here).args(["replay", "rec"]));
    let all = text(&replay.stdout);
    assert_eq!(all.lines().count(), 2, "{all}{}", text(&replay.stderr));
    assert!(all.lines().all(|line| line.ends_with("equal to the recording")), "{all}");
    let names = names(here, "rec");
    for name in &names {
        for command in ["blocks", "memrefs", "syscalls", "undo"] {
            let listed = output(dep(here).args([command, "-p", name, "rec"]));
            assert!(listed.status.success(), "{command}: {}", text(&listed.stderr));
            assert!(!listed.stdout.is_empty(), "{command} {name}");
        }
    }
    // Each has stored a hundred times there, and seen what the other one has.
    let mut last = Vec::new();
    for name in &names {
        let asked = ["values", "-p", name, "--address", "0x100000000000", "rec"];
        let values = output(dep(here).args(asked));
        let listed = text(&values.stdout);
        let stores = listed.lines().filter(|line| line.contains(" store 0x100000000000 8 "));
        assert_eq!(stores.count(), 100, "{name}: {listed}{}", text(&values.stderr));
        last.extend(listed.lines().last().map(str::to_owned));
    }
    // 2 * (0 + 1 + ... + 99): the parent sees what the child has stored last, and the child stores it.
    let ends = last.iter().map(|line| line.split(' ').next_back().unwrap_or_default());
    assert_eq!(ends.collect::<Vec<_>>(), ["0x26ac", "0x26ac"], "{last:?}");
}

/// What a process has recorded that somebody kills replays up to there.
#[test]
fn a_prefix_replays() {
    const SCRIPT: &str = "i=0; while :; do echo $i; i=$((i+1)); done";
    let here = folder();
    let here = here.path();
    for lines in [1, 300, 3000] {
        let recording = format!("rec{lines}");
        let mut record = dep(here);
        record.args(["record", "--replayable", "-o", &recording, "sh", "-c", SCRIPT]);
        let mut recorder = record.stdout(Stdio::piped()).spawn().expect("it runs");
        let mut written = BufReader::new(recorder.stdout.take().expect("a pipe"));
        let mut recorded = Vec::new();
        for _ in 0..lines {
            written.read_until(b'\n', &mut recorded).expect("it writes");
        }
        kill_recorded(&here.join(&recording), libc::SIGKILL);
        written.read_to_end(&mut recorded).expect("it has written");
        assert!(!recorder.wait().expect("it ends").success());

        let Output { status, stdout, stderr } =
            output(dep(here).args(["replay", "--output", &recording]));
        let (line, _) = said(&stderr);
        assert!(status.success(), "{line}");
        assert!(
            line.contains("equal to the recording, which is replayable to its last event"),
            "{line}"
        );
        // It may have been killed between the call and its event.
        assert!(recorded.starts_with(&stdout), "{line}");
        assert!(text(&recorded[stdout.len()..]).lines().count() <= 1, "{line}");
    }
}

/// A signal that ends the process by default is recorded where it comes, and replays go there: what hangs is told.
#[test]
fn what_a_signal_ends_replays_to_where_it_was() {
    const C: &str = r#"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>
static volatile long counts[2];
static void *count(void *own) {
    for (volatile long *n = own;; ++*n) {}
    return 0;
}
int main(int argc, char **argv) {
    int ends[2];
    char byte;
    pthread_t thread;
    struct itimerval soon = {{0, 0}, {0, 200000}};
    for (int i = 0; i < atoi(argv[2]); i++) pthread_create(&thread, 0, count, (void *)&counts[i]);
    switch (argv[1][0]) {
    case 'c': setitimer(ITIMER_VIRTUAL, &soon, 0); count((void *)&counts[1]);
    case 'l': puts("go"); fflush(stdout); count((void *)&counts[1]);
    case 'r': puts("go"); fflush(stdout); return (int)read(0, &byte, 1);
    case 'w': return pipe(ends) || close(ends[0]) || write(ends[1], "x", 1);
    case 'h': signal(SIGHUP, SIG_IGN); signal(SIGHUP, SIG_DFL); raise(SIGHUP);
    }
    return 0;
}
"#;
    let here = folder();
    let here = here.path();
    compile(here, C, "program", &["-pthread"]);
    // What it does, the signal that ends it, and whether it has to be sent.
    let ways = [
        ("compute", libc::SIGVTALRM, false),
        // (What has started the tests may have SIGINT ignored.)
        ("loop", libc::SIGUSR1, true),
        ("read", libc::SIGTERM, true),
        ("write", libc::SIGPIPE, false),
        ("hang up", libc::SIGHUP, false),
    ];
    for (threads, way, others) in
        [("serial", "", "0"), ("serial", "2", "1"), ("watched", "3", "0"), ("watched", "4", "1")]
    {
        for (does, signal, sent) in ways {
            let recording = format!("{does}{way}");
            let mut record = dep(here);
            record.args(["record", "--replayable", "--threads", threads, "-o", &recording]);
            record.args(["./program", does, others]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut recorder = record.spawn().expect("it runs");
            if sent {
                let mut line = String::new();
                let mut out = BufReader::new(recorder.stdout.take().expect("a pipe"));
                out.read_line(&mut line).expect("it writes");
                assert_eq!(line, "go\n");
                kill_recorded(&here.join(&recording), signal);
            }
            assert_eq!(recorder.wait().expect("it ends").signal(), Some(signal), "{recording}");
            let replay = output(dep(here).args(["replay", &recording]));
            let all = text(&replay.stdout) + &text(&replay.stderr);
            let ends = |line: &str| line.ends_with(": equal to the recording");
            assert!(replay.status.success() && all.lines().all(ends), "{recording}: {all}");
            // A fifth of a second is more than a million turns.
            let turns = all.lines().map(turns_of).max();
            assert!(does != "compute" || turns > Some(1_000_000), "{recording}: {all}");
        }
    }
}

/// A signal that natively does not reach the first process of a PID namespace interrupts none of its calls.
#[test]
fn the_first_process_of_a_namespace_is_not_interrupted() {
    const C: &str = r#"
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
int main(void) {
    struct timespec time = {0, 400000000};
    int status;
    if (unshare(CLONE_NEWPID) && unshare(CLONE_NEWUSER | CLONE_NEWPID)) return 1;
    pid_t child = fork();
    if (child == 0) {
        if (getpid() != 1) _exit(2);
        if (fork() == 0) {
            nanosleep(&(struct timespec){0, 100000000}, 0);
            kill(1, SIGTERM);
            kill(1, SIGUSR1);
            _exit(0);
        }
        if (nanosleep(&time, 0)) _exit(3);
        wait(&status);
        // It may have handlers of its own.
        signal(SIGALRM, _exit);
        alarm(1);
        pause();
        _exit(4);
    }
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 5;
}
"#;
    let here = folder();
    let here = here.path();
    compile(here, C, "program", &[]);
    let native = Command::new(here.join("program")).status().expect("it runs");
    assert_eq!(native.code(), Some(libc::SIGALRM));
    for threads in ["serial", "watched"] {
        let mut record = dep(here);
        record.args(["record", "--replayable", "--threads", threads, "-o", threads, "./program"]);
        assert_eq!(record.status().expect("it runs").code(), Some(libc::SIGALRM), "{threads}");
        let replay = output(dep(here).args(["replay", threads]));
        let all = text(&replay.stdout) + &text(&replay.stderr);
        let is_equal = |line: &str| line.ends_with(": equal to the recording");
        assert!(replay.status.success() && all.lines().all(is_equal), "{threads}: {all}");
    }
}

/// Where addresses are limited memory lies elsewhere than in a replay, which has no limit.
#[test]
fn recordings_under_a_limit_of_addresses_replay() {
    const C: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
int main(void) {
    long sum = 0;
    for (int i = 0; i < 100; i++) {
        size_t size = 4096 << i % 10;
        char *mapped = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        char *made = malloc(100000);
        if (mapped == MAP_FAILED || !made) return 1;
        memset(mapped, i, size);
        memset(made, i, 100000);
        sum += mapped[size - 1] + made[5];
    }
    printf("%ld\n", sum);
}
"#;
    let here = folder();
    let here = here.path();
    compile(here, C, "program", &[]);
    let limited = |limit: u32, recording: &str| {
        let mut record = Command::new("sh");
        record.current_dir(here).envs(cache()).stdin(Stdio::null());
        let script = "ulimit -v $1; exec \"$0\" record --replayable -o $2 ./program";
        let dep = &Tools::get().dep;
        record.args(["-c", script]).arg(dep).arg(limit.to_string()).arg(recording);
        output(&mut record)
    };
    for limit in [2_500_000, 3_000_000, 5_000_000, 20_000_000] {
        for again in 0..3 {
            let recording = format!("{limit}.{again}");
            let recorded = limited(limit, &recording);
            assert_eq!(
                (text(&recorded.stdout), text(&recorded.stderr)),
                ("9900\n".into(), String::new())
            );
            is_equal(&output(dep(here).args(["replay", "--output", &recording])))
                .expect(&recording);
        }
    }
    let refused = limited(1_000_000, "refused");
    assert_eq!(refused.status.code(), Some(125));
    assert!(text(&refused.stderr).contains(TOO_FEW_ADDRESSES), "{}", text(&refused.stderr));
}

/// A program that has no name, and is gone when the recording has ended: what ran is in the recording.
#[test]
fn programs_in_memory_files_are_recorded() {
    const C: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
extern char **environ;
int main(int count, char **arguments) {
    static char bytes[1 << 20];
    if (count > 1) return 7;
    int own = open("/proc/self/exe", O_RDONLY), made = memfd_create("made", 0);
    ssize_t length = read(own, bytes, sizeof bytes);
    if (own < 0 || made < 0 || length <= 0 || write(made, bytes, length) != length) return 1;
    char *next[] = {arguments[0], "child", 0};
    fexecve(made, next, environ);
    return 2;
}
"#;
    let here = folder();
    let here = here.path();
    compile(here, C, "program", &[]);
    let mut record = dep(here);
    record.args(["record", "--replayable", "-o", "rec", "./program"]);
    let recorded = output(&mut record);
    assert_eq!((recorded.status.code(), text(&recorded.stderr)), (Some(7), String::new()));
    let replay = output(dep(here).args(["replay", "rec"]));
    let all = text(&replay.stdout) + &text(&replay.stderr);
    let is_equal = |line: &&str| line.ends_with(": equal to the recording");
    assert!(replay.status.success(), "{all}");
    assert_eq!(all.lines().filter(is_equal).count(), 2, "{all}");
}

/// Behind another root, other mounts or another user the children of a process are recorded where it is itself.
#[test]
fn children_behind_another_root_or_user_are_recorded() {
    const C: &str = r#"
#define _GNU_SOURCE
#include <sched.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
static int leaves(const char *how) {
    if (!strcmp(how, "root")) return mkdir("empty", 0755) || chroot("empty") || chdir("/");
    if (!strcmp(how, "user")) return setgid(65534) || setuid(65534);
    return unshare(CLONE_NEWNS) || mount("none", "/", 0, MS_REC | MS_PRIVATE, 0) ||
           mount("/", "/", 0, MS_BIND | MS_REC, 0) || chdir("/") ||
           mount(0, "/", 0, MS_REMOUNT | MS_BIND | MS_RDONLY, 0);
}
int main(int count, char **arguments) {
    int status;
    if (leaves(arguments[1])) return 99;
    pid_t child = fork();
    if (child == 0) _exit(fork() == 0 ? 0 : wait(&status) > 0 ? 7 : 8);
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 9;
}
"#;
    // SAFETY: it only looks.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: not root");
        return;
    }
    let here = folder();
    let here = here.path();
    compile(here, C, "program", &[]);
    for how in ["root", "user", "mounts"] {
        let mut record = dep(here);
        record.args(["record", "--replayable", "-o", how, "./program", how]);
        let recorded = output(&mut record);
        let said = text(&recorded.stderr);
        assert_eq!((recorded.status.code(), &*said), (Some(7), ""), "{how}");
        let replay = output(dep(here).args(["replay", how]));
        let all = text(&replay.stdout) + &text(&replay.stderr);
        let is_equal = |line: &&str| line.ends_with(": equal to the recording");
        assert!(replay.status.success(), "{how}: {all}");
        assert_eq!(all.lines().filter(is_equal).count(), 3, "{how}: {all}");
    }
}

/// What a process has inherited belongs to the recording: the one that replays has inherited something else.
#[test]
fn signals_that_the_caller_ignored_replay() {
    const C: &str = r#"
#include <signal.h>
#include <stdio.h>
int main(void) {
    struct sigaction old;
    int ignored = 0;
    for (int signal = 1; signal < 32; signal++) {
        sigaction(signal, 0, &old);
        if (old.sa_handler == SIG_IGN)
            ignored += signal;
    }
    printf("%d\n", ignored);
}
"#;
    let here = folder();
    let here = here.path();
    compile(here, C, "program", &[]);
    let mut record = Command::new("sh");
    record.current_dir(here).envs(cache()).stdin(Stdio::null());
    // The second answer in a row is in memory already.
    let script = "trap '' HUP INT QUIT USR1; exec \"$0\" record --replayable -o rec ./program";
    let recorded = output(record.args(["-c", script]).arg(&Tools::get().dep));
    assert_eq!((text(&recorded.stdout), text(&recorded.stderr)), ("16\n".into(), String::new()));
    let replay = output(dep(here).args(["replay", "--output", "rec"]));
    is_equal(&replay).expect("as recorded");
    assert_eq!(text(&replay.stdout), "16\n");
}

/// The stack grows as far as it did, whatever the limit is where it is replayed.
#[test]
fn stacks_grow_as_far_as_they_did() {
    const C: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
__attribute__((noinline)) static int deep(int n) {
    char frame[4096];
    memset(frame, n, sizeof frame);
    __asm__ volatile("" : : "r"(frame) : "memory");
    return n ? deep(n - 1) + frame[n % 4096] : 0;
}
int main(int argc, char **argv) {
    printf("%d\n", deep(atoi(argv[1])));
}
"#;
    let here = folder();
    let here = here.path();
    compile(here, C, "program", &[]);
    // The usual limit is 8192: 20 MiB are more, and 4 are less.
    const SEGV: i32 = 11;
    for (limit, depth, signal) in [("32768", "5120", None), ("1024", "1024", Some(SEGV))] {
        let mut record = Command::new("sh");
        record.current_dir(here).envs(cache()).stdin(Stdio::null());
        let script = "ulimit -S -s $1; exec \"$0\" record --replayable -o $1 ./program $2";
        let recorded =
            output(record.args(["-c", script]).arg(&Tools::get().dep).args([limit, depth]));
        assert_eq!(recorded.status.signal(), signal, "{limit}: {}", text(&recorded.stderr));
        let replay = output(dep(here).args(["replay", "--output", limit]));
        is_equal(&replay).unwrap_or_else(|why| panic!("{limit}: {why}"));
        let (line, _) = said(&replay.stderr);
        assert!(!line.contains("which is replayable"), "{limit}: {line}");
        assert_eq!(replay.stdout, recorded.stdout, "{limit}");
    }
}
