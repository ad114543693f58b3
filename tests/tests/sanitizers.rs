//! Programs that a compiler's sanitizers watch: they take most of the address space for shadow memory, and look
//! for leaks in a process that shares the program's memory.

mod common;

use std::path::Path;
use std::process::Command;

use common::*;
use tests::harness::{difference, Mode, RunSpec, Tally, Tools};

/// What the process that looks for leaks does to a recording, it says: the program goes on.
const INPUTS: Mode = Mode { name: "inputs", flags: &["--instrument", "inputs"] };
const MODES: [Mode; 5] = [STATIC, DYNAMIC, STATIC_NONE, UNDO_STATIC, INPUTS];

const MEMORY: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void *kept;
static void *thread(void *x) {
    char *text = malloc(100);
    memset(text, 'x', 99);
    text[99] = 0;
    long length = strlen(text);
    free(text);
    return (void *)(length + (long)x);
}
int main(int argc, char **argv) {
    pthread_t t[3];
    long sum = 0;
    for (long i = 0; i < 3; i++) pthread_create(t + i, 0, thread, (void *)i);
    for (int i = 0; i < 3; i++) { void *got; pthread_join(t[i], &got); sum += (long)got; }
    kept = malloc(10);
    printf("%ld\n", sum);
    fflush(stdout);
    char *block = malloc(40);
    if (argc > 1 && argv[1][0] == 'r') { free(block); free(kept); return block[3] ? 1 : 0; }
    free(block);
    free(kept);
    return 0;
}
"#;

/// Its race is found in each run: a thread that comes between two accesses of the sanitizer's to shadow memory would hide it,
/// and translating code at run time makes time for that. So the second thread waits for the first, unseen by the sanitizer.
const RACE: &str = r#"
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
static int sum;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t barrier;
static int locks;
static volatile int first_is_done;
__attribute__((no_sanitize_thread)) static void wait_for_first(void) { while (!first_is_done) sched_yield(); }
__attribute__((no_sanitize_thread)) static void first_ends(void) { first_is_done = 1; }
static void *thread(void *x) {
    pthread_barrier_wait(&barrier);
    if (!locks && x) wait_for_first();
    for (int i = 0; i < 100; i++) {
        if (locks) pthread_mutex_lock(&lock);
        sum += 1;
        if (locks) pthread_mutex_unlock(&lock);
    }
    if (!locks && !x) first_ends();
    return x;
}
int main(int argc, char **argv) {
    pthread_t t[2];
    locks = argc == 1;
    pthread_barrier_init(&barrier, 0, 2);
    for (long i = 0; i < 2; i++) pthread_create(t + i, 0, thread, (void *)i);
    for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
    if (locks) printf("%d\n", sum);
    return 0;
}
"#;

/// Builds it; `None`: the compiler has no such sanitizer.
fn build(source: &str, flags: &[&str], to: &Path) -> Option<()> {
    let file = to.with_extension("c");
    std::fs::write(&file, source).unwrap();
    let args = ["-g", "-O1", "-pthread", "-w"];
    let built = Command::new("gcc").args(args).args(flags).arg(&file).arg("-o").arg(to).output();
    built.is_ok_and(|built| built.status.success()).then_some(())
}

/// What a report is about: it names processes and addresses, too.
fn subject(stderr: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(stderr);
    let lines = text.lines().filter(|line| line.starts_with("SUMMARY:"));
    lines.map(str::to_owned).collect()
}

#[test]
fn sanitized_programs_same_behaviour() {
    let mut tally = Tally::start("sanitized_programs_same_behaviour");
    let tools = Tools::get();
    let programs: [(&str, &str, &[&str], &[&str]); 5] = [
        ("address", MEMORY, &["-fsanitize=address"], &["reads"]),
        ("address-no-pie", MEMORY, &["-fsanitize=address", "-no-pie"], &["reads"]),
        ("leak", MEMORY, &["-fsanitize=leak"], &["other"]),
        ("thread", RACE, &["-fsanitize=thread"], &["race"]),
        ("thread-no-pie", RACE, &["-fsanitize=thread", "-no-pie"], &["race"]),
    ];
    for (name, source, flags, wrong) in programs {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join(name);
        if build(source, flags, &program).is_none() {
            tally.skip(name, "the compiler has no such sanitizer");
            continue;
        }
        for mode in MODES {
            let rewritten = dir.path().join(format!("{name}.{}", mode.name));
            if let Err(why) = tools.rewrite_sharing(&program, &rewritten, mode.flags) {
                tally.record(&format!("{name} {}", mode.name), Err(why));
                continue;
            }
            for args in [&[], wrong] {
                let spec = RunSpec::new(&program).args(args);
                let check = || -> Result<(), String> {
                    let native = spec.run(None, dir.path()).map_err(|e| e.to_string())?;
                    let mut run =
                        spec.run(Some(&rewritten), dir.path()).map_err(|e| e.to_string())?;
                    let (expected, got) = (subject(&native.stderr), subject(&run.stderr));
                    if expected != got {
                        let all = String::from_utf8_lossy(&run.stderr).into_owned();
                        return Err(format!("reports {got:?}, not {expected:?}: {all}"));
                    }
                    run.stderr.clone_from(&native.stderr);
                    difference(&native, &run)?;
                    verify_all(&run.traces, tools, &rewritten)
                };
                tally.record(&format!("{name} {args:?} {}", mode.name), check());
            }
        }
    }
    tally.finish();
}
