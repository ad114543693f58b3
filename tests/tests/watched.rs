//! Recordings of watched threads: the program does what it does natively with all threads at once, and each
//! thread is replayed alone.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::*;
use tests::harness::{difference, Mode, Run, RunSpec, Tally, Tools};

const WATCHED: Mode =
    Mode { name: "watched", flags: &["--instrument", "inputs", "--threads", "watched"] };

/// What is said where threads cannot be watched.
const WAY_OUT: &str = "use --threads serial";
/// What the runtime says once of a recording that has met something it cannot follow.
const NOT_REPLAYED: &str = "the recording cannot be replayed from there on";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Takes the line out that says that the recording cannot be replayed.
fn without_notice(mut run: Run) -> Run {
    let said = text(&run.stderr);
    let kept: Vec<_> = said.split_inclusive('\n').filter(|l| !l.contains(NOT_REPLAYED)).collect();
    run.stderr = kept.concat().into_bytes();
    run
}

fn dep(here: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(&Tools::get().dep);
    command.current_dir(here).env("DEP_CACHE", here.join("cache")).stdin(Stdio::null());
    command.args(arguments).output().expect("it runs")
}

/// Replays all threads of a trace, each alone: what was said of each.
fn replayed(program: &Path, trace: &Path, dir: &Path) -> Result<Vec<String>, String> {
    let rewritten = dir.join(WATCHED.name);
    let [program, trace, rewritten] =
        [program, trace, &rewritten].map(|path| path.display().to_string());
    let done = dep(dir, &["replay", "--program", &program, "--rewritten", &rewritten, &trace]);
    let lines: Vec<String> = text(&done.stdout).lines().map(str::to_owned).collect();
    let equal = lines.iter().all(|line| line.contains(": equal to the recording"));
    match done.status.success() && !lines.is_empty() && equal {
        true => Ok(lines),
        false => Err(format!("{}: {}", done.status, text(&done.stderr))),
    }
}

/// What came of a case.
enum Came {
    Through,
    /// Its threads cannot be watched: why.
    Refused(String),
}

fn check(spec: &RunSpec, dir: &Path) -> Result<Came, String> {
    let tools = Tools::get();
    let native = spec.run(None, dir).map_err(|e| e.to_string())?;
    let rewritten = dir.join(WATCHED.name);
    tools.rewrite(&spec.program, &rewritten, WATCHED.flags)?;
    let run = without_notice(spec.run(Some(&rewritten), dir).map_err(|e| e.to_string())?);
    let said = text(&run.stderr);
    if let Some(line) = said.lines().find(|line| line.contains(WAY_OUT)) {
        return Ok(Came::Refused(line.to_owned()));
    }
    difference(&native, &run)?;
    verify_all(&run.traces, tools, &rewritten)?;
    for trace in &run.traces {
        match replayed(&spec.program, trace, dir) {
            Err(why) if why.contains("record with --threads serial") => {}
            other => drop(other?),
        }
    }
    Ok(Came::Through)
}

/// Cases that are watched: all kinds of instructions, faults, signals, threads, forks, code that changes itself,
/// programs that start others, other languages.
const CASES: [&str; 18] = [
    "asm/",
    "c/faults.",
    "c/store_faults.",
    "c/signals.",
    "c/timer.",
    "c/threads.",
    "c/many_threads.",
    "c/fork_threads.",
    "c/leader_gone.",
    "c/tls.",
    "c/fs_base.",
    "c/ucontext.",
    "c/fork_",
    "c/vfork.",
    "c/spawn.",
    "c/self_modify.",
    "cpp/",
    "rust/",
];

#[test]
fn the_corpus_is_watched_and_each_thread_replays() {
    let mut tally = Tally::start("the_corpus_is_watched_and_each_thread_replays");
    let chosen = |case: &corpus::Case| CASES.iter().any(|start| case.name.starts_with(start));
    for case in corpus().into_iter().filter(chosen) {
        let excepted = case.skip_reason_in("replay").or_else(|| case.skip_reason_in("inputs"));
        if let Some(why) = excepted {
            tally.skip(&case.name, &why);
            continue;
        }
        if case.refused.is_some() {
            tally.skip(&case.name, "the runtime stops it");
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        match check(&spec(&case), dir.path()) {
            Ok(Came::Refused(why)) => tally.skip(&case.name, &why),
            Ok(Came::Through) => tally.record(&case.name, Ok(())),
            Err(why) => tally.record(&case.name, Err(why)),
        }
    }
    tally.finish();
}

/// A C program of these sources, built in `dir`.
fn build(dir: &Path, source: &str, flags: &[&str]) -> PathBuf {
    let (path, program) = (dir.join("program.c"), dir.join("program"));
    std::fs::write(&path, source).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-pthread"]).args(flags).arg("-o").arg(&program).arg(&path);
    assert!(compiler.status().unwrap().success());
    program
}

/// Records it, and returns the trace and what was rewritten.
fn record(program: &Path, dir: &Path) -> (Run, PathBuf) {
    let rewritten = dir.join("watched");
    Tools::get().rewrite(program, &rewritten, WATCHED.flags).unwrap();
    let run = RunSpec::new(program).run(Some(&rewritten), dir).unwrap();
    let trace = first_trace(&run.traces).map(Path::to_owned).unwrap_or_default();
    (run, trace)
}

/// Threads that add to a word without a lock: what each of them saw is in the recording, whatever that was.
const RACING: &str = r#"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
static volatile long racing;
static atomic_long right;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long locked;
static void *run(void *unused) {
    for (int i = 0; i < 20000; i++) {
        racing++;
        atomic_fetch_add(&right, 1);
        if (i % 100 == 0) {
            pthread_mutex_lock(&lock);
            locked++;
            pthread_mutex_unlock(&lock);
        }
    }
    return (void *)racing;
}
int main(void) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], 0, run, 0);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    printf("%ld %ld\n", atomic_load(&right), locked);
    return 0;
}
"#;

/// A bounded queue without locks, of several producers and consumers.
const QUEUE: &str = r#"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#define N 256
static struct { _Atomic unsigned turn; int value; } queue[N];
static _Atomic unsigned head, tail;
static _Atomic long sum;
static _Atomic int left = 10000;
static int push(int value) {
    unsigned at = head;
    for (;;) {
        int ahead = (int)(queue[at % N].turn - at);
        if (ahead < 0) return 0;
        if (ahead == 0 && atomic_compare_exchange_weak(&head, &at, at + 1)) break;
        if (ahead > 0) at = head;
    }
    queue[at % N].value = value;
    queue[at % N].turn = at + 1;
    return 1;
}
static int pop(int *value) {
    unsigned at = tail;
    for (;;) {
        int ahead = (int)(queue[at % N].turn - (at + 1));
        if (ahead < 0) return 0;
        if (ahead == 0 && atomic_compare_exchange_weak(&tail, &at, at + 1)) break;
        if (ahead > 0) at = tail;
    }
    *value = queue[at % N].value;
    queue[at % N].turn = at + N;
    return 1;
}
static void *produce(void *unused) {
    for (int i = 1; i <= 5000; i++) while (!push(i));
    return 0;
}
static void *consume(void *unused) {
    int value;
    while (left > 0) if (pop(&value)) { sum += value; left--; }
    return 0;
}
int main(void) {
    pthread_t threads[4];
    for (unsigned i = 0; i < N; i++) queue[i].turn = i;
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, i < 2 ? produce : consume, 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    printf("%ld\n", (long)sum);
    return 0;
}
"#;

#[test]
fn threads_that_race_replay_alone() {
    for (source, output, threads) in [(RACING, "60000 600\n", 4), (QUEUE, "25005000\n", 5)] {
        let dir = tempfile::tempdir().unwrap();
        let program = build(dir.path(), source, &[]);
        for _ in 0..3 {
            let (run, trace) = record(&program, dir.path());
            assert_eq!(text(&run.stdout), output);
            assert_eq!(replayed(&program, &trace, dir.path()).unwrap().len(), threads);
        }
    }
}

/// What needs one order of all threads says what to record instead.
#[test]
fn what_a_thread_alone_cannot_tell_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), RACING, &[]);
    let (_, trace) = record(&program, dir.path());
    let rewritten = dir.path().join(WATCHED.name);
    let [program, trace, rewritten] =
        [program, trace, rewritten].map(|path| path.display().to_string());
    for command in ["memrefs", "blocks", "races"] {
        let done =
            dep(dir.path(), &[command, "--output", &rewritten, "--program", &program, &trace]);
        let said = text(&done.stderr);
        assert!(!done.status.success() && done.stdout.is_empty(), "{command}");
        assert_eq!(said.lines().count(), 1, "{command}: {said}");
        assert!(said.contains("record with --threads serial"), "{command}: {said}");
    }
}

#[test]
fn programs_at_fixed_addresses_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), RACING, &["-no-pie"]);
    let (run, _) = record(&program, dir.path());
    assert!(run.stdout.is_empty());
    assert_eq!(text(&run.stderr).lines().filter(|line| line.contains(WAY_OUT)).count(), 1);
}
