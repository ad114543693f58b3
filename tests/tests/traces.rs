//! What must hold of traces and of the running process, whatever the program.

mod common;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::*;
use corpus::Case;
use serde_json::Value;
use tests::harness::{difference, is_refused, Run, RunSpec, Tally, Tools};
use tests::sys::{self, Status};

const LISTINGS: [&str; 2] = ["memrefs", "blocks"];

/// Those that the ways of recording are compared on: one of each kind of program.
const CASES: [&str; 12] = [
    "asm/jump_tables.pie",
    "asm/strings.static",
    "asm/low_stack.static",
    "asm/stack_moves.pie",
    "asm/avx2.pie",
    "c/setjmp.pie",
    "c/generated_pages.pie",
    "c/generated_anew.static",
    "c/switches.pie",
    "c/libc_mix.pie",
    "c/signals.pie",
    "cpp/exceptions.pie",
];

/// The programs by name: those of the corpus, and gzip.
fn programs(tally: &mut Tally) -> Vec<(String, RunSpec)> {
    let mut programs = Vec::new();
    let corpus = corpus();
    for case in corpus.iter().filter(|c| CASES.contains(&c.name.as_str())) {
        match case.skip_reason() {
            Some(why) => tally.skip(&case.name, &why),
            None => programs.push((case.name.clone(), spec(case))),
        }
    }
    let text: Vec<u8> =
        (0..100).flat_map(|i| format!("line {i} {}\n", i * i).into_bytes()).collect();
    let gzip = RunSpec::new("/usr/bin/gzip").args(&["-nc"]).stdin(&text);
    programs.push(("gzip".to_owned(), gzip));
    programs
}

/// Rewrites and runs the program; leaves its listings, if they are asked for, as `name.memrefs` and
/// `name.blocks`.
fn record(
    spec: &RunSpec,
    flags: &[&str],
    dir: &Path,
    name: &str,
    listings: &[&str],
) -> Result<Run, String> {
    let tools = Tools::get();
    let rewritten = dir.join(name);
    tools.rewrite_sharing(&spec.program, &rewritten, flags)?;
    let run = spec.run(Some(&rewritten), dir).map_err(|e| e.to_string())?;
    let trace = first_trace(&run.traces)?;
    tools.verify(trace, &rewritten)?;
    for what in listings {
        tools.list(what, trace, &rewritten, &dir.join(format!("{name}.{what}")))?;
    }
    for trace in &run.traces {
        std::fs::remove_file(trace).map_err(|e| e.to_string())?;
    }
    Ok(run)
}

fn same_listings(dir: &Path, a: &str, b: &str) -> Result<(), String> {
    for what in LISTINGS {
        let file = |name| dir.join(format!("{name}.{what}"));
        let outcome = same_listing(&file(a), &file(b), None, false);
        outcome.map_err(|e| format!("{what}: {e}"))?;
        std::fs::remove_file(file(b)).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// However a program is recorded, the same is recovered from it. (Every other way of each program; WAYS=all: all.)
#[test]
fn formats_agree() {
    let mut tally = Tally::start("formats_agree");
    // What this processor does not have is translated when it runs, for what it has.
    let lacking = match std::is_x86_feature_detected!("avx512vl") {
        true => "xmm15",
        false => "vector",
    };
    let mut ways = Vec::new();
    for translate in ["static", "dynamic"] {
        for pointers in ["vector", "xmm15", "thread-block"] {
            if (translate, pointers) == ("dynamic", lacking) {
                continue;
            }
            for memory in ["registers", "addresses"] {
                for control_flow in ["tags", "full-pc", "bits"] {
                    ways.push([translate, pointers, memory, control_flow]);
                }
            }
        }
    }
    let programs = programs(&mut tally);
    tally.side_by_side(&programs, |outcomes, (name, spec)| {
        let dir = tempfile::tempdir().unwrap();
        let reference = record(spec, &[], dir.path(), "reference", &LISTINGS).map(drop);
        for way in every_other(name, &ways) {
            let [translate, pointers, memory, control_flow] = way;
            let flags = ["--translate", translate, "--pointers", pointers, "--memory", memory]
                .into_iter()
                .chain(["--control-flow", control_flow]);
            let check = || -> Result<(), String> {
                reference.clone()?;
                record(spec, &flags.collect::<Vec<_>>(), dir.path(), "other", &LISTINGS)?;
                same_listings(dir.path(), "reference", "other")
            };
            outcomes.record(&format!("{name} {}", way.join(" ")), check());
        }
    });
    tally.finish();
}

/// On request nothing is left below the stack pointer that is not there natively: not even where a return has read its
/// address.
#[test]
fn what_a_return_has_read_stays_if_it_is_asked_for() {
    let mut tally = Tally::start("what_a_return_has_read_stays_if_it_is_asked_for");
    let tools = Tools::get();
    let dir = tempfile::tempdir().unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/returned");
    let mut programs = programs(&mut tally);
    let mut made = Vec::new();
    for source in ["below", "chain"] {
        for flag in ["-pie", "-no-pie"] {
            let program = dir.path().join(format!("{source}{flag}"));
            let mut compile = Command::new("cc");
            compile.args(["-O2", flag]).arg(folder.join(format!("{source}.c")));
            assert!(compile.arg("-o").arg(&program).status().unwrap().success(), "{source}.c");
            let spec = || RunSpec::new(program.to_str().unwrap());
            programs.push((format!("{source} {flag}"), spec().args(&["all"])));
            made.push((format!("{source} {flag}"), spec()));
        }
    }
    let mut ways = Vec::new();
    for instrument in ["dep", "none"] {
        for pointers in ["vector", "xmm15", "thread-block"] {
            ways.extend(["static", "dynamic"].map(|translate| [instrument, pointers, translate]));
        }
    }
    tally.side_by_side(&programs, |outcomes, (name, spec)| {
        let dir = tempfile::tempdir().unwrap();
        let native = spec.run(None, dir.path()).map_err(|e| e.to_string());
        for [instrument, pointers, translate] in &ways {
            let flags = ["--dead-registers", "preserve", "--instrument", instrument];
            let flags = [&flags[..], &["--pointers", pointers, "--translate", translate]].concat();
            let check = || -> Result<(), String> {
                let rewritten = dir.path().join("rewritten");
                tools.rewrite_sharing(&spec.program, &rewritten, &flags)?;
                let run = spec.run(Some(&rewritten), dir.path()).map_err(|e| e.to_string())?;
                for trace in &run.traces {
                    tools.verify(trace, &rewritten)?;
                    std::fs::remove_file(trace).map_err(|e| e.to_string())?;
                }
                difference(native.as_ref().map_err(Clone::clone)?, &run)
            };
            outcomes.record(&format!("{name} {instrument} {pointers} {translate}"), check());
        }
    });
    // Code that looks there is seen when it is rewritten, and what a return has left leads where it stands for.
    for (name, spec) in made {
        for translate in ["static", "dynamic"] {
            let check = || -> Result<(), String> {
                let rewritten = dir.path().join("rewritten");
                tools.rewrite_sharing(&spec.program, &rewritten, &["--translate", translate])?;
                let native = spec.run(None, dir.path()).map_err(|e| e.to_string())?;
                let run = spec.run(Some(&rewritten), dir.path()).map_err(|e| e.to_string())?;
                tools.verify(first_trace(&run.traces)?, &rewritten)?;
                for trace in &run.traces {
                    std::fs::remove_file(trace).map_err(|e| e.to_string())?;
                }
                difference(&native, &run)
            };
            tally.record(&format!("{name} as it is, {translate}"), check());
        }
    }
    tally.finish();
}

/// What a program pays for again and again is in its trace, with places of the program.
#[test]
fn what_costs_is_counted() {
    let mut tally = Tally::start("what_costs_is_counted");
    let costly: [(&str, &[&str]); 2] = [
        ("c/stack_code.", &["comparisons of code"]),
        ("c/generated_pages.", &["faults mended", "translations closed"]),
    ];
    for (name, expected) in costly {
        for case in corpus().iter().filter(|case| case.name.starts_with(name)) {
            let check = || -> Result<(), String> {
                let costs = costs_of(case)?;
                for what in expected {
                    let row = costs.iter().find(|row| row["what"] == *what);
                    let row = row.ok_or_else(|| format!("no {what}: {costs:?}"))?;
                    let first = row["first"].as_array().map_or(0, Vec::len);
                    if row["count"].as_u64() == Some(0) || !(1..=10).contains(&first) {
                        return Err(format!("{row}"));
                    }
                }
                Ok(())
            };
            tally.record(&case.name, check());
        }
    }
    tally.finish();
}

/// What a function of the program returns to may lie in memory that was reserved wherever the kernel had room: no
/// return there is a fault.
#[test]
fn returns_to_reserved_memory_are_no_faults() {
    /// Each protection of code that is written costs one, and each first return to 4 GiB.
    const MOST: u64 = 100;
    let mut tally = Tally::start("returns_to_reserved_memory_are_no_faults");
    for case in corpus().iter().filter(|case| case.name.starts_with("c/generated_reserved.")) {
        tally.record(
            &case.name,
            faults_mended(case).and_then(|count| match count {
                0..=MOST => Ok(()),
                more => Err(format!("{more} faults mended")),
            }),
        );
    }
    tally.finish();
}

/// How many faults the runtime has mended in a run.
fn faults_mended(case: &Case) -> Result<u64, String> {
    let costs = costs_of(case)?;
    let row = costs.iter().find(|row| row["what"] == "faults mended");
    // The first return to each 4 GiB is one.
    row.and_then(|row| row["count"].as_u64()).ok_or_else(|| format!("no faults: {costs:?}"))
}

/// What a run has paid for again and again, as its trace says it.
fn costs_of(case: &Case) -> Result<Vec<Value>, String> {
    let tools = Tools::get();
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let to = dir.path().join("rewritten");
    tools.rewrite_sharing(&case.path, &to, &[])?;
    let run = spec(case).run(Some(&to), dir.path()).map_err(|e| e.to_string())?;
    let mut info = Command::new(&tools.dep);
    info.args(["info", "--json", "--output"]).arg(&to).arg(first_trace(&run.traces)?);
    let info = info.output().map_err(|e| e.to_string())?.stdout;
    let info: Value = serde_json::from_slice(&info).map_err(|e| e.to_string())?;
    Ok(info["costs"].as_array().cloned().unwrap_or_default())
}

/// Where a translation is for another kind of processor, who rewrites is told, and who reads the trace.
#[test]
fn a_translation_for_another_processor_is_told() {
    let mut tally = Tally::start("a_translation_for_another_processor_is_told");
    let tools = Tools::get();
    let others = match std::is_x86_feature_detected!("avx512vl") {
        true => "xmm15",
        false => "vector",
    };
    for case in corpus().iter().filter(|case| case.name == "asm/checksum.pie") {
        for (flags, expected) in [(&["--pointers", others][..], true), (&[], false)] {
            let check = || -> Result<(), String> {
                let dir = tempfile::tempdir().unwrap();
                let to = dir.path().join("rewritten");
                let mut rewriting = Command::new(&tools.deprewrite);
                rewriting.arg(&case.path).arg("-o").arg(&to).arg("--quiet").args(flags);
                let said = rewriting.output().map_err(|e| e.to_string())?.stderr;
                let run = spec(case).run(Some(&to), dir.path()).map_err(|e| e.to_string())?;
                let mut info = Command::new(&tools.dep);
                info.args(["info", "--output"]).arg(&to).arg(first_trace(&run.traces)?);
                let info = info.output().map_err(|e| e.to_string())?.stdout;
                let of_rewriting = String::from_utf8_lossy(&said).contains("this processor has");
                let of_trace = String::from_utf8_lossy(&info).contains("another kind of processor");
                match (of_rewriting, of_trace) == (expected, expected) {
                    true => Ok(()),
                    false => Err(format!("{of_rewriting} {of_trace}, not {expected}")),
                }
            };
            tally.record(&format!("{} {}", case.name, flags.join(" ")), check());
        }
    }
    tally.finish();
}

/// A program that is stopped in front of an instruction has done all up to there, and no more, whatever the format.
#[test]
fn a_program_that_is_stopped_ends_at_that_instruction() {
    let mut tally = Tally::start("a_program_that_is_stopped_ends_at_that_instruction");
    let tools = Tools::get();
    let stopped = ["asm/uses_gs.", "asm/int80_refused."];
    for case in corpus().iter().filter(|c| stopped.iter().any(|name| c.name.starts_with(name))) {
        let dir = tempfile::tempdir().unwrap();
        // Natively it ends right there.
        let truth = oracle(&spec(case), dir.path(), ORACLE_LIMIT);
        for translate in ["static", "dynamic"] {
            for control_flow in ["tags", "full-pc", "bits"] {
                let check = || -> Result<(), String> {
                    let truth = truth.as_ref().map_err(Clone::clone)?;
                    let to = dir.path().join("stopped");
                    let flags = ["--translate", translate, "--control-flow", control_flow];
                    tools.rewrite_sharing(&case.path, &to, &flags)?;
                    let run = spec(case).run(Some(&to), dir.path()).map_err(|e| e.to_string())?;
                    is_refused(&run)?;
                    let trace = first_trace(&run.traces)?;
                    tools.verify(trace, &to)?;
                    for (what, expected, maps) in [
                        ("blocks", &truth.blocks, None),
                        ("memrefs", &truth.memrefs, Some(truth.maps.as_path())),
                    ] {
                        let listing = dir.path().join(what);
                        tools.list(what, trace, &to, &listing)?;
                        // The oracle does not list a block of which no instruction was completed.
                        same_listing(expected, &listing, maps, true)
                            .map_err(|e| format!("{what}: {e}"))?;
                        let first = dir.path().join(format!("first.{what}"));
                        if !first.exists() {
                            std::fs::copy(&listing, &first).map_err(|e| e.to_string())?;
                        }
                        same_listing(&first, &listing, None, false)
                            .map_err(|e| format!("{what}, first way: {e}"))?;
                    }
                    Ok(())
                };
                tally.record(&format!("{} {translate} {control_flow}", case.name), check());
            }
        }
    }
    tally.finish();
}

/// What is rare in usual runs, made frequent, changes nothing: registers spilled everywhere, units
/// that the lifter misses, buffers that are always full.
#[test]
fn torture_changes_nothing() {
    let mut tally = Tally::start("torture_changes_nothing");
    let programs = programs(&mut tally);
    tally.side_by_side(&programs, |outcomes, (name, spec)| {
        let dir = tempfile::tempdir().unwrap();
        let reference = record(spec, &[], dir.path(), "reference", &LISTINGS).map(drop);
        let native = spec.run(None, dir.path()).map_err(|e| e.to_string());
        for torture in [
            "spill",
            "drop",
            "tiny-buffers",
            "misplaced",
            "scattered",
            "kept-calls",
            "spill,drop,tiny-buffers,misplaced,kept-calls",
        ] {
            for translate in ["static", "dynamic"] {
                let flags = ["--torture", torture, "--translate", translate];
                let check = || -> Result<(), String> {
                    reference.clone()?;
                    let run = record(spec, &flags, dir.path(), "other", &LISTINGS)?;
                    difference(native.as_ref().map_err(Clone::clone)?, &run)?;
                    same_listings(dir.path(), "reference", "other")
                };
                outcomes.record(&format!("{name} {torture} {translate}"), check());
            }
        }
    });
    tally.finish();
}

/// The lines of `part`, in their order, are among those of `whole`. Returns how many there are of each.
fn among(part: &Path, whole: &Path) -> Result<(usize, usize), String> {
    let read = |path| std::fs::read_to_string(path).map_err(|e| e.to_string());
    let (part, whole) = (read(part)?, read(whole)?);
    // Without the thread, which has another number in each run.
    let tail =
        |line: &str| line.split_once(' ').map_or_else(String::new, |(_, rest)| rest.to_owned());
    let mut rest = whole.lines();
    for (number, line) in part.lines().enumerate() {
        if !rest.any(|other| tail(other) == tail(line)) {
            return Err(format!(
                "line {}, {line:?}, is not in the whole listing there",
                number + 1
            ));
        }
    }
    Ok((part.lines().count(), whole.lines().count()))
}

/// A recording that pauses now and then has nothing that did not happen, in the order in which it
/// happened, and goes on after each pause.
#[test]
fn a_recording_that_pauses_is_a_part_of_the_whole() {
    let mut tally = Tally::start("a_recording_that_pauses_is_a_part_of_the_whole");
    const SOME: [&str; 4] =
        ["asm/jump_tables.pie", "c/signals.pie", "c/generated_pages.pie", "gzip"];
    for (name, spec) in programs(&mut tally).into_iter().filter(|p| SOME.contains(&p.0.as_str())) {
        let dir = tempfile::tempdir().unwrap();
        let native = spec.run(None, dir.path()).map_err(|e| e.to_string());
        for (translate, control_flow) in
            [("static", "tags"), ("dynamic", "tags"), ("static", "full-pc"), ("static", "bits")]
        {
            // Of the same size, so that the libraries lie at the same addresses.
            let record = |torture, name| {
                let flags = ["--torture", torture, "--translate", translate];
                let flags = [&flags[..], &["--control-flow", control_flow]].concat();
                record(&spec, &flags, dir.path(), name, &["memrefs"])
            };
            let check = || -> Result<(), String> {
                record("tiny-buffers", "reference")?;
                let run = record("tiny-buffers,pauses", "paused")?;
                difference(native.as_ref().map_err(Clone::clone)?, &run)?;
                let [part, whole] =
                    ["paused.memrefs", "reference.memrefs"].map(|file| dir.path().join(file));
                let (part, whole) = among(&part, &whole)?;
                // Of a program that fills less than two chunks all is there.
                let paused = part * 10 < whole * 9;
                match part * 10 > whole && (paused || whole < 5000) {
                    true => Ok(()),
                    false => Err(format!("{part} of {whole} references: that is no pause")),
                }
            };
            tally.record(&format!("{name} {translate} {control_flow}"), check());
        }
    }
    tally.finish();
}

/// Whatever the format, a program that a timer interrupts anywhere leaves a trace that verifies.
#[test]
fn interrupted_anywhere_every_format_verifies() {
    let mut tally = Tally::start("interrupted_anywhere_every_format_verifies");
    let corpus = corpus();
    let timed = ["c/timer.pie", "c/timer_strings.pie", "c/restart.pie"];
    for case in corpus.iter().filter(|c| timed.contains(&c.name.as_str())) {
        let dir = tempfile::tempdir().unwrap();
        let native = spec(case).run(None, dir.path()).map_err(|e| e.to_string());
        for translate in ["static", "dynamic"] {
            for control_flow in ["tags", "full-pc", "bits"] {
                for buffers in [&[][..], &["--torture", "tiny-buffers"]] {
                    let mut flags = vec!["--translate", translate, "--control-flow", control_flow];
                    flags.extend(buffers);
                    let check = || -> Result<(), String> {
                        let run = record(&spec(case), &flags, dir.path(), "timed", &[])?;
                        difference(native.as_ref().map_err(Clone::clone)?, &run)
                    };
                    tally.record(&format!("{} {}", case.name, flags.join(" ")), check());
                }
            }
        }
    }
    tally.finish();
}

/// A program that would run for a long time.
fn endless() -> RunSpec {
    RunSpec::new("/usr/bin/awk").args(&["BEGIN { while (1) { i++; s = s % 1000003 + i } }"])
}

#[test]
fn kill9_leaves_valid_trace() {
    let mut tally = Tally::start("kill9_leaves_valid_trace");
    let tools = Tools::get();
    let dir = tempfile::tempdir().unwrap();
    for mode in [STATIC, DYNAMIC] {
        let rewritten = dir.path().join(mode.name);
        let rewrite = tools.rewrite_sharing(&endless().program, &rewritten, mode.flags);
        for milliseconds in [1, 3, 10, 30, 100, 300] {
            let check = || -> Result<(), String> {
                rewrite.clone()?;
                let mut spec = endless();
                spec.timeout = Duration::from_millis(milliseconds);
                let run = spec.run(Some(&rewritten), dir.path()).map_err(|e| e.to_string())?;
                if run.status != Status::Killed(9) {
                    return Err(format!("ended with {:?}", run.status));
                }
                // Killed before its first instruction was recorded, it may have left nothing.
                let Ok(trace) = first_trace(&run.traces) else {
                    return if milliseconds < 30 { Ok(()) } else { Err("no trace".into()) };
                };
                tools.verify(trace, &rewritten)?;
                let listing = dir.path().join("blocks");
                tools.list("blocks", trace, &rewritten, &listing)?;
                for trace in &run.traces {
                    std::fs::remove_file(trace).map_err(|e| e.to_string())?;
                }
                Ok(())
            };
            tally.record(&format!("{} after {milliseconds} ms", mode.name), check());
        }
    }
    tally.finish();
}

#[test]
fn no_page_writable_and_executable() {
    let mut tally = Tally::start("no_page_writable_and_executable");
    let tools = Tools::get();
    let dir = tempfile::tempdir().unwrap();
    for mode in [STATIC, DYNAMIC] {
        let check = || -> Result<(), String> {
            let rewritten = dir.path().join(mode.name);
            tools.rewrite_sharing(&endless().program, &rewritten, mode.flags)?;
            let (launch, _) =
                endless().launch(Some(&rewritten), dir.path()).map_err(|e| e.to_string())?;
            let pid = launch.start().map_err(|e| e.to_string())?;
            sys::detach(pid, 0).map_err(|e| e.to_string())?;
            let seen = watch_maps(pid, Duration::from_millis(800));
            sys::kill(pid, libc::SIGKILL);
            sys::wait(pid);
            let (looks, found) = seen?;
            if looks < 10 {
                return Err(format!("only {looks} looks at the mappings"));
            }
            if found.is_empty() {
                Ok(())
            } else {
                Err(found.join("\n"))
            }
        };
        tally.record(mode.name, check());
    }
    tally.finish();
}

/// Reads the mappings again and again; how often, and those that are writable and executable.
fn watch_maps(pid: sys::Pid, time: Duration) -> Result<(usize, Vec<String>), String> {
    let path = format!("/proc/{pid}/maps");
    let end = std::time::Instant::now() + time;
    let (mut looks, mut found, mut last) = (0, Vec::new(), String::new());
    while std::time::Instant::now() < end {
        let maps = std::fs::read_to_string(Path::new(&path)).map_err(|e| e.to_string())?;
        looks += 1;
        for line in maps.lines() {
            let perms = line.split_whitespace().nth(1).unwrap_or("");
            if perms.contains('w') && perms.contains('x') && found.len() < 10 {
                found.push(line.to_owned());
            }
        }
        last = maps;
    }
    // Nor is original code of libraries executable, once it has started. (The launcher hides the
    // vdso from the program, and so from the runtime.)
    let executable = last.lines().filter(|line| line.contains(".so") && line.contains(" r-x"));
    found.extend(executable.map(str::to_owned));
    Ok((looks, found))
}

/// SIGXFSZ for the trace's growth must not reach the program.
#[test]
fn file_size_limit_ends_the_recording_only() {
    let mut tally = Tally::start("file_size_limit_ends_the_recording_only");
    let tools = Tools::get();
    let dir = tempfile::tempdir().unwrap();
    let script = "ulimit -f 4096; i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; exit 7";
    let spec = RunSpec::new("/bin/dash").args(&["-c", script]);
    for mode in [STATIC, DYNAMIC] {
        let check = || -> Result<(), String> {
            let rewritten = dir.path().join(mode.name);
            tools.rewrite_sharing(&spec.program, &rewritten, mode.flags)?;
            let run = spec.run(Some(&rewritten), dir.path()).map_err(|e| e.to_string())?;
            let text = String::from_utf8_lossy(&run.stderr);
            if run.status != Status::Exited(7) || !text.contains("file size limit") {
                return Err(format!("ended with {:?}: {text}", run.status));
            }
            tools.verify(first_trace(&run.traces)?, &rewritten)
        };
        tally.record(mode.name, check());
    }
    tally.finish();
}
