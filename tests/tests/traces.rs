//! What must hold of traces and of the running process, whatever the program.

mod common;

use std::path::Path;
use std::time::Duration;

use common::*;
use tests::harness::{Mode, RunSpec, Tally, Tools};
use tests::sys::{self, Status};

/// Every way of recording, with listings that are complete in it.
const FORMATS: [Mode; 6] = [
    Mode { name: "tags-registers", flags: &["--control-flow", "tags", "--memory", "registers"] },
    Mode { name: "tags-addresses", flags: &["--control-flow", "tags", "--memory", "addresses"] },
    Mode {
        name: "full-pc-registers",
        flags: &["--control-flow", "full-pc", "--memory", "registers"],
    },
    Mode {
        name: "full-pc-addresses",
        flags: &["--control-flow", "full-pc", "--memory", "addresses"],
    },
    Mode { name: "bits-registers", flags: &["--control-flow", "bits", "--memory", "registers"] },
    Mode { name: "bits-addresses", flags: &["--control-flow", "bits", "--memory", "addresses"] },
];

/// Those that the formats are compared on: one of each kind of program.
const CASES: [&str; 8] = [
    "asm/jump_tables.pie",
    "asm/strings.static",
    "asm/avx2.pie",
    "c/setjmp.pie",
    "c/switches.pie",
    "c/libc_mix.pie",
    "c/signals.pie",
    "cpp/exceptions.pie",
];

#[test]
fn formats_agree() {
    let mut tally = Tally::default();
    let tools = match Tools::find() {
        Ok(tools) => tools,
        Err(why) => {
            tally.skip("everything", &why);
            return tally.finish("formats_agree");
        }
    };
    for case in corpus().into_iter().filter(|c| CASES.contains(&c.name.as_str())) {
        if let Some(why) = case.skip_reason() {
            tally.skip(&case.name, &why);
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let listings = |mode: Mode| -> Result<(), String> {
            let rewritten = dir.join(mode.name);
            tools.rewrite(&case.path, &rewritten, mode)?;
            let run = spec(&case).run(Some(&rewritten), dir).map_err(|e| e.to_string())?;
            let trace = first_trace(&run.traces)?;
            for what in ["memrefs", "blocks"] {
                tools.list(what, trace, &rewritten, &dir.join(format!("{}.{what}", mode.name)))?;
            }
            Ok(())
        };
        let reference = FORMATS[0];
        for mode in FORMATS {
            let check = || -> Result<(), String> {
                listings(mode)?;
                for what in ["memrefs", "blocks"] {
                    let file = |m: Mode| dir.join(format!("{}.{what}", m.name));
                    same_listing(&file(reference), &file(mode), None, false)
                        .map_err(|e| format!("{what}: {e}"))?;
                }
                Ok(())
            };
            tally.record(&format!("{} {}", case.name, mode.name), check());
        }
    }
    tally.finish("formats_agree");
}

/// A program that would run for a long time.
fn endless() -> RunSpec {
    RunSpec::new("/usr/bin/awk").args(&["BEGIN { while (1) { i++; s = s % 1000003 + i } }"])
}

#[test]
fn kill9_leaves_valid_trace() {
    let mut tally = Tally::default();
    let tools = match Tools::find() {
        Ok(tools) => tools,
        Err(why) => {
            tally.skip("everything", &why);
            return tally.finish("kill9_leaves_valid_trace");
        }
    };
    let dir = tempfile::tempdir().unwrap();
    for mode in [STATIC, DYNAMIC] {
        let rewritten = dir.path().join(mode.name);
        let rewrite = tools.rewrite(&endless().program, &rewritten, mode);
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
    tally.finish("kill9_leaves_valid_trace");
}

#[test]
fn no_page_writable_and_executable() {
    let mut tally = Tally::default();
    let tools = match Tools::find() {
        Ok(tools) => tools,
        Err(why) => {
            tally.skip("everything", &why);
            return tally.finish("no_page_writable_and_executable");
        }
    };
    let dir = tempfile::tempdir().unwrap();
    for mode in [STATIC, DYNAMIC] {
        let check = || -> Result<(), String> {
            let rewritten = dir.path().join(mode.name);
            tools.rewrite(&endless().program, &rewritten, mode)?;
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
    tally.finish("no_page_writable_and_executable");
}

/// Reads the mappings again and again; how often, and those that are writable and executable.
fn watch_maps(pid: sys::Pid, time: Duration) -> Result<(usize, Vec<String>), String> {
    let path = format!("/proc/{pid}/maps");
    let end = std::time::Instant::now() + time;
    let (mut looks, mut found) = (0, Vec::new());
    while std::time::Instant::now() < end {
        let maps = std::fs::read_to_string(Path::new(&path)).map_err(|e| e.to_string())?;
        looks += 1;
        for line in maps.lines() {
            let perms = line.split_whitespace().nth(1).unwrap_or("");
            if perms.contains('w') && perms.contains('x') && found.len() < 10 {
                found.push(line.to_owned());
            }
        }
    }
    Ok((looks, found))
}
