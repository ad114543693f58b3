//! What the whole-program tests share. Not every test uses all of it.
#![allow(dead_code)]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use corpus::{Case, End};
pub use tests::compare::Cut;
use tests::compare::{compare, Options, Verdict};
pub use tests::harness::first_trace;
use tests::harness::{processor, Mode, RunSpec, Tally, Tools};
use tests::step;
use tests::sys::Status;

pub const STATIC: Mode = Mode { name: "static", flags: &[] };
pub const DYNAMIC: Mode = Mode { name: "dynamic", flags: &["--translate", "dynamic"] };
pub const STATIC_NONE: Mode = Mode { name: "static-none", flags: &["--instrument", "none"] };
pub const DYNAMIC_NONE: Mode =
    Mode { name: "dynamic-none", flags: &["--translate", "dynamic", "--instrument", "none"] };
pub const UNDO_STATIC: Mode = Mode { name: "static-undo", flags: &["--instrument", "undo"] };
pub const UNDO_DYNAMIC: Mode =
    Mode { name: "dynamic-undo", flags: &["--translate", "dynamic", "--instrument", "undo"] };

/// Code that every processor runs as it was made. (The default is code for this one's registers.)
pub const STATIC_ANY: Mode =
    Mode { name: "static-thread-block", flags: &["--pointers", "thread-block"] };
pub const UNDO_ANY: Mode = Mode {
    name: "undo-thread-block",
    flags: &["--pointers", "thread-block", "--instrument", "undo"],
};

/// WAYS=all runs every variant of every program in every way.
pub fn every_way() -> bool {
    std::env::var("WAYS").is_ok_and(|ways| ways == "all")
}

/// A number that a name decides, and with it what is tried of many things.
pub fn number(name: &str) -> usize {
    name.bytes().fold(0usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
}

/// The number of a program, the same for all of its variants.
pub fn program_number(name: &str) -> usize {
    number(name.rsplit_once('.').map_or(name, |(program, _)| program))
}

/// Every other one of `all`, from the first or the second one on, as the program decides. WAYS=all: each.
pub fn every_other<'a, T>(program: &str, all: &'a [T]) -> impl Iterator<Item = &'a T> + use<'a, T> {
    let [first, step] = if every_way() { [0, 1] } else { [program_number(program) % 2, 2] };
    all.iter().skip(first).step_by(step)
}

/// Whether the case is one of several variants of a program, and not the one that stands for them.
pub fn is_variant(case: &Case, names: &[String]) -> bool {
    let pie = case.name.rsplit_once('.').map(|(program, _)| format!("{program}.pie"));
    pie.is_some_and(|pie| pie != case.name && names.contains(&pie))
}

/// Where the corpus is built: once for all tests.
pub fn corpus() -> Vec<Case> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("corpus");
    let cases =
        corpus::build_all(&dir).unwrap_or_else(|e| panic!("the corpus does not build:\n{e}"));
    // CORPUS=name runs only the cases whose name contains it.
    match std::env::var("CORPUS") {
        Ok(part) => cases.into_iter().filter(|c| c.name.contains(&part)).collect(),
        Err(_) => cases,
    }
}

/// How far a case is single-stepped: at up to 50 us an instruction, three seconds.
pub const ORACLE_LIMIT: u64 = 60_000;
/// How far to see whether that is the same twice.
pub const REPEAT_LIMIT: u64 = 20_000;
/// How far a program of the system is single-stepped; ld.so alone is 80,000 instructions.
pub const REAL_LIMIT: u64 = 150_000;

/// The cases that are single-stepped: all of assembly, and one variant of every other program,
/// the static one where there is one, because ld.so alone is 80,000 instructions. ORACLE=all
/// takes every variant.
pub fn oracle_cases(tally: &mut Tally) -> Vec<Case> {
    let all = corpus();
    let every = std::env::var("ORACLE").is_ok_and(|v| v == "all");
    let program = |name: &str| name.rsplit_once('.').map_or(String::new(), |(p, _)| p.to_owned());
    let is_chosen = |case: &Case| {
        let siblings = || all.iter().filter(|c| program(&c.name) == program(&case.name));
        let chosen = siblings().find(|c| c.name.ends_with(".static")).or(siblings().next());
        every || case.name.starts_with("asm/") || chosen.is_some_and(|c| c.name == case.name)
    };
    let mut cases = Vec::new();
    for case in &all {
        let other = (!is_chosen(case)).then(|| "another variant is stepped".to_owned());
        match case.skip_reason().or_else(|| case.no_oracle.clone()).or(other) {
            Some(why) => tally.skip(&case.name, &why),
            None => cases.push(case.clone()),
        }
    }
    cases
}

pub fn spec(case: &Case) -> RunSpec {
    let mut spec = RunSpec::new(&case.path);
    spec.args = case.args.clone();
    spec.stdin = case.stdin.clone();
    spec
}

pub fn status(end: End) -> Status {
    match end {
        End::Status(code) => Status::Exited(code),
        End::Signal(signal) => Status::Killed(signal),
    }
}

/// A name that serves as a file name.
pub fn file_name(name: &str) -> String {
    name.replace(['/', ' '], "-")
}

/// What the oracle leaves.
pub struct Truth {
    pub memrefs: PathBuf,
    pub blocks: PathBuf,
    pub maps: PathBuf,
    pub summary: step::Summary,
    /// Memory references and blocks of each forked child.
    pub children: Vec<[PathBuf; 2]>,
}

/// Single-steps the program, for at most `limit` instructions.
pub fn oracle(spec: &RunSpec, dir: &Path, limit: u64) -> Result<Truth, String> {
    let trouble = |e: std::io::Error| format!("oracle: {e}");
    let (mut launch, run) = spec.launch(None, dir).map_err(trouble)?;
    launch.cpu = Some(processor());
    let path = |what: &str| dir.join(format!("oracle{run:06}.{what}"));
    let truth = |what| -> Result<Box<dyn std::io::Write>, String> {
        Ok(Box::new(File::create(path(what)).map_err(trouble)?))
    };
    let child = |number| ["memrefs", "blocks"].map(|what| path(&format!("child{number}.{what}")));
    let for_child = |number| -> std::io::Result<step::Listings> {
        let [memrefs, blocks] = child(number).map(File::create);
        Ok([Box::new(memrefs?), Box::new(blocks?)])
    };
    let options = step::Options {
        memrefs: Some(truth("memrefs")?),
        blocks: Some(truth("blocks")?),
        maps: Some(truth("maps")?),
        limit,
        children: Some(Box::new(for_child)),
        ..step::Options::default()
    };
    let summary = step::run(&launch, options).map_err(trouble)?;
    let children = (1..=summary.children.len()).map(child).collect();
    let [memrefs, blocks, maps] = ["memrefs", "blocks", "maps"].map(path);
    Ok(Truth { memrefs, blocks, maps, summary, children })
}

/// Compares listing `a` with `b`.
pub fn same_listing(a: &Path, b: &Path, maps: Option<&Path>, prefix: bool) -> Result<u64, String> {
    same_listing_cut(a, b, maps, if prefix { Cut::First } else { Cut::Neither })
}

/// The same, of listings that were cut short as said.
pub fn same_listing_cut(a: &Path, b: &Path, maps: Option<&Path>, cut: Cut) -> Result<u64, String> {
    let open = |p: &Path| -> Result<BufReader<File>, String> {
        let file = File::open(p).map_err(|e| format!("{}: {e}", p.display()))?;
        Ok(BufReader::with_capacity(1 << 20, file))
    };
    let maps = match maps {
        Some(path) => Some(Box::new(open(path)?) as Box<dyn BufRead>),
        None => None,
    };
    match compare(open(a)?, open(b)?, Options { maps, cut }) {
        Ok(Verdict::Equal { records, .. }) => Ok(records),
        Ok(Verdict::Different(report)) => Err(report),
        Err(e) => Err(e.to_string()),
    }
}

/// Rewrites, runs and lists `spec`, and compares with the oracle's truth.
pub fn recovered_equals(
    truth: &Truth,
    spec: &RunSpec,
    tools: &Tools,
    mode: Mode,
    dir: &Path,
) -> Result<(), String> {
    let rewritten = dir.join(format!("rewritten.{}", mode.name));
    tools.rewrite_sharing(&spec.program, &rewritten, mode.flags)?;
    let run = spec.run(Some(&rewritten), dir).map_err(|e| e.to_string())?;
    if run.status != truth.summary.status && !truth.summary.cut_short {
        return Err(format!("ended with {:?}, not {:?}", run.status, truth.summary.status));
    }
    let trace = first_trace(&run.traces)?;
    verify_all(&run.traces, tools, &rewritten)?;
    let listing = dir.join(format!("recovered.{}", mode.name));
    // The log of mappings counts memory references, so it says nothing about blocks.
    for (what, expected, maps) in
        [("memrefs", &truth.memrefs, Some(truth.maps.as_path())), ("blocks", &truth.blocks, None)]
    {
        tools.list(what, trace, &rewritten, &listing)?;
        same_listing(expected, &listing, maps, truth.summary.cut_short)
            .map_err(|e| format!("{what}: {e}"))?;
    }
    children_equal(truth, trace, tools, &rewritten, &listing)?;
    std::fs::remove_file(&listing).map_err(|e| e.to_string())
}

/// Verifies the traces of a program and of all that it has started.
pub fn verify_all(traces: &[PathBuf], tools: &Tools, rewritten: &Path) -> Result<(), String> {
    traces.iter().try_for_each(|trace| tools.verify(trace, rewritten))
}

/// Compares what each forked child did with the oracle's truth. `first`: the program's trace.
fn children_equal(
    truth: &Truth,
    first: &Path,
    tools: &Tools,
    rewritten: &Path,
    listing: &Path,
) -> Result<(), String> {
    // Of each process its trace; none if its parent was cut short before it.
    let mut traces = vec![Some(first.to_owned())];
    for (child, expected) in truth.summary.children.iter().zip(&truth.children) {
        let parent = traces[child.parent].clone();
        let forked = parent.as_deref().map(|p| forked(p, tools, rewritten)).transpose()?;
        let pid = forked.and_then(|all| all.get(child.nth).copied());
        let trace = pid.map(|pid| with_pid(first, pid)).transpose()?;
        let number = traces.len();
        let Some(trace) = trace else {
            return Err(format!("no trace names child {} of process {}", child.nth, child.parent));
        };
        if !trace.exists() {
            return Err(format!("process {number} has no trace {}", trace.display()));
        }
        for (what, expected) in ["memrefs", "blocks"].into_iter().zip(expected) {
            tools.list(what, &trace, rewritten, listing)?;
            same_listing(expected, listing, None, child.cut_short || truth.summary.cut_short)
                .map_err(|e| format!("process {number}: {what}: {e}"))?;
        }
        traces.push(Some(trace));
    }
    Ok(())
}

/// The children of a process that have memory of their own, in their order, as its trace has them.
pub fn forked(trace: &Path, tools: &Tools, rewritten: &Path) -> Result<Vec<u64>, String> {
    let info = tools.info(trace, rewritten)?;
    let numbers = |value: &serde_json::Value| value.as_u64();
    let all = info["children"].as_array().ok_or("no children")?;
    let threads = info["threads"].as_array().ok_or("no threads")?;
    let in_it: Vec<u64> = threads.iter().filter_map(|t| numbers(&t["process"])).collect();
    Ok(all.iter().filter_map(numbers).filter(|pid| !in_it.contains(pid)).collect())
}

/// The trace of another process of the run that `first` is of.
fn with_pid(first: &Path, pid: u64) -> Result<PathBuf, String> {
    let name = first.file_name().unwrap_or_default().to_string_lossy();
    let run = name.split('.').next().unwrap_or_default();
    Ok(first.with_file_name(format!("{run}.{pid}.dep")))
}
