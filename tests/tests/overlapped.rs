//! Listings of a recording of inputs, which are read while its replay is still on its way: they are what a complete
//! profile has, they need no room for it, and they end with the line that was asked for last.

use std::ffi::CString;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{ChildStdout, Command, Output, Stdio};

use tests::command::{dep, folder, text};
use tests::harness::Tally;
use tests::inputs;
use tests::sys;

fn compile(here: &Path, source: &str, name: &str) {
    compile_with(here, source, name, &["-pthread"]);
}

fn compile_with(here: &Path, source: &str, name: &str, options: &[&str]) {
    let file = here.join(name).with_extension("c");
    fs::write(&file, source).expect("written");
    let mut gcc = Command::new("gcc");
    gcc.arg("-O1").args(options).arg("-o").arg(here.join(name)).arg(&file);
    assert!(gcc.status().expect("gcc").success(), "{name}");
}

fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().expect("it runs")
}

/// Some hundred chunks of profile.
const LONG: &str = r#"
#include <stdio.h>
#include <stdlib.h>
static unsigned table[4096];
int main(int argc, char **argv) {
    unsigned x = 1, sum = 0;
    for (long n = atol(argv[1]); n > 0; n--) {
        x = x * 1103515245 + 12345;
        if (x & 0x10000) sum += table[x >> 20];
        else table[x >> 20] += sum;
    }
    printf("%u\n", sum);
}
"#;

/// Reads as much as there is room for.
fn fill(from: &mut ChildStdout, room: &mut [u8]) -> usize {
    let mut len = 0;
    while len < room.len() {
        match from.read(&mut room[len..]).expect("it is read") {
            0 => break,
            more => len += more,
        }
    }
    len
}

/// What two commands write is the same; its length.
fn same(commands: [&mut Command; 2]) -> u64 {
    let mut children = commands.map(|command| {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it runs")
    });
    let mut pipes = children.each_mut().map(|child| child.stdout.take().expect("a pipe"));
    let mut rooms = [vec![0; 1 << 20], vec![0; 1 << 20]];
    let mut all = 0;
    loop {
        let [one, other] = [0, 1].map(|i| fill(&mut pipes[i], &mut rooms[i]));
        assert!(rooms[0][..one] == rooms[1][..other], "they differ behind {all} bytes");
        all += one as u64;
        if one == 0 {
            break;
        }
    }
    children.iter_mut().for_each(|child| assert!(child.wait().expect("it ends").success()));
    all
}

#[test]
fn a_long_listing_is_what_the_profile_has() {
    let here = folder();
    let here = here.path();
    compile(here, LONG, "long");
    let record = ["record", "--instrument", "inputs,dep", "-o", "rec", "./long", "3000000"];
    assert!(output(&mut dep(here, &record)).status.success());
    for list in ["blocks", "memrefs"] {
        let bytes =
            same([&mut dep(here, &[list, "rec"]), &mut dep(here, &[list, "--replayed", "rec"])]);
        assert!(bytes > 50 << 20, "{list}: {bytes}");
    }
    // As the whole list has them.
    let range = ["--range", "0x0..0xffffffffffff", "rec"];
    same([
        &mut dep(here, &[&["memrefs"], &range[..]].concat()),
        &mut dep(here, &[&["memrefs", "--replayed"], &range[..]].concat()),
    ]);
}

#[test]
fn a_long_listing_needs_little_room() {
    const ROOM: u64 = 72 << 20;
    let here = folder();
    let here = here.path();
    compile(here, LONG, "long");
    assert!(output(&mut dep(here, &["record", "--replayable", "-o", "rec", "./long", "20000000"]))
        .status
        .success());
    let small = here.join("small");
    fs::create_dir(&small).expect("a folder");
    let place = CString::new(small.as_os_str().as_bytes()).expect("a path");
    if let Err(e) = sys::own_mounts().and_then(|()| sys::mount_small(&place, ROOM)) {
        let mut tally = Tally::start("a_long_listing_needs_little_room");
        tally.skip("all", &format!("no mounts of its own: {e}"));
        return tally.finish();
    }
    let listed = output(dep(here, &["blocks", "--range", "0x0..0x1", "rec"]).env("TMPDIR", &small));
    let said = String::from_utf8_lossy(&listed.stderr).into_owned();
    let kept = fs::read_dir(&small).expect("a folder").count();
    // The trace as a whole does not fit in, so what is needed whole is cut short, and says so.
    let undo = dep(here, &["undo", "rec"]).env("TMPDIR", &small).stdout(Stdio::null()).output();
    let undo = undo.expect("it runs");
    sys::unmount(&place).expect("unmounted");
    assert!(listed.status.success() && said.is_empty(), "{said}");
    assert!(listed.stdout.is_empty() && kept == 0);
    let said = String::from_utf8_lossy(&undo.stderr).into_owned();
    assert!(
        !undo.status.success() && said.contains("no room for the trace of the replay"),
        "{said}"
    );
}

/// What comes first in three threads, of which the last one that starts has most to do.
const THREADS: &str = r#"
#include <pthread.h>
#include <stdio.h>
static unsigned long table[512];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *work(void *n) {
    for (long i = 0; i < (long)n; i++) {
        pthread_mutex_lock(&lock);
        table[i & 511] += i;
        pthread_mutex_unlock(&lock);
    }
    return 0;
}
int main(void) {
    pthread_t one, other;
    pthread_create(&one, 0, work, (void *)20000);
    pthread_create(&other, 0, work, (void *)200000);
    work((void *)50000);
    pthread_join(one, 0);
    pthread_join(other, 0);
    printf("%lu\n", table[7]);
}
"#;

#[test]
fn threads_come_one_after_another() {
    let here = folder();
    let here = here.path();
    compile(here, THREADS, "threads");
    let record = ["record", "--instrument", "inputs,dep", "-o", "rec", "./threads"];
    assert!(output(&mut dep(here, &record)).status.success());
    let whole = text(here, &["memrefs", "--replayed", "rec"]);
    assert!(whole == text(here, &["memrefs", "rec"]), "they differ");
    let name = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
    let mut names: Vec<String> = whole.lines().map(name).collect();
    names.dedup();
    assert_eq!(names.len(), 3, "{names:?}");
    for tid in &names {
        let one = text(here, &["memrefs", "--replayed", "--thread", tid, "rec"]);
        let wanted: Vec<&str> = whole.lines().filter(|line| name(line) == *tid).collect();
        assert!(one.lines().eq(wanted), "{tid}");
    }
    let none = output(&mut dep(here, &["memrefs", "--replayed", "--thread", "1", "rec"]));
    assert_eq!(none.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&none.stderr), "dep: the trace has no thread 1\n");
}

/// It hands on what it was given, behind some work.
const HANDS_ON: &str = r#"
#include <string.h>
#include <unistd.h>
static char text[300], copy[300];
static volatile unsigned long sum;
int main(void) {
    read(0, text, sizeof text);
    memcpy(copy, text, sizeof copy);
    for (int i = 0; i < 3000000; i++) sum += i;
    write(1, copy, sizeof copy);
}
"#;

/// A replay that does something else at its end: the lines before it are there, and what is wrong is said. Nobody
/// who asks for the first lines comes to that.
#[test]
fn what_was_listed_before_a_difference_stays() {
    const GIVEN: [u8; 300] = [b'a'; 300];
    let here = folder();
    let here = here.path();
    compile(here, HANDS_ON, "program");
    fs::write(here.join("given"), GIVEN).expect("written");
    let mut record = dep(here, &["record", "--replayable", "-o", "rec", "./program"]);
    record.stdin(fs::File::open(here.join("given")).expect("written just now"));
    assert!(record.output().expect("it runs").status.success());
    let right = output(&mut dep(here, &["memrefs", "rec"]));
    assert!(right.status.success() && right.stderr.is_empty());
    let before = output(&mut dep(here, &["memrefs", "--limit", "1000000", "rec"]));
    assert!(before.status.success() && before.stderr.is_empty());
    assert_eq!(before.stdout.split_inclusive(|&b| b == b'\n').count(), 1_000_000);
    assert!(right.stdout.starts_with(&before.stdout));

    inputs::lie(&here.join("rec"), &GIVEN);
    let wrong = output(&mut dep(here, &["memrefs", "rec"]));
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert_eq!(wrong.status.code(), Some(1), "{said}");
    assert!(said.contains("differs from the recording at turn"), "{said}");
    let shared = wrong.stdout.iter().zip(&right.stdout).take_while(|(a, b)| a == b).count();
    assert!(shared == wrong.stdout.len() && shared > before.stdout.len(), "{shared}");
}

/// Whoever has seen enough does not wait for a replay that would go on for minutes.
#[test]
fn a_command_that_nobody_listens_to_any_more_ends() {
    let here = folder();
    let here = here.path();
    compile(here, LONG, "long");
    let record = ["record", "--replayable", "-o", "rec", "./long", "300000000"];
    assert!(output(&mut dep(here, &record)).status.success());
    let limited = output(&mut dep(here, &["memrefs", "--limit", "100000", "rec"]));
    assert!(limited.status.success() && limited.stderr.is_empty());
    let mut left = dep(here, &["memrefs", "rec"]);
    let mut child = left.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut pipe = child.stdout.take().expect("a pipe");
    let mut first = vec![0; 1 << 20];
    assert_eq!(fill(&mut pipe, &mut first), first.len());
    drop(pipe);
    let Output { status, stderr, .. } = child.wait_with_output().expect("it ends");
    assert!(status.success() && stderr.is_empty(), "{}", String::from_utf8_lossy(&stderr));
    assert!(limited.stdout.starts_with(&first) || first.starts_with(&limited.stdout));
}

/// The first thread works, starts another one that soon ends, and works on for much longer.
const SHORT: &str = r#"
#include <pthread.h>
#include <stdio.h>
static unsigned table[4096];
static void *work(void *n) {
    unsigned x = 1;
    for (long i = 0; i < (long)n; i++) {
        x = x * 1103515245 + 12345;
        table[x >> 20] += i;
    }
    return 0;
}
int main(void) {
    pthread_t one;
    work((void *)2000000);
    pthread_create(&one, 0, work, (void *)600000);
    pthread_join(one, 0);
    work((void *)8000000);
    printf("%u\n", table[7]);
}
"#;

/// What nobody has read yet holds the replay up. Meanwhile a thread has come and gone, and its buffer with it.
#[test]
fn a_thread_that_has_ended_when_it_is_found_hides_nothing() {
    let here = folder();
    let here = here.path();
    compile(here, SHORT, "short");
    let record = ["record", "--replayable", "--threads", "serial", "-o", "rec", "./short"];
    assert!(output(&mut dep(here, &record)).status.success());
    let mut list = dep(here, &["memrefs", "rec"]);
    let mut child = list.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut pipe = child.stdout.take().expect("a pipe");
    // (Too short a time would find nothing wrong.)
    std::thread::sleep(std::time::Duration::from_secs(1));
    let mut room = vec![0; 1 << 20];
    let (mut lines, mut writes) = (0, 0);
    loop {
        let len = fill(&mut pipe, &mut room);
        lines += room[..len].iter().filter(|&&b| b == b'\n').count();
        writes += room[..len].iter().filter(|&&b| b == b'W').count();
        if len == 0 {
            break;
        }
    }
    assert!(child.wait().expect("it ends").success());
    // Each turn of a loop reads and writes the table.
    const TURNS: usize = 2_000_000 + 600_000 + 8_000_000;
    assert!((TURNS..TURNS + 100_000).contains(&writes), "{writes}");
    assert!((2 * TURNS..2 * TURNS + 200_000).contains(&lines), "{lines}");
}

/// The first thread waits for two others, and works when they have ended.
const WAITS: &str = r#"
#include <pthread.h>
#include <unistd.h>
static int ends[2];
static volatile unsigned long kept;
static void *work(void *p) {
    unsigned long s = (unsigned long)p;
    for (int k = p ? 0 : 9900; k < 10000; k++) {
        char c = 0;
        for (int i = 0; i < 20000; i++) {
            s = s * 6364136223846793005UL + 1;
            if (i % 64 == 0) kept += s;
        }
        if (write(ends[1], &c, 1) != 1) return (void *)1;
    }
    return 0;
}
int main(void) {
    pthread_t threads[2];
    if (pipe(ends)) return 1;
    for (long i = 0; i < 2; i++) pthread_create(&threads[i], 0, work, (void *)(i + 1));
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    work(0);
    return 0;
}
"#;

/// A part that begins while other threads run is listed in the order of all threads, whoever runs first in it.
#[test]
fn the_first_thread_comes_first_though_it_starts_last() {
    let here = folder();
    let here = here.path();
    compile(here, WAITS, "waits");
    let record = ["record", "--replayable", "--threads", "serial", "--keep-last", "2M"];
    assert!(output(&mut dep(here, &[&record[..], &["-o", "rec", "./waits"]].concat()))
        .status
        .success());
    let mut list = dep(here, &["memrefs", "rec"]);
    let mut child = list.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it runs");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let tid = |line: String| line.split(' ').next().and_then(|tid| tid.parse::<u32>().ok());
    let mut tids: Vec<Option<u32>> = Vec::new();
    for tid in lines.map(|line| tid(line.expect("a line"))) {
        if tids.last() != Some(&tid) {
            tids.push(tid);
        }
    }
    assert!(child.wait().expect("it ends").success());
    // (How much is kept depends on the time that it takes: one of the others may have ended before.)
    assert!((2..=3).contains(&tids.len()) && tids.is_sorted(), "{tids:?}");
}

/// A replay that finds no room for its trace lists nothing, and says so.
#[test]
fn a_list_for_which_there_is_no_room_at_all_is_not_just_empty() {
    const ROOM: u64 = 100 << 10;
    let here = folder();
    let here = here.path();
    // Without ld.so, which reads its cache: that is as long as this machine has libraries, and the script has what
    // was read.
    compile_with(here, "int main(void) { return 0; }", "nothing", &["-static"]);
    let record = ["record", "--replayable", "-o", "rec", "./nothing"];
    assert!(output(&mut dep(here, &record)).status.success());
    let small = here.join("small");
    fs::create_dir(&small).expect("a folder");
    let place = CString::new(small.as_os_str().as_bytes()).expect("a path");
    // The output of the rewriter is made where there is room.
    assert!(output(&mut dep(here, &["memrefs", "--limit", "1", "rec"])).status.success());
    if let Err(e) = sys::own_mounts().and_then(|()| sys::mount_small(&place, ROOM)) {
        let mut tally = Tally::start("a_list_for_which_there_is_no_room_at_all_is_not_just_empty");
        tally.skip("all", &format!("no mounts of its own: {e}"));
        return tally.finish();
    }
    let listed = output(dep(here, &["memrefs", "rec"]).env("TMPDIR", &small));
    sys::unmount(&place).expect("unmounted");
    let said = String::from_utf8_lossy(&listed.stderr).into_owned();
    assert_eq!(listed.status.code(), Some(1), "{said}");
    assert!(said.contains("no room for the trace of the replay"), "{said}");
}
