//! What was loaded from a place and stored there, and where conditions hold: asked of recordings of inputs, and
//! compared with the processor, one instruction at a time.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;
use tests::launch::Launch;
use tests::step::{self, Options};

/// Accesses of all kinds to one variable, and around it.
const PROGRAM: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <immintrin.h>
char around[4096] __attribute__((aligned(4096)));
#define watched (*(volatile long *)(around + 64))
static volatile long sum;
static void on(int signal) { watched += 100; }
static __attribute__((noinline)) void add(long n) { watched += n; }
int main(int argc, char **argv) {
  int ends[2];
  signal(SIGUSR1, on);
  for (int i = 0; i < 5; i++) add(i);
  raise(SIGUSR1);
  sum = watched;
  *(volatile int *)(around + 70) = 0x7f;
  *(volatile char *)(around + 63) = 1;
  *(volatile char *)(around + 72) = 1;
  if (pipe(ends) || write(ends[1], "abcdefgh", 8) != 8 || read(ends[0], (void *)&watched, 8) != 8) return 2;
  if (write(ends[1], "abcdefgh", 8) != 8 || read(ends[0], (void *)&watched, 8) != 8) return 3;
  _mm_storeu_si128((void *)(around + 60), _mm_set1_epi8(argc));
  sum += _mm_cvtsi128_si32(_mm_loadu_si128((void *)(around + 50)));
  char *to = around + 30, *from = around + 300;
  long count = 40;
  __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(count) : : "memory");
  to = around + 80, count = 5;
  __asm__ volatile("std; rep stosq; cld" : "+D"(to), "+c"(count) : "a"(7L) : "memory");
  to = around + 60, from = around + 60, count = 9;
  __asm__ volatile("repe cmpsb" : "+D"(to), "+S"(from), "+c"(count) : : "memory", "cc");
  long five = 5;
  __asm__ volatile("lock xaddq %0, %1" : "+r"(five) : "m"(watched) : "memory", "cc");
  __asm__ volatile("lock cmpxchg %0, %1" : : "r"(9L), "m"(watched) : "memory", "rax", "cc");
  __asm__ volatile("mov %%rsp, %%rbx; lea %0, %%rsp; push $9; call 1f; 1: pop %%rax; pop %%rax; mov %%rbx, %%rsp"
                   : : "m"(around[80]) : "memory", "rax", "rbx");
  __asm__ volatile("fxsave %0" : : "m"(around[0]) : "memory");
  __asm__ volatile("bts %0, %1" : : "r"(515L), "m"(around[0]) : "memory", "cc");
  long index = 66;
  __asm__ volatile("xlatb" : "+a"(index) : "b"(around) : "memory");
  if (write(1, (void *)&watched, 8) != 8) return 4;
  return 0;
}
"#;

const THREADS: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
volatile long shared;
static int ends[2];
static void *work(void *of) {
  for (int i = 0; i < 50; i++) {
    pthread_mutex_lock(&lock);
    shared++;
    pthread_mutex_unlock(&lock);
    if (i % 10 == 0) usleep(100);
  }
  return of;
}
int main(void) {
  pthread_t all[2];
  for (long i = 0; i < 2; i++) pthread_create(&all[i], 0, work, 0);
  for (int i = 0; i < 2; i++) pthread_join(all[i], 0);
  return shared == 100 ? 0 : 1;
}
"#;

struct Recorded {
    here: TempDir,
}

impl Recorded {
    fn new(source: &str, flags: &[&str]) -> Recorded {
        let here = tempfile::tempdir().expect("a folder");
        std::fs::write(here.path().join("p.c"), source).expect("a source");
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-g", "-pthread", "-o", "p", "p.c"]).args(flags).current_dir(here.path());
        assert!(cc.status().expect("a C compiler").success());
        let recorded = Recorded { here };
        let output = recorded.dep(&["record", "--replayable", "./p"]);
        assert!(output.status.success(), "{output:?}");
        recorded
    }

    fn path(&self) -> &Path {
        self.here.path()
    }

    fn dep(&self, arguments: &[&str]) -> Output {
        tests::command::dep(self.path(), arguments).output().expect("dep runs")
    }

    /// What a command answers, which has no doubts.
    fn text(&self, command: &str, arguments: &[&str]) -> String {
        let output = self.dep(&[&[command, "p.0.rec"], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{arguments:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn rows(&self, command: &str, arguments: &[&str]) -> Vec<Value> {
        let text = self.text(command, &[arguments, &["--json"]].concat());
        text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }
}

fn word(row: &Value, name: &str) -> u64 {
    let text = row[name].as_str().unwrap_or_else(|| panic!("{name} of {row}"));
    u64::from_str_radix(text.trim_start_matches("0x"), 16).expect(text)
}

fn symbol(program: &Path, name: &str) -> u64 {
    let nm = Command::new("nm").arg(program).output().expect("nm");
    let text = String::from_utf8_lossy(&nm.stdout).into_owned();
    let line = text.lines().find(|line| line.ends_with(&format!(" {name}")));
    u64::from_str_radix(line.expect(name).split(' ').next().unwrap(), 16).unwrap()
}

/// A static program lies at the same addresses natively: each access, and each value, is that of a single step.
#[test]
fn values_are_those_of_single_steps() {
    let recorded = Recorded::new(PROGRAM, &["-static", "-no-pie"]);
    let program = recorded.path().join("p");
    let address = symbol(&program, "around") + 64;
    let mut lines = Vec::new();
    let values: Box<dyn std::io::Write> = Box::new(&mut lines);
    let options = Options { values: Some((address..address + 8, values)), ..Options::default() };
    let launch = Launch { dir: Some(recorded.path().into()), ..Launch::new(&program) };
    step::run(&launch, options).expect("the program can be stepped");
    let expected: Vec<String> =
        String::from_utf8(lines).unwrap().lines().map(str::to_owned).collect();

    let bytes = |value: u64| -> String {
        value.to_le_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let mut got = Vec::new();
    for row in recorded.rows("values", &["--address", "around+64", "--size", "8"]) {
        let (old, new) = (bytes(word(&row, "old")), bytes(word(&row, "new")));
        let (pc, at, size) = (word(&row, "pc"), word(&row, "address"), &row["size"]);
        match row["access"].as_str() {
            Some("load") => got.push(format!("{pc:#x} R {at:#x} {size} {old} {new}")),
            Some("store") => got.push(format!("{pc:#x} W {at:#x} {size} {old} {new}")),
            // The second `read` writes what is there.
            Some("kernel") if old == new => got.push("unchanged".into()),
            _ => got.push(format!("{pc:#x} kernel {old} {new}")),
        }
    }
    assert_eq!(got.iter().filter(|line| *line == "unchanged").count(), 1, "{got:#?}");
    got.retain(|line| line != "unchanged");
    assert!(expected.len() > 40, "{expected:#?}");
    assert_eq!(got, expected);
}

/// The kernel's writes carry the name of the call, and stores end where the next access begins.
#[test]
fn values_form_a_chain() {
    let recorded = Recorded::new(PROGRAM, &[]);
    let rows = recorded.rows("values", &["--address", "p:around+64"]);
    for pair in rows.windows(2) {
        let is_second = pair[0]["turn"] == pair[1]["turn"] && pair[0]["pc"] == pair[1]["pc"];
        assert!(pair[0]["new"] == pair[1]["old"] || is_second, "{pair:#?}");
        assert!(pair[0]["turn"].as_u64() <= pair[1]["turn"].as_u64(), "{pair:#?}");
    }
    let by_kernel: Vec<&Value> = rows.iter().filter(|row| row["access"] == "kernel").collect();
    assert_eq!(by_kernel.len(), 2, "{by_kernel:#?}");
    assert!(by_kernel.iter().all(|row| row["call"] == "read"), "{by_kernel:#?}");
    assert!(by_kernel
        .iter()
        .all(|row| row["function"].as_str().is_some_and(|f| f.contains("read"))));

    let stores = recorded.rows("values", &["--address", "around+64", "--size", "8", "--stores"]);
    let loads = recorded.rows("values", &["--address", "around+64", "--size", "8", "--loads"]);
    assert_eq!(stores.len() + loads.len(), rows.len());
    assert!(loads.iter().all(|row| row["access"] == "load"));
    // The part between two places.
    let turn = by_kernel[0]["turn"].to_string();
    let from = recorded.rows("values", &["--address", "around+64", "--from", &turn]);
    let to = recorded.rows("values", &["--address", "around+64", "--to", &turn]);
    let at = |row: &&Value| row["turn"] == by_kernel[0]["turn"];
    assert_eq!(from.len() + to.len(), rows.len() + rows.iter().filter(at).count());
    let limited = recorded.rows("values", &["--address", "around+64", "--limit", "3"]);
    assert_eq!(limited, rows[..3]);

    // The table of calls has both reads, the same turns, and the bytes.
    let calls = recorded.rows("syscalls", &[]);
    let address = word(by_kernel[0], "address");
    let writes = |call: &&Value| {
        let wrote = call["wrote"].as_array().into_iter().flatten();
        wrote.clone().any(|wrote| word(wrote, "address") == address)
    };
    let read: Vec<&Value> = calls.iter().filter(writes).collect();
    assert!(read.iter().all(|call| call["name"] == "read" && call["result"] == 8), "{read:#?}");
    let turns =
        |rows: &[&Value]| rows.iter().map(|row| row["turn"].to_string()).collect::<Vec<_>>();
    assert_eq!(turns(&read), turns(&by_kernel));
    assert_eq!(read[0]["wrote"][0]["bytes"], "6162636465666768");
    assert!(calls.windows(2).all(|pair| pair[0]["turn"].as_u64() <= pair[1]["turn"].as_u64()));
}

#[test]
fn conditions_hold_where_values_say() {
    let recorded = Recorded::new(PROGRAM, &[]);
    // At a place: each of the five calls, and those with a large argument.
    let all = recorded.rows("when", &["pc == add"]);
    if all.is_empty() {
        panic!("`add` was never called");
    }
    assert_eq!(all.len(), 5);
    assert!(all.iter().all(|row| row["function"] == "add"));
    let large = recorded.rows("when", &["pc == add && rdi s> 2 && edi < 5"]);
    assert_eq!(large, all[3..]);
    assert_eq!(recorded.rows("when", &["pc == add", "--last"]), all[4..]);
    assert_eq!(recorded.rows("when", &["pc == add", "--first"]), all[..1]);
    assert_eq!(recorded.text("when", &["pc == add || pc == on", "--count"]), "6\n");

    // Of memory alone: behind the store that makes it so.
    let stores = recorded.rows("values", &["--address", "around+64", "--stores"]);
    let made = stores.iter().filter(|row| word(row, "new") == 110 && word(row, "old") != 110);
    let made: Vec<&Value> = made.collect();
    assert_eq!(made.len(), 1, "{stores:#?}");
    let held = recorded.rows("when", &["[around+64] == 110"]);
    assert_eq!(held.len(), 1);
    assert_eq!(held[0]["turn"], made[0]["turn"]);
    assert!(word(&held[0], "pc") > word(made[0], "pc"));
    assert!(held[0]["function"].as_str().is_some_and(|f| f.starts_with("on+")), "{held:?}");
    // With a register: from the same place on, which is looked at step by step.
    let stepped = recorded.rows("when", &["[around+64] == 110 && rsp != 0"]);
    assert_eq!(stepped, held);

    for (question, why) in [
        ("pc = add", "expected `==`"),
        ("no_such_name == 1", "have a symbol `no_such_name`"),
        ("rdi", "a number, not a condition"),
    ] {
        let output = recorded.dep(&["when", "p.0.rec", question]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why), "{question}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

/// Accesses of several threads are in the one order in which they happened.
#[test]
fn values_of_several_threads() {
    let recorded = Recorded::new(THREADS, &[]);
    let rows = recorded.rows("values", &["--address", "shared"]);
    let stores: Vec<&Value> = rows.iter().filter(|row| row["access"] == "store").collect();
    let values: Vec<u64> = stores.iter().map(|row| word(row, "new")).collect();
    assert_eq!(values, (1..=100).collect::<Vec<u64>>());
    let mut threads: Vec<u64> = stores.iter().map(|row| row["tid"].as_u64().unwrap()).collect();
    threads.sort_unstable();
    threads.dedup();
    assert_eq!(threads.len(), 2);
    let one =
        recorded.rows("values", &["--address", "shared", "--thread", &threads[0].to_string()]);
    let own = rows.iter().filter(|row| row["tid"].as_u64() == Some(threads[0]));
    assert_eq!(one, own.cloned().collect::<Vec<_>>());
    let count = recorded.text("when", &["pc == work", "--count"]);
    assert_eq!(count, "2\n");
    let tids: Vec<u64> = recorded
        .rows("when", &[&format!("pc == work && thread == {}", threads[1])])
        .iter()
        .map(|row| row["tid"].as_u64().unwrap())
        .collect();
    assert_eq!(tids, [threads[1]]);
    // All threads' calls are in one order.
    let calls = recorded.rows("syscalls", &[]);
    assert!(calls.windows(2).all(|pair| pair[0]["turn"].as_u64() <= pair[1]["turn"].as_u64()));
    assert!(threads.iter().all(|tid| calls.iter().any(|call| call["tid"].as_u64() == Some(*tid))));
}

#[test]
fn what_cannot_be_answered_is_said_in_a_line() {
    let recorded = Recorded::new(THREADS, &[]);
    for (arguments, why) in [
        (&["--address", "no_such_name"][..], "have a symbol `no_such_name`"),
        (&["--address", "nolib.so:shared"], "no file nolib.so"),
        (&["--address", "shared", "--size", "0"], "--size 0"),
        (&["--address", "shared", "--thread", "1"], "no thread 1"),
        (&["--address", "shared", "--from", "x"], "--from x: expected TURN"),
        (&["--address", "shared", "--from", "9", "--to", "3"], "--from 9 lies behind --to 3"),
    ] {
        let output = recorded.dep(&[&["values", "p.0.rec"], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why), "{arguments:?}: {said}");
        assert_eq!((said.lines().count(), output.stdout.len()), (1, 0), "{said}");
    }
}
