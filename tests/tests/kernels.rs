//! Rewritten programs under the kernels that people have, each in an emulated machine. Its processor
//! has no AVX-512, and those kernels put a position-independent program anywhere.
//!
//! `.ci/run` fetches the kernels, as Debian's packages have them; without them, or without an emulator,
//! there is nothing to test, which the tally says.

mod common;

use std::path::{Path, PathBuf};
use std::time::Duration;

use common::*;
use tests::guest::{self, Guest, GuestRun, Kernel};
use tests::harness::{Mode, Outcomes, RunSpec, Tally, Tools};

/// How long a machine may run. It takes about a minute.
const LIMIT: Duration = Duration::from_secs(300);

const PLAIN: Mode = Mode { name: "plain", flags: &[] };
const DEP: Mode = Mode { name: "dep", flags: &["--pointers", "thread-block"] };
/// For AVX alone: made again at run time where the machine does not have that.
const LOW: Mode = Mode { name: "low", flags: &["--pointers", "xmm15"] };
const JIT: Mode =
    Mode { name: "jit", flags: &["--pointers", "thread-block", "--translate", "dynamic"] };
const NONE: Mode =
    Mode { name: "none", flags: &["--pointers", "thread-block", "--instrument", "none"] };
const UNDO: Mode =
    Mode { name: "undo", flags: &["--pointers", "thread-block", "--instrument", "undo"] };
const MISPLACED: Mode =
    Mode { name: "misplaced", flags: &["--pointers", "thread-block", "--torture", "misplaced"] };

/// One of each kind of program, and of each thing that the runtime asks the kernel for.
const CASES: [&str; 19] = [
    "asm/jump_tables.pie",
    "asm/strings.static",
    "c/altstack_full.pie",
    "c/auxv.pie",
    "c/auxv.static-pie",
    "c/fork_wait.pie",
    "c/generated_pages.pie",
    "c/headers.pie",
    "c/interrupts.pie",
    "c/libc_mix.static",
    "c/seccomp.pie",
    "c/signals.pie",
    "c/spawn.pie",
    "c/threads.pie",
    "c/vector15.pie",
    "c/vector15_faults.pie",
    "c/vector15_frames.pie",
    "cpp/exceptions.pie",
    "rust/threads.pie",
];

/// A program, and whether the translations of its libraries travel in its outputs.
struct Subject {
    name: String,
    spec: RunSpec,
    embed: bool,
    modes: Vec<Mode>,
}

fn subjects(tally: &mut Tally) -> Vec<Subject> {
    let mut subjects = Vec::new();
    let corpus = corpus();
    for case in corpus.iter().filter(|case| CASES.contains(&case.name.as_str())) {
        let modes = match case.name.starts_with("c/vector15") {
            true => vec![PLAIN, LOW],
            false => vec![PLAIN, DEP, JIT, NONE, UNDO, MISPLACED],
        };
        let name = file_name(&case.name);
        subjects.push(Subject { name, spec: spec(case), embed: false, modes });
    }
    let text: Vec<u8> = (0..3000).flat_map(|i| format!("line {i}\n").into_bytes()).collect();
    let sql = "create table t(a integer primary key, b text); \
        with recursive c(x) as (select 1 union all select x+1 from c where x<300) \
        insert into t select x, 'row ' || x from c; select count(*), sum(a), max(b) from t;";
    let perl = "my %h; $h{$_ % 17} .= chr(65 + $_ % 26) for 1..2000; \
        print \"$_ $h{$_}\\n\" for sort keys %h;";
    for (name, spec) in [
        ("gzip", RunSpec::new("/usr/bin/gzip").args(&["-9", "-nc"]).stdin(&text)),
        ("sqlite3", RunSpec::new("/usr/bin/sqlite3").args(&[":memory:", sql])),
        ("perl", RunSpec::new("/usr/bin/perl").args(&["-e", perl])),
    ] {
        if !spec.program.exists() {
            tally.skip(name, "not installed");
            continue;
        }
        let modes = vec![DEP, LOW, NONE, UNDO, MISPLACED];
        subjects.push(Subject { name: name.to_owned(), spec, embed: true, modes });
    }
    subjects
}

/// The runs of one program: how, under which name, and its output. The first one is the native one.
type Runs = Vec<(Mode, String, PathBuf)>;

/// The programs, rewritten, with their runs.
struct Prepared {
    guest: Guest,
    runs: Vec<(String, Runs)>,
}

fn prepare(subjects: &[Subject], dir: &Path) -> Result<Prepared, String> {
    let tools = Tools::get();
    let trouble = |e: std::io::Error| format!("{}: {e}", dir.display());
    let packs = dir.join("packs");
    std::fs::create_dir(&packs).map_err(trouble)?;
    for library in ["/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6"] {
        for mode in [DEP, LOW, NONE, UNDO] {
            tools.rewrite(Path::new(library), &packs, mode.flags)?;
        }
    }
    let mut guest = Guest::new();
    for pack in std::fs::read_dir(&packs).map_err(trouble)?.flatten() {
        guest.add(&pack.path()).map_err(trouble)?;
    }
    let mut runs = Vec::new();
    for Subject { name, spec, embed, modes } in subjects {
        guest.add_program(&spec.program).map_err(trouble)?;
        let mut run = |mode: &str, file: Option<PathBuf>| {
            let id = format!("{name}-{mode}");
            let dep_file = format!("/out/{id}.%p.dep");
            let env = tests::launch::standard_env(dep_file.as_ref());
            let text = |s: std::ffi::OsString| s.to_string_lossy().into_owned();
            let mut env: Vec<_> = env.into_iter().map(|(n, v)| (text(n), text(v))).collect();
            env.push(("DEP_LIBRARIES".to_owned(), packs.display().to_string()));
            let (args, stdin) = (spec.args.clone(), spec.stdin.clone());
            guest.run(&GuestRun {
                name: id.clone(),
                program: spec.program.clone(),
                file,
                args,
                stdin,
                env,
            });
            id
        };
        let native = run("native", None);
        let mut rewritten = Vec::new();
        for mode in modes {
            let output = dir.join(format!("{name}-{}", mode.name));
            let libraries = if *embed { "embed" } else { "runtime" };
            let flags = [mode.flags, &["--libraries", libraries]].concat();
            tools.rewrite(&spec.program, &output, &flags)?;
            rewritten.push((*mode, run(mode.name, Some(output.clone())), output));
        }
        for (_, _, output) in &rewritten {
            guest.add(output).map_err(trouble)?;
        }
        runs.push((native, rewritten));
    }
    Ok(Prepared { guest, runs })
}

/// What every run left under one kernel.
fn check(prepared: &Prepared, kernel: &Kernel, dir: &Path, outcomes: &mut Outcomes) {
    let tools = Tools::get();
    for (native, rewritten) in &prepared.runs {
        for (mode, id, output) in rewritten {
            let check = || -> Result<(), String> {
                let (expected, got) = (guest::left(dir, native)?, guest::left(dir, id)?);
                if expected != got {
                    return Err(format!("{got:?}, natively {expected:?}"));
                }
                if *mode == NONE {
                    return Ok(());
                }
                let prefix = format!("{id}.");
                let all = std::fs::read_dir(dir).into_iter().flatten().flatten();
                let traces: Vec<_> = all
                    .map(|entry| entry.path())
                    .filter(|path| {
                        let name = path.file_name().unwrap_or_default().to_string_lossy();
                        name.starts_with(&prefix) && name.contains(".dep")
                    })
                    .collect();
                tools.verify(first_trace(&traces)?, output)
            };
            outcomes.record(&format!("{id} on {}", kernel.name), check());
        }
    }
}

#[test]
fn old_kernels_run_what_is_rewritten() {
    let mut tally = Tally::start("old_kernels_run_what_is_rewritten");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let kernels = guest::kernels(&target.join("kernels"));
    let none =
        kernels.is_empty().then(|| "no kernels in target/kernels: .ci/run fetches them".to_owned());
    if let Some(why) = guest::missing().or(none) {
        tally.skip("all kernels", &why);
        return tally.finish();
    }
    let subjects = subjects(&mut tally);
    let dir = tempfile::tempdir().unwrap();
    match prepare(&subjects, dir.path()) {
        Err(why) => tally.record("preparation", Err(why)),
        // One processor of this machine executes both of a guest's.
        Ok(prepared) => tally.side_by_side(&kernels, |outcomes, kernel| {
            let dir = tempfile::tempdir().unwrap();
            match prepared.guest.boot(kernel, LIMIT, dir.path()) {
                Ok(taken) => {
                    eprintln!("Linux {} ran {:.0} s", kernel.name, taken.as_secs_f32());
                    check(&prepared, kernel, dir.path(), outcomes);
                }
                Err(why) => outcomes.record(&kernel.name, Err(why)),
            }
        }),
    }
    tally.finish();
}
