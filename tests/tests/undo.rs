//! The undo log, written backwards over memory at the end, gives memory at the start.

mod common;

use std::path::Path;
use std::time::Duration;

use common::*;
use corpus::Case;
use tests::harness::{Outcomes, RunSpec, Tally, Tools};
use tests::sys::Status;
use tests::undone::{add_new_memory, apply, changed, compare, watch, Image};

/// What was checked of a run.
struct Checked {
    status: Status,
    stores: u64,
    /// Bytes that were compared, and how many of them the program had changed.
    bytes: u64,
    changed: u64,
    /// Bytes of which `dep` does not know who wrote last.
    unordered: usize,
}

/// Runs `spec` rewritten with `flags`, undoes it and compares. `None`: it ran another program.
fn undo(spec: &RunSpec, flags: &[&str], dir: &Path) -> Result<Option<Checked>, String> {
    const ATTEMPTS: usize = 10;
    for _ in 0..ATTEMPTS {
        match undo_once(spec, flags, dir)? {
            Outcome::Checked(checked) => return Ok(Some(checked)),
            Outcome::Replaced => return Ok(None),
            Outcome::CutOff => eprintln!("a thread was cut off; once more"),
        }
    }
    Err(format!("a thread was cut off each of {ATTEMPTS} times"))
}

enum Outcome {
    Checked(Checked),
    /// It ran another program.
    Replaced,
    /// It differs, but other threads were running when it ended: how far they came in their last
    /// units, nobody knows.
    CutOff,
}

/// Two races of glibc that only a program with threads sees: the lazy binding of a symbol, whose
/// slot and whose counters several threads write, and a hint about where the next heap may lie.
const WITHOUT_RACES: [(&str, &str); 2] =
    [("LD_BIND_NOW", "1"), ("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")];
/// Words that threads may write without an order between them all the same.
const MOST_RACES: usize = 2;

/// The address of the 8 bytes that a warning of `dep undo` says it has no order for.
fn unordered_word(line: &str) -> Option<u64> {
    let (before, _) = line.split_once(" without an order between them")?;
    u64::from_str_radix(before.rsplit_once("0x")?.1, 16).ok()
}

fn undo_once(spec: &RunSpec, flags: &[&str], dir: &Path) -> Result<Outcome, String> {
    let tools = Tools::get();
    let rewritten = dir.join("rewritten");
    tools.rewrite_sharing(&spec.program, &rewritten, flags)?;
    let image = Image::read(&spec.program).map_err(|e| e.to_string())?;
    let (mut launch, run) = spec.launch(Some(&rewritten), dir).map_err(|e| e.to_string())?;
    launch.env.extend(WITHOUT_RACES.map(|(name, value)| (name.into(), value.into())));
    let seen = watch(&launch, &image, Duration::from_secs(60)).map_err(|e| e.to_string())?;
    let traces = RunSpec::traces(dir, run).map_err(|e| e.to_string())?;
    let Some(seen) = seen else { return Ok(Outcome::Replaced) };
    let trace = first_trace(&traces)?;
    tools.verify(trace, &rewritten)?;
    let listing = dir.join("undo");
    let said = tools.list_with("undo", &["--backwards"], trace, &rewritten, &listing)?;
    let (mut before, mut memory) = (seen.before, seen.after);
    let calls = dir.join("calls");
    tools.list("syscalls", trace, &rewritten, &calls)?;
    add_new_memory(&calls, &mut before).map_err(|e| e.to_string())?;
    let changed = changed(&before, &memory);
    let mut undone = apply(&listing, &mut memory).map_err(|e| e.to_string())?;
    let said: Vec<_> = said.lines().collect();
    let races: Vec<u64> = said.iter().filter_map(|line| unordered_word(line)).collect();
    let unordered = races.len();
    if unordered > MOST_RACES {
        return Err(format!("{unordered} words without an order\n{}", said.join("\n")));
    }
    // The log says of these words that it does not know.
    undone.lost.extend(races.into_iter().map(|at| (at..at + 8, "unordered".into())));
    let bytes = compare(&before, &memory, &undone.lost);
    if bytes.is_err() && seen.cut_off {
        return Ok(Outcome::CutOff);
    }
    let bytes = bytes.map_err(|e| format!("{e}\n{}", said[..said.len().min(8)].join("\n")))?;
    for trace in &traces {
        std::fs::remove_file(trace).map_err(|e| e.to_string())?;
    }
    if bytes == 0 || (undone.stores == 0) != (changed == 0) {
        return Err(format!("{} stores changed {changed} of {bytes} bytes", undone.stores));
    }
    let stores = undone.stores;
    let status = seen.status;
    Ok(Outcome::Checked(Checked { status, stores, bytes, changed, unordered }))
}

/// Checks one program in one way, and tells the outcomes.
fn record(
    outcomes: &mut Outcomes,
    name: &str,
    spec: &RunSpec,
    flags: &[&str],
    end: Option<Status>,
) {
    let dir = tempfile::tempdir().unwrap();
    let outcome = match undo(spec, flags, dir.path()) {
        Ok(None) => return outcomes.skip(name, "it runs another program in its place"),
        Ok(Some(Checked { status, stores, bytes, changed, unordered })) => {
            eprintln!(
                "{name}: {stores} stores, {changed} of {bytes} bytes changed, {unordered} unordered"
            );
            let right = end.is_none_or(|end| end == status);
            right.then_some(()).ok_or_else(|| format!("ended with {status:?}, not {end:?}"))
        }
        Err(why) => Err(why),
    };
    outcomes.record(name, outcome);
}

#[test]
fn corpus_is_undone() {
    let mut tally = Tally::start("corpus_is_undone");
    let names: Vec<String> = corpus().iter().map(|case| case.name.clone()).collect();
    let cases: Vec<(usize, Case)> = corpus().into_iter().enumerate().collect();
    tally.side_by_side(&cases, |outcomes, (number, case)| {
        if let Some(why) = case.skip_reason_in("undo") {
            return outcomes.skip(&case.name, &why);
        }
        // Code that is translated when it runs is the same code however the program was linked.
        let is_again = is_variant(case, &names);
        if is_again && number % 6 != 0 && !every_way() {
            return outcomes
                .skip(&case.name, "another variant is undone (WAYS=all: this one, too)");
        }
        // Code of both kinds is made by the same translator: half of the programs show that.
        let is_both = every_way() || program_number(&case.name).is_multiple_of(2);
        let modes = [UNDO_STATIC, UNDO_DYNAMIC];
        for mode in modes.iter().take(1 + usize::from(!is_again && is_both)) {
            let name = format!("{} {}", case.name, mode.name);
            let end = case.refused.is_none().then(|| status(case.end));
            record(outcomes, &name, &spec(case), mode.flags, end);
        }
    });
    tally.finish();
}

/// A few of each kind, for what is checked in many ways.
const CASES: [&str; 9] = [
    "asm/strings.static",
    "asm/low_stack.static",
    "asm/atomics.pie",
    "asm/avx512.static",
    "asm/own_vector.static",
    "c/signals.pie",
    "c/store_faults.static",
    "c/libc_mix.pie",
    "cpp/exceptions.pie",
];

/// However the log is kept, it leads back.
#[test]
fn every_way_of_recording_is_undone() {
    let mut tally = Tally::start("every_way_of_recording_is_undone");
    let ways: [&[&str]; 12] = [
        &["--dead-registers", "preserve"],
        &["--dead-registers", "preserve", "--translate", "dynamic"],
        &["--memory", "addresses"],
        &["--control-flow", "full-pc"],
        &["--pointers", "thread-block"],
        &["--pointers", "xmm15"],
        &["--pointers", "xmm15", "--torture", "spill,drop,tiny-buffers"],
        &["--pointers", "thread-block", "--translate", "dynamic"],
        &["--torture", "spill"],
        &["--torture", "drop"],
        &["--torture", "tiny-buffers"],
        &["--torture", "spill,drop,tiny-buffers", "--translate", "dynamic"],
    ];
    let chosen = |case: &Case| CASES.contains(&case.name.as_str());
    let cases: Vec<Case> = corpus().into_iter().filter(chosen).collect();
    tally.side_by_side(&cases, |outcomes, case| {
        if let Some(why) = case.skip_reason() {
            return outcomes.skip(&case.name, &why);
        }
        for way in ways {
            let flags = [&["--instrument", "undo"], way].concat();
            let name = format!("{} {}", case.name, way.join(" "));
            record(outcomes, &name, &spec(case), &flags, Some(status(case.end)));
        }
    });
    tally.finish();
}

#[test]
fn real_programs_are_undone() {
    let mut tally = Tally::start("real_programs_are_undone");
    let text: Vec<u8> =
        (0..2000).flat_map(|i| format!("line {i} {}\n", i * i).into_bytes()).collect();
    let sql = "create table t(a integer primary key, b text); \
        with recursive c(x) as (select 1 union all select x+1 from c where x<100) \
        insert into t select x, 'row ' || x from c; select count(*), sum(a), max(b) from t;";
    let perl = "my %h; $h{$_ % 17} .= chr(65 + $_ % 26) for 1..500; print %h";
    let programs = [
        ("gzip", RunSpec::new("/usr/bin/gzip").args(&["-nc"]).stdin(&text)),
        ("sqlite3", RunSpec::new("/usr/bin/sqlite3").args(&[":memory:", sql])),
        ("perl", RunSpec::new("/usr/bin/perl").args(&["-e", perl])),
        ("ls", RunSpec::new("/bin/ls").args(&["-l", "/usr"])),
    ];
    tally.side_by_side(&programs, |outcomes, (name, spec)| {
        if !spec.program.exists() {
            return outcomes.skip(name, "it is not installed");
        }
        for mode in [UNDO_STATIC, UNDO_DYNAMIC] {
            let end = Some(Status::Exited(0));
            record(outcomes, &format!("{name} {}", mode.name), spec, mode.flags, end);
        }
    });
    tally.finish();
}

/// Rewrites, runs and lists; returns what the program said on stderr, its trace, and the listing
/// without what differs from run to run: thread numbers and values (ld.so reads the time).
fn listing(
    spec: &RunSpec,
    flags: &[&str],
    dir: &Path,
) -> Result<(String, std::path::PathBuf, Vec<String>), String> {
    let tools = Tools::get();
    let rewritten = dir.join("rewritten");
    tools.rewrite_sharing(&spec.program, &rewritten, flags)?;
    let run = spec.run(Some(&rewritten), dir).map_err(|e| e.to_string())?;
    if run.status != Status::Exited(0) {
        return Err(format!("ended with {:?}", run.status));
    }
    let trace = first_trace(&run.traces)?.to_owned();
    tools.verify(&trace, &rewritten)?;
    let to = dir.join("listing");
    tools.list("undo", &trace, &rewritten, &to)?;
    let text = std::fs::read_to_string(&to).map_err(|e| e.to_string())?;
    let line = |l: &str| l.split(' ').skip(1).take(3).collect::<Vec<_>>().join(" ");
    let lines = text.lines().map(line).collect();
    Ok((String::from_utf8_lossy(&run.stderr).into_owned(), trace, lines))
}

/// Blocks of the file system, in bytes.
fn on_disk(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).map_or(u64::MAX, |m| 512 * m.blocks())
}

/// What is kept of a log that is limited: its start, or in a ring its end, and never more than it
/// may be.
#[test]
fn limited_logs_are_parts_of_the_whole() {
    let mut tally = Tally::start("limited_logs_are_parts_of_the_whole");
    const SIZE: u64 = 1 << 20;
    /// Descriptions of units, and the frame of the process.
    const BESIDES: u64 = 1 << 20;
    let size = SIZE.to_string();
    let text: Vec<u8> =
        (0..3000).flat_map(|i| format!("line {i} {}\n", i * i).into_bytes()).collect();
    let spec = RunSpec::new("/usr/bin/gzip").args(&["-nc"]).stdin(&text);
    for mode in [UNDO_STATIC, UNDO_DYNAMIC] {
        let dir = tempfile::tempdir().unwrap();
        let all = listing(&spec, mode.flags, dir.path());
        let full = || -> Result<(), String> {
            let (_, _, all) = all.as_ref().map_err(Clone::clone)?;
            let flags = [mode.flags, &["--log-size", &size]].concat();
            let (said, trace, lines) = listing(&spec, &flags, dir.path())?;
            let (last, rest) = lines.split_last().ok_or("nothing is listed")?;
            if said.matches("the log is full").count() != 1 || last != "recording stopped: log" {
                return Err(format!("it said {said:?}, and last: {last}"));
            }
            if on_disk(&trace) > SIZE + BESIDES || !all.starts_with(rest) || rest.len() < 1000 {
                return Err(format!("{} bytes, {} lines", on_disk(&trace), rest.len()));
            }
            Ok(())
        };
        tally.record(&format!("full {}", mode.name), full());
        let ring = || -> Result<(), String> {
            let (_, _, all) = all.as_ref().map_err(Clone::clone)?;
            let flags = [mode.flags, &["--log-size", &size, "--ring"]].concat();
            let (said, trace, lines) = listing(&spec, &flags, dir.path())?;
            if !said.is_empty() || on_disk(&trace) > SIZE + BESIDES {
                return Err(format!("{} bytes, said {said:?}", on_disk(&trace)));
            }
            let (first, lines) = lines.split_first().ok_or("nothing is listed")?;
            if first != "forgotten what it" {
                return Err(format!("its first line is {first}"));
            }
            if !all.ends_with(lines) || lines.len() < 1000 || lines.len() == all.len() {
                return Err(format!("{} lines of {}", lines.len(), all.len()));
            }
            Ok(())
        };
        tally.record(&format!("ring {}", mode.name), ring());
    }
    tally.finish();
}
