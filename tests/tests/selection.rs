//! A recording of a part of the code is that part of a recording of all of it: for every program of the
//! corpus, for selections by module, by function and by address, in every way of rewriting.

mod common;

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::*;
use corpus::Case;
use tests::harness::{difference, Outcomes, Run, RunSpec, Tally, Tools};
use tests::listing::Record;

const LISTINGS: [&str; 2] = ["memrefs", "blocks"];

/// A file that the program mapped, as this test reads it.
struct Module {
    /// Its name in a selector.
    name: String,
    /// From an address in the file to the live one.
    load: u64,
    /// Addresses of its code in the file.
    code: Vec<Range<u64>>,
    /// Functions that it names, by `nm`.
    functions: Vec<Range<u64>>,
}

fn word(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

impl Module {
    fn read(name: &str, path: &Path, start: u64) -> Result<Module, String> {
        let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let headers = word(&bytes, 32, 8) as usize;
        let count = word(&bytes, 56, 2) as usize;
        let headers: Vec<&[u8]> =
            (0..count).map(|i| &bytes[headers + 56 * i..headers + 56 * (i + 1)]).collect();
        let loads: Vec<_> = headers.into_iter().filter(|h| word(h, 0, 4) == 1).collect();
        let first = loads.iter().map(|h| word(h, 16, 8) / 4096 * 4096).min().unwrap_or(0);
        let code = loads.iter().filter(|h| word(h, 4, 4) & 1 == 1);
        let code = code.map(|h| word(h, 16, 8)..word(h, 16, 8) + word(h, 40, 8));
        let code: Vec<Range<u64>> = code.collect();
        // Symbols of functions may stand for data.
        let mut functions = functions(path);
        functions.retain(|f| code.iter().any(|code| code.contains(&f.start)));
        let load = start.wrapping_sub(first);
        Ok(Module { name: name.to_owned(), load, code, functions })
    }

    fn live(&self, range: &Range<u64>) -> Range<u64> {
        range.start.wrapping_add(self.load)..range.end.wrapping_add(self.load)
    }
}

/// The functions that the symbol tables of a file name.
fn functions(path: &Path) -> Vec<Range<u64>> {
    let mut all = Vec::new();
    for table in [&[][..], &["-D"]] {
        let out = Command::new("nm").args(table).arg("-S").arg("--defined-only").arg(path).output();
        let text = out.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [start, size, kind, ..] = words[..] else { continue };
            let hex = |text| u64::from_str_radix(text, 16);
            if let ("t" | "T" | "W" | "w" | "i", Ok(start), Ok(size)) =
                (kind, hex(start), hex(size))
            {
                all.push(start..start + size);
            }
        }
    }
    all.sort_by_key(|f| (f.start, f.end));
    all.dedup();
    all
}

/// A sequence that looks random and is the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n.max(1)
    }
}

/// A selection, and what of the whole listing it is.
struct Choice {
    name: &'static str,
    flags: Vec<String>,
    /// Live addresses.
    recorded: Box<dyn Fn(u64) -> bool>,
}

fn is_in(ranges: &[Range<u64>], pc: u64) -> bool {
    let next = ranges.partition_point(|r| r.start <= pc);
    ranges[..next].iter().rev().take(200).any(|r| r.contains(&pc))
}

/// A choice of these file addresses, by one option.
fn by_address(
    name: &'static str,
    option: &str,
    modules: &[Module],
    pick: impl FnMut(&Module) -> Vec<Range<u64>>,
) -> Choice {
    let picked: Vec<Vec<Range<u64>>> = modules.iter().map(pick).collect();
    let words = modules.iter().zip(&picked).flat_map(|(module, ranges)| {
        ranges.iter().map(|r| format!("{}:{:x}..{:x}", module.name, r.start, r.end))
    });
    // One argument must not be too long.
    let words: Vec<String> = words.collect();
    let flags = words.chunks(500).flat_map(|some| [option.to_owned(), some.join(",")]).collect();
    let live = modules.iter().zip(&picked).flat_map(|(m, ranges)| ranges.iter().map(|r| m.live(r)));
    let mut live: Vec<Range<u64>> = live.collect();
    live.sort_by_key(|r| r.start);
    let skips = option == "--skip";
    let recorded = Box::new(move |pc| is_in(&live, pc) != skips);
    Choice { name, flags, recorded }
}

/// The selections that a program is tried with. `hot`: how often blocks start at an address.
fn choices(modules: &[Module], hot: &HashMap<u64, u64>) -> Vec<Choice> {
    let main = &modules[0];
    let own: Vec<Range<u64>> = main.code.iter().map(|r| main.live(r)).collect();
    let mut all = vec![Choice {
        name: "main",
        flags: vec!["--only".into(), "main".into()],
        recorded: Box::new(move |pc| own.iter().any(|r| r.contains(&pc))),
    }];
    if let Some(libc) = modules.iter().find(|m| m.name.starts_with("libc.so")) {
        let code: Vec<Range<u64>> = libc.code.iter().map(|r| libc.live(r)).collect();
        all.push(Choice {
            name: "skip-libc",
            flags: vec!["--skip".into(), libc.name.clone()],
            recorded: Box::new(move |pc| !code.iter().any(|r| r.contains(&pc))),
        });
    }
    // The function in which most blocks start, and nothing else.
    let blocks = |f: &Range<u64>| -> u64 {
        let live = main.live(f);
        hot.iter().filter(|(pc, _)| live.contains(pc)).map(|(_, count)| count).sum()
    };
    let hottest = main.functions.iter().max_by_key(|f| blocks(f)).filter(|f| f.start < f.end);
    if let Some(hottest) = hottest.cloned() {
        all.push(by_address("hottest", "--only", &modules[..1], |_| vec![hottest.clone()]));
    }
    let mut random = Random(modules.iter().map(|m| m.code[0].end).sum());
    if modules.iter().any(|m| m.functions.len() > 3) {
        let half =
            |m: &Module| m.functions.iter().filter(|_| random.below(2) == 0).cloned().collect();
        all.push(by_address("half", "--only", modules, half));
    }
    // Pieces of any length, at any address, also in the midst of instructions.
    let mut pieces = |module: &Module| {
        let mut ranges = Vec::new();
        for code in &module.code {
            let scale = if code.end - code.start > 1 << 17 { 400 } else { 24 };
            let mut at = code.start + random.below(scale);
            while at < code.end {
                let end = at + 1 + random.below(scale);
                ranges.push(at..end);
                at = end + 1 + random.below(scale);
            }
        }
        ranges
    };
    all.push(by_address("pieces", "--only", modules, &mut pieces));
    all.push(by_address("holes", "--skip", modules, &mut pieces));
    all
}

/// The lines of a listing whose code is recorded.
fn filter(from: &Path, to: &Path, recorded: &dyn Fn(u64) -> bool) -> Result<(u64, u64), String> {
    let trouble = |e: std::io::Error| e.to_string();
    let from = BufReader::new(File::open(from).map_err(trouble)?);
    let mut out = BufWriter::new(File::create(to).map_err(trouble)?);
    let (mut kept, mut all) = (0, 0);
    for line in from.lines() {
        let line = line.map_err(trouble)?;
        let record = Record::parse(&line).ok_or_else(|| format!("not a line: {line}"))?;
        all += 1;
        if recorded(record.pc) {
            kept += 1;
            writeln!(out, "{line}").map_err(trouble)?;
        }
    }
    out.flush().map_err(trouble)?;
    Ok((kept, all))
}

/// Runs `rewritten` in the place of the program, with one variable more in its environment.
fn run_with(
    spec: &RunSpec,
    rewritten: &Path,
    dir: &Path,
    variable: &str,
) -> Result<Run, std::io::Error> {
    let (mut launch, run) = spec.launch(Some(rewritten), dir)?;
    let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
    launch.env.push((name.into(), value.into()));
    let path = |what: &str| dir.join(format!("run{run:06}.{what}"));
    let (status, timed_out) = launch.run_for(spec.timeout)?;
    let traces = RunSpec::traces(dir, run)?;
    let (stdout, stderr) = (std::fs::read(path("out"))?, std::fs::read(path("err"))?);
    Ok(Run { status, stdout, stderr, timed_out, traces })
}

/// Rewrites, runs, verifies and lists; returns the run and what `dep info` says.
fn record(
    spec: &RunSpec,
    flags: &[&str],
    dir: &Path,
    name: &str,
    listings: &[&str],
) -> Result<(Run, serde_json::Value), String> {
    let rewritten = dir.join(name);
    Tools::get().rewrite_sharing(&spec.program, &rewritten, flags)?;
    let run = spec.run(Some(&rewritten), dir).map_err(|e| e.to_string())?;
    look_at(run, &rewritten, dir, name, listings)
}

/// Verifies and lists the trace of a run, and removes it.
fn look_at(
    run: Run,
    rewritten: &Path,
    dir: &Path,
    name: &str,
    listings: &[&str],
) -> Result<(Run, serde_json::Value), String> {
    let tools = Tools::get();
    let trace = first_trace(&run.traces)?;
    tools.verify(trace, rewritten)?;
    for what in listings {
        tools.list(what, trace, rewritten, &dir.join(format!("{name}.{what}")))?;
    }
    let json = dir.join(format!("{name}.json"));
    tools.list_with("info", &["--json"], trace, rewritten, &json)?;
    let info = std::fs::read_to_string(&json).map_err(|e| e.to_string())?;
    for trace in &run.traces {
        std::fs::remove_file(trace).map_err(|e| e.to_string())?;
    }
    Ok((run, serde_json::from_str(&info).map_err(|e| e.to_string())?))
}

/// The program and the libraries that it needs, as a recording of all of it says them. What it opens
/// itself may be mapped at several places.
fn modules(spec: &RunSpec, info: &serde_json::Value) -> Result<Vec<Module>, String> {
    let list = info["modules"].as_array().ok_or("no modules")?;
    let place = |module: &serde_json::Value| -> Option<(u64, PathBuf)> {
        let start = module["start"].as_str()?.strip_prefix("0x")?;
        Some((u64::from_str_radix(start, 16).ok()?, module["path"].as_str()?.into()))
    };
    let ldd = Command::new("ldd").arg(&spec.program).output().map_err(|e| e.to_string())?;
    let needed = String::from_utf8_lossy(&ldd.stdout).into_owned();
    let mut modules = Vec::new();
    for (start, path) in list.iter().filter_map(place) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_program = path == spec.program;
        if is_program {
            modules.insert(0, Module::read("main", &path, start)?);
        } else if needed.contains(&name)
            && std::fs::read(&path).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF"))
        {
            modules.push(Module::read(&name, &path, start)?);
        }
    }
    match modules.first().is_some_and(|m| m.name == "main") {
        true => Ok(modules),
        false => Err("the program is not among its modules".into()),
    }
}

fn hot(blocks: &Path) -> Result<HashMap<u64, u64>, String> {
    let text = std::fs::read_to_string(blocks).map_err(|e| e.to_string())?;
    let mut hot = HashMap::new();
    for record in text.lines().filter_map(Record::parse) {
        *hot.entry(record.pc).or_default() += 1;
    }
    Ok(hot)
}

/// How much is tried: SELECTION=each, each selection with each program; SELECTION=all, that in every way;
/// otherwise one selection with one variant of each program, which takes a minute.
fn is_asked_for(much: &[&str]) -> bool {
    std::env::var("SELECTION").is_ok_and(|asked| much.contains(&asked.as_str()))
}

fn tries_all() -> bool {
    is_asked_for(&["all"])
}

fn tries_each() -> bool {
    is_asked_for(&["all", "each"])
}

/// Ways of rewriting: one of each selection, and more with pieces, which are the hardest.
fn ways(choice: &str) -> &'static [&'static [&'static str]] {
    const DYNAMIC: &[&str] = &["--translate", "dynamic"];
    if tries_all() {
        return &[
            &[],
            DYNAMIC,
            &["--control-flow", "full-pc"],
            &["--torture", "spill,drop,tiny-buffers", "--memory", "addresses"],
            &["--translate", "dynamic", "--torture", "spill,tiny-buffers"],
            &["--translate", "dynamic", "--control-flow", "full-pc", "--pointers", "thread-block"],
            &["--torture", "tiny-buffers", "--libraries", "runtime"],
        ];
    }
    match choice {
        "pieces" => &[&["--torture", "spill,drop,tiny-buffers"], DYNAMIC],
        "holes" => &[&["--pointers", "thread-block", "--control-flow", "full-pc"]],
        "half" | "skip-libc" => &[DYNAMIC],
        _ => &[&[]],
    }
}

/// Every selection of one program. `varies`: it is not the same twice, so that only its behaviour can be
/// compared, and its trace verified.
fn parts_of(name: &str, spec: &RunSpec, varies: bool, outcomes: &mut Outcomes) {
    // Of what runs on for as long as a timer wants a listing may be very long.
    let listings: &[&str] = if varies { &[] } else { &LISTINGS };
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let start = || -> Result<_, String> {
        let (run, info) = record(spec, &[], dir, "whole", listings)?;
        let modules = modules(spec, &info)?;
        let hot = if varies { HashMap::new() } else { hot(&dir.join("whole.blocks"))? };
        let choices = choices(&modules, &hot);
        Ok((run, choices))
    };
    let (whole, choices) = match start() {
        Ok(found) => found,
        Err(e) => return outcomes.record(name, Err(e)),
    };
    let pairs: Vec<_> =
        choices.iter().flat_map(|c| ways(c.name).iter().map(move |way| (c, way))).collect();
    // Each program has its own one; together they are all.
    let turn = number(name) % pairs.len();
    for (i, (choice, way)) in pairs.into_iter().enumerate() {
        if tries_each() || i == turn {
            let check = || -> Result<(), String> {
                let given = choice.flags.iter().map(String::as_str);
                let flags: Vec<&str> = given.chain(way.iter().copied()).collect();
                let (run, _) = record(spec, &flags, dir, "part", listings)?;
                difference(&whole, &run)?;
                for what in LISTINGS.into_iter().filter(|_| !varies) {
                    let file = |name: &str| dir.join(format!("{name}.{what}"));
                    filter(&file("whole"), &file("filtered"), &choice.recorded)?;
                    same_listing(&file("filtered"), &file("part"), None, false)
                        .map_err(|e| format!("{what}: {e}"))?;
                }
                Ok(())
            };
            outcomes.record(&format!("{name} {} {}", choice.name, way.join(" ")), check());
        }
    }
}

/// The cases that are tried: of each program one way in which it is linked, or all.
fn tried() -> Vec<Case> {
    let all = corpus();
    if tries_each() {
        return all;
    }
    let program = |case: &Case| case.name.split('.').next().unwrap_or_default().to_owned();
    let mut chosen = Vec::new();
    let mut rest = all.into_iter().peekable();
    while let Some(first) = rest.next() {
        let name = program(&first);
        let mut linked = vec![first];
        while let Some(next) = rest.next_if(|next| program(next) == name) {
            linked.push(next);
        }
        let one = number(&name) % linked.len();
        chosen.push(linked.swap_remove(one));
    }
    chosen
}

#[test]
fn parts_of_the_corpus_equal_the_whole() {
    let mut tally = Tally::start("parts_of_the_corpus_equal_the_whole");
    tally.side_by_side(&tried(), |outcomes, case| {
        let refused = case.refused.as_ref().map(|why| format!("refused: the program {why}"));
        match case.skip_reason().or(refused) {
            Some(why) => outcomes.skip(&case.name, &why),
            None => parts_of(&case.name, &spec(case), case.no_oracle.is_some(), outcomes),
        }
    });
    tally.finish();
}

#[test]
fn parts_of_a_program_of_the_system_equal_the_whole() {
    let mut tally = Tally::start("parts_of_a_program_of_the_system_equal_the_whole");
    let text: Vec<u8> =
        (0..100).flat_map(|i| format!("line {i} {}\n", i * i).into_bytes()).collect();
    let gzip = RunSpec::new("/usr/bin/gzip").args(&["-nc"]).stdin(&text);
    let perl =
        RunSpec::new("/usr/bin/perl").args(&["-e", "print join ',', sort { $b <=> $a } 1..99"]);
    tally.side_by_side(&[("gzip", gzip), ("perl", perl)], |outcomes, (name, spec)| {
        parts_of(name, spec, false, outcomes);
    });
    tally.finish();
}

/// Programs whose recordings the environment restricts: one of each kind.
const RESTRICTED: [&str; 8] = [
    "asm/jump_tables.pie",
    "asm/low_stack.static",
    "c/setjmp.pie",
    "c/generated_pages.pie",
    "c/libc_mix.pie",
    "c/signals.pie",
    "c/fs_base.pie",
    "cpp/exceptions.pie",
];

/// What DEP_ONLY or DEP_SKIP leaves is that part of the whole, and `DEP_LEFT`, which says nothing,
/// changes nothing.
fn restricted(spec: &RunSpec, translate: &str, given: &str) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let rewritten = dir.join("rewritten");
    Tools::get().rewrite_sharing(&spec.program, &rewritten, &["--translate", translate])?;
    // The stack begins at the same place: the environments have the same size.
    let nothing = given.replacen("DEP_ONLY", "DEP_LEFT", 1).replacen("DEP_SKIP", "DEP_LEFT", 1);
    let run = |variable: &str, name: &str| {
        let run = run_with(spec, &rewritten, dir, variable).map_err(|e| e.to_string())?;
        look_at(run, &rewritten, dir, name, &LISTINGS)
    };
    let (whole, info) = run(&nothing, "whole")?;
    let modules = modules(spec, &info)?;
    let main: Vec<Range<u64>> = modules[0].code.iter().map(|r| modules[0].live(r)).collect();
    let (part, info) = run(given, "part")?;
    difference(&whole, &part)?;
    let rule = given.replacen('=', " ", 1);
    if info["recorded"][0].as_str() != Some(rule.as_str()) {
        return Err(format!("dep info does not say what was recorded: {}", info["recorded"]));
    }
    let is_main = move |pc| main.iter().any(|r| r.contains(&pc));
    let recorded = move |pc| is_main(pc) == given.starts_with("DEP_ONLY");
    for what in LISTINGS {
        let file = |name: &str| dir.join(format!("{name}.{what}"));
        filter(&file("whole"), &file("filtered"), &recorded)?;
        same_listing(&file("filtered"), &file("part"), None, false)
            .map_err(|e| format!("{what}: {e}"))?;
    }
    Ok(())
}

#[test]
fn the_environment_takes_away() {
    let mut tally = Tally::start("the_environment_takes_away");
    let corpus = corpus();
    let cases = corpus.iter().filter(|c| RESTRICTED.contains(&c.name.as_str()));
    for case in cases {
        if let Some(why) = case.skip_reason() {
            tally.skip(&case.name, &why);
            continue;
        }
        for translate in ["static", "dynamic"] {
            for given in ["DEP_ONLY=main", "DEP_SKIP=main"] {
                let outcome = restricted(&spec(case), translate, given);
                tally.record(&format!("{} {translate} {given}", case.name), outcome);
            }
        }
    }
    tally.finish();
}

/// What cannot be followed is refused before the program starts, and leaves no trace.
#[test]
fn an_environment_that_makes_no_sense_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let program = RunSpec::new("/bin/true");
    let tools = Tools::get();
    for (flags, variable, says) in [
        (&[][..], "DEP_ONLY=:", "nothing behind the colon"),
        (&[], "DEP_SKIP=main:20..10", "the range is empty"),
        (&[], "DEP_ONLY=main:no_such_function", "the program has no such code"),
        (&["--control-flow", "bits"], "DEP_ONLY=main", "--control-flow tags"),
        (&["--instrument", "undo"], "DEP_SKIP=main", "an undo log with holes"),
    ] {
        let rewritten = dir.join("rewritten");
        tools.rewrite_sharing(&program.program, &rewritten, flags).unwrap();
        let run = run_with(&program, &rewritten, dir, variable).unwrap();
        let text = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status, tests::sys::Status::Exited(122), "{variable}: {text}");
        assert!(text.starts_with("deprewrite: DEP_ONLY, DEP_SKIP: "), "{variable}: {text}");
        assert!(text.contains(says) && text.lines().count() == 1, "{variable}: {text}");
        assert!(run.traces.is_empty(), "{variable}: {:?}", run.traces);
    }
}

/// A selector that names nothing is an error where nothing can come that it names.
#[test]
fn selectors_that_name_nothing_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("rewritten");
    let rewrite = |flags: &[&str]| Tools::get().rewrite(Path::new("/bin/true"), &output, flags);
    for (flags, says) in [
        (["--only", "main:no_such_function"], "no function no_such_function"),
        (["--skip", ":no_such_function"], "no function no_such_function"),
        (["--only", "main:10..20"], "no code at 10..20"),
        (["--only", "main:20..10"], "the range is empty"),
    ] {
        let error = rewrite(&flags).expect_err("nothing is named");
        assert!(error.contains(says), "{flags:?}: {error}");
    }
    // A library may come that has it.
    rewrite(&["--skip", "libnever.so:function"]).unwrap();
    rewrite(&["--only", "libc.so.6:mem*", "--skip", "[jit]"]).unwrap();
}
