//! `--columns`: the tables that `dep blocks` and `dep memrefs` write have the rows of their lists.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::Command;

use arrow_array::cast::AsArray;
use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{Array, RecordBatch};
use arrow_ipc::reader::{FileReader, StreamReader};
use tests::command::{dep, folder, text};

/// The lines that the rows of a table would be.
fn lines<E: std::fmt::Debug>(batches: impl Iterator<Item = Result<RecordBatch, E>>) -> String {
    let mut lines = String::new();
    for batch in batches {
        let batch = batch.expect("rows");
        let column = |name: &str| batch.column_by_name(name).expect("a column");
        let (tids, pcs) = (column("tid").as_primitive::<UInt32Type>(), column("pc"));
        let pcs = pcs.as_primitive::<UInt64Type>();
        for row in 0..batch.num_rows() {
            let tid = tids.value(row);
            lines += &match batch.column_by_name("address") {
                Some(addresses) => {
                    let address = addresses.as_primitive::<UInt64Type>().value(row);
                    let size = column("size").as_primitive::<UInt32Type>().value(row);
                    let access = if column("write").as_boolean().value(row) { 'W' } else { 'R' };
                    format!("{tid} {:#x} {access} {address:#x} {size}\n", pcs.value(row))
                }
                None if pcs.is_null(row) => format!("{tid} outside\n"),
                None => format!("{tid} {:#x}\n", pcs.value(row)),
            };
        }
    }
    lines
}

/// Of the file that a command writes.
fn of_file(here: &Path, arguments: &[&str]) -> String {
    let said = text(here, &[arguments, &["--columns", "table.arrow"]].concat());
    assert_eq!(said, "", "{arguments:?}");
    let file = File::open(here.join("table.arrow")).expect("a table");
    let lines = lines(FileReader::try_new(file, None).expect("a table"));
    fs::remove_file(here.join("table.arrow")).expect("removed");
    lines
}

/// Of its standard output.
fn of_stream(here: &Path, arguments: &[&str]) -> String {
    let output = dep(here, &[arguments, &["--columns", "-"]].concat()).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    lines(StreamReader::try_new(&*output.stdout, None).expect("a table"))
}

/// Some lists of `recording`, each as text, as a file and as a stream. Returns how many lines they had.
fn same(here: &Path, recording: &str, more: &[&str]) -> usize {
    let mut all = 0;
    for list in ["blocks", "memrefs"] {
        let arguments = [&[list, recording], more].concat();
        let expected = text(here, &arguments);
        all += expected.lines().count();
        assert!(of_file(here, &arguments) == expected, "{arguments:?}: they differ");
        assert!(of_stream(here, &arguments) == expected, "{arguments:?}: they differ");
    }
    all
}

/// What a command says that fails with this status.
fn refused(here: &Path, arguments: &[&str], status: i32) -> String {
    let output = dep(here, arguments).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
    said
}

/// Copies of several sizes, and two threads.
const PROGRAM: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <string.h>
static char from[1 << 16], to[1 << 16];
static long numbers[4096];
static void *run(void *unused) {
    for (int n = 0; n < 10; n++)
        for (int i = 0; i < 4096; i++) numbers[i] += numbers[(i * 7 + n) % 4096] + i;
    return unused;
}
__attribute__((noinline)) int inner(int n) { return n < 2 ? n : inner(n - 1) + inner(n - 2); }
int main(void) {
    pthread_t thread;
    run(0);
    pthread_create(&thread, 0, run, 0);
    pthread_join(thread, 0);
    for (size_t n = 1; n < sizeof from; n = n * 3 + 1) memcpy(to, from, n);
    printf("%ld %d\n", numbers[5], inner(12));
    return 0;
}
"#;

fn compiled(here: &Path) {
    fs::write(here.join("two.c"), PROGRAM).expect("written");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-pthread", "-o"]).arg(here.join("two")).arg(here.join("two.c"));
    assert!(gcc.status().expect("gcc").success());
}

fn record(here: &Path, name: &str, options: &[&str]) {
    text(here, &[&["record", "-o", name], options, &["./two"]].concat());
}

#[test]
fn a_table_has_the_rows_of_the_list() {
    let here = folder();
    let here = here.path();
    compiled(here);
    record(here, "profile", &["--instrument", "dep"]);
    assert!(same(here, "profile", &[]) > 100_000);
    for (limit, rows) in [("0", 0), ("1", 2), ("70000", 140_000)] {
        assert_eq!(same(here, "profile", &["--limit", limit]), rows);
    }
    let main = text(here, &["blocks", "--limit", "1", "profile"]);
    let tid = main.split(' ').next().expect("a thread");
    assert!(same(here, "profile", &["--thread", tid]) > 50_000);
    let line = main.trim_end().rsplit("0x").next().expect("an address").to_owned();
    let start = u64::from_str_radix(&line, 16).expect("an address");
    let range = format!("{start:x}..{:x}", start + 0x1000);
    assert!(same(here, "profile", &["--range", &range]) > 10);

    record(here, "run-time", &["--translate", "dynamic", "--control-flow", "full-pc"]);
    assert!(same(here, "run-time", &[]) > 100_000);
}

#[test]
fn code_that_is_not_recorded_has_no_pc() {
    let here = folder();
    let here = here.path();
    compiled(here);
    record(here, "part", &["--only", "two:inner"]);
    let expected = text(here, &["blocks", "--outside", "part"]);
    assert!(expected.contains(" outside\n") && expected.contains(" 0x"), "{expected}");
    assert_eq!(of_file(here, &["blocks", "--outside", "part"]), expected);
    assert_eq!(of_stream(here, &["blocks", "--outside", "part"]), expected);
}

/// A list that is made of several replays is one table.
#[test]
fn a_table_is_read_from_replays() {
    let here = folder();
    let here = here.path();
    compiled(here);
    for (name, threads) in [("serial", "serial"), ("watched", "watched")] {
        record(here, name, &["--replayable", "--threads", threads]);
        assert!(same(here, name, &[]) > 200_000, "{threads}");
        assert_eq!(same(here, name, &["--limit", "100000"]), 200_000);
    }
}

#[test]
fn what_is_wrong_leaves_no_table() {
    let here = folder();
    let here = here.path();
    compiled(here);
    record(here, "rec", &["--instrument", "dep"]);
    let left = || fs::read_dir(here).expect("a folder").count();
    let before = left();
    let said = refused(here, &["memrefs", "--columns", "no/such/table", "rec"], 1);
    assert!(said.contains("no/such/table: cannot write: "), "{said}");
    let said = refused(here, &["memrefs", "--columns", "/dev/full", "rec"], 1);
    assert!(said.contains("/dev/full: cannot write: it is no file"), "{said}");
    let said = refused(here, &["memrefs", "--json", "--columns", "table", "rec"], 2);
    assert!(said.contains("cannot be used with"), "{said}");
    let said = refused(here, &["memrefs", "--thread", "1", "--columns", "table", "rec"], 1);
    assert!(said.contains("the trace has no thread 1"), "{said}");
    assert_eq!(left(), before);

    // Whoever reads the stream may have seen enough.
    let mut child = dep(here, &["memrefs", "--columns", "-", "rec"]);
    let mut child = child.stdout(std::process::Stdio::piped()).spawn().expect("it runs");
    let mut out = child.stdout.take().expect("a pipe");
    out.read_exact(&mut [0; 4096]).expect("the start of a table");
    drop(out);
    assert!(child.wait().expect("it ends").success());
}
