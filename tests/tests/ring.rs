//! Rings: the newest part of a recording of inputs, from which a replay begins in the midst of a program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tests::harness::Tools;

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

/// A program and its rewritten copy.
struct Case {
    here: TempDir,
}

impl Case {
    fn new(source: &str) -> Case {
        let here = tempfile::tempdir().expect("a folder");
        fs::write(here.path().join("p.c"), source).expect("a source");
        let mut cc = Command::new("cc");
        cc.args(["-g", "-O1", "-o", "p", "p.c", "-lpthread"]).current_dir(here.path());
        assert!(cc.status().expect("a C compiler").success());
        let tools = Tools::get();
        let (program, rewritten) = (here.path().join("p"), here.path().join("p.in"));
        tools.rewrite(&program, &rewritten, &["--instrument", "inputs"]).expect("rewritten");
        Case { here }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.here.path().join(name)
    }

    fn run(&self, ring: &str, trace: &str) -> Command {
        let mut command = Command::new(self.path("p.in"));
        command.env("DEP_RING", ring).env("DEP_FILE", self.path(trace));
        command.current_dir(self.here.path()).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn dep(&self, what: &str, trace: &Path) -> Command {
        let mut command = Command::new(&Tools::get().dep);
        command.arg(what).arg("--program").arg(self.path("p"));
        let output = if matches!(what, "replay" | "debug") { "--rewritten" } else { "--output" };
        command.arg(output).arg(self.path("p.in")).arg(trace);
        command.env("DEP_CACHE", self.path("cache")).env("DEBUGINFOD_URLS", "");
        command.current_dir(self.here.path()).stdin(Stdio::null());
        command
    }

    /// Replays a trace that does not begin where the program does.
    fn replays(&self, trace: &str) -> String {
        let trace = self.path(trace);
        let info = said(&mut self.dep("info", &trace));
        assert!(info.contains("from where the part begins that was kept"), "{info}");
        said(&mut self.dep("replay", &trace))
    }
}

fn said(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
    assert!(status.success(), "{status}: {text}");
    text
}

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

#[test]
fn gdb_goes_from_the_crash_to_the_store_that_destroyed_the_pointer() {
    if !Command::new("gdb").arg("--version").output().is_ok_and(|out| out.status.success()) {
        assert!(std::env::var_os("CI").is_none(), "there is no gdb");
        eprintln!("skipped: there is no gdb");
        return;
    }
    let case = Case::new(CRASH);
    let _ = case.run("3M", "t.dep").status().expect("it runs");
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
fn threads_go_on_where_they_stood() {
    let case = Case::new(THREADS);
    let status = case.run("4M", "t.dep").status().expect("it runs");
    assert!(!status.success());
    let text = case.replays("t.dep");
    assert!(text.contains("equal to the recording"), "{text}");
}

/// Waits until the trace is one that does not begin where the program does: its first frames are gone.
fn wait_until_cut(case: &Case, trace: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let bytes = fs::read(case.path(trace)).unwrap_or_default();
        let first =
            |frame: &&[u8]| frame.starts_with(b"DEPF") && frame[4] == 3 && frame[8..16] == [0; 8];
        if !bytes.is_empty() && !bytes.chunks(4096).any(|frame| first(&frame)) {
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
    let mut dump = Command::new(&Tools::get().dep);
    dump.arg("dump").arg(child.id().to_string()).args(["-o", "d.dep"]);
    let text = said(dump.current_dir(case.here.path()));
    assert!(text.contains("written"), "{text}");
    assert!(child.try_wait().expect("a child").is_none(), "it goes on");
    child.kill().expect("it is killed");
    child.wait().expect("it ends");
    assert!(case.replays("d.dep").contains("equal to the recording"));
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
