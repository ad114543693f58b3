//! Real gdb, over MI, at a replay: forwards and backwards.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tempfile::TempDir;
use tests::harness::{cache, Tools};

/// Destroys a pointer with a name that is too long, and trips over it later. A handler of signals and a call
/// that writes are on the way.
const PROGRAM: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
struct node { long value; struct node *next; };
static char name[16];
static struct node *head;
static volatile long handled, total;
static char word[8];
static void on(int signal) { handled++; }
static void add(long v) {
  struct node *n = malloc(sizeof *n);
  n->value = v; n->next = head; head = n;
}
static void rename_to(const char *to) {
  for (int i = 0; to[i]; i++)
    name[i] = to[i]; /* here */
}
static long sum(void) {
  long s = 0;
  for (struct node *n = head; n; n = n->next)
    s += n->value; /* crash */
  return s;
}
int main(int argc, char **argv) {
  int ends[2];
  signal(SIGUSR1, on);
  for (int i = 0; i < 300; i++) {
    add(i);
    total += sum();
    if (i % 100 == 50) raise(SIGUSR1);
  }
  if (pipe(ends) || write(ends[1], "pipe", 4) != 4 || read(ends[0], word, 4) != 4) return 2;
  rename_to(argc > 1 ? argv[1] : "a name that is much too long");
  total += sum();
  return 0;
}
"#;

/// A recording of the program.
struct Recorded {
    here: TempDir,
}

fn recorded(flags: &[&str]) -> Recorded {
    recorded_of(PROGRAM, flags)
}

fn recorded_of(source: &str, flags: &[&str]) -> Recorded {
    let here = tempfile::tempdir().unwrap();
    std::fs::write(here.path().join("crash.c"), source).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-g", "-O0", "-o", "crash", "crash.c"]).args(flags).current_dir(here.path());
    assert!(cc.status().expect("a C compiler").success());
    let mut record = Command::new(&Tools::get().dep);
    record.args(["record", "--replayable", "./crash"]).current_dir(here.path());
    record.envs(cache());
    let status = record.stdin(Stdio::null()).status().expect("dep record runs");
    assert!(!status.success(), "the program crashes: {status}");
    Recorded { here }
}

/// gdb under `dep debug`.
struct Gdb {
    dep: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    said: String,
}

impl Gdb {
    fn new(recorded: &Recorded) -> Gdb {
        Gdb::at(recorded.here.path())
    }

    fn at(here: &Path) -> Gdb {
        Gdb::of(here, &["crash.0.rec"])
    }

    fn of(here: &Path, what: &[&str]) -> Gdb {
        let mut dep = Command::new(&Tools::get().dep);
        dep.arg("debug").args(what).args(["--", "-nx", "--interpreter=mi3"]).current_dir(here);
        dep.envs(cache()).env("DEBUGINFOD_URLS", "");
        let mut dep = dep.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("dep runs");
        let (to, from) = (dep.stdin.take().unwrap(), BufReader::new(dep.stdout.take().unwrap()));
        let mut gdb = Gdb { dep, to, from, said: String::new() };
        gdb.until("*stopped");
        // These signals are a part of the run.
        gdb.ask("-interpreter-exec console \"handle SIGUSR1 nostop noprint pass\"");
        gdb
    }

    /// Reads to a line that starts so; returns it.
    fn until(&mut self, start: &str) -> String {
        loop {
            let mut line = String::new();
            let got = self.from.read_line(&mut line).expect("gdb speaks");
            self.said.push_str(&line);
            assert!(got > 0, "gdb has ended; it said:\n{}", self.said);
            if line.starts_with("^error") && start != "^error" {
                panic!("{line}; gdb said:\n{}", self.said);
            }
            if line.starts_with(start) {
                return line;
            }
            assert!(!(start == "^error" && line.starts_with("^done")), "no error: {line}");
        }
    }

    fn tell(&mut self, command: &str) {
        self.said.push_str(&format!(">>> {command}\n"));
        writeln!(self.to, "{command}").expect("gdb listens");
    }

    /// A command that is answered at once.
    fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.until("^done")
    }

    /// A command that lets the program go, until it stands again.
    fn go(&mut self, command: &str) -> String {
        self.tell(command);
        self.until("^running");
        self.until("*stopped")
    }

    fn value(&mut self, expression: &str) -> String {
        let answer = self.ask(&format!("-data-evaluate-expression \"{expression}\""));
        let value = answer.split("value=\"").nth(1).expect("a value");
        value.trim_end().trim_end_matches('"').to_owned()
    }

    /// Memory that cannot be read.
    fn unknown(&mut self, expression: &str) {
        self.tell(&format!("-data-evaluate-expression \"{expression}\""));
        let said = self.until("^error");
        assert!(said.contains("Cannot access memory"), "{expression}: {said}");
    }

    fn pc(&mut self) -> u64 {
        let text = self.value("(unsigned long)$pc");
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    /// All general registers, and some memory.
    fn state(&mut self) -> String {
        let registers = self.ask("-data-list-register-values --skip-unavailable x");
        let stack = self.ask("-data-read-memory-bytes \"$rsp - 256\" 512");
        registers + &stack
    }

    fn end(mut self) {
        self.tell("-gdb-exit");
        self.until("^exit");
        let status = self.dep.wait().expect("dep ends");
        assert!(status.success(), "{status}; gdb said:\n{}", self.said);
    }
}

/// Over MI, gdb does not always say the reason `no-history`.
fn is_an_end(stopped: &str) -> bool {
    stopped.contains("no-history") || !stopped.contains("reason=")
}

fn line_of(mark: &str) -> usize {
    PROGRAM.lines().position(|line| line.contains(mark)).unwrap() + 1
}

fn gdb_is_there() -> bool {
    let there = Command::new("gdb").arg("--version").output().is_ok_and(|out| out.status.success());
    assert!(there || std::env::var_os("CI").is_none(), "there is no gdb");
    there
}

/// From the crash back to the store that destroyed the pointer.
fn from_the_crash_to_its_cause(flags: &[&str]) {
    if !gdb_is_there() {
        return;
    }
    let recorded = recorded(flags);
    let mut gdb = Gdb::new(&recorded);
    let stopped = gdb.go("-exec-continue");
    assert!(stopped.contains("SIGSEGV"), "{stopped}");
    assert!(stopped.contains(&format!("line=\"{}\"", line_of("crash"))), "{stopped}");
    assert_eq!(gdb.value("n == head"), "1");
    gdb.ask("-break-watch head");
    // Letters were written to it one by one, the first of them first.
    let first: u64 = gdb.value("(long)((char*)&head - name)").parse().expect("a distance");
    let mut last = u64::MAX;
    while last > first {
        let stopped = gdb.go("-exec-continue --reverse");
        assert!(stopped.contains("watchpoint-trigger"), "{stopped}");
        assert!(stopped.contains(&format!("line=\"{}\"", line_of("here"))), "{stopped}");
        let i: u64 = gdb.value("i").parse().expect("an index");
        assert!(i < last && i >= first, "{i} is not between {first} and {last}");
        last = i;
    }
    assert_eq!(gdb.value("head->value"), "299");
    // The last that was written there before was the list itself.
    let stopped = gdb.go("-exec-continue --reverse");
    assert!(stopped.contains("func=\"add\""), "{stopped}");
    // And both of that again the other way.
    for function in ["add", "rename_to"] {
        let stopped = gdb.go("-exec-continue");
        assert!(stopped.contains("watchpoint-trigger"), "{stopped}");
        assert!(stopped.contains(&format!("func=\"{function}\"")), "{stopped}");
    }
    gdb.end();
}

#[test]
fn from_the_crash_to_its_cause_at_fixed_addresses() {
    from_the_crash_to_its_cause(&["-no-pie", "-fno-pie"]);
}

#[test]
fn from_the_crash_to_its_cause_anywhere() {
    from_the_crash_to_its_cause(&["-pie", "-fPIE"]);
}

#[test]
fn steps_back_lead_through_the_same_states() {
    if !gdb_is_there() {
        return;
    }
    let recorded = recorded(&[]);
    let mut gdb = Gdb::new(&recorded);
    // From the dynamic loader on, and through a call, malloc, a loop and a signal's handler.
    for begin in ["", "-break-insert -t main", "-break-insert -t -i 150 add", "-break-insert -t on"]
    {
        if !begin.is_empty() {
            gdb.ask(begin);
            gdb.go("-exec-continue");
        }
        let mut states = vec![gdb.state()];
        for _ in 0..120 {
            gdb.go("-exec-step-instruction");
            states.push(gdb.state());
        }
        for state in states.iter().rev().skip(1) {
            gdb.go("-exec-step-instruction --reverse");
            assert_eq!(gdb.state(), *state, "from {begin}");
        }
    }
    gdb.end();
}

#[test]
fn breakpoints_are_met_as_often_backwards() {
    if !gdb_is_there() {
        return;
    }
    let recorded = recorded(&[]);
    let mut gdb = Gdb::new(&recorded);
    gdb.ask("-break-insert main");
    gdb.go("-exec-continue");
    gdb.ask("-break-insert on");
    gdb.ask("-break-insert -c \"v % 60 == 7\" add");
    let mut forwards = Vec::new();
    loop {
        let stopped = gdb.go("-exec-continue");
        if !stopped.contains("breakpoint-hit") {
            assert!(stopped.contains("SIGSEGV"), "{stopped}");
            break;
        }
        forwards.push((gdb.pc(), gdb.value("handled"), gdb.value("total")));
    }
    assert_eq!(forwards.len(), 3 + 5, "{forwards:x?}");
    for place in forwards.iter().rev() {
        let stopped = gdb.go("-exec-continue --reverse");
        assert!(stopped.contains("breakpoint-hit"), "{stopped}");
        assert_eq!((gdb.pc(), gdb.value("handled"), gdb.value("total")), *place);
    }
    let stopped = gdb.go("-exec-continue --reverse");
    assert!(stopped.contains("func=\"main\""), "{stopped}");
    let stopped = gdb.go("-exec-continue --reverse");
    assert!(is_an_end(&stopped), "{stopped}");
    gdb.end();
}

#[test]
fn system_calls_write_to_what_is_watched_and_nothing_else_does() {
    if !gdb_is_there() {
        return;
    }
    let recorded = recorded(&[]);
    let mut gdb = Gdb::new(&recorded);
    gdb.ask("-break-insert -t main");
    gdb.go("-exec-continue");
    gdb.ask("-break-watch word");
    let stopped = gdb.go("-exec-continue");
    assert!(stopped.contains("watchpoint-trigger"), "{stopped}");
    assert!(stopped.contains("read"), "{stopped}");
    gdb.tell("-gdb-set var total = 1");
    gdb.until("^error");
    gdb.tell("-gdb-set var $rax = 1");
    gdb.until("^error");
    let stopped = gdb.go("-exec-continue");
    assert!(stopped.contains("SIGSEGV"), "{stopped}");
    let stopped = gdb.go("-exec-continue");
    assert!(is_an_end(&stopped), "{stopped}");
    gdb.tell("-interpreter-exec console \"monitor when\"");
    let said = gdb.until("@\"turn");
    assert!(said.contains(" of "), "{said}");
    gdb.until("^done");
    gdb.end();
}

#[test]
fn system_calls_are_caught_both_ways() {
    if !gdb_is_there() {
        return;
    }
    let recorded = recorded(&[]);
    let mut gdb = Gdb::new(&recorded);
    gdb.ask("-break-insert -t main");
    gdb.go("-exec-continue");
    gdb.ask("-interpreter-exec console \"catch syscall read write\"");
    let mut forwards = Vec::new();
    loop {
        let stopped = gdb.go("-exec-continue");
        if !stopped.contains("syscall-") {
            assert!(stopped.contains("SIGSEGV"), "{stopped}");
            break;
        }
        let returned = stopped.contains("syscall-return");
        let name = if stopped.contains("\"write\"") { "write" } else { "read" };
        forwards.push((name, returned, gdb.pc(), gdb.value("word")));
    }
    let kinds: Vec<(&str, bool)> = forwards.iter().map(|&(name, back, ..)| (name, back)).collect();
    assert_eq!(kinds, [("write", false), ("write", true), ("read", false), ("read", true)]);
    assert!(forwards[3].3.contains("pipe") && !forwards[2].3.contains("pipe"), "{forwards:?}");
    for (name, returned, pc, word) in forwards.iter().rev() {
        let stopped = gdb.go("-exec-continue --reverse");
        let kind = if *returned { "syscall-return" } else { "syscall-entry" };
        assert!(stopped.contains(kind) && stopped.contains(name), "{stopped}");
        assert_eq!((gdb.pc(), &gdb.value("word")), (*pc, word));
    }
    gdb.end();
}

#[test]
fn accesses_are_watched_both_ways() {
    if !gdb_is_there() {
        return;
    }
    let recorded = recorded(&[]);
    let mut gdb = Gdb::new(&recorded);
    gdb.ask("-break-insert -t main");
    gdb.go("-exec-continue");
    // It is read and stored to three times.
    gdb.ask("-break-watch -a handled");
    let mut forwards = Vec::new();
    loop {
        let stopped = gdb.go("-exec-continue");
        assert!(stopped.contains("access-watchpoint-trigger"), "{stopped}");
        if !stopped.contains("func=\"on\"") {
            // The name is so long.
            assert!(stopped.contains("func=\"rename_to\""), "{stopped}");
            break;
        }
        forwards.push(gdb.value("handled"));
    }
    // A load leaves what is there, and a store makes it one more.
    assert_eq!(forwards, ["0", "1", "1", "2", "2", "3"]);
    let stopped = gdb.go("-exec-continue --reverse");
    assert!(stopped.contains("func=\"rename_to\""), "{stopped}");
    for _ in &forwards {
        let stopped = gdb.go("-exec-continue --reverse");
        assert!(stopped.contains("access-watchpoint-trigger"), "{stopped}");
        assert!(stopped.contains("func=\"on\""), "{stopped}");
    }
    assert_eq!(gdb.value("handled"), "0");
    let stopped = gdb.go("-exec-continue --reverse");
    assert!(is_an_end(&stopped), "{stopped}");
    gdb.end();
}

/// Ends in its second thread, while the first one waits.
const THREADS: &str = r#"
#include <pthread.h>
#include <unistd.h>
static void *work(void *of) {
  *(volatile int *)of = 1; /* crash */
  return of;
}
int main(void) {
  pthread_t thread;
  pthread_create(&thread, 0, work, 0);
  pthread_join(thread, 0);
  return 0;
}
"#;

/// Crashes in a library.
const BY_LIBRARY: &str = r#"
int within(int deep);
int main(void) { return within(3); }
"#;
const LIBRARY: &str = r#"
static int inner(int deep, int *at) { return deep ? inner(deep - 1, at) + 1 : *at; }
int within(int deep) { return inner(deep, 0); }
"#;
const OTHER_LIBRARY: &str = r#"
static int others(int deep, long at) { return deep + at; }
int before(int deep) { return others(deep, 5) + others(deep, 6); }
int within(int deep) { return others(deep, deep); }
"#;

fn build_library(here: &Path, name: &str, source: &str) {
    std::fs::write(here.join(name), source).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-g", "-O0", "-shared", "-fPIC", "-Wl,-soname,libown.so.1", "-o", "libown.so.1"]);
    assert!(cc.arg(name).current_dir(here).status().expect("a C compiler").success());
}

#[test]
fn gdb_has_the_libraries_that_were_packed() {
    if !gdb_is_there() {
        return;
    }
    let here = tempfile::tempdir().unwrap();
    let here = here.path();
    build_library(here, "own.c", LIBRARY);
    std::fs::write(here.join("main.c"), BY_LIBRARY).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-g", "-O0", "-o", "main", "main.c", "./libown.so.1", "-Wl,-rpath,$ORIGIN"]);
    assert!(cc.current_dir(here).status().expect("a C compiler").success());
    let dep = |arguments: &[&str]| {
        let mut dep = Command::new(&Tools::get().dep);
        dep.args(arguments).current_dir(here).stdin(Stdio::null());
        dep.envs(cache()).env("DEBUGINFOD_URLS", "");
        let out = dep.output().expect("dep runs");
        String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned()
    };
    dep(&["record", "--replayable", "-o", "rec", "./main"]);
    dep(&["pack", "rec", "-o", "packed"]);
    // The machine has another one now.
    std::fs::remove_file(here.join("libown.so.1")).unwrap();
    build_library(here, "other.c", OTHER_LIBRARY);
    let commands =
        ["continue", "backtrace", "info sharedlibrary", "break within", "reverse-continue"];
    let gdb = commands.iter().flat_map(|command| ["-ex", command]);
    let arguments: Vec<&str> =
        ["debug", "packed", "--", "-nx", "-batch"].into_iter().chain(gdb).collect();
    let said = dep(&arguments);
    for expected in ["inner (deep=0, at=0x0) at own.c", "inner (deep=3, ", "in main () at main.c"] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    assert!(said.contains("Breakpoint 1, within (deep=3) at own.c"), "{said}");
    assert!(!said.contains("others"), "{said}");
}

#[test]
fn the_end_is_in_the_thread_that_ends() {
    if !gdb_is_there() {
        return;
    }
    let recorded = recorded_of(THREADS, &["-pthread"]);
    let mut gdb = Gdb::new(&recorded);
    gdb.tell("-interpreter-exec console \"seek end\"");
    gdb.until("*stopped");
    assert!(gdb.value("$_thread") == "2", "{}", gdb.said);
    assert!(gdb.ask("-stack-info-frame").contains("func=\"work\""), "{}", gdb.said);
    // gdb has not stopped anywhere since the first instruction, and has the C library.
    assert!(gdb.value("&abort").contains("abort>"), "{}", gdb.said);
    gdb.tell("-interpreter-exec console \"monitor when\"");
    let said = gdb.until("@\"turn");
    assert!(said.contains(" of ") && !said.contains("input"), "{said}");
    gdb.until("^done");
    gdb.tell("-interpreter-exec console \"seek begin\"");
    gdb.until("*stopped");
    assert!(gdb.value("$_thread") == "1", "{}", gdb.said);
    gdb.end();
}

/// A thread waits with known vector registers, and another one crashes with others.
const VECTORS: &str = r#"
#include <pthread.h>
#include <unistd.h>
#define ALL(number, mask) if (__builtin_cpu_supports("avx512f")) \
  __asm__ volatile("vpbroadcastq %0, %%zmm3; vpbroadcastq %0, %%zmm17; vpbroadcastq %0, %%zmm31; kmovw %k1, %%k1" \
                   : : "r"(number), "r"(mask))
#define AVX(number) if (__builtin_cpu_supports("avx2")) \
  __asm__ volatile("vmovq %0, %%xmm15; vpbroadcastq %%xmm15, %%ymm15" : : "r"(number))
#define LOW "movq %0, %%xmm7; pcmpeqd %%xmm8, %%xmm8; punpcklqdq %%xmm8, %%xmm7;"
static int ends[2];
static volatile int ready;
static void *waits(void *p) {
  char c;
  ready = 1;
  ALL(0x1111222233334444, 0x55);
  AVX(0x1111222233334444);
  __asm__ volatile(LOW "syscall" : : "r"(0x1122334455667788), "a"(0), "D"(ends[0]), "S"(&c), "d"(1)
                   : "rcx", "r11", "memory");
  return 0;
}
int main(void) {
  pthread_t thread;
  if (pipe(ends)) return 1;
  pthread_create(&thread, 0, waits, 0);
  while (!ready) usleep(1000);
  usleep(50000);
  ALL(0x5555666677778888, 0xaa);
  AVX(0x5555666677778888);
  __asm__ volatile(LOW "movl $1, (%1)" : : "r"(0x0102030405060708), "r"(0L) : "memory");
  return 0;
}
"#;

/// Also where the instruction faults, at the end, and of threads that others have taken the processor from.
#[test]
fn vector_registers_are_those_of_each_thread() {
    if !gdb_is_there() {
        return;
    }
    let is_wide = std::is_x86_feature_detected!("avx512f");
    let has_avx2 = std::is_x86_feature_detected!("avx2");
    let recorded = recorded_of(VECTORS, &["-pthread"]);
    let mut gdb = Gdb::new(&recorded);
    let has = |gdb: &mut Gdb, low: u64, wide: u64, mask: u32| {
        let mut equal = |what: &str, number: u64| {
            let is_there = gdb.value(&format!("(unsigned long)({what}) == {number:#x}"));
            assert_eq!(is_there, "1", "{what} is {}, not {number:#x}", gdb.value(what));
        };
        equal("$xmm7.v2_int64[0]", low);
        equal("$xmm7.v2_int64[1]", u64::MAX);
        equal("$mxcsr", 0x1f80);
        if has_avx2 {
            (0..4).for_each(|i| equal(&format!("$ymm15.v4_int64[{i}]"), wide));
        }
        if is_wide {
            for register in ["$zmm3", "$zmm17", "$zmm31"] {
                (0..8).for_each(|i| equal(&format!("{register}.v8_int64[{i}]"), wide));
            }
            equal("$ymm3.v4_int64[3]", wide);
            equal("$k1", mask.into());
        }
    };
    let crashed = |gdb: &mut Gdb| has(gdb, 0x0102_0304_0506_0708, 0x5555_6666_7777_8888, 0xaa);
    let stopped = gdb.go("-exec-continue");
    assert!(stopped.contains("SIGSEGV"), "{stopped}");
    crashed(&mut gdb);
    gdb.ask("-thread-select 2");
    has(&mut gdb, 0x1122_3344_5566_7788, 0x1111_2222_3333_4444, 0x55);
    gdb.ask("-thread-select 1");
    crashed(&mut gdb);
    // One step back, and the end.
    gdb.go("-exec-step-instruction --reverse");
    gdb.go("-exec-step-instruction");
    crashed(&mut gdb);
    gdb.tell("-interpreter-exec console \"seek end\"");
    gdb.until("*stopped");
    crashed(&mut gdb);
    gdb.end();
}

/// Threads that change one number each, what they share, and what only one of them looks at.
const WATCHED: &str = r#"
#include <pthread.h>
#include <stdio.h>
volatile long own[3], shared, zero, unseen = 9;
static const char constant[] = "constant";
__attribute__((noinline)) static long step(long number, long k) {
  own[number] += k; /* here */
  return own[number];
}
static void *work(void *p) {
  long number = (long)p;
  for (long k = 1; k <= 20; k++) step(number, k);
  if (number == 1) own[1] += zero; /* looks */
  __atomic_add_fetch(&shared, own[number], __ATOMIC_SEQ_CST);
  return 0;
}
int main(void) {
  pthread_t threads[3];
  unseen = 8;
  step(0, 0);
  for (long i = 0; i < 3; i++) pthread_create(&threads[i], 0, work, (void *)i);
  for (long i = 0; i < 3; i++) pthread_join(threads[i], 0);
  printf("%ld %s\n", shared, constant);
  return 0;
}
"#;

/// gdb sees one thread, forwards and backwards, and of memory what that thread knows.
#[test]
fn a_watched_thread_is_debugged_alone() {
    if !gdb_is_there() {
        return;
    }
    let here = tempfile::tempdir().unwrap();
    let here = here.path();
    std::fs::write(here.join("crash.c"), WATCHED).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-g", "-O0", "-pthread", "-o", "crash", "crash.c"]).current_dir(here);
    assert!(cc.status().expect("a C compiler").success());
    let dep = |arguments: &[&str]| {
        let mut dep = Command::new(&Tools::get().dep);
        dep.args(arguments).current_dir(here).envs(cache());
        let output = dep.stdin(Stdio::null()).output().expect("dep runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned(), said)
    };
    let record = ["record", "--replayable", "--threads", "watched", "-o", "rec", "./crash"];
    assert_eq!(dep(&record).1, "630 constant\n");
    let (_, places, _) = dep(&["when", "rec", "pc == work"]);
    let tids: Vec<&str> = places.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(tids.len(), 3, "{places}");

    let mut gdb = Gdb::of(here, &["rec", "--thread", tids[1]]);
    let line = |mark: &str| WATCHED.lines().position(|line| line.contains(mark)).unwrap() + 1;
    gdb.ask(&format!("-break-insert -c \"k == 10\" crash.c:{}", line("here")));
    let stopped = gdb.go("-exec-continue");
    assert!(stopped.contains("func=\"step\""), "{stopped}");
    assert_eq!(gdb.value("number"), "1");
    assert_eq!(gdb.value("own[1]"), "45");
    // Of its own memory it has not looked at the rest; zero is what it does not know yet, and reads later.
    for unknown in ["own[0]", "own[2]", "zero", "shared", "unseen"] {
        gdb.unknown(unknown);
    }
    // What is constant is known, and code.
    assert!(gdb.value("constant").contains("constant"));
    let code = gdb.ask("-data-disassemble -s $pc -e $pc+16 -- 0");
    assert!(code.contains("func-name=\"step\""), "{code}");
    let frames = gdb.ask("-stack-list-frames");
    assert!(frames.contains("func=\"work\"") && frames.contains("start_thread"), "{frames}");
    let threads = gdb.ask("-thread-info");
    assert_eq!(threads.matches("target-id=").count(), 1, "{threads}");
    // On, and back: each instruction's registers and memory are those that were there on the way.
    let mut states = vec![(gdb.pc(), gdb.value("own[1]"))];
    for _ in 0..20 {
        gdb.go("-exec-step-instruction");
        states.push((gdb.pc(), gdb.value("own[1]")));
    }
    assert!(states.iter().any(|(_, own)| own == "55"), "{states:?}");
    while states.len() > 1 {
        states.pop();
        gdb.go("-exec-step-instruction --reverse");
        assert_eq!(Some(&(gdb.pc(), gdb.value("own[1]"))), states.last());
    }
    // What it knows once it has looked, it does not know before.
    gdb.ask("-break-delete");
    gdb.ask(&format!("-break-insert crash.c:{}", line("looks") + 1));
    gdb.go("-exec-continue");
    assert_eq!((gdb.value("zero"), gdb.value("own[1]")), ("0".into(), "210".into()));
    gdb.ask("-break-watch own[1]");
    let stopped = gdb.go("-exec-continue --reverse");
    assert!(stopped.contains("watchpoint-trigger") && stopped.contains("210"), "{stopped}");
    assert_eq!(gdb.value("own[1]"), "190");
    gdb.unknown("zero");
    let mut seen = 0;
    while !is_an_end(&gdb.go("-exec-continue --reverse")) {
        seen += 1;
    }
    // Of twenty changes nineteen are left; the oldest is behind what it did not know.
    assert!((18..=20).contains(&seen), "{seen}");
    gdb.unknown("own[1]");
    gdb.end();

    // The first thread is the one that is meant where none is named; and what it did before there were others is by itself.
    let mut gdb = Gdb::of(here, &["rec"]);
    gdb.ask("-break-insert printf");
    gdb.go("-exec-continue");
    gdb.go("-exec-finish");
    assert_eq!(gdb.value("shared"), "630");
    gdb.end();
    let mut gdb = Gdb::of(here, &["rec", "--beginning"]);
    gdb.ask("-break-insert step");
    gdb.go("-exec-continue");
    assert_eq!((gdb.value("unseen"), gdb.value("shared")), ("8".into(), "0".into()));
    gdb.end();
    let (done, _, said) = dep(&["debug", "rec", "--thread", "1", "--", "-batch"]);
    assert!(!done && said.contains("no such thread"), "{said}");
}
