//! A recording that is switched on and off while the program runs: the program does not notice, and
//! what was recorded is, stretch by stretch, what was executed.
//!
//! SWITCHES=N switches N times on and off, in every way.

mod common;

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use abi::control;
use abi::image::{ImageHeader, MAGIC};
use abi::tables::{JumpTable, Tables};
use common::*;
use tests::harness::{Tally, Tools};
use tests::listing::{Kind, Record};
use tests::sys;

const WORKERS: usize = 4;

/// How often a program is switched on and off: one way shows that it may be often.
fn count(way: &Way) -> u64 {
    let given = std::env::var("SWITCHES").ok().and_then(|n| n.parse().ok());
    given.unwrap_or(if way.often { 1000 } else { 100 })
}

/// The program `c/switched`, which runs until its standard input ends.
struct Running {
    child: Child,
    trace: PathBuf,
    /// Where the array of each worker starts, by thread id.
    arrays: BTreeMap<u32, u64>,
}

impl Running {
    fn start(
        rewritten: &Path,
        dir: &Path,
        arguments: &[&str],
        env: &[(&str, &str)],
    ) -> Result<Running, String> {
        let trace = dir.join("switched.dep");
        let _ = std::fs::remove_file(&trace);
        let mut command = Command::new(rewritten);
        command.args(arguments).env("DEP_FILE", &trace).envs(env.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| e.to_string())?;
        let mut out = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut arrays = BTreeMap::new();
        while arrays.len() < WORKERS {
            let mut line = String::new();
            out.read_line(&mut line).map_err(|e| e.to_string())?;
            let mut words = line.split_whitespace().skip(1);
            let mut word = || words.next().ok_or(format!("not as expected: {line:?}"));
            let tid = word()?.parse().map_err(|_| "no thread id")?;
            let start = word()?.trim_start_matches("0x");
            arrays.insert(tid, u64::from_str_radix(start, 16).map_err(|e| e.to_string())?);
        }
        child.stdout = Some(out.into_inner());
        Ok(Running { child, trace, arrays })
    }

    /// Says `on`, `off` or `mark` to it; what `dep` answers.
    fn tell(&self, what: &[&str]) -> Result<serde_json::Value, String> {
        let mut dep = Command::new(&Tools::get().dep);
        dep.arg(what[0]).arg(self.child.id().to_string()).args(&what[1..]).arg("--json");
        let output = dep.output().map_err(|e| e.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        serde_json::from_slice(&output.stdout).map_err(|e| e.to_string())
    }

    /// What it says of itself to `dep`.
    fn says_off(&self) -> Result<bool, String> {
        let ours = format!("/memfd:{} (deleted)", control::NAME);
        let folder = std::fs::read_dir(format!("/proc/{}/fd", self.child.id()));
        let mut files = folder.map_err(|e| e.to_string())?.filter_map(Result::ok);
        let is_ours = |path: &Path| std::fs::read_link(path).is_ok_and(|to| to == Path::new(&ours));
        let page = files.find(|file| is_ours(&file.path())).ok_or("it has no control page")?;
        let page = std::fs::File::open(page.path()).map_err(|e| e.to_string())?;
        let mut word = [0; 4];
        page.read_exact_at(&mut word, control::at::OFF).map_err(|e| e.to_string())?;
        Ok(word != [0; 4])
    }

    fn finish(mut self) -> Result<(PathBuf, BTreeMap<u32, u64>), String> {
        drop(self.child.stdin.take());
        let mut text = String::new();
        for pipe in [
            self.child.stdout.take().map(|p| Box::new(p) as Box<dyn Read>),
            self.child.stderr.take().map(|p| Box::new(p) as Box<dyn Read>),
        ] {
            pipe.ok_or("no pipe")?.read_to_string(&mut text).map_err(|e| e.to_string())?;
        }
        let status = self.child.wait().map_err(|e| e.to_string())?;
        match status.success() && text == "all as it should be\n" {
            true => Ok((self.trace, self.arrays)),
            false => Err(format!("{status}: {text}")),
        }
    }
}

/// What one worker has recorded: elements are read and written in turn, each at an address of its own.
/// Returns how often something is left out; the error says what is out of turn.
fn gaps_of(
    trace: &Path,
    rewritten: &Path,
    tid: u32,
    start: u64,
    len: u64,
) -> Result<(u64, u64), String> {
    let mut dep = Command::new(&Tools::get().dep);
    dep.args(["memrefs", "--thread", &tid.to_string(), "--output"]).arg(rewritten).arg(trace);
    let mut child = dep.stdout(Stdio::piped()).spawn().map_err(|e| e.to_string())?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("no output")?);
    let mut pcs: HashMap<(u64, bool), u64> = HashMap::new();
    let (mut at, mut gaps, mut seen) = (None, 0, 0);
    // There are tens of millions of lines.
    let mut line = String::new();
    while lines.read_line(&mut line).map_err(|e| e.to_string())? != 0 {
        let record = Record::parse(&line).ok_or_else(|| format!("a line {line}"))?;
        let memref = record.memref.ok_or_else(|| format!("a line {line}"))?;
        if (start..start + 8 * len).contains(&memref.addr) {
            let reads = memref.kind == Kind::Read;
            *pcs.entry((record.pc, reads)).or_default() += 1;
            // Element n is read, and then element n + 1 is written.
            let n = (memref.addr - start) / 8;
            let place = if reads { 2 * n } else { 2 * n - 1 };
            gaps += u64::from(at.is_some_and(|at| place != at + 1));
            if at.is_some_and(|at| place <= at) {
                return Err(format!("thread {tid}: {line}: element {n} again, behind {at:?}"));
            }
            (at, seen) = (Some(place), seen + 1);
        }
        line.clear();
    }
    if !child.wait().map_err(|e| e.to_string())?.success() {
        return Err("dep memrefs has failed".to_owned());
    }
    if pcs.len() > 2 {
        return Err(format!("one instruction reads and one writes: {pcs:?}"));
    }
    Ok((gaps, seen))
}

struct Way {
    name: &'static str,
    flags: &'static [&'static str],
    /// Signals come in, too.
    signals: bool,
    often: bool,
    /// What else leaves gaps.
    has_other_gaps: bool,
}

/// Notes how long each took.
fn switch_on_and_off(
    running: &Running,
    count: u64,
    times: &mut [Vec<u64>; 2],
) -> Result<(), String> {
    running.tell(&["off"])?;
    for n in 0..count {
        for (command, times) in ["on", "off"].into_iter().zip(&mut *times) {
            let answer = running.tell(&[command])?;
            if answer["done"] != true || answer["already"] != false {
                return Err(format!("{n}: {command}: {answer}"));
            }
            times.push(answer["nanoseconds"].as_u64().ok_or("no time")?);
        }
    }
    Ok(())
}

fn switches_are_sound(program: &Path, dir: &Path, way: &Way) -> Result<String, String> {
    const LENGTH: u64 = 4 << 20;
    let count = count(way);
    let rewritten = dir.join(format!("switched.{}", way.name));
    Tools::get().rewrite_sharing(program, &rewritten, way.flags)?;
    let length = LENGTH.to_string();
    let signals = if way.signals { "signals" } else { "none" };
    let running = Running::start(&rewritten, dir, &[&length, signals], &[])?;
    let mut times: [Vec<u64>; 2] = Default::default();
    let answered = switch_on_and_off(&running, count, &mut times);
    if answered.is_err() {
        // What the program says is more to the point.
        running.finish()?;
        return answered.map(|()| String::new());
    }
    running.tell(&["mark", "the last one"])?;
    let (trace, arrays) = running.finish()?;
    Tools::get().verify(&trace, &rewritten)?;
    let mut seen = 0;
    for (tid, start) in arrays {
        let (gaps, elements) = gaps_of(&trace, &rewritten, tid, start, LENGTH)?;
        if gaps > count && !way.has_other_gaps {
            return Err(format!("thread {tid}: {gaps} gaps for {count} switches"));
        }
        seen += elements;
    }
    if seen == 0 {
        return Err("nothing was recorded".to_owned());
    }
    let info = Command::new(&Tools::get().dep)
        .args(["info", "--json", "--output"])
        .arg(&rewritten)
        .arg(&trace)
        .output()
        .map_err(|e| e.to_string())?;
    let info: serde_json::Value =
        serde_json::from_slice(&info.stdout).map_err(|e| e.to_string())?;
    let listed = info["switches"].as_array().map_or(0, Vec::len) as u64;
    if listed != 2 * count + 1 || info["marks"][0]["text"] != "the last one" {
        return Err(format!("{listed} switches are listed, and marks {}", info["marks"]));
    }
    std::fs::remove_file(&trace).map_err(|e| e.to_string())?;
    std::fs::remove_file(&rewritten).map_err(|e| e.to_string())?;
    let median = times.map(|mut times| {
        times.sort_unstable();
        let at = |part: usize| times[(times.len() - 1) * part / 100] as f64 / 1e6;
        format!("median {:.3} ms, 95 % {:.3} ms, longest {:.3} ms", at(50), at(95), at(100))
    });
    Ok(format!("on: {}; off: {}; {seen} references", median[0], median[1]))
}

#[test]
fn each_stretch_is_what_was_executed() {
    let mut tally = Tally::start("each stretch is what was executed");
    let plain =
        Way { name: "plain", flags: &[], signals: false, often: false, has_other_gaps: false };
    let ways = [
        Way { ..plain },
        Way { name: "signals", signals: true, often: true, ..plain },
        Way { name: "dynamic", flags: &["--translate", "dynamic"], ..plain },
        Way {
            name: "full-pc",
            flags: &["--control-flow", "full-pc", "--memory", "addresses"],
            ..plain
        },
        Way { name: "spill", flags: &["--torture", "spill,drop"], signals: true, ..plain },
        Way { name: "tiny", flags: &["--torture", "tiny-buffers"], signals: true, ..plain },
        Way { name: "switchable", flags: &["--switchable"], signals: true, ..plain },
        Way {
            name: "switchable, spill",
            flags: &["--switchable", "--torture", "spill,drop,misplaced"],
            signals: true,
            ..plain
        },
        Way {
            name: "switchable, xmm15",
            flags: &["--switchable", "--pointers", "xmm15"],
            signals: true,
            ..plain
        },
        Way {
            name: "switchable, thread block",
            flags: &["--switchable", "--pointers", "thread-block", "--skip", "libc.so.6"],
            has_other_gaps: false,
            ..plain
        },
        Way {
            name: "pauses",
            flags: &["--torture", "tiny-buffers,pauses"],
            signals: true,
            has_other_gaps: true,
            ..plain
        },
    ];
    let case = corpus().into_iter().find(|c| c.name == "c/switched.pie").expect("a case");
    tally.side_by_side(&ways, |outcomes, way| {
        let dir = tempfile::tempdir().expect("a folder");
        let outcome = switches_are_sound(&case.path, dir.path(), way);
        if let Ok(text) = &outcome {
            eprintln!("{}: {text}", way.name);
        }
        outcomes.record(way.name, outcome.map(drop));
    });
    tally.finish();
}

/// The first block of a trace, and its switches.
fn beginning(trace: &Path, rewritten: &Path) -> Result<(Option<u64>, String), String> {
    let dep = |arguments: &[&str]| -> Result<Vec<u8>, String> {
        let mut dep = Command::new(&Tools::get().dep);
        dep.args(arguments).arg("--output").arg(rewritten).arg(trace);
        dep.output().map(|output| output.stdout).map_err(|e| e.to_string())
    };
    let blocks = dep(&["blocks", "--limit", "1"])?;
    let first = String::from_utf8_lossy(&blocks).split_whitespace().nth(1).map(str::to_owned);
    let first = first.and_then(|pc| u64::from_str_radix(pc.trim_start_matches("0x"), 16).ok());
    let info: serde_json::Value =
        serde_json::from_slice(&dep(&["info", "--json"])?).map_err(|e| e.to_string())?;
    let switches = info["switches"].as_array().ok_or("no list of switches")?;
    let words = switches.iter().map(|s| format!("{} {}", s["on"], s["why"].as_str().unwrap_or("")));
    Ok((first, words.collect::<Vec<_>>().join(", ")))
}

/// The address of a symbol, as far as it is the same wherever the program is mapped.
fn in_page(program: &Path, symbol: &str) -> Result<u64, String> {
    let nm = Command::new("nm").arg(program).output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&nm.stdout).into_owned();
    let line = text.lines().find(|line| line.ends_with(&format!(" {symbol}")));
    let address = line.and_then(|line| u64::from_str_radix(&line[..16], 16).ok());
    Ok(address.ok_or(format!("no symbol {symbol}"))? % 4096)
}

fn begins_when_asked(
    program: &Path,
    dir: &Path,
    (when, baked, switches, symbol): (&str, bool, &str, Option<&str>),
) -> Result<(), String> {
    let rewritten = dir.join("starting");
    let flags: &[&str] = if baked { &["--start", when] } else { &[] };
    Tools::get().rewrite_sharing(program, &rewritten, flags)?;
    let env: &[(&str, &str)] = if baked { &[] } else { &[("DEP_START", when)] };
    let running = Running::start(&rewritten, dir, &["100000", "signals"], env)?;
    // A signal has come in for sure when somebody has had the time to ask.
    std::thread::sleep(std::time::Duration::from_millis(50));
    let (trace, _) = running.finish()?;
    Tools::get().verify(&trace, &rewritten)?;
    let (first, listed) = beginning(&trace, &rewritten)?;
    if listed != switches {
        return Err(format!("switches are {listed}, not {switches}"));
    }
    match (first, symbol) {
        (None, None) => Ok(()),
        (Some(_), Some("")) => Ok(()),
        (Some(pc), Some(symbol)) if pc % 4096 == in_page(program, symbol)? => Ok(()),
        (first, symbol) => Err(format!("it begins at {first:x?}, not at {symbol:?}")),
    }
}

#[test]
fn a_recording_begins_when_it_should() {
    let mut tally = Tally::start("a recording begins when it should");
    let dir = tempfile::tempdir().expect("a folder");
    let case = corpus().into_iter().find(|c| c.name == "c/switched.pie").expect("a case");
    let off = "false start";
    for (when, then, symbol) in [
        ("entry", "", Some("")),
        ("off", off, None),
        ("main", "false start, true main", Some("main")),
        ("second-thread", "false start, true second thread", Some("")),
        ("signal:14", "false start, true signal", Some("")),
        ("signal:15", off, None),
    ] {
        for baked in [false, true] {
            let outcome = begins_when_asked(&case.path, dir.path(), (when, baked, then, symbol));
            tally.record(&format!("{when}, baked in: {baked}"), outcome);
        }
    }
    tally.finish();
}

/// KiB of the code cache that the program has written to, with this in its environment: what was translated when it
/// ran. And whether it says that it is switched off, if it says anything of itself.
fn translated_with(
    rewritten: &Path,
    dir: &Path,
    env: &[(&str, &str)],
) -> Result<(u64, Option<bool>), String> {
    let running = Running::start(rewritten, dir, &["100000", "none"], env)?;
    let maps = std::fs::read_to_string(format!("/proc/{}/smaps", running.child.id()));
    let off = running.says_off().ok();
    running.finish()?;
    let (mut cache, mut found, mut kib) = (false, false, 0);
    for line in maps.map_err(|e| e.to_string())?.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [range, rights, ..] if range.contains('-') => {
                // The only shared memory that may be executed.
                cache = rights == "r-xs";
                found |= cache;
            }
            ["Rss:", size, _] if cache => kib += size.parse::<u64>().map_err(|e| e.to_string())?,
            _ => {}
        }
    }
    found.then_some((kib, off)).ok_or("there is no code cache".to_owned())
}

/// The same, switched off as the program is.
fn translated_at_run_time(program: &Path, dir: &Path, flags: &[&str]) -> Result<u64, String> {
    let rewritten = dir.join("counting");
    Tools::get().rewrite_sharing(program, &rewritten, flags)?;
    Ok(translated_with(&rewritten, dir, &[("DEP_START", "off")])?.0)
}

fn nothing_is_translated(program: &Path, dir: &Path) -> Result<(), String> {
    let none = translated_at_run_time(program, dir, &["--instrument", "none"])?;
    let without = translated_at_run_time(program, dir, &[])?;
    if without <= none {
        return Err(format!("{without} KiB, as with none: this counts nothing"));
    }
    for flags in
        [&["--switchable"][..], &["--start", "signal:15"], &["--switchable", "--skip", "libc.so.6"]]
    {
        let with = translated_at_run_time(program, dir, flags)?;
        if with > none {
            return Err(format!("{flags:?}: {with} KiB, not {none} KiB as with none"));
        }
    }
    Ok(())
}

/// Only the code that records was made ahead of time: what runs in code that records nothing is translated when it runs.
fn begins_where_nothing_is_kept(program: &Path, dir: &Path) -> Result<(), String> {
    let rewritten = dir.join("counting");
    Tools::get().rewrite_sharing(program, &rewritten, &[])?;
    let started = |discard, when| {
        translated_with(&rewritten, dir, &[("DEP_FILE", discard), ("DEP_START", when)])
    };
    let (none, off) = started("null:", "entry")?;
    if off != Some(false) {
        return Err(format!("from entry: switched off: {off:?}"));
    }
    for (discard, when, ends_off) in
        [("null:", "off", true), ("/dev/null", "off", true), ("null:", "main", false)]
    {
        let (kib, off) = started(discard, when)?;
        if kib <= none || off != Some(ends_off) {
            return Err(format!("{discard}, {when}: {kib} KiB, not {none}; switched off: {off:?}"));
        }
    }
    // Who asks for a recording is told that there is none.
    let env = [("DEP_FILE", "null:"), ("DEP_START", "off")];
    let running = Running::start(&rewritten, dir, &["100000", "none"], &env)?;
    let asked = running.tell(&["on"]);
    running.finish()?;
    match asked {
        Err(why) if why.contains("it has no trace") => Ok(()),
        other => Err(format!("dep on: {other:?}")),
    }
}

#[test]
fn what_is_discarded_begins_when_it_should() {
    let mut tally = Tally::start("what is discarded begins when it should");
    let dir = tempfile::tempdir().expect("a folder");
    let case = corpus().into_iter().find(|c| c.name == "c/switched.pie").expect("the program");
    tally.record(&case.name, begins_where_nothing_is_kept(&case.path, dir.path()));
    // What cannot be switched says so, as where a trace is kept.
    for (flags, why) in [
        (["--control-flow", "bits"], "the format bits cannot be started later"),
        (["--instrument", "inputs"], "a recording of inputs has no gaps"),
    ] {
        let rewritten = dir.path().join("refused");
        let said = Tools::get().rewrite_sharing(&case.path, &rewritten, &flags).map(|()| {
            let mut command = Command::new(&rewritten);
            command.args(["1000", "none"]).env("DEP_FILE", "null:").env("DEP_START", "off");
            command.stdin(Stdio::null()).output().expect("it runs")
        });
        let said = said.map(|run| String::from_utf8_lossy(&run.stderr).into_owned());
        tally.record(
            flags[1],
            said.and_then(|said| match said.contains(why) {
                true => Ok(()),
                false => Err(said),
            }),
        );
    }
    tally.finish();
}

#[test]
fn what_is_switched_off_runs_code_that_was_made_ahead_of_time() {
    let mut tally = Tally::start("what is switched off runs code that was made ahead of time");
    let dir = tempfile::tempdir().expect("a folder");
    for case in corpus().into_iter().filter(|c| c.name.starts_with("c/switched.")) {
        tally.record(&case.name, nothing_is_translated(&case.path, dir.path()));
    }
    tally.finish();
}

/// Where the slots of one translation of a running program lead.
#[derive(Debug, Default, PartialEq)]
struct Slots {
    /// Of the entries of tables: to what enters the runtime, as nobody has taken them; to code of the same translation;
    /// anywhere else but to what looks up.
    asking: usize,
    taken: usize,
    strays: usize,
    /// Of words: to anything but what looks up.
    bound: usize,
}

/// The header of an output, and the program's window where it runs.
struct Image {
    header: ImageHeader,
    window: u64,
    memory: std::fs::File,
}

impl Image {
    fn of(rewritten: &Path, pid: u32) -> Result<Image, String> {
        let bytes = std::fs::read(rewritten).map_err(|e| e.to_string())?;
        let places = bytes.windows(MAGIC.len()).enumerate().filter(|(_, word)| **word == MAGIC);
        let headers = places.filter_map(|(at, _)| ImageHeader::from_bytes(&bytes[at..]));
        let header = headers.max_by_key(|header| header.plain.code_len).ok_or("no header")?;
        let maps =
            std::fs::read_to_string(format!("/proc/{pid}/maps")).map_err(|e| e.to_string())?;
        let path = std::fs::canonicalize(rewritten).map_err(|e| e.to_string())?;
        let lines = maps.lines().filter(|line| line.ends_with(&path.display().to_string()));
        let mut starts =
            lines.filter_map(|line| u64::from_str_radix(line.split_once('-')?.0, 16).ok());
        // The look-up tables are mapped from the file, too.
        let first = starts.find(|start| !abi::layout::tables(true).contains(start));
        let window = first.ok_or("the program is not mapped")? >> 32 << 32;
        let memory = std::fs::File::open(format!("/proc/{pid}/mem")).map_err(|e| e.to_string())?;
        Ok(Image { header, window, memory })
    }

    fn words<const N: usize>(&self, at: u64, count: u64) -> Result<Vec<[u8; N]>, String> {
        let mut bytes = vec![0; usize::try_from(count).map_err(|e| e.to_string())? * N];
        self.memory.read_exact_at(&mut bytes, at).map_err(|e| format!("{at:x}: {e}"))?;
        Ok(bytes.chunks_exact(N).filter_map(|word| word.try_into().ok()).collect())
    }

    /// Those of `tables`.
    fn slots(&self, tables: &Tables) -> Result<Slots, String> {
        let half = |bytes: &[u8], i: usize| -> u64 {
            let word = bytes[4 * i..][..4].try_into().map_or(0, u32::from_le_bytes);
            word.into()
        };
        let code = self.window + tables.code;
        let mut found = Slots::default();
        let words = self.words::<8>(self.window + tables.slots, tables.slot_count)?;
        for (word, slot) in words.iter().zip(self.words(code, tables.slot_count)?) {
            found.bound += usize::from(u64::from_le_bytes(slot) != code + half(word, 1));
        }
        let jumps = self.window + tables.jump_tables;
        for jump in self.words::<{ JumpTable::SIZE }>(jumps, tables.jump_table_count)? {
            let [entries, first, slow, ask] = [1, 2, 3, 4].map(|i| half(&jump, i));
            for slot in self.words(code + tables.jump_slots + 8 * first, entries)? {
                let to = u64::from_le_bytes(slot);
                let inside = (code..code + tables.code_len).contains(&to);
                found.asking += usize::from(to == code + ask);
                found.taken += usize::from(inside && to != code + ask && to != code + slow);
                found.strays += usize::from(!inside);
            }
        }
        Ok(found)
    }

    /// Waits until jumps have taken slots of the translation in use; the slots of both, that one first.
    fn in_use(&self, recorded: bool) -> Result<[Slots; 2], String> {
        let both = [&self.header.tables, &self.header.plain];
        let [used, other] = if recorded { both } else { [both[1], both[0]] };
        for _ in 0..1000 {
            let slots = self.slots(used)?;
            // All entries of one table.
            if slots.taken >= 4 && (slots.bound > 0 || used.slot_count == 0) {
                return Ok([slots, self.slots(other)?]);
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        Err(format!("no jump takes a slot: {:?}", self.slots(used)?))
    }
}

fn slots_are_taken(program: &Path, dir: &Path, flags: &[&str]) -> Result<(), String> {
    let rewritten = dir.join("slots");
    Tools::get().rewrite_sharing(program, &rewritten, &[&["--switchable"][..], flags].concat())?;
    let env = [("DEP_START", "off")];
    // So many elements that the threads still jump when a busy machine has come to the last switch.
    let running = Running::start(&rewritten, dir, &["20000000", "none"], &env)?;
    let image = Image::of(&rewritten, running.child.id())?;
    let all = |recorded: bool| -> Result<(), String> {
        let [used, other] = image.in_use(recorded)?;
        let is_idle = (other.taken, other.strays, other.bound) == (0, 0, 0);
        match used.strays == 0 && is_idle {
            true => Ok(()),
            false => {
                Err(format!("recorded: {recorded}: {used:?}, and of the other code {other:?}"))
            }
        }
    };
    let outcome = (0..3).try_for_each(|_| {
        all(false)?;
        running.tell(&["on"])?;
        all(true)?;
        running.tell(&["off"]).map(drop)
    });
    let outcome = outcome.and_then(|()| all(false));
    let (trace, _) = running.finish()?;
    outcome?;
    Tools::get().verify(&trace, &rewritten)
}

#[test]
fn each_translation_takes_slots_of_its_own() {
    let mut tally = Tally::start("each translation takes slots of its own");
    let dir = tempfile::tempdir().expect("a folder");
    for case in corpus().into_iter().filter(|c| c.name.starts_with("c/switched.")) {
        for flags in [&[][..], &["--skip", "main:by_*"]] {
            let outcome = slots_are_taken(&case.path, dir.path(), flags);
            tally.record(&format!("{} {flags:?}", case.name), outcome);
        }
    }
    tally.finish();
}

/// Programs that change code, tables and addresses while they run, and what they map.
const CHANGING: &[&str] = &[
    "c/tables_change.",
    "c/constant_words.",
    "c/switches.",
    "c/dlopen.",
    "c/fork_tree.",
    "c/fork_changes.",
    "c/text_patch_threads.",
    "c/replaced_code.",
];

/// Runs a program that is switched on and off as long as it runs. How often that was.
fn behaves_meanwhile(case: &corpus::Case, dir: &Path, off: bool) -> Result<u64, String> {
    let native = spec(case).run(None, dir).map_err(|e| e.to_string())?;
    let rewritten = dir.join("meanwhile");
    Tools::get().rewrite_sharing(&case.path, &rewritten, &["--switchable"])?;
    // Forked processes leave traces of their own.
    let traces = tempfile::tempdir_in(dir).map_err(|e| e.to_string())?;
    let trace = traces.path().join("meanwhile.dep");
    let mut command = Command::new(&rewritten);
    command.args(&case.args).env("DEP_FILE", &trace).stdin(Stdio::piped());
    command.env("DEP_START", if off { "off" } else { "entry" });
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| e.to_string())?;
    let pid = child.id().to_string();
    let mut stdin = child.stdin.take().ok_or("no pipe")?;
    stdin.write_all(&case.stdin).map_err(|e| e.to_string())?;
    drop(stdin);
    let ended = std::sync::atomic::AtomicBool::new(false);
    let (output, done) = std::thread::scope(|scope| {
        let switch = || {
            let mut done = 0;
            for command in ["on", "off"].into_iter().cycle().skip(usize::from(!off)) {
                if ended.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                // It may not be there yet, or any more.
                let answer = Command::new(&Tools::get().dep).args([command, &pid]).output();
                done += u64::from(answer.is_ok_and(|answer| answer.status.success()));
            }
            done
        };
        let switching = scope.spawn(switch);
        let output = child.wait_with_output();
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
        (output, switching.join())
    });
    let output = output.map_err(|e| e.to_string())?;
    let is_same = output.stdout == native.stdout && output.stderr == native.stderr;
    if !is_same || sys::Status::Exited(output.status.code().unwrap_or(-1)) != native.status {
        let text = [output.stdout, output.stderr].map(|t| String::from_utf8_lossy(&t).into_owned());
        return Err(format!("{}: {text:?}", output.status));
    }
    for trace in std::fs::read_dir(traces.path()).map_err(|e| e.to_string())? {
        Tools::get().verify(&trace.map_err(|e| e.to_string())?.path(), &rewritten)?;
    }
    done.map_err(|_| "nobody switches".to_owned())
}

#[test]
fn programs_that_change_what_jumps_read_are_switched_meanwhile() {
    let mut tally = Tally::start("programs that change what jumps read are switched meanwhile");
    let dir = tempfile::tempdir().expect("a folder");
    let mut switches = 0;
    let rounds = std::env::var("SWITCHES").ok().and_then(|n| n.parse().ok()).unwrap_or(100) / 50;
    for case in corpus() {
        if !CHANGING.iter().any(|name| case.name.starts_with(name)) || case.skip_reason().is_some()
        {
            continue;
        }
        for round in 0..rounds {
            let outcome = behaves_meanwhile(&case, dir.path(), round % 2 == 0);
            switches += outcome.as_ref().unwrap_or(&0);
            tally.record(&format!("{} {round}", case.name), outcome.map(drop));
        }
    }
    eprintln!("{switches} switches");
    assert_ne!(switches, 0, "nothing was switched");
    tally.finish();
}
