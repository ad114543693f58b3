//! One thread at a time: programs behave as they do natively, no two threads are ever in the midst of
//! an instruction, and what was recorded so is replayed.
//!
//! SERIAL_RUNS=N records and replays each program N times.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::*;
use tests::harness::{cache, difference, Mode, Tally, Tools};

const PLAIN: Mode =
    Mode { name: "serial", flags: &["--instrument", "none", "--torture", "serial"] };
const PROFILE: Mode =
    Mode { name: "serial-dep", flags: &["--torture", "serial,spill,tiny-buffers"] };
const UNDO: Mode = Mode {
    name: "serial-undo",
    flags: &["--translate", "dynamic", "--instrument", "undo", "--torture", "serial"],
};

/// Programs of the corpus with threads, or with children that share memory.
const PROGRAMS: [&str; 11] = [
    "c/threads.",
    "c/thread_one.",
    "c/many_threads.",
    "c/generated_threads.",
    "c/fork_threads.",
    "c/sent_faults.",
    "c/leader_gone.",
    "c/switched.",
    "c/spawn.",
    "cpp/threads.",
    "rust/threads.",
];

fn programs(tally: &mut Tally) -> Vec<corpus::Case> {
    let mut cases = corpus();
    cases.retain(|case| PROGRAMS.iter().any(|name| case.name.starts_with(name)));
    cases.retain(|case| match case.skip_reason() {
        Some(why) => {
            tally.skip(&case.name, &why);
            false
        }
        None => true,
    });
    cases
}

#[test]
fn programs_with_threads_behave() {
    let mut tally = Tally::start("programs_with_threads_behave");
    let tools = Tools::get();
    for case in programs(&mut tally) {
        for mode in [PLAIN, PROFILE, UNDO] {
            let dir = tempfile::tempdir().unwrap();
            let check = || -> Result<(), String> {
                let native = spec(&case).run(None, dir.path()).map_err(|e| e.to_string())?;
                let rewritten = dir.path().join(mode.name);
                tools.rewrite_sharing(&case.path, &rewritten, mode.flags)?;
                let run = spec(&case).run(Some(&rewritten), dir.path());
                let run = run.map_err(|e| e.to_string())?;
                difference(&native, &run)?;
                verify_all(&run.traces, tools, &rewritten)
            };
            tally.record(&format!("{} {}", case.name, mode.name), check());
        }
    }
    tally.finish();
}

/// Threads that add to one number, each time with one instruction that other processors could come in
/// between, and that wait for each other by spinning.
const ADDING: &str = r#"
#include <pthread.h>
#include <stdio.h>
static volatile long sum;
static volatile int ready;
static void *add(void *unused) {
    __sync_fetch_and_add(&ready, 1);
    while (ready < 4) {}
    for (int i = 0; i < 20000000; i++) __asm__ volatile("incq %0" : "+m"(sum));
    return unused;
}
int main(void) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, add, 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    printf("%ld\n", sum);
}
"#;

/// A thread dies with robust locks, of which one was waited for; the others find out.
const ROBUST: &str = r#"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static pthread_mutex_t locks[3];
static volatile int held;
static void *dies(void *unused) {
    for (int i = 0; i < 3; i++) pthread_mutex_lock(&locks[i]);
    held = 1;
    usleep(2000);
    return unused;
}
static void *waits(void *unused) {
    int found = pthread_mutex_lock(&locks[1]) == EOWNERDEAD;
    if (found) pthread_mutex_consistent(&locks[1]);
    pthread_mutex_unlock(&locks[1]);
    return (void *)(long)found;
}
int main(void) {
    pthread_mutexattr_t robust;
    pthread_mutexattr_init(&robust);
    pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
    for (int i = 0; i < 3; i++) pthread_mutex_init(&locks[i], &robust);
    pthread_t first, second;
    void *found;
    pthread_create(&first, 0, dies, 0);
    while (!held) usleep(100);
    pthread_create(&second, 0, waits, 0);
    pthread_join(first, 0);
    pthread_join(second, &found);
    int left = pthread_mutex_lock(&locks[0]) == EOWNERDEAD;
    printf("%ld %d %d\n", (long)found, left, pthread_mutex_trylock(&locks[2]) == EOWNERDEAD);
}
"#;

/// A C program of these sources, built in `dir`.
fn build(dir: &Path, name: &str, source: &str) -> PathBuf {
    let (text, program) = (dir.join(format!("{name}.c")), dir.join(name));
    std::fs::write(&text, source).unwrap();
    let done = Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&program).arg(&text).status();
    assert!(done.unwrap().success());
    program
}

fn output(mut command: Command) -> Output {
    command.stdin(Stdio::null()).output().expect("it runs")
}

fn run(program: &Path, schedule: &str) -> String {
    let mut command = Command::new(program);
    command.env("DEP_FILE", "null:").env_remove("DEP_SCHEDULE");
    if !schedule.is_empty() {
        command.env("DEP_SCHEDULE", schedule);
    }
    let Output { status, stdout, stderr } = output(command);
    let said = String::from_utf8_lossy(&stderr).into_owned();
    assert!(status.success() && said.is_empty(), "{status}: {said}");
    String::from_utf8(stdout).unwrap()
}

#[test]
fn no_two_threads_run_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "adding", ADDING);
    let rewritten = dir.path().join("rewritten");
    for flags in [PLAIN.flags, &["--instrument", "inputs"], UNDO.flags] {
        Tools::get().rewrite_sharing(&program, &rewritten, flags).unwrap();
        for schedule in ["", "random:1", "random:2"] {
            assert_eq!(run(&rewritten, schedule), "80000000\n", "{flags:?} {schedule}");
        }
    }
}

#[test]
fn locks_of_a_dead_thread_are_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "robust", ROBUST);
    assert_eq!(run(&program, ""), "1 1 1\n");
    let rewritten = dir.path().join("rewritten");
    Tools::get().rewrite_sharing(&program, &rewritten, PLAIN.flags).unwrap();
    for schedule in ["", "random:1", "random:2"] {
        assert_eq!(run(&rewritten, schedule), "1 1 1\n", "{schedule}");
    }
    assert_replayed(&program, dir.path(), 1).unwrap();
}

#[test]
fn schedules_that_make_no_sense_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let rewritten = dir.path().join("rewritten");
    Tools::get().rewrite(Path::new("/bin/true"), &rewritten, PLAIN.flags).unwrap();
    for schedule in ["random", "random:", "fifo", "random:x"] {
        let mut command = Command::new(&rewritten);
        command.env("DEP_SCHEDULE", schedule);
        let Output { status, stderr, .. } = output(command);
        let said = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(122), "{said}");
        assert!(said.contains("DEP_SCHEDULE: expected random:SEED"), "{said}");
    }
}

/// Records the program `runs` times, and replays each process of each recording.
fn assert_replayed(program: &Path, dir: &Path, runs: u32) -> Result<(), String> {
    let dep = |arguments: &[&str]| {
        let mut command = Command::new(&Tools::get().dep);
        command.args(arguments).current_dir(dir).envs(cache());
        command
    };
    for _ in 0..runs {
        let _ = std::fs::remove_dir_all(dir.join("recording"));
        let mut record = dep(&["record", "--replayable", "-o", "recording"]);
        record.arg(program);
        let recorded = output(record);
        let listed = output(dep(&["ps", "--json", "recording"]));
        let lines = String::from_utf8_lossy(&listed.stdout).into_owned();
        let images: Vec<serde_json::Value> =
            lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let pid = images.first().and_then(|first| first["pid"].as_u64()).ok_or("no process")?;
        let pid = pid.to_string();
        let replayed = output(dep(&["replay", "-p", &pid, "--output", "recording"]));
        let said = String::from_utf8_lossy(&replayed.stderr).into_owned();
        if !replayed.status.success() || !said.contains("equal to the recording") {
            return Err(format!("{}: {said}", replayed.status));
        }
        if !recorded.stdout.starts_with(&replayed.stdout) {
            return Err("the replay wrote something else".into());
        }
    }
    Ok(())
}

#[test]
fn recordings_of_threads_are_replayed() {
    let mut tally = Tally::start("recordings_of_threads_are_replayed");
    let runs = std::env::var("SERIAL_RUNS").ok().and_then(|n| n.parse().ok()).unwrap_or(3);
    for case in programs(&mut tally) {
        let dir = tempfile::tempdir().unwrap();
        tally.record(&case.name, assert_replayed(&case.path, dir.path(), runs));
    }
    tally.finish();
}
