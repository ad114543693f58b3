//! Rings: the newest part of a recording of inputs, from which a replay begins in the midst of a program.

mod ring_case;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ring_case::{said, Case};
use tests::harness::{cache, Tools};

/// Computes for long, and destroys a pointer shortly before the end, over which it trips later.
const CRASH: &str = r#"
#include <stdlib.h>
#include <string.h>
struct node { long value; };
static struct node *table[64];
static unsigned long seed = 12345;
static unsigned long next(void) { return seed = seed * 6364136223846793005UL + 1442695040888963407UL; }
__attribute__((noinline, noclone)) static void destroy(int i) {
  table[i] = (struct node *)0x10; /* here */
}
static long walk(long rounds, long bad) {
  long sum = 0;
  for (long i = 0; i < rounds; i++) {
    struct node *n = table[next() >> 58];
    sum += n->value; /* crash */
    n->value = sum ^ i;
    if (i == bad) destroy(17);
  }
  return sum;
}
int main(void) {
  for (int i = 0; i < 64; i++) table[i] = calloc(1, sizeof(struct node));
  /* Much memory that nobody looks at again. */
  memset(malloc(1 << 20), 7, 1 << 20);
  return walk(300000000, 299990000) & 1;
}
"#;

/// Three threads that compute, share a lock, and meet; then the process is ended by a fault.
const THREADS: &str = r#"
#include <pthread.h>
#include <stdio.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long shared[128];
static double sum;
static void *work(void *number) {
  unsigned long s = (long)number;
  double d = s;
  for (int k = 0; k < 400; k++) {
    for (int i = 0; i < 100000; i++) {
      s = s * 6364136223846793005UL + 1442695040888963407UL;
      shared[s >> 57]++;
      d = d * 1.0000001 + 0.5;
    }
    pthread_mutex_lock(&lock);
    sum += d;
    printf("%ld %f\n", shared[5], sum);
    fflush(stdout);
    pthread_mutex_unlock(&lock);
  }
  return 0;
}
int main(void) {
  pthread_t threads[3];
  for (long i = 0; i < 3; i++) pthread_create(&threads[i], 0, work, (void *)(i + 1));
  for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
  *(volatile int *)0x20 = 1;
  return 0;
}
"#;

/// Three threads read the same pointers, one of which destroys one of them shortly before the end.
const CRASH_OF_THREADS: &str = r#"
#include <pthread.h>
#include <stdlib.h>
struct node { long value; };
static struct node *table[64];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
__attribute__((noinline, noclone)) static void destroy(int i) {
  table[i] = (struct node *)0x10; /* here */
}
static void *work(void *p) {
  unsigned long seed = (long)p + 1;
  long sum = 0;
  for (long i = 0; i < 100000000; i++) {
    seed = seed * 6364136223846793005UL + 1442695040888963407UL;
    struct node *n = table[seed >> 58];
    sum += n->value; /* crash */
    n->value = sum ^ i;
    if (i % 100000 == 0) {
      pthread_mutex_lock(&lock);
      sum++;
      pthread_mutex_unlock(&lock);
    }
    if (p == (void *)1 && i == 80000000) destroy(17);
  }
  return (void *)sum;
}
int main(void) {
  pthread_t threads[3];
  for (int i = 0; i < 64; i++) table[i] = calloc(1, sizeof(struct node));
  for (long i = 0; i < 3; i++) pthread_create(&threads[i], 0, work, (void *)i);
  for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
  return 0;
}
"#;

/// Two threads use a lock for one counter and none for another; two more hand a number to each other
/// through pipes. All of that was set up long before the end.
const SHARED: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
#define APART __attribute__((noinline, noclone))
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t meeting;
static long tight, loose, handed, over;
static int there[2], back[2];
APART static long spend(long s) {
  for (int i = 0; i < 20000; i++) {
    s = s * 6364136223846793005UL + 1;
    if (s >> 63) s ^= i;
  }
  return s;
}
APART static void locked(void) {
  pthread_mutex_lock(&lock);
  tight++;
  pthread_mutex_unlock(&lock);
}
APART static void unlocked(void) { loose++; }
APART static void hand(void) { handed++; }
APART static void finish(void) {
  __asm__ volatile("nop");
  *(volatile int *)0x20 = 1;
}
static void *work(void *p) {
  long s = (long)p;
  for (int k = 0; k < 6000; k++) {
    s = spend(s);
    locked();
    unlocked();
    /* Neither is long done before the other is. */
    if (k % 50 == 0) pthread_barrier_wait(&meeting);
  }
  return (void *)s;
}
static void *first(void *p) {
  char c = 0;
  long s = (long)p;
  for (;;) {
    hand();
    c = __atomic_load_n(&over, __ATOMIC_SEQ_CST);
    if (write(there[1], &c, 1) != 1 || c) return (void *)s;
    s = spend(s);
    if (read(back[0], &c, 1) != 1) return 0;
  }
}
static void *second(void *p) {
  char c = 0;
  long s = (long)p;
  for (;;) {
    if (read(there[0], &c, 1) != 1 || c) return (void *)s;
    s = spend(s);
    hand();
    if (write(back[1], &c, 1) != 1) return 0;
  }
}
int main(void) {
  pthread_t threads[4];
  void *(*starts[4])(void *) = {work, work, first, second};
  if (pipe(there) || pipe(back) || pthread_barrier_init(&meeting, 0, 2)) return 1;
  for (long i = 0; i < 4; i++) pthread_create(&threads[i], 0, starts[i], (void *)i);
  for (int i = 0; i < 4; i++) {
    if (i == 2) __atomic_store_n(&over, 1, __ATOMIC_SEQ_CST);
    pthread_join(threads[i], 0);
  }
  printf("%ld %ld\n", tight, handed);
  fflush(stdout);
  finish();
  return 0;
}
"#;

/// Two threads that share nothing, call the kernel again and again, and do something on their stacks in between.
/// They record three times what their ring keeps.
const APART: &str = r#"
#include <pthread.h>
#include <unistd.h>
static int ends[2];
static void *work(void *p) {
  volatile long s = (long)p;
  for (int k = 0; k < 6000; k++) {
    char c = 0;
    for (int i = 0; i < 20000; i++) s = s * 6364136223846793005UL + 1;
    if (write(ends[1], &c, 1) != 1) return (void *)1;
  }
  return (void *)(s & 0);
}
int main(void) {
  pthread_t threads[2];
  if (pipe(ends)) return 1;
  for (long i = 0; i < 2; i++) pthread_create(&threads[i], 0, work, (void *)i);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
  *(volatile int *)0x20 = 1;
}
"#;

/// Waits for a child that it does not have, and never ends.
const RUNS: &str = r#"
#include <errno.h>
#include <stdio.h>
#include <sys/wait.h>
int main(void) {
  unsigned long s = 1;
  for (long i = 0;; i++) {
    s = s * 6364136223846793005UL + i;
    if (i % 1000000 == 0) {
      int none = wait(0) == -1 && errno == ECHILD;
      printf("%d %lx\n", none, s);
      fflush(stdout);
      if (!none) return 1;
    }
  }
}
"#;

#[test]
fn a_crash_leaves_the_newest_part() {
    let case = Case::new(CRASH);
    let status = case.run("3M", "t.dep").status().expect("it runs");
    assert!(!status.success());
    let text = case.replays("t.dep");
    assert!(text.contains("equal to the recording"), "{text}");
    // It ends where the crash was, and begins behind the start.
    let refs = said(case.dep("memrefs", &case.path("t.dep")).args(["--limit", "5"]));
    assert_eq!(refs.lines().count(), 5, "{refs}");
}

/// Goes in gdb from the crash to the store that destroyed the pointer, and back to where the ring begins.
fn gdb_finds_the_cause(source: &str, ring: &str) {
    if !Command::new("gdb").arg("--version").output().is_ok_and(|out| out.status.success()) {
        assert!(std::env::var_os("CI").is_none(), "there is no gdb");
        eprintln!("skipped: there is no gdb");
        return;
    }
    let case = Case::new(source);
    let status = case.run(ring, "t.dep").status().expect("it runs");
    assert!(!status.success());
    let mut debug = case.dep("debug", &case.path("t.dep"));
    debug.args(["--", "-nx", "-batch"]);
    for command in [
        "continue",
        "p n",
        "watch table[17]",
        "reverse-continue",
        "bt 2",
        "delete",
        "reverse-continue",
        "continue",
        "p n",
    ] {
        debug.args(["-ex", command]);
    }
    let text = said(&mut debug);
    assert!(text.contains("a ring: what was recorded before turn"), "{text}");
    let crash = text.find("$1 = (struct node *) 0x10").unwrap_or_else(|| panic!("{text}"));
    let cause = text.find("destroy (i").unwrap_or_else(|| panic!("{text}"));
    let begin = text.find("No more reverse-execution history").unwrap_or_else(|| panic!("{text}"));
    let again = text.find("$2 = (struct node *) 0x10").unwrap_or_else(|| panic!("{text}"));
    assert!(crash < cause && cause < begin && begin < again, "{text}");
}

#[test]
fn gdb_goes_from_the_crash_to_the_store_that_destroyed_the_pointer() {
    gdb_finds_the_cause(CRASH, "3M");
}

#[test]
fn gdb_goes_from_a_thread_that_crashed_to_the_one_that_destroyed_the_pointer() {
    gdb_finds_the_cause(CRASH_OF_THREADS, "100M");
}

#[test]
fn threads_go_on_where_they_stood() {
    let case = Case::new(THREADS);
    let status = case.run("4M", "t.dep").status().expect("it runs");
    assert!(!status.success());
    let text = case.replays("t.dep");
    assert!(text.contains("equal to the recording"), "{text}");
}

/// Thread and turn at the start of a line `TID turn N, ...`.
fn place(line: &str) -> (&str, u64) {
    let (tid, rest) = line.split_once(" turn ").unwrap_or_else(|| panic!("{line}"));
    let turn = rest.split(',').next().and_then(|turn| turn.parse().ok());
    (tid, turn.unwrap_or_else(|| panic!("{line}")))
}

#[test]
fn a_ring_is_asked_what_its_threads_did_to_each_other() {
    let case = Case::new(SHARED);
    let mut run = case.run("2M", "t.dep");
    let run = run.env("DEP_SCHEDULE", "random:3").stdout(Stdio::piped()).output().expect("it runs");
    assert!(!run.status.success());
    let printed = String::from_utf8_lossy(&run.stdout).into_owned();
    let trace = case.path("t.dep");
    let replayed = case.replays("t.dep");
    assert!(replayed.contains("equal to the recording"), "{replayed}");

    // Each access finds what the one before it left, and the last one what the program printed.
    let values = |name: &str| said(case.dep("values", &trace).args(["--address", name]));
    for (name, expected) in ["tight", "handed"].into_iter().zip(printed.split_whitespace()) {
        let text = values(name);
        let mut last = None;
        let mut threads = std::collections::BTreeSet::new();
        for line in text.lines() {
            let (old, new) = line.rsplit_once(" -> ").unwrap_or((line, ""));
            let old = old.rsplit(' ').next().expect("a value");
            assert!(last.as_deref().is_none_or(|last| last == old), "{line}: {last:?}");
            last = Some(if new.is_empty() { old } else { new }.to_owned());
            threads.insert(place(line).0);
        }
        let expected: u64 = expected.parse().expect("a number");
        assert_eq!(last, Some(format!("{expected:#x}")), "{name}");
        assert!(threads.len() > 2, "{name}: {threads:?}");
    }

    // There is one race, and its accesses are where the values are.
    let races = case.dep("races", &trace).arg("--json").output().expect("it runs");
    let text = String::from_utf8_lossy(&races.stdout).into_owned();
    assert_eq!((races.status.code(), text.lines().count()), (Some(1), 1), "{races:?}");
    let race: serde_json::Value = serde_json::from_str(&text).expect("an object");
    let loose = values("loose");
    for access in [&race["before"], &race["behind"]] {
        let function = access["function"].as_str().unwrap_or_default();
        assert!(function.starts_with("unlocked"), "{text}");
        let start = format!("{} turn {}, ", access["tid"], access["turn"]);
        let what = format!(" {} 0x", access["access"].as_str().unwrap_or_default());
        let is_it = |line: &str| line.starts_with(&start) && line.contains(&what);
        assert!(loose.lines().any(is_it), "{start}{what}: {loose}");
    }

    // A window is as long as what lies between two places.
    let window = |name: &str, log: &[&str]| -> serde_json::Value {
        let text = said(case.dep("window", &trace).args(["--json", "--from", name]).args(log));
        serde_json::from_str(&text).expect("an object")
    };
    let last =
        |name: &str| said(case.dep("when", &trace).args([&format!("pc == {name}"), "--last"]));
    let (finish, hand) = (last("finish"), last("hand"));
    let (long, short) = (window("hand", &[]), window("finish", &["--log"]));
    assert_eq!(long["thread"].to_string(), place(&hand).0);
    assert_eq!(short["thread"].to_string(), place(&finish).0);
    let turns = |window: &serde_json::Value| window["turns"].as_u64().expect("turns");
    assert_eq!(turns(&long) - turns(&short), place(&finish).1 - place(&hand).1, "{long} {short}");
    let all = format!("replayed {} turns", short["all_turns"]);
    assert!(replayed.contains(&all), "{replayed} {short}");
    assert!(short["steps"].as_u64().is_some_and(|steps| (1..100).contains(&steps)), "{short}");
}

#[test]
fn no_call_has_written_the_memory_that_was_there_where_a_ring_begins() {
    let case = Case::new(APART);
    let mut run = case.run("2M", "t.dep");
    let run = run.env("DEP_SCHEDULE", "random:3").status().expect("it runs");
    assert!(!run.success());
    let trace = case.path("t.dep");
    let replayed = case.replays("t.dep");
    assert!(replayed.contains("equal to the recording"), "{replayed}");
    assert_eq!(said(case.dep("races", &trace).arg("--json")), "");
}

/// Computes, gives up root's rights, computes, and ends.
const GIVES_UP: &str = r#"
#define _GNU_SOURCE
#include <sys/prctl.h>
#include <unistd.h>
static volatile unsigned long sum;
__attribute__((noinline, noclone)) static void work(void) {
  for (long i = 0; i < 400000000; i++) sum += i;
}
int main(void) {
  work();
  if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534)) return 1;
  if (prctl(PR_GET_DUMPABLE) == 1) return 2;
  work();
  return 7;
}
"#;

/// It ends, and does not wait for anybody for good.
fn ends_with_7(command: &mut Command) {
    let mut child = command.spawn().expect("it runs");
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return assert_eq!(status.code(), Some(7));
        }
        if Instant::now() > deadline {
            child.kill().expect("it is killed");
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// It may not kill the copies from before, and its list of pages belongs to root.
#[test]
fn a_process_that_gives_up_its_rights_ends_and_leaves_the_newest_part() {
    let case = Case::new(GIVES_UP);
    // The part that is kept begins behind that, and before it.
    for (ring, trace) in [("2M", "behind.dep"), ("400M", "before.dep")] {
        ends_with_7(&mut case.run(ring, trace));
        assert!(case.replays(trace).contains("equal to the recording"), "{ring}");
    }
}

/// Computes; its children are in a PID namespace of their own from then on, and it computes while the first one
/// runs, which ends when all others there have.
const ELSEWHERE: &str = r#"
#define _GNU_SOURCE
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile unsigned long sum;
__attribute__((noinline, noclone)) static void work(void) {
  for (long i = 0; i < 1000000000; i++) sum += i;
}
int main(void) {
  int ends[2], status;
  char byte;
  work();
  if (pipe(ends) || unshare(CLONE_NEWPID)) return 1;
  work();
  pid_t child = fork();
  if (child == 0) {
    close(ends[1]);
    _exit(read(ends[0], &byte, 1) == 0 && getpid() == 1 ? 7 : 2);
  }
  work();
  close(ends[1]);
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}
"#;

#[test]
fn no_copy_is_in_a_namespace_of_the_program() {
    let case = Case::new(ELSEWHERE);
    ends_with_7(case.run("2M", "t.dep").env("DEP_FOLLOW", "0"));
    assert!(case.replays("t.dep").contains("equal to the recording"));
}

/// Traces a child, with all that the child makes: it makes one process.
const TRACED: &str = r#"
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile unsigned long sum;
__attribute__((noinline, noclone)) static void work(void) {
  for (long i = 0; i < 400000000; i++) sum += i;
}
int main(void) {
  int status, made = 0;
  pid_t child = fork(), one;
  if (child == 0) {
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    raise(SIGSTOP);
    work();
    one = fork();
    if (one == 0) _exit(6);
    return waitpid(one, &status, 0) == one ? WEXITSTATUS(status) : 1;
  }
  waitpid(child, &status, 0);
  ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE);
  ptrace(PTRACE_CONT, child, 0, 0);
  while ((one = waitpid(-1, &status, __WALL)) > 0) {
    if (WIFEXITED(status) && one == child) return WEXITSTATUS(status) == 6 && made == 1 ? 7 : 2;
    if (!WIFSTOPPED(status)) continue;
    int event = status >> 16, number = WSTOPSIG(status);
    if (event) made++;
    int is_pass = event || (one != child && number == SIGSTOP);
    ptrace(PTRACE_CONT, one, 0, is_pass ? 0 : number);
  }
  return 3;
}
"#;

#[test]
fn a_tracer_does_not_see_the_copies() {
    let case = Case::new(TRACED);
    ends_with_7(&mut case.run("2M", "t.%p.dep"));
    let traces = fs::read_dir(case.here.path()).expect("a folder").flatten();
    let traces = traces.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_cut = |trace: &String| {
        let info = said(&mut case.dep("info", &case.path(trace)));
        info.contains("from where the part begins that was kept")
    };
    // That of the child: there were copies.
    assert!(traces.filter(|name| name.ends_with(".dep")).any(|trace| is_cut(&trace)));
}

/// Limits its stack, computes, and calls itself until the stack is at its end.
const OVERFLOWS: &str = r#"
#include <sys/resource.h>
static volatile unsigned long sum;
__attribute__((noinline, noclone)) static void work(void) {
  for (long i = 0; i < 1000000000; i++) sum += i;
}
__attribute__((noinline, noclone)) static int deeper(int depth) {
  volatile char room[400];
  room[depth % 400] = depth;
  return deeper(depth + 1) + room[0];
}
int main(int count, char **arguments) {
  struct rlimit limit = {1 << 20, RLIM_INFINITY};
  if (count > 1) setrlimit(RLIMIT_STACK, &limit);
  work();
  return deeper(0);
}
"#;

#[test]
fn a_stack_ends_where_it_did() {
    let case = Case::new(OVERFLOWS);
    for limits in [false, true] {
        let trace = format!("{limits}.dep");
        let status = case.run("2M", &trace).args(limits.then_some("1")).status().expect("it runs");
        assert!(!status.success(), "limits: {limits}");
        assert!(case.replays(&trace).contains("equal to the recording"), "limits: {limits}");
    }
}

/// Waits until the trace is one that does not begin where the program does: its first frames are gone.
fn wait_until_cut(case: &Case, trace: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let bytes = fs::read(case.path(trace)).unwrap_or_default();
        let is_event = |frame: &&[u8]| frame.starts_with(b"DEPF") && frame[4] == 3;
        let of_program = |frame: &&[u8]| is_event(frame) && frame[8..12] == [0; 4];
        let mut frames = bytes.chunks(4096).filter(of_program).peekable();
        // The program may not have begun.
        if frames.peek().is_some() && !frames.any(|frame| frame[12..16] == [0; 4]) {
            return;
        }
        assert!(Instant::now() < deadline, "nothing is given up");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_killed_process_leaves_the_newest_part_and_one_that_runs_is_asked_for_it() {
    let case = Case::new(RUNS);
    let mut child = case.run("2M", "t.dep").spawn().expect("it runs");
    wait_until_cut(&case, "t.dep");
    // On a busy machine its threads may all wait for the moment: it is asked again.
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut dumps = (0..).map(|number| format!("{number}.dep"));
    let dumped = loop {
        let name = dumps.next().expect("a name");
        let mut dump = Command::new(&Tools::get().dep);
        dump.arg("dump").arg(child.id().to_string()).args(["-o", &name]);
        let text = said(dump.current_dir(case.here.path()));
        if text.contains("written") {
            break name;
        }
        assert!(text.contains("which all wait") && Instant::now() < deadline, "{text}");
    };
    assert!(child.try_wait().expect("a child").is_none(), "it goes on");
    child.kill().expect("it is killed");
    child.wait().expect("it ends");
    assert!(case.replays(&dumped).contains("equal to the recording"));
    // The copy of the process finds out by itself that the process is gone.
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let info = case.dep("info", &case.path("t.dep")).output().expect("it runs").stdout;
        if String::from_utf8_lossy(&info).contains("from where the part begins") {
            break;
        }
        assert!(Instant::now() < deadline, "the trace is not completed");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(case.replays("t.dep").contains("equal to the recording"));
}

#[test]
fn a_signal_to_the_recorder_leaves_what_is_kept() {
    let case = Case::new(RUNS);
    let mut record = Command::new(&Tools::get().dep);
    record.args(["record", "--replayable", "--keep-last", "2M", "--dump-signal", "USR2"]);
    record.args(["-o", "r.rec", "./p"]).envs(cache());
    record.current_dir(case.here.path()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = record.stderr(Stdio::piped()).spawn().expect("it runs");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    // By then more has happened than is kept.
    for _ in 0..40 {
        lines.next().expect("a line").expect("text");
    }
    // The program is not to wait for a reader of what follows.
    let (sees, seen) = std::sync::mpsc::channel();
    std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sees.send(line)));
    let pid = child.id().to_string();
    let send = |signal: &str| {
        let kill = Command::new("kill").args([signal, &pid]).status();
        assert!(kill.expect("kill runs").success());
    };
    let replays = |dump: &Path| {
        let mut replay = Command::new(&Tools::get().dep);
        replay.arg("replay").arg("--program").arg(case.path("p")).arg(dump);
        let out = replay.envs(cache()).output().expect("it runs");
        String::from_utf8_lossy(&out.stdout).contains("equal to the recording")
    };
    let mut told = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let mut dumped = || {
        send("-USR2");
        let line = told.next().expect("a line").expect("text");
        let (what, path) = line.rsplit_once(": ").unwrap_or_else(|| panic!("{line}"));
        assert!(what.starts_with("dep: dump: "), "{line}");
        // A program that waits for a moment writes it a moment later.
        let deadline = Instant::now() + Duration::from_secs(60);
        let path = PathBuf::from(path);
        while !what.ends_with(": written") && !replays(&path) {
            assert!(Instant::now() < deadline, "{line}");
            std::thread::sleep(Duration::from_millis(20));
        }
        path
    };
    let (first, second) = (dumped(), dumped());
    assert_ne!(first, second);
    assert!(child.try_wait().expect("a child").is_none(), "it goes on");
    // Behind both dumps it prints: what it printed before them has been taken off the channel.
    while seen.try_recv().is_ok() {}
    seen.recv_timeout(Duration::from_secs(60)).expect("the program goes on");
    send("-TERM");
    child.wait().expect("it ends");
    assert!([first, second].iter().all(|dump| replays(dump)));
}
