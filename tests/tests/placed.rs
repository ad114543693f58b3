//! Position-independent programs that the kernel does not put at the start of a window, as Linux
//! before 6.10 does not: the runtime moves them.

mod common;

use std::path::Path;
use std::process::Command;

use common::*;
use tests::harness::{difference, is_refused, Mode, RunSpec, Tally, Tools};

const MISPLACED: [&str; 2] = ["--torture", "misplaced"];

/// A ring, in which old chunks give way to new ones.
const RING: Mode = Mode { name: "static-ring", flags: &["--ring", "--log-size", "262144"] };

const MODES: [Mode; 5] = [STATIC, DYNAMIC, STATIC_NONE, UNDO_STATIC, RING];

const WINDOW: u64 = 1 << 32;

/// Whether a program is position-independent.
fn is_pie(path: &Path) -> bool {
    const ET_DYN: u8 = 3;
    std::fs::read(path).is_ok_and(|bytes| bytes.get(16) == Some(&ET_DYN))
}

/// What it does natively it does misplaced, and it leaves a trace that verifies.
fn same_behaviour(spec: &RunSpec, mode: Mode, refused: bool, dir: &Path) -> Result<(), String> {
    let tools = Tools::get();
    let rewritten = dir.join(mode.name);
    tools.rewrite_sharing(&spec.program, &rewritten, &[&MISPLACED, mode.flags].concat())?;
    let run = |file| spec.run(file, dir).map_err(|e| e.to_string());
    let misplaced = run(Some(rewritten.as_path()))?;
    if refused {
        return is_refused(&misplaced);
    }
    difference(&run(None)?, &misplaced)?;
    if mode == STATIC_NONE {
        return Ok(());
    }
    let verified = tools.verify(first_trace(&misplaced.traces)?, &rewritten);
    for trace in misplaced.traces {
        std::fs::remove_file(trace).map_err(|e| e.to_string())?;
    }
    verified
}

#[test]
fn misplaced_corpus_same_behaviour() {
    let mut tally = Tally::start("misplaced_corpus_same_behaviour");
    let names: Vec<String> = corpus().iter().map(|case| case.name.clone()).collect();
    let cases: Vec<_> = corpus().into_iter().enumerate().collect();
    tally.side_by_side(&cases, |outcomes, (number, case)| {
        let fixed = (!is_pie(&case.path)).then(|| "at fixed addresses".to_owned());
        if let Some(why) = case.skip_reason().or(fixed) {
            return outcomes.skip(&case.name, &why);
        }
        let dir = tempfile::tempdir().unwrap();
        // Two in turn for the variants of a program that is tried in all.
        let is_again = is_variant(case, &names);
        let modes = match is_again && !every_way() {
            true => vec![MODES[number % MODES.len()], MODES[(number + 1) % MODES.len()]],
            false => MODES.to_vec(),
        };
        for mode in modes {
            let outcome = same_behaviour(&spec(case), mode, case.refused.is_some(), dir.path());
            outcomes.record(&format!("{} {}", case.name, mode.name), outcome);
        }
    });
    tally.finish();
}

#[test]
fn misplaced_real_programs_same_behaviour() {
    let mut tally = Tally::start("misplaced_real_programs_same_behaviour");
    let text: Vec<u8> = (0..20000).flat_map(|i| format!("line {i}\n").into_bytes()).collect();
    let sql = "create table t(a integer primary key, b text); \
        with recursive c(x) as (select 1 union all select x+1 from c where x<300) \
        insert into t select x, 'row ' || x from c; select count(*), sum(a), max(b) from t;";
    let perl = "my %h; $h{$_ % 17} .= chr(65 + $_ % 26) for 1..2000; \
        print \"$_ $h{$_}\\n\" for sort keys %h;";
    let shell =
        "x=$(echo sub | tr a-z A-Z); trap 'echo trap' EXIT; for i in {1..50}; do s+=$i; done; \
        echo ${#s} $x; exec true";
    for spec in [
        RunSpec::new("/usr/bin/gzip").args(&["-9", "-nc"]).stdin(&text),
        RunSpec::new("/usr/bin/sqlite3").args(&[":memory:", sql]),
        RunSpec::new("/usr/bin/perl").args(&["-e", perl]),
        RunSpec::new("/bin/bash").args(&["-c", shell]),
    ] {
        let name = spec.program.display().to_string();
        if !spec.program.exists() {
            tally.skip(&name, "not installed");
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        for mode in MODES {
            let outcome = same_behaviour(&spec, mode, false, dir.path());
            tally.record(&format!("{name} {}", mode.name), outcome);
        }
    }
    tally.finish();
}

/// Where a rewritten `cat` finds itself: the first mapping of its file that is none of the look-up tables.
fn place(cat: &Path, before: &[&str]) -> Result<u64, String> {
    let mut words = before.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    words.extend([cat.display().to_string(), "/proc/self/maps".to_owned()]);
    let run = Command::new(&words[0]).args(&words[1..]).env("DEP_FILE", "null:").output();
    let run = run.map_err(|e| format!("{}: {e}", words[0]))?;
    let text = String::from_utf8_lossy(&run.stdout);
    let lines = text.lines().filter(|line| line.ends_with(&cat.display().to_string()));
    let mut starts = lines.filter_map(|line| u64::from_str_radix(line.split('-').next()?, 16).ok());
    let address = starts.find(|start| !abi::layout::tables(true).contains(start));
    address.ok_or_else(|| format!("{:?}: {}", run.status, String::from_utf8_lossy(&run.stderr)))
}

/// The place is the start of a window, as random as the kernel's own choice, wherever that is.
#[test]
fn moved_programs_lie_where_the_kernel_might_put_them() {
    let mut tally = Tally::start("moved_programs_lie_where_the_kernel_might_put_them");
    let dir = tempfile::tempdir().unwrap();
    let cat = dir.path().join("cat");
    Tools::get().rewrite(Path::new("/bin/cat"), &cat, &MISPLACED).expect("an output");
    let aligned = |before: &[&str]| match place(&cat, before)? {
        at if at % WINDOW == 0 => Ok(at),
        at => Err(format!("at {at:#x}, which is no window's start")),
    };
    for (name, before) in [
        ("as it is", vec![]),
        ("layout of old", vec!["setarch", "--addr-compat-layout"]),
        ("no end of the stack", vec!["prlimit", "--stack=unlimited"]),
        // The kernel itself needs room for all of the image, at once.
        ("limited address space", vec!["prlimit", "--as=4000000000"]),
    ] {
        tally.record(name, aligned(&before).map(drop));
    }
    let fixed = || -> Result<(), String> {
        let [first, second] = [(); 2].map(|()| aligned(&["setarch", "--addr-no-randomize"]));
        match (first?, second?) {
            (first, second) if first == second => Ok(()),
            (first, second) => Err(format!("at {first:#x}, then at {second:#x}")),
        }
    };
    tally.record("without randomness", fixed());
    let random = || -> Result<(), String> {
        let first = aligned(&[])?;
        // One of at least 256 windows: all the same by chance in one of 10^38 runs.
        for _ in 0..16 {
            if aligned(&[])? != first {
                return Ok(());
            }
        }
        Err(format!("always at {first:#x}"))
    };
    match std::fs::read_to_string("/proc/sys/kernel/randomize_va_space") {
        Ok(text) if text.trim() != "0" => tally.record("random", random()),
        _ => tally.skip("random", "this system places nothing at random"),
    }
    tally.finish();
}

/// What a process maps in a program that shows it, with a limit of its stack and nothing at random: from where,
/// to where, and the rest of the line.
fn maps(cat: &Path, stack: u64) -> Result<Vec<(u64, u64, String)>, String> {
    let mut run = Command::new("prlimit");
    run.arg(format!("--stack={stack}")).args(["setarch", "--addr-no-randomize"]);
    let run = run.arg(cat).arg("/proc/self/maps").env("DEP_FILE", "null:").output();
    let run = run.map_err(|e| format!("prlimit: {e}"))?;
    if !run.status.success() {
        return Err(format!("{:?}: {}", run.status, String::from_utf8_lossy(&run.stderr)));
    }
    let piece = |line: &str| {
        let (start, rest) = line.split_once('-')?;
        let (end, rest) = rest.split_once(' ')?;
        let number = |word| u64::from_str_radix(word, 16).ok();
        Some((number(start)?, number(end)?, rest.to_owned()))
    };
    Ok(String::from_utf8_lossy(&run.stdout).lines().filter_map(piece).collect())
}

/// The kernel places the vdso into a gap between the parts of an output where that is the highest free place. The
/// gap is kept free nevertheless: a replay has code of its own there.
#[test]
fn nothing_lies_among_what_was_added() {
    const LIMIT: u64 = 256 << 20;
    const PAGE: u64 = 4096;
    let mut tally = Tally::start("nothing_lies_among_what_was_added");
    let dir = tempfile::tempdir().unwrap();
    let native = maps(Path::new("/bin/cat"), LIMIT).expect("what cat maps");
    // The limit says how far below the stack the kernel begins.
    let stack = native.iter().find(|(.., rest)| rest.ends_with("[stack]")).expect("a stack").0;
    let below = native.iter().filter(|(_, end, _)| *end <= stack).map(|piece| piece.1).max();
    let highest = below.expect("what lies below the stack");
    for (name, flags) in [
        ("inputs", ["--instrument", "inputs"]),
        ("none", ["--instrument", "none"]),
        ("profile", ["--instrument", "dep"]),
    ] {
        let cat = dir.path().join(name);
        Tools::get().rewrite(Path::new("/bin/cat"), &cat, &flags).expect("an output");
        let file = cat.display().to_string();
        let own = |pieces: &[(u64, u64, String)]| -> (u64, u64) {
            let tables = abi::layout::tables(true);
            let own = pieces.iter().filter(|(start, _, rest)| {
                let start = *start;
                rest.ends_with(&file)
                    && !tables.contains(&start)
                    && (abi::layout::ADDED_PIE..abi::layout::ADDED_PIE + (16 << 20))
                        .contains(&(start % WINDOW))
            });
            let own: Vec<_> = own.collect();
            let first = own.iter().map(|piece| piece.0).min().unwrap_or(0);
            let end = own.iter().map(|piece| piece.1).max().unwrap_or(0);
            // Zeros at the end of the last part have no name.
            let zeros =
                pieces.iter().find(|(start, _, rest)| *start == end && rest.starts_with("rw"));
            (first, zeros.map_or(end, |piece| piece.1))
        };
        let check = |pages: u64, len: u64| -> Result<(), String> {
            let begins = (highest - WINDOW) / WINDOW * WINDOW + abi::layout::ADDED_PIE + len;
            let pieces = maps(&cat, LIMIT + (highest - begins) - pages * PAGE)?;
            let (first, end) = own(&pieces);
            if end == 0 {
                return Err("the parts of the output are not among what is mapped".into());
            }
            let mut next = first;
            for (start, to, rest) in pieces.iter().filter(|p| (first..end).contains(&p.0)) {
                let is_ours = rest.ends_with(&file) || rest.split_whitespace().count() == 4;
                if *start != next || !is_ours {
                    return Err(format!("{pages} pages: {next:#x} to {start:#x}, {rest}"));
                }
                next = *to;
            }
            Ok(())
        };
        let outcome = || -> Result<(), String> {
            let (first, end) = own(&maps(&cat, LIMIT)?);
            // The vdso and its data are some eight pages.
            (0..12).step_by(2).try_for_each(|pages| check(pages, end - first))
        };
        tally.record(name, outcome());
    }
    tally.finish();
}

/// Debuggers are told where the program lies: the kernel's auxiliary vector names places in it.
#[test]
fn the_kernel_knows_where_a_moved_program_lies() {
    const AT_PHDR: u64 = 3;
    const AT_ENTRY: u64 = 9;
    let mut tally = Tally::start("the_kernel_knows_where_a_moved_program_lies");
    let dir = tempfile::tempdir().unwrap();
    let cat = dir.path().join("cat");
    Tools::get().rewrite(Path::new("/bin/cat"), &cat, &MISPLACED).expect("an output");
    let check = || -> Result<(), String> {
        // Without randomness it lies at one place in both runs.
        let fixed = ["setarch", "--addr-no-randomize"];
        let window = place(&cat, &fixed)?;
        let mut run = Command::new(fixed[0]);
        run.arg(fixed[1]).arg(&cat).arg("/proc/self/auxv").env("DEP_FILE", "null:");
        let words = run.output().map_err(|e| e.to_string())?.stdout;
        let words: Vec<u64> = words
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
            .collect();
        for kind in [AT_PHDR, AT_ENTRY] {
            let entry = words.chunks_exact(2).find(|entry| entry[0] == kind);
            let value = entry.ok_or_else(|| format!("no entry {kind}"))?[1];
            if value / WINDOW * WINDOW != window {
                return Err(format!("entry {kind} is {value:#x}, the program at {window:#x}"));
            }
        }
        Ok(())
    };
    tally.record("cat", check());
    tally.finish();
}

/// What copies and strips an output keeps what the move needs.
#[test]
fn stripped_misplaced_programs_start() {
    let mut tally = Tally::start("stripped_misplaced_programs_start");
    let dir = tempfile::tempdir().unwrap();
    let cat = dir.path().join("cat");
    Tools::get().rewrite(Path::new("/bin/cat"), &cat, &MISPLACED).expect("an output");
    for tool in ["strip", "eu-strip", "objcopy"] {
        let stripped = dir.path().join(tool);
        let made = match tool {
            "objcopy" => Command::new(tool).arg(&cat).arg(&stripped).output(),
            _ => Command::new(tool).arg("-o").arg(&stripped).arg(&cat).output(),
        };
        match made {
            Err(_) => tally.skip(tool, "not installed"),
            Ok(_) => tally.record(tool, place(&stripped, &[]).map(drop)),
        }
    }
    tally.finish();
}

/// A recording of inputs keeps everything between its own parts and its code cache free, wherever the kernel has placed
/// the vdso: the output of a replay is longer, and its cache lies behind it.
#[test]
fn recordings_leave_room_for_their_replays() {
    const LIMIT: u64 = 256 << 20;
    let mut tally = Tally::start("recordings_leave_room_for_their_replays");
    let dir = tempfile::tempdir().unwrap();
    let cat = dir.path().join("cat");
    Tools::get()
        .rewrite(Path::new("/bin/cat"), &cat, &["--instrument", "inputs"])
        .expect("an output");
    let native = maps(Path::new("/bin/cat"), LIMIT).expect("what cat maps");
    let stack = native.iter().find(|(.., rest)| rest.ends_with("[stack]")).expect("a stack").0;
    let below = native.iter().filter(|(_, end, _)| *end <= stack).map(|piece| piece.1).max();
    let highest = below.expect("what lies below the stack");
    let file = cat.display().to_string();
    let cache = abi::layout::ARENA_END - abi::layout::ARENA_LEN;
    let check = |offset: u64| -> Result<(), String> {
        let begins = (highest - WINDOW) / WINDOW * WINDOW + offset;
        let pieces = maps(&cat, LIMIT + (highest - begins))?;
        let own = pieces.iter().filter(|(start, _, rest)| {
            rest.ends_with(&file)
                && start % WINDOW < cache
                && start % WINDOW >= abi::layout::ADDED_PIE
        });
        let end = own.map(|piece| piece.1).max().ok_or("no parts of the output are mapped")?;
        let window = end / WINDOW * WINDOW;
        // Behind the last part are its zeros.
        let among = pieces.iter().filter(|(start, ..)| (end + 1..window + cache).contains(start));
        for (start, to, rest) in among {
            if !rest.starts_with("---p") {
                return Err(format!("{start:#x} to {to:#x}, {rest}"));
            }
        }
        match pieces.iter().find(|(start, ..)| *start == window + cache) {
            Some((.., rest)) if rest.contains('x') => Ok(()),
            other => Err(format!("no code cache where it belongs: {other:?}")),
        }
    };
    for offset in [0x6200_0000, 0x7400_0000, 0x7900_0000, 0x8000_0000, 0x9000_0000, 0xd000_0000] {
        tally.record(&format!("{offset:#x}"), check(offset));
    }
    tally.finish();
}
