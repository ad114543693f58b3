//! Recordings of watched threads: the program does what it does natively with all threads at once, and each
//! thread is replayed alone.

mod common;

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::*;
use tests::command::turns_of;
use tests::harness::{cache, difference, Mode, Run, RunSpec, Tally, Tools};

const WATCHED: Mode =
    Mode { name: "watched", flags: &["--instrument", "inputs", "--threads", "watched"] };

/// What is said where threads cannot be watched.
const WAY_OUT: &str = "use --threads serial";
/// What the runtime says once of a recording that has met something it cannot follow.
const NOT_REPLAYED: &str = "the recording cannot be replayed from there on";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// And of a ring then.
const RING_KEEPS: &str = "the ring keeps all that follows";

/// Takes the lines out that say that the recording cannot be replayed.
fn without_notice(mut run: Run) -> Run {
    let said = text(&run.stderr);
    let is_notice = |l: &str| l.contains(NOT_REPLAYED) || l.contains(RING_KEEPS);
    let kept: Vec<_> = said.split_inclusive('\n').filter(|l| !is_notice(l)).collect();
    run.stderr = kept.concat().into_bytes();
    run
}

fn dep(here: &Path, arguments: &[&str]) -> Output {
    tests::command::dep(here, arguments).output().expect("it runs")
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

/// What a command says of a recording that `dep record` did not make.
fn asked(command: &[&str], program: &Path, trace: &Path, dir: &Path) -> Output {
    let rewritten = dir.join(WATCHED.name);
    let [program, trace, rewritten] =
        [program, trace, &rewritten].map(|path| path.display().to_string());
    let files = ["--program", &program, "--output", &rewritten, &trace];
    dep(dir, &[command, &files].concat())
}

/// What all threads executed and referred to is recovered, of which nothing need be shown.
fn recovered(program: &Path, trace: &Path, dir: &Path) -> Result<(), String> {
    let listed = asked(&["memrefs", "--range", "0..1"], program, trace, dir);
    match listed.status.success() && listed.stdout.is_empty() {
        true => Ok(()),
        false => Err(format!("memrefs: {}: {}", listed.status, text(&listed.stderr))),
    }
}

/// What came of a case.
enum Came {
    Through,
    /// But for one process: why.
    ButOne(&'static str),
    /// Its threads cannot be watched: why.
    Refused(String),
}

fn check(spec: &RunSpec, dir: &Path) -> Result<Came, String> {
    let tools = Tools::get();
    let native = spec.run(None, dir).map_err(|e| e.to_string())?;
    let rewritten = dir.join(WATCHED.name);
    match tools.rewrite_sharing(&spec.program, &rewritten, WATCHED.flags) {
        Err(why) if why.contains(WAY_OUT) => return Ok(Came::Refused(why)),
        other => other?,
    }
    let run = without_notice(spec.run(Some(&rewritten), dir).map_err(|e| e.to_string())?);
    let said = text(&run.stderr);
    if let Some(line) = said.lines().find(|line| line.contains(WAY_OUT)) {
        return Ok(Came::Refused(line.to_owned()));
    }
    difference(&native, &run)?;
    verify_all(&run.traces, tools, &rewritten)?;
    let mut forked_by_vfork = false;
    for trace in &run.traces {
        match replayed(&spec.program, trace, dir) {
            Err(why) if why.contains("its start is not in the trace, nor that of process") => {
                forked_by_vfork = true;
            }
            Ok(lines) if lines.len() > 1 => recovered(&spec.program, trace, dir)?,
            other => drop(other?),
        }
    }
    Ok(match forked_by_vfork {
        true => Came::ButOne("one process: a child of vfork that forks is not replayed"),
        false => Came::Through,
    })
}

/// Cases that are watched: all kinds of instructions, faults, signals, threads, forks, code that is made by others or
/// changes itself, programs that start others, other languages.
const CASES: [&str; 34] = [
    "asm/",
    "c/faults.",
    "c/store_faults.",
    "c/signals.",
    "c/signals_again.",
    "c/timer.",
    "c/threads.",
    "c/many_threads.",
    "c/fork_threads.",
    "c/leader_gone.",
    "c/tls.",
    "c/fs_base.",
    "c/gs_base.",
    "c/ucontext.",
    "c/fork_",
    "c/vfork.",
    "c/spawn.",
    "c/self_modify",
    "c/generated",
    "c/shm_code.",
    "c/stack_code.",
    "c/replaced_code.",
    "c/nested.",
    "c/clone_",
    "c/thread_one.",
    "c/sent_faults.",
    "c/text_patch",
    "c/tables_change.",
    "c/switched.",
    "c/kernel_writes.",
    "c/kernel_ring.",
    "c/masked_vectors.",
    "cpp/",
    "rust/",
];

/// Cases whose threads are watched in a ring that keeps next to nothing.
const CASES_OF_RINGS: [&str; 19] = [
    "c/signals.",
    "c/timer.",
    "c/threads.",
    "c/many_threads.",
    "c/fork_threads.",
    "c/leader_gone.",
    "c/tls.",
    "c/ucontext.",
    "c/fork_",
    "c/vfork.",
    "c/spawn.",
    "c/nested.",
    "c/clone_",
    "c/thread_one.",
    "c/kernel_writes.",
    "c/generated_threads.",
    "c/self_modify.",
    "cpp/",
    "rust/",
];

#[test]
fn the_corpus_is_watched_and_each_thread_replays() {
    check_all("the_corpus_is_watched_and_each_thread_replays", &CASES, &[]);
}

/// Threads begin anew all the time, and what came before goes.
#[test]
fn the_corpus_is_watched_in_a_ring_and_what_is_kept_replays() {
    let name = "the_corpus_is_watched_in_a_ring_and_what_is_kept_replays";
    check_all(name, &CASES_OF_RINGS, &[("DEP_RING", "200")]);
}

/// `further`: of the environment.
fn check_all(name: &'static str, cases: &[&str], further: &[(&str, &str)]) {
    let mut tally = Tally::start(name);
    let chosen = |case: &corpus::Case| cases.iter().any(|start| case.name.starts_with(start));
    // Libraries are translated once for all replays.
    let all = tempfile::tempdir().unwrap();
    let cache = all.path().join("cache");
    std::fs::create_dir(&cache).unwrap();
    let cases = corpus();
    let names: Vec<String> = cases.iter().map(|case| case.name.clone()).collect();
    // One in three of the variants is watched, besides the one that stands for them (WAYS=all: all).
    let is_left_out = |case: &corpus::Case| {
        let is_one = common::number(&case.name).is_multiple_of(3);
        is_variant(case, &names) && !every_way() && !is_one
    };
    for case in cases.iter().filter(|case| chosen(case)) {
        if is_left_out(case) {
            tally.skip(&case.name, "another variant is watched");
            continue;
        }
        let excepted = case.skip_reason_in("replay").or_else(|| case.skip_reason_in("inputs"));
        if let Some(why) = excepted {
            tally.skip(&case.name, &why);
            continue;
        }
        if case.refused.is_some() {
            tally.skip(&case.name, "the runtime stops it");
            continue;
        }
        let dir = tempfile::tempdir_in(all.path()).unwrap();
        std::os::unix::fs::symlink(&cache, dir.path().join("cache")).unwrap();
        let mut spec = spec(case);
        spec.env.extend(further.iter().map(|&(name, value)| (name.into(), value.into())));
        match check(&spec, dir.path()) {
            Ok(Came::Refused(why)) => tally.skip(&case.name, &why),
            Ok(Came::ButOne(why)) => {
                tally.skip(&case.name, why);
                tally.record(&case.name, Ok(()));
            }
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

/// What `dep record` and `dep replay` say of a program with watched threads, whose recording is `rec` then.
fn recorded_and_replayed(here: &Path, source: &str) -> (Output, Output) {
    build(here, source, &[]);
    let record = ["record", "--replayable", "--threads", "watched", "-o", "rec", "./program"];
    (dep(here, &record), dep(here, &["replay", "rec"]))
}

/// The replay has succeeded, and so many parts of it were equal to the recording up to its end.
fn assert_equal_parts(replay: &Output, parts: usize) {
    let said = text(&replay.stdout);
    assert!(replay.status.success(), "{said}{}", text(&replay.stderr));
    let equal = said.lines().filter(|line| line.ends_with("equal to the recording"));
    assert_eq!(equal.count(), parts, "{said}");
}

/// Records it, and returns the trace and what was rewritten.
fn record(program: &Path, dir: &Path) -> (Run, PathBuf) {
    let rewritten = dir.join("watched");
    Tools::get().rewrite_sharing(program, &rewritten, WATCHED.flags).unwrap();
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

/// Threads that take a lock from each other all the time: a replay stops so often that it is done at an int3, in code that is
/// translated while it runs.
const CONTENDED: &str = r#"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
static atomic_int lock;
static long locked, waited;
static void *run(void *unused) {
    for (int i = 0; i < 100000; i++) {
        while (atomic_exchange(&lock, 1)) waited++;
        locked += 3;
        lock = 0;
    }
    return 0;
}
int main(void) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], 0, run, 0);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    printf("%ld\n", locked);
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

/// Waiters are moved from one futex to another one.
const REQUEUE: &str = r#"
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
static int first, second;
static atomic_int woken;
static void *run(void *unused) {
    syscall(SYS_futex, &first, FUTEX_WAIT_PRIVATE, 0, 0, 0, 0);
    woken++;
    return 0;
}
int main(void) {
    pthread_t threads[4];
    int moved = 0, done = 0;
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, run, 0);
    while (moved < 4) moved += syscall(SYS_futex, &first, FUTEX_CMP_REQUEUE_PRIVATE, 0, 4L, &second, 0);
    while (done < 4) done += syscall(SYS_futex, &second, FUTEX_WAKE_PRIVATE, 4, 0, 0, 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    printf("%d\n", woken);
    return 0;
}
"#;

/// One thread is cancelled as it waits, another one as it computes.
const CANCELLED: &str = r#"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
static atomic_int begun, cleaned;
static volatile unsigned long count;
static void clean(void *unused) { cleaned++; pthread_mutex_unlock(&lock); }
static void *waits(void *unused) {
    pthread_mutex_lock(&lock);
    pthread_cleanup_push(clean, 0);
    begun++;
    for (;;) pthread_cond_wait(&never, &lock);
    pthread_cleanup_pop(0);
    return 0;
}
static void *computes(void *unused) {
    int old;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
    begun++;
    for (;;) count++;
    return 0;
}
int main(void) {
    pthread_t threads[2];
    void *result;
    int cancelled = 0;
    pthread_create(&threads[0], 0, waits, 0);
    pthread_create(&threads[1], 0, computes, 0);
    while (begun < 2 || count < 10000) {}
    for (int i = 0; i < 2; i++) {
        pthread_cancel(threads[i]);
        pthread_join(threads[i], &result);
        cancelled += result == PTHREAD_CANCELED;
    }
    printf("%d %d\n", cancelled, cleaned);
    return 0;
}
"#;

/// Vector registers that translated code may claim keep their values where a thread begins to be watched, which it does
/// behind a fork that shares memory; and what is loaded into them and stored from them is compared, under masks and
/// gathered, too.
const REGISTERS: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
static long in[64], out[64];
__attribute__((target("avx512f"))) static void step(void) {
    __asm__ volatile(
        "vmovdqu64 192(%0), %%zmm31\n"
        "vpaddq 64(%0), %%zmm31, %%zmm29\n"
        "vmovdqu64 (%0), %%zmm30\n"
        "vpaddq %%zmm29, %%zmm30, %%zmm30\n"
        "vmovdqu64 %%zmm30, (%1)\n"
        "mov $0x5a, %%eax\n"
        "kmovw %%eax, %%k1\n"
        "vmovdqu64 %%zmm31, 64(%1)%{%%k1%}\n"
        "vmovdqu64 128(%0), %%zmm30%{%%k1%}%{z%}\n"
        "vmovdqu64 %%zmm30, 192(%1)\n"
        "kxnorw %%k2, %%k2, %%k2\n"
        "vpxorq %%zmm31, %%zmm31, %%zmm31\n"
        "vpgatherqq (%0,%%zmm31,8), %%zmm30%{%%k2%}\n"
        "vpaddq 128(%1), %%zmm30, %%zmm31\n"
        "vmovdqu64 %%zmm31, 128(%1)\n"
        :: "r"(in), "r"(out) : "eax", "xmm29", "xmm30", "xmm31", "k1", "k2", "memory");
}
__attribute__((target("avx512f"), noinline)) static long forks(const long *all, long *kept) {
    long pid;
    __asm__ volatile(
        "vmovdqu64 (%1), %%zmm30\n"
        "vmovdqu64 64(%1), %%zmm31\n"
        "mov $57, %%eax\n"
        "syscall\n"
        "vmovdqu64 %%zmm30, (%2)\n"
        "vmovdqu64 %%zmm31, 64(%2)\n"
        : "=&a"(pid) : "r"(all), "r"(kept) : "rcx", "r11", "xmm30", "xmm31", "memory");
    return pid;
}
static void *run(void *unused) {
    for (int i = 0; i < 64; i++) in[i] += 3 * i;
    for (int i = 0; i < 50; i++) step();
    return 0;
}
int main(void) {
    if (!__builtin_cpu_supports("avx512f")) return puts("no such registers"), 0;
    pthread_t thread;
    long all[16], kept[16], pid, sum = 0;
    int status;
    for (int i = 0; i < 64; i++) in[i] = i + 1;
    for (int i = 0; i < 16; i++) all[i] = 100 + i;
    step();
    mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid = forks(all, kept);
    if (pid == 0) _exit(memcmp(all, kept, sizeof all) == 0 ? 5 : 6);
    waitpid(pid, &status, 0);
    step();
    pthread_create(&thread, 0, run, 0);
    pthread_join(thread, 0);
    for (int i = 0; i < 64; i++) sum = sum * 31 + out[i];
    printf("%d %d %ld\n", memcmp(all, kept, sizeof all), WEXITSTATUS(status), sum);
    return 0;
}
"#;

#[test]
fn claimed_registers_are_the_threads() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    let source = format!("#include <unistd.h>\n{REGISTERS}");
    let native = Command::new(build(here, &source, &[])).output().unwrap();
    let native = text(&native.stdout);
    assert!(native.starts_with("0 5 ") || native == "no such registers\n", "{native}");
    let (run, all) = recorded_and_replayed(here, &source);
    assert_eq!((text(&run.stdout), &*text(&run.stderr)), (native, ""));
    let said = text(&all.stdout);
    assert!(all.status.success(), "{}", text(&all.stderr));
    assert!(said.lines().all(|line| line.ends_with("equal to the recording")), "{said}");
}

#[test]
fn threads_that_race_replay_alone() {
    let programs = [
        (RACING, "60000 600\n", 4),
        (CONTENDED, "900000\n", 4),
        (QUEUE, "25005000\n", 5),
        (REQUEUE, "4\n", 5),
        (CANCELLED, "2 1\n", 3),
    ];
    for (source, output, threads) in programs {
        let dir = tempfile::tempdir().unwrap();
        let program = build(dir.path(), source, &[]);
        for _ in 0..3 {
            let (run, trace) = record(&program, dir.path());
            assert_eq!(text(&run.stdout), output);
            // The first one in two parts.
            assert_eq!(replayed(&program, &trace, dir.path()).unwrap().len(), threads + 1);
        }
    }
}

/// What needs one order of all threads says what to record instead.
#[test]
fn what_a_thread_alone_cannot_tell_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), RACING, &[]);
    let (_, trace) = record(&program, dir.path());
    for command in [&["window", "--from", "main"][..], &["window", "--last", "10M"]] {
        let done = asked(command, &program, &trace, dir.path());
        let said = text(&done.stderr);
        assert!(!done.status.success() && done.stdout.is_empty(), "{command:?}");
        assert_eq!(said.lines().count(), 1, "{command:?}: {said}");
        assert!(said.contains("record with --threads serial"), "{command:?}: {said}");
    }
}

/// Threads that do the same whenever they run, but for what they see of each other.
const APART: &str = r#"
#include <pthread.h>
#include <stdio.h>
static unsigned long total[3];
static volatile long racing;
__attribute__((noinline)) static unsigned long step(unsigned long s, int n) {
    unsigned char room[64] = {0};
    for (int i = 0; i < n; i++) {
        s = s * 6364136223846793005UL + 1;
        room[s >> 58] ^= s >> 40;
        if (s >> 63) s ^= i;
    }
    return s + room[3 & n];
}
static void *work(void *p) {
    long number = (long)p;
    unsigned long s = number;
    for (int k = 0; k < 200; k++) {
        s = step(s, 10 + (int)number);
        racing++;
    }
    total[number] = s;
    return 0;
}
int main(void) {
    pthread_t threads[3];
    unsigned long s = step(7, 20);
    for (long i = 0; i < 3; i++) pthread_create(&threads[i], 0, work, (void *)i);
    for (long i = 0; i < 3; i++) pthread_join(threads[i], 0);
    printf("%lx\n", s ^ total[0] ^ total[1] ^ total[2]);
}
"#;

/// Where the program lies in a recording of one process.
fn base(here: &Path, recording: &str) -> u64 {
    let traces = std::fs::read_dir(here.join(recording).join("traces")).unwrap();
    let traces: Vec<_> = traces.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(traces.len(), 1);
    let info = text(&dep(here, &["info", traces[0].to_str().unwrap()]).stdout);
    let module = info.lines().find(|line| line.starts_with("module") && line.contains("/program "));
    number(module.and_then(|line| line.split_whitespace().nth(1)).expect(&info))
}

fn number(hexadecimal: &str) -> u64 {
    u64::from_str_radix(hexadecimal.trim_start_matches("0x"), 16).unwrap()
}

/// What a command lists of the program's own code in a recording, thread by thread: its address in the program, and
/// what else can be compared with another run.
fn listed(here: &Path, recording: &str, command: &str) -> Vec<(String, Vec<String>)> {
    let base = base(here, recording);
    let inside = |address: u64| (base..base + 0x10000).contains(&address);
    let done = dep(here, &[command, recording]);
    assert!(done.status.success() && done.stderr.is_empty(), "{}", text(&done.stderr));
    let mut threads: Vec<(String, Vec<String>)> = Vec::new();
    for line in text(&done.stdout).lines() {
        let words: Vec<&str> = line.split(' ').collect();
        if threads.last().is_none_or(|(tid, _)| tid != words[0]) {
            threads.push((words[0].to_owned(), Vec::new()));
        }
        let pc = number(words[1]);
        if !inside(pc) {
            continue;
        }
        // Stacks are elsewhere in each run, and aligned.
        let reference = words.get(2..5).map(|reference| match number(reference[1]) {
            address if inside(address) => (reference[0], address - base, reference[2]),
            address => (reference[0], address % 16, reference[2]),
        });
        threads.last_mut().unwrap().1.push(format!("{:x} {reference:x?}", pc - base));
    }
    threads
}

/// What each thread did alone is listed, thread by thread, as of threads that ran one at a time.
#[test]
fn watched_threads_are_listed_as_serial_ones() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    build(here, APART, &[]);
    let record = |threads: &str| {
        let command = ["record", "--replayable", "--threads", threads, "-o", threads, "./program"];
        text(&dep(here, &command).stdout)
    };
    assert_eq!(record("serial"), record("watched"));
    for command in ["blocks", "memrefs"] {
        let [serial, watched] = ["serial", "watched"].map(|which| listed(here, which, command));
        assert_eq!((serial.len(), watched.len()), (4, 4));
        for ((_, serial), (tid, watched)) in serial.iter().zip(&watched) {
            assert!(serial.len() > 20, "{command}: {}", serial.len());
            let differs = serial.iter().zip(watched).position(|(one, other)| one != other);
            let differs = differs.map(|at| (at, &serial[at], &watched[at]));
            assert_eq!((differs, serial.len()), (None, watched.len()), "{command} {tid}");
        }
        // One thread, and so many lines of all of them.
        let lines = |further: &[&str]| {
            let done = dep(here, &[&[command, "watched"], further].concat());
            assert!(done.status.success(), "{}", text(&done.stderr));
            text(&done.stdout).lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let all = lines(&[]);
        for (tid, _) in &watched {
            let own = all.iter().filter(|line| line.split(' ').next() == Some(tid));
            assert!(own.eq(&lines(&["--thread", tid])), "{command} {tid}");
        }
        // Into what the first one does when there are others, and into another one.
        let first = lines(&["--thread", &watched[0].0]).len();
        for limit in [3, first - 3, first + 3] {
            assert!(lines(&["--limit", &limit.to_string()]) == all[..limit], "{command} {limit}");
        }
        let done = dep(here, &[command, "watched", "--thread", "1"]);
        assert!(!done.status.success() && done.stdout.is_empty(), "{}", text(&done.stderr));
        assert!(text(&done.stderr).contains("no such thread"), "{}", text(&done.stderr));
    }
}

/// Threads that do the same whenever they run: each one's own numbers, what it is given before it starts, what the kernel
/// gives it, what it only loads, and numbers that all of them change.
const OWN: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
volatile long own[3], given = 77, untouched, racing;
volatile char text[24];
static int ends[2];
static void *work(void *p) {
    long number = (long)p;
    for (long k = 0; k < 20; k++) {
        own[number] += given + k + untouched;
        racing++;
    }
    if (number == 1) {
        *(volatile int *)((char *)&own[1] + 2) = 0x55;
        if (read(ends[0], (void *)text, 20) != 20) return 0;
        text[3] = text[4];
        memcpy((void *)(text + 8), (void *)own, 12);
    }
    return 0;
}
int main(void) {
    pthread_t threads[3];
    if (pipe(ends) || write(ends[1], "abcdefgh\0\0\0\0ijklmnop", 20) != 20) return 1;
    for (long i = 0; i < 3; i++) {
        pthread_create(&threads[i], 0, work, (void *)i);
        if (SERIAL) pthread_join(threads[i], 0);
    }
    if (!SERIAL) for (long i = 0; i < 3; i++) pthread_join(threads[i], 0);
    printf("%lx %lx %lx %ld\n", own[0], own[1], own[2], racing);
}
"#;

/// What the command lists, as JSON.
fn rows(here: &Path, arguments: &[&str]) -> Vec<serde_json::Value> {
    let done = dep(here, &[arguments, &["--json"]].concat());
    let said = text(&done.stderr);
    assert!(done.status.success() && said.is_empty(), "{arguments:?}: {said}");
    text(&done.stdout).lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// The accesses of each thread, in the order of the threads: what can be compared with another run.
fn accesses(rows: &[serde_json::Value]) -> Vec<Vec<[String; 6]>> {
    let number = |row: &serde_json::Value| {
        u64::from_str_radix(row["address"].as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
    };
    let first = rows.iter().map(number).min().unwrap_or(0);
    let mut threads: std::collections::BTreeMap<u64, Vec<[String; 6]>> = Default::default();
    for row in rows {
        let word = |name: &str| row[name].to_string();
        let access = format!("{} {}", word("access"), word("call"));
        let place = (number(row) - first).to_string();
        let (size, old, new) = (word("size"), word("old"), word("new"));
        let of = threads.entry(row["tid"].as_u64().unwrap()).or_default();
        of.push([word("function"), access, place, size, old, new]);
    }
    threads.into_values().collect()
}

/// Each thread's loads and stores have the values that they have where threads run one at a time, in an order that is
/// that of the program; what a thread does not know is not said.
#[test]
fn values_of_watched_threads_are_those_of_serial_ones() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    build(here, OWN, &["-DSERIAL=1", "-fno-builtin"]);
    let record = |threads: &str| {
        let command = ["record", "--replayable", "--threads", threads, "-o", threads, "./program"];
        text(&dep(here, &command).stdout)
    };
    assert_eq!(record("serial"), record("watched"));
    let mut unknown = 0;
    for (address, size) in
        [("own", 24), ("own+8", 8), ("given", 8), ("untouched", 8), ("racing", 8), ("text", 24)]
    {
        let size = size.to_string();
        let of = |recording| {
            accesses(&rows(here, &["values", "--address", address, "--size", &size, recording]))
        };
        let (serial, watched) = (of("serial"), of("watched"));
        assert_eq!(serial.len(), watched.len(), "{address}");
        for (one, other) in serial.iter().zip(&watched) {
            assert_eq!(one.len(), other.len(), "{address}");
            for (one, other) in one.iter().zip(other) {
                assert_eq!(one[..4], other[..4], "{address}");
                for (known, said) in one[4..].iter().zip(&other[4..]) {
                    if said.contains('?') {
                        unknown += 1;
                        // What is known of it is right.
                        let digits = bytes(known, said.len());
                        let right = |(a, b): (char, char)| a == b || b == '?';
                        assert!(digits.chars().zip(said.chars()).all(right), "{known} {said}");
                        assert!(size != "8" || other[1].contains("store"), "{address}: {other:?}");
                    } else {
                        assert_eq!(known, said, "{address}: {one:?}");
                    }
                }
            }
        }
    }
    assert!(unknown > 0);
    // One thread, and so many lines of all of them.
    let lines = |further: &[&str]| {
        rows(here, &[&["values", "--address", "own", "watched"], further].concat())
    };
    let all = lines(&[]);
    let tids: std::collections::BTreeSet<u64> =
        all.iter().map(|row| row["tid"].as_u64().unwrap()).collect();
    assert_eq!(tids.len(), 4);
    for tid in &tids {
        let own: Vec<_> = all.iter().filter(|row| row["tid"] == *tid).cloned().collect();
        assert_eq!(own, lines(&["--thread", &tid.to_string()]));
    }
    assert_eq!(lines(&["--limit", "50"]), all[..50]);
    let stores = lines(&["--stores"]);
    assert!(stores.iter().all(|row| row["access"] != "load"));
    assert_eq!(stores.len(), all.iter().filter(|row| row["access"] != "load").count());
    let done = dep(here, &["values", "--address", "own", "watched", "--thread", "1"]);
    assert!(!done.status.success() && text(&done.stderr).contains("no such thread"));
}

/// A number as JSON as the bytes that it has in memory, if it is one.
fn bytes(json: &str, len: usize) -> String {
    match json.strip_prefix("\"0x") {
        Some(digits) => {
            let digits = digits.trim_end_matches('"');
            let number = u64::from_str_radix(digits, 16).unwrap();
            let all = number.to_le_bytes();
            let hex: String = all.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("\"{}\"", &hex[..len - 2])
        }
        None => json.to_owned(),
    }
}

/// A thread that loads a number that others change, and stores one more, says so of itself; each number comes from
/// somewhere.
#[test]
fn values_that_threads_race_for_come_from_stores() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    build(here, OWN, &["-DSERIAL=0"]);
    for _ in 0..3 {
        let _ = std::fs::remove_dir_all(here.join("rec"));
        let command = ["record", "--replayable", "--threads", "watched", "-o", "rec", "./program"];
        let printed = text(&dep(here, &command).stdout);
        let last: u64 = printed.split_whitespace().nth(3).and_then(|n| n.parse().ok()).unwrap();
        let rows = rows(here, &["values", "--address", "racing", "rec"]);
        let word = |row: &serde_json::Value, name: &str| {
            let text = row[name].as_str().unwrap();
            u64::from_str_radix(text.trim_start_matches("0x"), 16)
                .unwrap_or_else(|_| panic!("{row}"))
        };
        let of = |access: &'static str| rows.iter().filter(move |row| row["access"] == access);
        let stored: Vec<u64> = of("store").map(|row| word(row, "new")).chain([0]).collect();
        assert_eq!(stored.len(), 61);
        assert!(of("load").all(|row| stored.contains(&word(row, "old"))));
        // The first thread loads what is printed, and the others add one to what each has just loaded.
        let mut of_first = rows.iter().filter(|row| row["tid"] == rows[0]["tid"]);
        assert_eq!(of_first.next().map(|row| word(row, "old")), Some(last));
        assert!(of_first.next().is_none());
        for pair in rows[1..].chunks(2) {
            let accesses = [&pair[0]["access"], &pair[1]["access"]];
            assert_eq!(accesses, ["load", "store"]);
            assert_eq!(word(&pair[0], "old"), word(&pair[1], "old"));
            assert_eq!(word(&pair[0], "old") + 1, word(&pair[1], "new"));
        }
    }
}

/// Threads that run one after another, and change an area in all the ways there are.
const CHANGES: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
volatile unsigned char area[16384] __attribute__((aligned(4096)));
volatile unsigned short given[4] = {0x5a17, 0x5a17, 0x5a17, 0x5a17};
static int ends[2], has_masks;
static unsigned char source[64];
static volatile unsigned long sum;
static unsigned long next(unsigned long *s) {
    return (*s = *s * 6364136223846793005UL + 1442695040888963407UL) >> 33;
}
static void handler(int n) {
    for (int i = 0; i < 5; i++) area[(200 * n + 37 * i) % 12288] += n;
    *(volatile long *)(area + 3000 + 8 * n) = n;
}
__attribute__((noinline)) static void change(unsigned long *s) {
    volatile unsigned char *at = area + next(s) % 12200;
    unsigned long n = next(s) % 40, count = n;
    void *to = (void *)at, *from = source;
    switch (next(s) % 15) {
    case 0: *at = n; break;
    case 1: *(volatile int *)at = n; break;
    case 2: *(volatile long *)at = n; break;
    case 3: *at += n; break;
    case 4: *(volatile long *)at ^= n; break;
    case 5: sum += *(volatile int *)at; break;
    case 6: __atomic_fetch_add((int *)((unsigned long)at & -4), 3, __ATOMIC_SEQ_CST); break;
    case 7: __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(count) :: "memory"); break;
    case 8: __asm__ volatile("rep stosb" : "+D"(to), "+c"(count) : "a"(n) : "memory"); break;
    case 9:
        from = (void *)(area + next(s) % 12200), count = n / 8;
        __asm__ volatile("rep movsq" : "+D"(to), "+S"(from), "+c"(count) :: "memory");
        break;
    case 10:
        if (n && write(ends[1], source, n) == (long)n) (void)!read(ends[0], to, n + 8);
        break;
    case 11: raise(n & 1 ? SIGUSR1 : SIGUSR2); break;
    case 12: __asm__ volatile("btsq %1,(%0)" :: "r"(area + 2000), "r"(n * 61) : "memory", "cc"); break;
    case 13:
        if (n < 2)
            mmap((void *)(area + 4096 * n), 4096, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        else if (n < 8) {
            madvise((void *)(area + 12288), 4096, MADV_DONTNEED);
            area[12288 + n] = n;
            area[12290] += n;
        }
        break;
    case 14:
        if (has_masks)
            __asm__ volatile("vpcmpeqd %%xmm1,%%xmm1,%%xmm1; vpsrldq $8,%%xmm1,%%xmm1; vmovq %1,%%xmm0;"
                             "vpmaskmovd %%xmm0,%%xmm1,(%0)" :: "r"(at), "r"(n) : "xmm0", "xmm1", "memory");
        break;
    }
}
static void *work(void *p) {
    unsigned long s = (long)p;
    given[s] = 1;
    for (int k = 0; k < 1500; k++) change(&s);
    return 0;
}
int main(void) {
    pthread_t thread;
    has_masks = __builtin_cpu_supports("avx2");
    signal(SIGUSR1, handler), signal(SIGUSR2, handler);
    unsigned long s = 9;
    for (int i = 0; i < 64; i++) source[i] = i + 1;
    for (int i = 0; i < 16384; i++) area[i] = next(&s) | 1;
    if (pipe(ends)) return 1;
    for (long i = 1; i < 4; i++) {
        pthread_create(&thread, 0, work, (void *)i);
        pthread_join(thread, 0);
    }
    unsigned long all = sum;
    for (int i = 0; i < 16384; i++) all = all * 31 + area[i];
    printf("%lx\n", all);
}
"#;

/// What an undo log says of stores to the program's own data, thread by thread: instruction (0: not the program's) and
/// address, in the program; size, old bytes.
fn overwritten(here: &Path, recording: &str) -> Vec<Vec<(u64, u64, u64, String)>> {
    let base = base(here, recording);
    let inside = |address: u64| (base..base + 0x10000).contains(&address);
    let mut threads: Vec<(u64, Vec<_>)> = Vec::new();
    for row in rows(here, &["undo", recording]) {
        let tid = row["tid"].as_u64().unwrap();
        if threads.last().is_none_or(|(last, _)| *last != tid) {
            threads.push((tid, Vec::new()));
        }
        let Some(old) = row["old"].as_str() else { continue };
        let [pc, address] = ["pc", "address"].map(|name| number(row[name].as_str().unwrap()));
        if inside(address) {
            let pc = if inside(pc) { pc - base } else { 0 };
            let size = row["size"].as_u64().unwrap();
            threads.last_mut().unwrap().1.push((pc, address - base, size, old.to_owned()));
        }
    }
    threads.into_iter().map(|(_, stores)| stores).collect()
}

/// Each store is listed with the bytes that it overwrites where threads run one at a time, or these are not known: a
/// thread that neither loads nor stores a byte before does not know what others have left there.
#[test]
fn undo_logs_of_watched_threads_are_those_of_serial_ones() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    build(here, CHANGES, &["-Wl,-z,now"]);
    let record = |threads: &str| {
        let command = ["record", "--replayable", "--threads", threads, "-o", threads, "./program"];
        text(&dep(here, &command).stdout)
    };
    assert_eq!(record("serial"), record("watched"));
    let [serial, watched] = ["serial", "watched"].map(|which| overwritten(here, which));
    assert_eq!((serial.len(), watched.len()), (4, 4));
    for (thread, (serial, watched)) in serial.iter().zip(&watched).enumerate() {
        let (mut bytes, mut unknown) = (0, 0);
        for (one, other) in serial.iter().zip(watched) {
            assert_eq!((one.0, one.1, one.2), (other.0, other.1, other.2), "{thread}");
            assert_eq!(one.3.len(), other.3.len(), "{thread}");
            let pairs = one.3.as_bytes().chunks(2).zip(other.3.as_bytes().chunks(2));
            for (is, said) in pairs {
                bytes += 1;
                unknown += usize::from(said == b"??");
                assert!(said == b"??" || said == is, "{thread}: {one:x?} {other:x?}");
            }
            // The thread stores there first of all.
            if one.3 == "175a" {
                assert_eq!(other.3, "????");
            }
        }
        assert_eq!(serial.len(), watched.len(), "{thread}");
        assert!(bytes > 10_000, "{thread}: {bytes}");
        match thread {
            // Alone, which was not watched.
            0 => assert_eq!(unknown, 0),
            _ => {
                assert_eq!(serial.iter().filter(|row| row.3 == "175a").count(), 1);
                assert!(unknown > 2 && unknown < bytes / 4, "{thread}: {unknown} of {bytes}");
            }
        }
    }
}

/// One thread, so many lines, newest first, about one byte: all of the same list.
#[test]
fn undo_logs_of_watched_threads_are_listed_in_parts() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    build(here, OWN, &["-DSERIAL=0"]);
    let command = ["record", "--replayable", "--threads", "watched", "-o", "rec", "./program"];
    assert!(dep(here, &command).status.success());
    let lines = |further: &[&str]| {
        let done = dep(here, &[&["undo", "rec"], further].concat());
        assert!(done.status.success() && done.stderr.is_empty(), "{}", text(&done.stderr));
        text(&done.stdout).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let all = lines(&[]);
    let threads: Vec<&[String]> = all.chunk_by(|one, other| tid(one) == tid(other)).collect();
    assert_eq!(threads.len(), 4);
    for own in &threads {
        assert!(own == &lines(&["--thread", tid(&own[0])]));
    }
    // Into what the first one does when there are others, and into another one.
    let first = threads[0].len();
    for limit in [3, first - 3, first + 3] {
        assert!(lines(&["--limit", &limit.to_string()]) == all[..limit], "{limit}");
    }
    let backwards: Vec<String> = threads.iter().flat_map(|own| own.iter().rev()).cloned().collect();
    assert!(lines(&["--backwards"]) == backwards);
    assert!(lines(&["--backwards", "--limit", "50"]) == backwards[..50]);
    let own = lines(&["--backwards", "--thread", tid(&threads[2][0])]);
    assert!(own.iter().rev().eq(threads[2]));
    // As text and as JSON.
    let json = rows(here, &["undo", "rec"]);
    assert_eq!(json.len(), all.len());
    let mut unknown = 0;
    for (row, line) in json.iter().zip(&all) {
        if let Some(old) = row["old"].as_str() {
            assert_eq!(line.rsplit(' ').next(), Some(old));
            unknown += usize::from(old.contains("??"));
        }
    }
    assert!(unknown > 0 && unknown < all.len() / 10, "{unknown} of {}", all.len());
    // What a thread adds to, it has seen, as `dep values` says.
    let stores = rows(here, &["values", "--address", "racing", "--stores", "rec"]);
    let address = stores[0]["address"].as_str().unwrap();
    let about = rows(here, &["undo", "--address", address, "rec"]);
    assert!(about.iter().all(|row| row["function"].as_str().unwrap().contains("work")));
    assert_eq!(about.len(), 60);
    let of = |rows: &[serde_json::Value]| {
        let mut threads: std::collections::BTreeMap<u64, Vec<String>> = Default::default();
        for row in rows {
            let of = threads.entry(row["tid"].as_u64().unwrap()).or_default();
            of.push(bytes(&row["old"].to_string(), 18));
        }
        threads
    };
    let (about, mut stores) = (of(&about), of(&stores));
    stores.values_mut().for_each(|own| own.reverse());
    assert_eq!(about, stores);
    let done = dep(here, &["undo", "rec", "--thread", "1"]);
    assert!(!done.status.success() && done.stdout.is_empty(), "{}", text(&done.stderr));
    assert!(text(&done.stderr).contains("no such thread"), "{}", text(&done.stderr));
}

/// Whose line it is.
fn tid(line: &str) -> &str {
    line.split(' ').next().unwrap_or_default()
}

/// A thread that touches some bytes of an area, each in its way, and comes to `mark`.
const TOUCHES: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
// A page of its own: of one that is seen again and again all is seen.
volatile char area[4096] __attribute__((aligned(4096)));
char *page;
long other = 5;
static int ends[2];
__attribute__((noinline)) void mark(long n) { __asm__ volatile("" :: "r"(n) : "memory"); }
static void *work(void *p) {
    mark(1);
    (void)area[3];
    *(volatile long *)(area + 8) = 0;
    for (int i = 20; i < 25; i++) area[i] = 0;
    (void)area[60];
    mark(2);
    if (read(ends[0], (void *)(area + 50), 5) != 5) return p;
    page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    page[10] = 0;
    mark(3);
    mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    mark(4);
    return p;
}
int main(void) {
    pthread_t thread;
    area[60] = 7;
    if (pipe(ends) || write(ends[1], "\0\0\0\0\0", 5) != 5) return 1;
    pthread_create(&thread, 0, work, 0);
    pthread_join(thread, 0);
    printf("%p %d\n", (void *)page, area[60]);
}
"#;

/// A condition is answered from what the thread knows, never from the zeros in the memory of its replay; where it knows
/// nothing, that is said, and counted.
#[test]
fn conditions_on_watched_threads_are_answered_from_what_they_know() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    build(here, TOUCHES, &["-fno-builtin"]);
    let record = ["record", "--replayable", "--threads", "watched", "-o", "rec", "./program"];
    let printed = text(&dep(here, &record).stdout);
    let page = printed.split(' ').next().unwrap();
    // Of the second thread: how often the condition holds, and how often it is not known.
    let places = rows_of_when(here, "pc == mark", &[]);
    assert_eq!(places.0.len(), 4);
    let tid = places.0[0]["tid"].to_string();
    let asked = |condition: &str| {
        let (found, doubts) = rows_of_when(here, condition, &["--thread", &tid]);
        (found.len(), doubts)
    };
    for (byte, value, known_from) in [
        (0, 0, None),
        (2, 0, None),
        (3, 0, Some(2)),
        (4, 0, None),
        (7, 0, None),
        (8, 0, Some(2)),
        (15, 0, Some(2)),
        (16, 0, None),
        (20, 0, Some(2)),
        (24, 0, Some(2)),
        (25, 0, None),
        (50, 0, Some(3)),
        (54, 0, Some(3)),
        (55, 0, None),
        (60, 7, Some(2)),
    ] {
        for mark in 1..=4 {
            let is_known = known_from.is_some_and(|from| from <= mark);
            let at = format!("pc == mark && rdi == {mark} && [area+{byte}]:1");
            let expected = |holds: bool| match is_known {
                true => (usize::from(holds), 0),
                false => (0, 1),
            };
            assert_eq!(asked(&format!("{at} == {value}")), expected(true), "{at}");
        }
        let never = asked(&format!("pc == mark && [area+{byte}]:1 == 99"));
        assert_eq!(never, (0, known_from.map_or(4, |from| from - 1)), "{byte}");
    }
    // What is mapped anew is not what was there.
    let at = |mark: u32| asked(&format!("pc == mark && rdi == {mark} && [{page}+10]:1 == 0"));
    assert_eq!([at(1), at(2), at(3), at(4)], [(0, 1), (0, 1), (1, 0), (0, 1)]);
    // Part of it suffices, if it decides.
    assert_eq!(asked("pc == mark && (rdi == 1 || [area]:1 == 0)"), (1, 3));
    assert_eq!(asked("pc == mark && (rdi != 1 && [area+60]:1 == 7)"), (3, 0));
    assert_eq!(asked("pc == mark && other == 0 && [area]:1 == 0"), (0, 0));
    // Code is known.
    assert_eq!(asked("pc == mark && [mark]:1 != 0"), (4, 0));
    // Without a place: where it begins to hold, which is where it begins to be known.
    for (condition, count) in [
        ("[area+3]:1 == 0", 1),
        ("[area+60]:1 == 7", 1),
        ("[area+50]:4 == 0", 1),
        ("[area]:1 == 0", 0),
    ] {
        let (found, doubts) = rows_of_when(here, condition, &["--thread", &tid]);
        assert!(doubts > 0, "{condition}");
        assert_eq!(found.len(), count, "{condition}");
        for row in &found {
            let function = row["function"].as_str().unwrap_or_default();
            let inside = ["work", "read", "__read"].iter().any(|name| function.starts_with(name));
            assert!(inside, "{condition}: {row}");
        }
    }
    // Step by step.
    let slowly = asked("rdi == 2 && rsp != 0 && [area+8]:8 == 0 && pc != 0");
    assert!(slowly.0 > 0 && slowly.1 > 0, "{slowly:?}");
    // The first and the last of each thread.
    let alone = |option| rows_of_when(here, "pc == mark", &[option]).0;
    assert_eq!(
        (alone("--first"), alone("--last")),
        (vec![places.0[0].clone()], vec![places.0[3].clone()])
    );
    let done = dep(here, &["when", "rec", "rip == 1", "--thread", "1"]);
    assert!(!done.status.success() && text(&done.stderr).contains("no such thread"));
}

/// A thread whose handlers return, that cannot execute a program, and that ends in a call.
const INTERRUPTED: &str = r#"
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
// A page of its own: of one that is seen again and again all is seen.
volatile char area[4096] __attribute__((aligned(4096)));
struct pollfd asked[512] __attribute__((aligned(4096)));
static int ends[2], told[2];
__attribute__((noinline)) void mark(long n) { __asm__ volatile("" :: "r"(n) : "memory"); }
static void on(int signal) { area[2] = signal; }
static void *work(void *p) {
    raise(SIGUSR1);
    raise(SIGUSR1);
    execl("/nonexistent", "nonexistent", (char *)0);
    area[1] = 7;
    mark(1);
    write(told[1], "x", 1);
    poll(asked, 1, -1);
    return p;
}
int main(void) {
    char room;
    pthread_t thread;
    signal(SIGUSR1, on);
    if (pipe(ends) || pipe(told)) return 1;
    asked[0] = (struct pollfd){.fd = ends[0], .events = POLLIN};
    pthread_create(&thread, 0, work, 0);
    read(told[0], &room, 1);
    usleep(20000);
    _exit(0);
}
"#;

/// What a thread knows is told in the turns that its calls have, through handlers, and calls that fail or never return.
#[test]
fn what_a_thread_knows_is_right_behind_handlers_and_failed_calls() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    build(here, INTERRUPTED, &["-fno-builtin"]);
    let record = ["record", "--replayable", "--threads", "watched", "-o", "rec", "./program"];
    assert!(dep(here, &record).status.success());
    let places = rows_of_when(here, "pc == mark", &[]).0;
    assert_eq!(places.len(), 1);
    let tid = places[0]["tid"].to_string();
    for (condition, found) in [
        ("pc == mark && [area+1]:1 == 7", (1, 0)),
        ("pc == mark && [area+2]:1 == 10", (1, 0)),
        ("pc == mark && [area+1]:1 == 0", (0, 0)),
        ("pc == mark && [area+3]:1 == 0", (0, 1)),
    ] {
        let (rows, doubts) = rows_of_when(here, condition, &["--thread", &tid]);
        assert_eq!((rows.len(), doubts), found, "{condition}");
    }
    // The thread is in its last call, which was never shown what others had stored.
    let shown = [
        &["debug", "rec", "--thread", &tid, "--", "-batch"][..],
        &["-ex", "handle SIGUSR1 nostop noprint", "-ex", "continue"][..],
        &["-ex", "x/1xb (char *)&area + 1", "-ex", "x/1xw &asked"][..],
    ];
    let done = dep(here, &shown.concat());
    let (shown, said) = (text(&done.stdout), text(&done.stderr));
    assert!(shown.contains("<area+1>:\t0x07"), "{shown}{said}");
    assert!(said.contains("Cannot access memory at address"), "{shown}{said}");
}

/// What the command finds, and how often it is not known whether the condition holds.
fn rows_of_when(here: &Path, condition: &str, further: &[&str]) -> (Vec<serde_json::Value>, usize) {
    let done = dep(here, &[&["when", "--json", "rec", condition], further].concat());
    let said = text(&done.stderr);
    assert!(done.status.success(), "{condition}: {said}");
    let mut doubts = 0;
    for line in said.lines().filter(|line| !line.contains("each instruction is looked at")) {
        let count = line.split("it is not known whether it holds").next().filter(|s| *s != line);
        let words: Vec<&str> = count.expect(&said).split_whitespace().collect();
        doubts += match words[..] {
            ["dep:", "thread", _, "once"] => 1,
            ["dep:", "thread", _, count, "times"] => count.parse().expect(line),
            _ => panic!("{line}"),
        };
    }
    let rows = text(&done.stdout);
    (rows.lines().map(|line| serde_json::from_str(line).expect(line)).collect(), doubts)
}

/// Registers and places are those of threads that run one at a time.
#[test]
fn conditions_on_registers_hold_where_they_do_in_serial_threads() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    build(here, OWN, &["-DSERIAL=1"]);
    for threads in ["serial", "watched"] {
        let command = ["record", "--replayable", "--threads", threads, "-o", threads, "./program"];
        assert!(dep(here, &command).status.success());
    }
    let places = |recording, condition: &str| {
        let rows = rows(here, &["when", recording, condition]);
        let mut threads: std::collections::BTreeMap<u64, Vec<String>> = Default::default();
        for row in &rows {
            let of = threads.entry(row["tid"].as_u64().unwrap()).or_default();
            of.push(row["function"].to_string());
        }
        threads.into_values().collect::<Vec<_>>()
    };
    let values = rows(here, &["values", "--address", "racing", "--stores", "serial"]);
    let store = values[0]["function"].as_str().unwrap();
    for condition in [
        format!("pc == {store}"),
        format!("pc == {store} && [racing] == 30"),
        format!("pc == {store} && [racing] >= 17 && [own]:8 > 0x100"),
        "[own+8]:8 > 0x300".into(),
        "[racing] == 33".into(),
    ] {
        let done = dep(here, &["when", "watched", &condition]);
        let serial = places("serial", &condition);
        let watched: Vec<Vec<String>> = {
            assert!(done.status.success(), "{}", text(&done.stderr));
            let mut threads: std::collections::BTreeMap<u64, Vec<String>> = Default::default();
            for line in text(&done.stdout).lines() {
                let words: Vec<&str> = line.split(' ').collect();
                let of = threads.entry(words[0].parse().unwrap()).or_default();
                of.push(format!("\"{}\"", words.last().unwrap()));
            }
            threads.into_values().collect()
        };
        // Another thread sees what has begun to hold when it looks.
        let of_others = |all: &[Vec<String>]| all.iter().map(Vec::len).sum::<usize>();
        assert!(of_others(&serial) > 0, "{condition}");
        for places in &serial {
            let kept: Vec<_> = watched.iter().filter(|of| *of == places).collect();
            let doubts = text(&done.stderr).contains("not known");
            // Registers are always known.
            assert!(!doubts || condition.contains('['), "{condition}");
            assert!(!kept.is_empty() || doubts, "{condition}: {serial:?} {watched:?}");
        }
    }
}

/// A thread that waits when another one ends the process is whole.
#[test]
fn a_thread_that_another_one_stops_is_whole() {
    const WAITS: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static pthread_barrier_t begun;
static void *waits(void *p) {
    pthread_barrier_wait(&begun);
    for (;;) pause();
    return p;
}
int main(void) {
    pthread_t thread;
    pthread_barrier_init(&begun, 0, 2);
    pthread_create(&thread, 0, waits, 0);
    pthread_barrier_wait(&begun);
    puts("done");
}
"#;
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    let (run, all) = recorded_and_replayed(here, WAITS);
    assert_eq!(text(&run.stdout), "done\n");
    let lines = text(&all.stdout);
    assert_eq!(lines.lines().count(), 3, "{lines}");
    assert!(lines.lines().all(|line| line.ends_with(": equal to the recording")), "{lines}");
    for command in ["blocks", "memrefs"] {
        let listed = dep(here, &[command, "rec"]);
        assert!(listed.status.success() && listed.stderr.is_empty(), "{}", text(&listed.stderr));
    }
}

/// Their memory lies low, and views lie above it.
#[test]
fn programs_at_fixed_addresses_are_watched() {
    for flags in ["-no-pie", "-static"] {
        let dir = tempfile::tempdir().unwrap();
        let here = dir.path();
        build(here, RACING, &[flags]);
        let record = ["record", "--replayable", "--threads", "watched", "-o", "rec", "./program"];
        assert_eq!(text(&dep(here, &record).stdout), "60000 600\n", "{flags}");
        let said = text(&dep(here, &["replay", "rec"]).stdout);
        assert!(said.lines().all(|line| line.ends_with("equal to the recording")), "{said}");
        // The first thread alone, and with the others.
        assert_eq!(said.lines().count(), 5, "{said}");
        let info = text(&dep(here, &["info", "rec"]).stdout);
        assert!(info.contains("to its end, 4 watched threads, each alone"), "{info}");
    }
}

/// A program at fixed addresses is watched by itself where it shares memory, as another one is.
#[test]
fn memory_that_a_program_at_fixed_addresses_shares_is_watched() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    build(here, LOW, &["-no-pie"]);
    // (Where nothing lies above a limit of the address space, nothing is kept free there.)
    for limited in [false, true] {
        let limit = if limited { "ulimit -v 30000000;" } else { "" };
        let dep_here = Tools::get().dep.display();
        let mut record = Command::new("sh");
        record.args(["-c", &format!("{limit} exec {dep_here} record -o rec ./program")]);
        let run = record.current_dir(here).envs(cache()).output().expect("it runs");
        assert_eq!(text(&run.stdout), "5050 1 2000 8\n7\n", "{}", text(&run.stderr));
        assert_eq!(text(&run.stderr).contains(NOT_REPLAYED), limited, "{}", text(&run.stderr));
        let said = text(&dep(here, &["replay", "rec"]).stdout);
        assert!(limited || said.lines().all(|line| line.ends_with("equal to the recording")));
        assert!(said.contains("equal to the recording"), "{said}");
        std::fs::remove_dir_all(here.join("rec")).unwrap();
    }
}

/// Shares a page with a child, has a stack that becomes larger than its limit was, memory at places of its choice where views
/// could be, and ends by using up its stack.
const LOW: &str = r#"
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
static int deep(int n) {
    volatile char room[1 << 16];
    memset((void *)room, n, sizeof room);
    return n ? deep(n - 1) + room[5] : 0;
}
static void handler(int signal, siginfo_t *info, void *context) {
    // Not SEGV_ACCERR: nothing is there.
    printf("%d\n", info->si_code == SEGV_MAPERR ? 7 : 8);
    fflush(stdout);
    _exit(0);
}
int main(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_STACK, &limit);
    limit.rlim_cur = 12 << 20;
    if (setrlimit(RLIMIT_STACK, &limit)) return 1;
    int sum = deep(100);
    limit.rlim_cur = 32 << 20;
    if (setrlimit(RLIMIT_STACK, &limit)) return 2;
    if (deep(400) == 0) return 3;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    char *own = mmap((void *)0x300000000000, 1 << 20, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (own != (void *)0x300000000000) return 4;
    if (mmap((void *)0x310000000000, 1L << 30, PROT_NONE, flags, -1, 0) == MAP_FAILED) return 5;
    int is_taken = mmap(own, 4096, PROT_READ, flags, -1, 0) == MAP_FAILED;
    own[5] = 7;
    // (So much that the process is watched for it.)
    volatile int *shared = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int status, child = fork();
    if (!child) {
        for (int i = 0; i < 1000; i++) shared[0]++;
        _exit(++own[5]);
    }
    wait(&status);
    for (int i = 0; i < 1000; i++) shared[0]++;
    printf("%d %d %d %d\n", sum, is_taken, shared[0], WEXITSTATUS(status));
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536};
    sigaltstack(&stack, 0);
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGSEGV, &action, 0);
    return deep(10000);
}
"#;

/// More threads than once had a view, and a process that one of them forks.
const MANY: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
enum { THREADS = 40 };
static pthread_barrier_t barrier;
static volatile long racing;
static long done;
static void *run(void *unused) {
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < 200; i++) racing++;
    __atomic_add_fetch(&done, 200, __ATOMIC_SEQ_CST);
    pthread_barrier_wait(&barrier);
    return 0;
}
int main(void) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&barrier, 0, THREADS);
    char *text = malloc(100);
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, run, 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    snprintf(text, 100, "%ld\n", done);
    fflush(stdout);
    int status = 0, pid = fork();
    if (pid == 0) {
        fputs(text, stdout);
        exit(7);
    }
    waitpid(pid, &status, 0);
    printf("%d\n", WEXITSTATUS(status));
    return 0;
}
"#;

/// What `dep record` leaves of watched threads, and what the other commands say of it.
#[test]
fn a_recording_of_watched_threads_replays_thread_by_thread() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    let (run, all) = recorded_and_replayed(here, MANY);
    assert_eq!(text(&run.stdout), "8000\n7\n");
    let lines: Vec<String> = text(&all.stdout).lines().map(str::to_owned).collect();
    let why = text(&all.stderr);
    assert!(all.status.success(), "{why}");
    // The threads of the first process, what it did with one thread, and the only one of that which was forked.
    assert_eq!(lines.len(), 43, "{why}");
    assert!(lines.iter().all(|line| line.contains(": equal to the recording")));
    let process = |line: &String| line.split('.').next().map(str::to_owned);
    let is_alone = |one: &&String| lines.iter().filter(|l| process(l) == process(one)).count() == 1;
    let child = &*lines.iter().find(is_alone).and_then(process).unwrap();
    let one = dep(here, &["replay", "-p", child, "--thread", child, "rec"]);
    assert_eq!(text(&one.stdout).lines().count(), 1, "{}", text(&one.stderr));
    let one = dep(here, &["replay", "-p", child, "--thread", "1", "rec"]);
    assert!(!one.status.success() && text(&one.stderr).contains("no such thread"));
    let info = text(&dep(here, &["info", "rec"]).stdout);
    assert!(info.contains("replayable     all 2 to their ends"), "{info}");
    let info = text(&dep(here, &["info", "-p", child, "rec"]).stdout);
    assert!(info.contains(", threads watched\n"), "{info}");
    assert!(info.contains("to its end, 1 watched thread, each alone"), "{info}");
}

/// A program of one thread, which no other writes for, is recorded like one whose threads are serial: all that can be
/// asked of such a recording can be asked of it.
#[test]
fn one_thread_is_not_watched() {
    const ONE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    long sum = 0, *numbers = malloc(8000);
    for (int i = 0; i < 1000; i++) numbers[i] = i;
    for (int i = 0; i < 1000; i++) sum += numbers[rand() % 1000];
    printf("%d\n", sum > 0);
    return 0;
}
"#;
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    let (run, all) = recorded_and_replayed(here, ONE);
    assert_eq!((&*text(&run.stdout), &*text(&run.stderr)), ("1\n", ""));
    let said = text(&all.stdout);
    assert!(said.starts_with("replayed ") && said.lines().count() == 1, "{said}");
    assert!(said.ends_with("equal to the recording\n"), "{said}");
    let stores = text(&dep(here, &["memrefs", "rec"]).stdout);
    assert!(stores.lines().count() > 3000);
    let info = text(&dep(here, &["info", "rec"]).stdout);
    assert!(info.contains("replayable     to its end\n"), "{info}");
}

#[test]
fn what_goes_with_watched_threads_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    let done = dep(here, &["record", "--instrument", "dep", "--threads", "watched", "true"]);
    let said = text(&done.stderr);
    assert!(!done.status.success() && said.contains("--instrument inputs"), "{said}");
}

/// Two processes that store to the same memory.
const SHARED: &str = r#"
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    volatile int *both = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int pid = fork();
    for (int i = 0; i < 100; i++) {
        while (*both != 2 * i + (pid == 0)) sched_yield();
        *both = *both + 1;
    }
    if (pid == 0) return 0;
    waitpid(pid, 0, 0);
    printf("%d\n", *both);
    return 0;
}
"#;

/// The same, of memory that is attached (System V).
fn attached() -> String {
    let mapped = "mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)";
    assert!(SHARED.contains(mapped));
    let attached = SHARED.replace(mapped, "attach()");
    let attach = r#"
#include <sys/ipc.h>
#include <sys/shm.h>
static volatile int *attach(void) {
    int id = shmget(IPC_PRIVATE, 5000, 0600);
    volatile int *at = shmat(id, 0, 0);
    shmctl(id, IPC_RMID, 0);
    return at;
}
int main"#;
    attached.replace("\nint main", attach)
}

/// Serial threads are watched, each from where it stands, when others may write to their memory.
#[test]
fn threads_that_run_when_memory_is_shared_are_watched_from_there_on() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    let late = corpus().into_iter().find(|case| case.name == "c/shared_late.pie").expect("a case");
    let native = Command::new(&late.path).output().unwrap();
    for _ in 0..5 {
        let _ = std::fs::remove_dir_all(here.join("rec"));
        let run = dep(here, &["record", "-o", "rec", late.path.to_str().unwrap()]);
        let printed = (&*text(&run.stdout), &*text(&run.stderr));
        assert_eq!(printed, (&*text(&native.stdout), ""));
        let all = dep(here, &["replay", "rec"]);
        let said = text(&all.stdout);
        assert!(all.status.success(), "{said}{}", text(&all.stderr));
        assert!(said.lines().all(|line| line.ends_with("equal to the recording")), "{said}");
        // What all did, one after another; five that go on alone (the sixth hardly ever does); the child.
        let lines: Vec<_> = said.lines().collect();
        assert!(
            matches!(lines.len(), 7 | 8) && lines[0].contains(" all threads together "),
            "{said}"
        );
        let info = text(&dep(here, &["info", "rec"]).stdout);
        assert!(info.contains("replayable     all 2 to their ends\n"), "{info}");
    }
    let said = text(&dep(here, &["replay", "rec"]).stdout);
    let pid = said.split('.').next().unwrap().to_owned();
    let tid = said.lines().nth(3).and_then(|line| line.split(' ').nth(2)).unwrap().to_owned();
    // Of one thread: what it did together with the others, and alone.
    let one = dep(here, &["replay", "rec", "-p", &pid, "--thread", &tid]);
    assert_eq!(text(&one.stdout).lines().count(), 2, "{}", text(&one.stderr));
    let listed = |more: &[&str]| {
        let blocks = dep(here, &[&["blocks", "rec", "-p", &pid], more].concat());
        assert!(blocks.status.success(), "{}", text(&blocks.stderr));
        let threads = text(&blocks.stdout);
        let of_thread = |line: &&str| line.split(' ').next() == Some(&*tid);
        (threads.lines().filter(of_thread).count(), threads.lines().count())
    };
    let (of_thread, all) = listed(&[]);
    assert!(of_thread > 3000 && of_thread < all);
    assert_eq!(listed(&["--thread", &tid]), (of_thread, of_thread));
    let races = dep(here, &["races", "rec", "-p", &pid]);
    assert!(!races.status.success());
    assert!(text(&races.stderr).contains("record it with --threads watched"));
}

/// Threads that begin where others were watched, and are none any more, are named: the others' parts are there.
#[test]
fn threads_that_were_not_watched_are_named() {
    const C: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
enum { FIRST = 3, ALL = 103 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static volatile int is_open, there;
static void *waits(void *p) {
  pthread_mutex_lock(&lock);
  there++;
  while (!is_open) pthread_cond_wait(&opened, &lock);
  pthread_mutex_unlock(&lock);
  return 0;
}
static pthread_t threads[ALL];
static void begin(int from, int to) {
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 65536);
  for (int i = from; i < to; i++) pthread_create(&threads[i], &small, waits, 0);
  while (there < to) usleep(1000);
}
int main(void) {
  begin(0, FIRST);
  // It could be code: the process is watched for it.
  volatile int *both = mmap(0, 1 << 20, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  // Below that there is room for few views.
  mmap((void *)0x11000000000, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pid_t child = fork();
  if (!child) { (*both)++; _exit(0); }
  waitpid(child, 0, 0);
  begin(FIRST, ALL);
  pthread_mutex_lock(&lock);
  is_open = 1;
  pthread_cond_broadcast(&opened);
  pthread_mutex_unlock(&lock);
  for (int i = 0; i < ALL; i++) pthread_join(threads[i], 0);
  printf("%d %d\n", there, *both);
  return 0;
}
"#;
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    build(here, C, &[]);
    let run = dep(here, &["record", "-o", "rec", "./program"]);
    assert_eq!(text(&run.stdout), "103 1\n");
    let why = "there are more threads than can be watched";
    assert!(text(&run.stderr).contains(why), "{}", text(&run.stderr));
    let processes = text(&dep(here, &["ps", "rec", "--json"]).stdout);
    let pid = processes.split("\"pid\":").nth(1).unwrap();
    let pid: String = pid.trim().chars().take_while(char::is_ascii_digit).collect();
    let listed = dep(here, &["blocks", "rec", "-p", &pid, "--limit", "1"]);
    let said = text(&listed.stderr);
    assert!(listed.status.success() && text(&listed.stdout).lines().count() == 1, "{said}");
    assert!(said.contains(" more was not watched, and cannot be replayed"), "{said}");
    let tid = said.split("thread ").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
    let one = dep(here, &["replay", "rec", "-p", &pid, "--thread", tid]);
    let said = text(&one.stderr);
    assert!(!one.status.success() && said.contains("was not watched"), "{said}");
}

/// Memory that comes from another process, or goes to one, in a message: both are watched, or they would wait for ever.
#[test]
fn memory_that_is_handed_over_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    let name = "c/handed_over.pie";
    let case = corpus().into_iter().find(|case| case.name == name).expect("a case");
    let run = dep(here, &["record", "-o", "rec", case.path.to_str().unwrap()]);
    let printed = (&*text(&run.stdout), &*text(&run.stderr));
    assert_eq!(printed, ("3\n9\n18\n30\n45\n", ""));
    let all = dep(here, &["replay", "rec"]);
    let said = text(&all.stdout);
    assert!(all.status.success() && said.lines().count() == 4, "{said}{}", text(&all.stderr));
    assert!(said.lines().all(|line| line.ends_with("equal to the recording")), "{said}");
    // What the child did, in both of its parts, behind what its parent did until it forked.
    let child = said.lines().next_back().and_then(|line| line.split('.').next()).unwrap();
    let listed = |what: &str, more: &[&str]| {
        let all = dep(here, &[&[what, "rec", "-p", child], more].concat());
        assert!(all.status.success(), "{}", text(&all.stderr));
        text(&all.stdout)
    };
    let blocks = listed("blocks", &[]);
    let of_child = |line: &str| line.split(' ').next() == Some(child);
    assert!(blocks.lines().count() > 100 && blocks.lines().all(of_child));
    assert_eq!(listed("blocks", &["--limit", "40"]).lines().count(), 40);
    assert_eq!(
        listed("blocks", &["--limit", "40"]),
        blocks.split_inclusive('\n').take(40).collect::<String>()
    );
}

/// Without a thread that is watched memory that is attached is followed, too: the process goes over.
#[test]
fn memory_that_is_attached_is_followed() {
    for how in
        [&[][..], &["--threads", "watched"], &["--threads", "watched", "--keep-last", "100000"]]
    {
        let dir = tempfile::tempdir().unwrap();
        let here = dir.path();
        build(here, &attached(), &[]);
        let run = dep(here, &[&["record", "-o", "rec"], how, &["./program"]].concat());
        assert_eq!((&*text(&run.stdout), &*text(&run.stderr)), ("200\n", ""), "{how:?}");
        let all = dep(here, &["replay", "rec"]);
        let said = text(&all.stdout);
        assert!(all.status.success() && said.lines().count() >= 2, "{said}{}", text(&all.stderr));
        assert!(said.lines().all(|line| line.ends_with("equal to the recording")), "{said}");
    }
}

const SHARED_BY_THREE: &str = r#"
#include <stdio.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>
static int *attach(void) {
    int id = shmget(IPC_PRIVATE, 8192, 0600);
    int *at = shmat(id, 0, 0);
    shmctl(id, IPC_RMID, 0);
    return at;
}
int main(void) {
    int *shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *shared = 1;
    if (fork() == 0) {
        int *attached = attach();
        attached[1] = 2;
        if (fork() == 0) _exit(*shared += attached[1]++);
        wait(0);
        shmdt(attached);
        _exit(*shared += attached == 0);
    }
    wait(0);
    printf("%d\n", *shared);
    return 0;
}
"#;

/// A process that is watched already attaches memory, and forks.
#[test]
fn memory_that_is_attached_by_a_watched_process_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (run, all) = recorded_and_replayed(dir.path(), SHARED_BY_THREE);
    assert_eq!((&*text(&run.stdout), &*text(&run.stderr)), ("3\n", ""));
    let said = text(&all.stdout);
    assert!(all.status.success() && said.lines().count() == 4, "{said}{}", text(&all.stderr));
    assert!(said.lines().all(|line| line.ends_with("equal to the recording")), "{said}");
}

/// What other processes store is seen like what other threads do.
#[test]
fn memory_that_processes_share_is_watched() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    let (run, all) = recorded_and_replayed(here, SHARED);
    assert_eq!((&*text(&run.stdout), &*text(&run.stderr)), ("200\n", ""));
    let said = text(&all.stdout);
    assert!(all.status.success() && said.lines().count() == 3, "{}", text(&all.stderr));
    assert!(said.lines().all(|line| line.ends_with("equal to the recording")), "{said}");
}

/// Where the kernel chooses no addresses at random, the stack lies right above all that it maps.
#[test]
fn memory_right_below_the_stack_is_watched() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    build(here, RACING, &[]);
    let mut command = Command::new("setarch");
    command.current_dir(here).envs(cache()).arg("-R");
    command.arg(&Tools::get().dep);
    command.args(["record", "--replayable", "--threads", "watched", "-o", "rec", "./program"]);
    let run = command.output().unwrap();
    assert_eq!(text(&run.stdout), "60000 600\n", "{}", text(&run.stderr));
    let all = dep(here, &["replay", "rec"]);
    assert!(all.status.success(), "{}", text(&all.stderr));
    assert_eq!(text(&all.stdout).lines().count(), 5);
}

/// Threads that run while another one maps memory far below, and a process and a thread that come afterwards.
const ELSEWHERE: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
enum { THREADS = 3, SIZE = 1 << 16 };
static volatile int ends;
static volatile long rounds[THREADS + 1];
static char *volatile low;
static void *run(void *own) {
    volatile long *mine = own;
    while (!ends) {
        ++*mine;
        if (low && low[*mine % SIZE] != 5) return own;
    }
    return 0;
}
static void all_go_on(int threads) {
    for (int i = 0; i < threads; i++)
        for (long from = rounds[i]; rounds[i] < from + 1000;) usleep(100);
}
int main(void) {
    pthread_t threads[THREADS + 1];
    void *wrong, *any = 0;
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, run, (void *)&rounds[i]);
    all_go_on(THREADS);
    char *at = mmap((void *)0x7d0000000000, SIZE, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (at == MAP_FAILED) return 1;
    memset(at, 5, SIZE);
    low = at;
    all_go_on(THREADS);
    int status = 0, pid = fork();
    if (pid == 0) _exit(at[7] + 10);
    waitpid(pid, &status, 0);
    pthread_create(&threads[THREADS], 0, run, (void *)&rounds[THREADS]);
    all_go_on(THREADS + 1);
    ends = 1;
    for (int i = 0; i <= THREADS; i++) {
        pthread_join(threads[i], &wrong);
        if (wrong) any = wrong;
    }
    printf("%d %d\n", WEXITSTATUS(status), any != 0);
    return 9;
}
"#;

/// More threads at once than there are views.
const CROWD: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
enum { THREADS = 300 };
static pthread_barrier_t barrier;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long done;
static void *run(void *unused) {
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < 10; i++) {
        pthread_mutex_lock(&lock);
        done++;
        pthread_mutex_unlock(&lock);
    }
    return unused;
}
int main(void) {
    pthread_t threads[THREADS];
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 16);
    pthread_barrier_init(&barrier, 0, THREADS);
    // What is left below that has room for one to two hundred views.
    char *from = (char *)0x280000000000, *to = (char *)0x7d0000000000;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    if (mmap(from, to - from, PROT_NONE, flags, -1, 0) != from) return 2;
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], &small, run, 0) != 0) return 1;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    printf("%ld\n", done);
    return 9;
}
"#;

/// Where threads cannot be watched any more the program goes on, and the recording of each of them says how far it goes.
#[test]
fn a_program_that_cannot_be_watched_any_more_goes_on() {
    let programs = [
        (ELSEWHERE, "15 0\n", "memory is mapped at 0x7d0000000000, where watched threads", 3),
        (CROWD, "3000\n", "there are more threads than can be watched", 5),
    ];
    for (source, output, why, at_least) in programs {
        let dir = tempfile::tempdir().unwrap();
        let here = dir.path();
        let (run, _) = recorded_and_replayed(here, source);
        let said = text(&run.stderr);
        assert_eq!((&*text(&run.stdout), run.status.code()), (output, Some(9)), "{said}");
        assert!(said.starts_with(&format!("deprewrite: {why}")), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        let first = text(&dep(here, &["ps", "--json", "rec"]).stdout);
        let first: serde_json::Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
        let all = dep(here, &["replay", "-p", &first["pid"].to_string(), "rec"]);
        let replays = text(&all.stdout);
        assert!(all.status.success(), "{}", text(&all.stderr));
        assert!(replays.lines().all(|line| line.contains("equal to the recording")), "{replays}");
        assert_eq!(replays.matches(why).count(), 1, "{replays}");
        let others = replays.matches("the threads of the process are not watched any more").count();
        assert!(others >= at_least, "{replays}");
    }
}

/// Memory at addresses of the program's choice, parts of large reservations among it, which get rights before there are
/// threads and while they run.
const FAR_AWAY: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
enum { THREADS = 4, PIECES = 6 };
static long *volatile pieces[PIECES];
static pthread_barrier_t barrier;
static long *at(unsigned long address, unsigned long length, int rights) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *memory = mmap((void *)address, length, rights, flags, -1, 0);
    return memory == (void *)address ? memory : 0;
}
static void *run(void *number) {
    long seen = 0;
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < 3000; i++) {
        long *piece = pieces[i % PIECES];
        if (piece) seen += __atomic_fetch_add(piece, 1, __ATOMIC_RELAXED) + piece[1];
        if (piece) piece[1] += (long)number;
    }
    return (void *)seen;
}
int main(int count, char **arguments) {
    pthread_t threads[THREADS];
    int forks = count > 1, child = 1;
    unsigned long far = forks ? 16 : 1;
    char *reserved = (char *)at(0x23450000000 * far, 1L << 40, PROT_NONE);
    long *unused = at(0x400000000, 1L << 32, PROT_NONE);
    pieces[0] = at(0x61b4a523000 * far, 8192, PROT_READ | PROT_WRITE);
    pieces[1] = (long *)(reserved + 0x2345678000);
    if (!reserved || !unused || !pieces[0] || mprotect(pieces[1], 4096, PROT_READ | PROT_WRITE)) return 1;
    int how = forks ? MAP_SHARED : MAP_PRIVATE | MAP_32BIT;
    // (So much, and so low, that the process is watched for it.)
    pieces[4] = mmap(forks ? (void *)0x100000000000 : 0, 1 << 20, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | how, -1, 0);
    pthread_barrier_init(&barrier, 0, forks ? 1 : THREADS + 1);
    if (forks) {
        child = fork();
    } else {
        for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, run, (void *)i);
        pthread_barrier_wait(&barrier);
    }
    pieces[2] = at(0x4d5c0000000 * far, 1 << 20, PROT_READ | PROT_WRITE);
    char *part = reserved + 0x234567a000;
    if (!pieces[2] || mprotect(part, 4096, PROT_READ | PROT_WRITE)) return 1;
    pieces[3] = (long *)part;
    if (forks) run((void *)1);
    for (int i = 0; !forks && i < THREADS; i++) pthread_join(threads[i], 0);
    if (forks && child) wait(0);
    if (child) printf("%ld %ld\n", *pieces[0], *pieces[1]);
    return 0;
}
"#;

/// Views have a place for memory that lies far from where the kernel puts it: above it, where all is below a ceiling, and below it
/// in a process that has the kernel's places, and comes to be watched as it shares memory.
#[test]
fn memory_far_away_is_watched() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    build(here, FAR_AWAY, &["-pie", "-fPIE"]);
    let ways = [
        (&["--threads", "watched", "-o", "rec", "./program"][..], "2000 2000\n", 6),
        (&["-o", "forks", "./program", "forks"], "500 500\n", 3),
    ];
    for (arguments, output, parts) in ways {
        let run = dep(here, &[&["record"], arguments].concat());
        assert_eq!((&*text(&run.stdout), &*text(&run.stderr)), (output, ""));
        let name = if parts == 6 { "rec" } else { "forks" };
        assert_equal_parts(&dep(here, &["replay", name]), parts);
    }
}

/// A program that wishes memory at addresses by chance, while it has many threads: some of these lie as far from each other as two
/// views do, so that no view can have all of them. Each is written and read by all threads.
const WISHES: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
enum { THREADS = 12, WISHES = 80, LENGTH = 262144 };
static atomic_long *volatile pieces[WISHES];
static pthread_barrier_t barrier;
static void *run(void *unused) {
    for (int i = 0; i < WISHES; i++) {
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        atomic_fetch_add(pieces[i], 1);
    }
    return unused;
}
int main(void) {
    pthread_t threads[THREADS];
    unsigned long random = 12345;
    int followed = 0;
    long sum = 0;
    pthread_barrier_init(&barrier, 0, THREADS + 1);
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, run, 0);
    for (int i = 0; i < WISHES; i++) {
        pthread_barrier_wait(&barrier);
        random = random * 6364136223846793005 + 1442695040888963407;
        void *wish = (void *)((1UL << 40) + (random >> 21) % (15UL << 40) / LENGTH * LENGTH);
        void *piece = mmap(wish, LENGTH, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (piece == MAP_FAILED || mprotect(piece, LENGTH, PROT_READ | PROT_WRITE)) return 1;
        followed += piece == wish;
        pieces[i] = piece;
        pthread_barrier_wait(&barrier);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    for (int i = 0; i < WISHES; i++) sum += atomic_load(pieces[i]);
    printf("%ld %d\n", sum, followed > 0);
    return 0;
}
"#;

#[test]
fn wishes_that_no_view_can_have_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (run, all) = recorded_and_replayed(dir.path(), WISHES);
    assert_eq!((&*text(&run.stdout), &*text(&run.stderr)), ("960 1\n", ""));
    // The first thread alone, and with the twelve others.
    assert_equal_parts(&all, 14);
}

/// Code that one thread makes, changes, and others run at the same time is in no file: each notes the bytes that it runs.
#[test]
fn code_of_other_threads_is_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    build(here, MAKES_CODE, &[]);
    for way in [&["written"][..], &["protected", "in turn"]] {
        let mut record = vec!["record", "--threads", "watched", "-o", way[0], "./program"];
        record.extend(way);
        let run = dep(here, &record);
        assert_eq!((&*text(&run.stdout), &*text(&run.stderr)), ("600 45150\n", ""));
        let all = dep(here, &["replay", way[0]]);
        // The first thread alone, and with the three others.
        assert_equal_parts(&all, 5);
    }
}

/// Functions that return their number: each is called in front of the next one by three threads, which run the one of
/// before all the time. With a second argument each has the place of the one before it, and is written while it cannot be executed.
const MAKES_CODE: &str = r#"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
typedef int (*function)(void);
enum { FUNCTIONS = 300, THREADS = 3 };
static _Atomic(function) made;
static atomic_int number, called;
static atomic_long sum;
static void *run(void *unused) {
    for (int seen = 0; seen < FUNCTIONS; ) {
        int now = number;
        if (now == seen) continue;
        function f = made;
        for (int i = 0; i < 20; i++) if (f() != now) return 0;
        sum += f();
        seen = now;
        called++;
    }
    return (void *)200;
}
int main(int count, char **arguments) {
    int in_turn = count > 2;
    int rights = in_turn ? PROT_READ | PROT_WRITE : PROT_READ | PROT_WRITE | PROT_EXEC;
    char *code = mmap(0, 16384, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, run, 0);
    for (int i = 1; i <= FUNCTIONS; i++) {
        // mov $i,%eax; ret
        unsigned char bytes[] = {0xb8, i, i >> 8, 0, 0, 0xc3};
        char *at = in_turn ? code : code + i * 50;
        if (in_turn) mprotect(code, 4096, PROT_READ | PROT_WRITE);
        memcpy(at, bytes, sizeof bytes);
        if (in_turn) mprotect(code, 4096, PROT_READ | PROT_EXEC);
        made = (function)at;
        number = i;
        while (called < THREADS * i) {}
    }
    long all = 0;
    void *result;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], &result);
        all += (long)result;
    }
    printf("%ld %ld\n", all, sum / THREADS);
    return 0;
}
"#;

/// One thread sleeps, one computes by itself, two share a lock, and in the end one trips over a pointer that was
/// destroyed shortly before.
const RING: &str = r#"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long shared[128];
static __thread long handled;
static long *volatile pointer = shared;
static void handle(int signal) { handled++; }
static void *sleep_on(void *unused) { pause(); return 0; }
static void *compute(void *unused) {
    volatile unsigned long s = 1;
    for (;;) s = s * 6364136223846793005UL + 1;
    return 0;
}
static void *work(void *number) {
    unsigned long s = (long)number;
    for (int k = 0; k < 600; k++) {
        for (int i = 0; i < 2000; i++) s = s * 6364136223846793005UL + 1442695040888963407UL;
        char *memory = mmap(0, 8192, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(memory, k, 8192);
        pthread_mutex_lock(&lock);
        shared[s >> 57] += memory[k];
        pthread_mutex_unlock(&lock);
        if (k % 3) munmap(memory, 8192);
        if (k % 40 == 0) raise(SIGUSR1);
        if (getenv("WAIT") && k == 500) { puts("here"); fflush(stdout); read(0, memory, 1); }
    }
    return 0;
}
int main(void) {
    signal(SIGUSR1, handle);
    pthread_t threads[4];
    pthread_create(&threads[0], 0, sleep_on, 0);
    pthread_create(&threads[1], 0, compute, 0);
    for (long i = 2; i < 4; i++) pthread_create(&threads[i], 0, work, (void *)i);
    for (int i = 2; i < 4; i++) pthread_join(threads[i], 0);
    pointer = (long *)0x10;
    return *pointer;
}
"#;

/// One thread computes, one takes a lock again and again, one waits behind what it has computed, while the process ends.
/// The first thread says how far it has seen them.
const MEANWHILE: &str = r#"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static volatile long computed, taken, waiting;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *computes(void *unused) { for (;;) computed++; }
static void *takes(void *unused) {
    for (;;) {
        pthread_mutex_lock(&lock);
        taken++;
        pthread_mutex_unlock(&lock);
    }
}
static void *waits(void *unused) {
    for (long i = 0; i < 100000; i++) waiting++;
    for (;;) pause();
}
int main(int count, char **arguments) {
    pthread_t threads[3];
    void *(*all[])(void *) = {computes, takes, waits};
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], 0, all[i], 0);
    while (computed < 1000000 || taken < 100 || waiting < 100000) usleep(1000);
    usleep(10000);
    printf("%ld %ld %ld\n", computed, taken, waiting);
    fflush(stdout);
    switch (atoi(arguments[1])) {
    case 1: abort();
    case 2: kill(getpid(), SIGTERM);
    case 3: kill(getpid(), SIGKILL);
    case 4: *(volatile int *)16 = 1;
    }
    return 0;
}
"#;

/// What other threads computed when a thread ended the process is in their replays, to the very end.
#[test]
fn what_threads_compute_while_their_process_ends_is_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    build(here, MEANWHILE, &[]);
    for (way, signal) in
        [("0", None), ("1", Some(6)), ("2", Some(15)), ("3", Some(9)), ("4", Some(11))]
    {
        let record =
            ["record", "--replayable", "--threads", "watched", "-o", way, "./program", way];
        let run = dep(here, &record);
        assert_eq!(run.status.signal(), signal, "{}", text(&run.stderr));
        let done = dep(here, &["replay", way]);
        assert_equal_parts(&done, 5);
        let replayed: Vec<u64> = text(&done.stdout).lines().skip(2).map(turns_of).collect();
        let seen: Vec<u64> =
            text(&run.stdout).split_whitespace().map(|number| number.parse().unwrap()).collect();
        // Each of them makes a turn, or more, as it adds to its word.
        let are_whole = replayed.iter().zip(&seen).all(|(turns, seen)| turns >= seen);
        assert!(are_whole && seen.len() == 3, "{way}: {replayed:?} turns, {seen:?} seen");
    }
}

#[test]
fn a_ring_of_watched_threads_keeps_the_newest_part_of_each() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    build(here, RING, &["-g"]);
    let record = |ring: &[&str], name: &str| {
        let start = ["record", "--replayable", "--threads", "watched", "-o", name];
        dep(here, &[&start[..], ring, &["./program"]].concat())
    };
    let crashed = record(&["--keep-last", "200k"], "kept");
    assert_eq!(crashed.status.signal(), Some(11), "{}", text(&crashed.stderr));
    let whole = record(&[], "whole");
    assert_eq!(whole.status.signal(), Some(11), "{}", text(&whole.stderr));
    let replayed = |name: &str| {
        let done = dep(here, &["replay", name]);
        let lines: Vec<String> = text(&done.stdout).lines().map(str::to_owned).collect();
        let equal = lines.iter().all(|line| line.contains(": equal to the recording"));
        assert!(done.status.success() && equal, "{lines:?} {}", text(&done.stderr));
        lines
    };
    let (kept, whole) = (replayed("kept"), replayed("whole"));
    assert!(kept.len() >= 3, "{kept:?}");
    let last = |lines: &[String]| lines.iter().map(|line| turns_of(line)).max().unwrap_or(0);
    assert!(last(&whole) > 1_000_000, "{whole:?}");
    // What the working threads did is a few parts; whoever computes by itself may have kept more.
    let first = kept.first().map(|line| turns_of(line)).unwrap_or(0);
    assert!(first < 400_000, "{kept:?}");
    let info = text(&dep(here, &["info", "kept"]).stdout);
    assert!(info.contains("from where the part begins that was kept"), "{info}");
    // Locks that were taken before order nothing that is seen: still no race is made up.
    let races = dep(here, &["races", "kept"]);
    let found = text(&races.stdout);
    assert!(races.status.success(), "{}", text(&races.stderr));
    assert!(!found.contains("work"), "{found}");
    // The last value of what it tripped over.
    let done = dep(here, &["values", "--address", "pointer", "kept"]);
    let values = text(&done.stdout);
    assert!(done.status.success() && values.contains("10"), "{values} {}", text(&done.stderr));
}

#[test]
fn what_a_ring_of_watched_threads_keeps_is_dumped_while_they_run() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    let program = build(here, RING, &["-g"]);
    let rewritten = here.join(WATCHED.name);
    Tools::get().rewrite_sharing(&program, &rewritten, WATCHED.flags).unwrap();
    let mut command = Command::new(&rewritten);
    command.env("DEP_RING", "200k").env("DEP_FILE", here.join("t.dep")).env("WAIT", "1");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.current_dir(here).spawn().unwrap();
    let mut line = String::new();
    // Two threads say so, and wait: the other one may find the pipe as it was.
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    assert_eq!(line, "here\n");
    let dump = here.join("dumped.dep");
    let done = dep(here, &["dump", &child.id().to_string(), "-o", &dump.display().to_string()]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGSEGV));
    let lines = replayed(&program, &dump, here).unwrap();
    assert!(lines.len() >= 3, "{lines:?}");
    assert!(replayed(&program, &here.join("t.dep"), here).unwrap().len() >= 3);
}
