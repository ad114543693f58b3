//! The memory that a ring begins with, without what the kept part never touches.

mod ring_case;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use ring_case::{said, Case};
use tests::harness::{cache, Tools};

/// Fills much memory, of which it touches little at the end: by reading, by writing, by having the kernel read it,
/// by moving it and by giving it back. `THREADS`: how many do that.
const LARGE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifndef THREADS
#define THREADS 1
#endif
#define MIB (1L << 20)
#define LARGE (24 * MIB)
/* Of them the ring keeps the last ones only, on a slow machine, too. */
#define ROUNDS (200000000L / THREADS)
#define STEP (ROUNDS / 1000)
struct node { long value; };
static struct node *table[64];
static unsigned char *large, *small;
static unsigned char image[4 * MIB];
static int null;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
__attribute__((noinline, noclone)) static void destroy(int i) {
  table[i] = (struct node *)0x10; /* here */
}
static long touch(long i) {
  long sum = large[9 * MIB + 5 * 4096 + 77] + image[2 * MIB + 1];
  large[11 * MIB + 4096 - 1] += i;
  memcpy(large + 13 * MIB - 9, large + 14 * MIB - 7, 20);
  if (write(null, large + 15 * MIB + 4000, 200) != 200) abort();
  if (i == 995) {
    small = mremap(small, MIB, 3 * MIB, MREMAP_MAYMOVE);
    if (small == MAP_FAILED) abort();
  }
  if (i == 996) {
    if (madvise(large + 18 * MIB, MIB, MADV_DONTNEED)) abort();
    if (mprotect(large + 20 * MIB, 4096, PROT_READ)) abort();
  }
  return sum + small[i % MIB] + large[18 * MIB + 3];
}
static void *work(void *number) {
  unsigned long seed = (long)number + 1;
  long sum = 0;
  for (long i = 0; i < ROUNDS; i++) {
    seed = seed * 6364136223846793005UL + 1442695040888963407UL;
    struct node *n = table[seed >> 58];
    sum += n->value; /* crash */
    n->value = sum ^ i;
    if (i % STEP == 0) {
      pthread_mutex_lock(&lock);
      if (!number) sum += touch(i / STEP);
      pthread_mutex_unlock(&lock);
    }
    if (!number && i == ROUNDS - STEP / 2) destroy(17);
  }
  return (void *)sum;
}
int main(void) {
  pthread_t threads[THREADS];
  for (int i = 0; i < 64; i++) table[i] = calloc(1, sizeof(struct node));
  /* The kernel makes one mapping of this and of what the dynamic linker has mapped above it. */
  void *idle = mmap(0, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (idle == MAP_FAILED) abort();
  memset(idle, 3, MIB);
  large = mmap(0, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  small = mmap(0, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (large == MAP_FAILED || small == MAP_FAILED) abort();
  for (long i = 0; i < LARGE; i++) large[i] = i * 7 + (i >> 12) + 1;
  for (long i = 0; i < MIB; i++) small[i] = i * 5 + 1;
  memset(image, 9, sizeof image);
  null = open("/dev/null", O_WRONLY);
  for (long i = 1; i < THREADS; i++) pthread_create(&threads[i], 0, work, (void *)i);
  work(0);
  for (int i = 1; i < THREADS; i++) pthread_join(threads[i], 0);
  return 0;
}
"#;

/// What gdb shows at the crash, and at the store that destroyed the pointer.
fn shown(case: &Case, trace: &str) -> String {
    let values = [
        "p n",
        "p sum",
        "p seed",
        "p i",
        "p/x *table@64",
        "p/x large[9*1048576+5*4096+77]@16",
        "p/x large[11*1048576+4000]@96",
        "p/x large[13*1048576-20]@64",
        "p/x large[15*1048576+4000]@200",
        "p/x large[18*1048576]@64",
        "p/x large[20*1048576]@64",
        "p/x image[2*1048576]@16",
        "p/x small[1000]@64",
        "info registers",
    ];
    let mut debug = case.dep("debug", &case.path(trace));
    debug.args(["--", "-nx", "-batch", "-ex", "continue", "-ex", "watch table[17]"]);
    let all = |debug: &mut Command| {
        values.iter().for_each(|value| {
            debug.args(["-ex", value]);
        });
    };
    all(&mut debug);
    debug.args(["-ex", "reverse-continue", "-ex", "up"]);
    all(&mut debug);
    let text = said(&mut debug);
    assert!(text.contains("(struct node *) 0x10"), "{text}");
    assert!(text.contains("destroy (i"), "{text}");
    // From the first value on: what is in front has process ids.
    let from = text.find("$1 = ").unwrap_or_else(|| panic!("{text}"));
    text[from..].to_owned()
}

fn trimmed(source: &str, ring: &str) {
    let case = Case::new(source);
    let status = case.run(ring, "whole.dep").status().expect("it runs");
    assert!(!status.success());
    let before = case.replays("whole.dep");
    assert!(before.contains("equal to the recording"), "{before}");
    fs::copy(case.path("whole.dep"), case.path("t.dep")).expect("a copy");
    let text = said(&mut case.dep("trim", &case.path("t.dep")));
    assert!(text.contains(" instead of "), "{text}");
    // The beginning has other events.
    let turns = |text: &str| text.split_once(" turns, ").map(|(turns, _)| turns.to_owned());
    let after = case.replays("t.dep");
    assert!(after.contains("equal to the recording"), "{after}");
    assert_eq!(turns(&after), turns(&before));

    // What is left is small, and says what is missing.
    let size = |name: &str| fs::metadata(case.path(name)).expect("a trace");
    assert!(size("whole.dep").len() > 28 << 20, "{}", size("whole.dep").len());
    assert!(size("t.dep").len() < 4 << 20, "{}", size("t.dep").len());
    assert_eq!(size("t.dep").mode(), size("whole.dep").mode());
    let info = said(&mut case.dep("info", &case.path("t.dep")));
    assert!(info.contains("of memory that it never touches"), "{info}");
    let refs = |name: &str| said(case.dep("memrefs", &case.path(name)).args(["--limit", "20000"]));
    assert_eq!(refs("t.dep"), refs("whole.dep"));

    // A second time there is nothing left to leave out.
    let again = said(&mut case.dep("trim", &case.path("t.dep")));
    assert!(again.contains("left as it is"), "{again}");

    if !Command::new("gdb").arg("--version").output().is_ok_and(|out| out.status.success()) {
        assert!(std::env::var_os("CI").is_none(), "there is no gdb");
        return;
    }
    let (after, before) = (shown(&case, "t.dep"), shown(&case, "whole.dep"));
    for (after, before) in after.lines().zip(before.lines()) {
        assert_eq!(after, before);
    }
    assert_eq!(after.lines().count(), before.lines().count());
    let untouched = |name: &str| {
        let mut debug = case.dep("debug", &case.path(name));
        debug.args(["--", "-nx", "-batch", "-ex", "continue"]);
        debug.args(["-ex", "p/x large[4*1048576]@4"]);
        let out = debug.output().expect("it runs");
        String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned()
    };
    // 4 MiB are 1024 pages: i * 7 + (i >> 12) + 1.
    assert!(untouched("whole.dep").contains("{0x1, 0x8, 0xf, 0x16}"), "{}", untouched("whole.dep"));
    let text = untouched("t.dep");
    assert!(text.contains("Cannot access memory"), "{text}");
    assert!(text.contains("is not in the recording"), "{text}");
    assert!(!text.contains("$1 = "), "{text}");
    // The dynamic linker's list of libraries lies at the end of a mapping that has grown downwards.
    assert!(!text.contains("Error reading shared library list"), "{text}");
}

#[test]
fn a_crash_in_much_memory_leaves_what_it_touched() {
    trimmed(LARGE, "3M");
}

#[test]
fn threads_that_crash_in_much_memory_leave_what_they_touched() {
    trimmed(&format!("#define THREADS 3\n{LARGE}"), "8M");
}

/// A child that was forked begins with the memory of its parent.
const FORKS: &str = r#"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
  char *large = malloc(24 << 20);
  memset(large, 7, 24 << 20);
  volatile unsigned long s = 1;
  for (long i = 0; i < 300000000; i++) s = s * 5 + i;
#ifdef HEIR
  /* From here on no interval begins, so the child has no beginning of its own. */
  struct sock_filter allow = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
  struct sock_fprog filter = {1, &allow};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_seccomp, 1, 0, &filter)) return 1;
#endif
  if (!fork()) _exit(large[5 << 20]);
  int status;
  wait(&status);
  return WEXITSTATUS(status);
}
"#;

/// Records, with further options; the bytes of the traces, and what was said.
fn recorded(case: &Case, more: &[&str]) -> (u64, String) {
    let mut record = Command::new(&Tools::get().dep);
    record.args(["record", "--replayable", "--keep-last", "3M", "-o", "r.rec"]).args(more);
    record.arg("./p").current_dir(case.here.path()).envs(cache());
    let out = record.output().expect("it runs");
    let traces: Vec<_> = fs::read_dir(case.path("r.rec/traces"))
        .expect("traces")
        .map(|entry| entry.expect("an entry"))
        .collect();
    let mut replay = Command::new(&Tools::get().dep);
    replay.arg("replay").arg("r.rec").current_dir(case.here.path());
    let text = said(replay.envs(cache()));
    assert_eq!(text.matches("equal to the recording").count(), traces.len(), "{text}");
    let bytes = traces.iter().map(|trace| trace.metadata().expect("a file").len()).sum();
    (bytes, String::from_utf8_lossy(&out.stderr).into_owned())
}

#[test]
fn a_recording_is_trimmed_when_it_is_made() {
    for (source, more, is_small) in
        [(LARGE, &[][..], true), (LARGE, &["--whole-memory"], false), (FORKS, &[], true)]
    {
        let (bytes, text) = recorded(&Case::new(source), more);
        assert_eq!(text, "", "{more:?}");
        assert_eq!(bytes < 4 << 20, is_small, "{more:?}: {bytes}");
        assert!(is_small || bytes > 28 << 20, "{more:?}: {bytes}");
    }
}

#[test]
fn what_the_replay_of_a_child_begins_with_is_kept() {
    let (bytes, _) = recorded(&Case::new(&format!("#define HEIR\n{FORKS}")), &[]);
    assert!(bytes > 24 << 20, "{bytes}");
}
