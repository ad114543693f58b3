//! The programs of `../shared/workloads/workloads.sh`, on inputs that are large enough to do what
//! they do and small enough for a test. The benchmark runs the same list at full size.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use common::{DYNAMIC, DYNAMIC_NONE, STATIC, STATIC_NONE};
use tests::harness::{Mode, Tally, Tools};

const SCALE: &str = "0.02";
const LIMIT: Duration = Duration::from_secs(60);
/// Of the blocks of the main program and of embedded libraries, at least this share is to come from code made ahead of time.
const AHEAD_OF_TIME: f64 = 0.999;

struct Workload {
    name: String,
    program: PathBuf,
    /// What follows the program, as the shell reads it.
    rest: String,
}

impl Workload {
    fn parse(line: &str) -> Option<Self> {
        let (name, command) = line.split_once('\t')?;
        let (program, rest) = command.split_once(' ').unwrap_or((command, ""));
        Some(Self { name: name.to_owned(), program: program.into(), rest: rest.to_owned() })
    }

    /// The command with `file` in the program's place, which still sees its own name.
    fn run(&self, file: &Path, trace: &Path) -> Result<Outcome, String> {
        // dash has no `exec -a`. Of the paths, the script's author and `tempfile` chose none with
        // a quote.
        let script = format!(
            "program() {{ (exec -a '{}' '{}' \"$@\"); }}\nprogram {}",
            self.program.display(),
            file.display(),
            self.rest
        );
        let run = Command::new("timeout")
            .args([&LIMIT.as_secs().to_string(), "bash", "-c", &script])
            .envs([("LC_ALL", "C"), ("PYTHONHASHSEED", "0"), ("PERL_HASH_SEED", "0")])
            .env("DEP_FILE", trace)
            .output()
            .map_err(|e| format!("bash: {e}"))?;
        Ok((run.status.code(), run.stdout, run.stderr))
    }
}

fn script() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    // WORKLOADS=file names another one.
    let given = std::env::var_os("WORKLOADS").map(PathBuf::from);
    given.unwrap_or_else(|| root.join("../shared/workloads/workloads.sh"))
}

fn workloads(script: &Path, dir: &Path) -> Result<Vec<Workload>, String> {
    let output = Command::new("bash").arg(script).arg(dir).env("WORKLOADS_SCALE", SCALE).output();
    let output = output.map_err(|e| format!("bash: {e}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let parse = |line| Workload::parse(line).ok_or_else(|| format!("no tab in: {line}"));
    text.lines().map(parse).collect()
}

/// How many blocks were executed in a place, and how many of them from code made ahead of time.
fn blocks(info: &Value, place: &str) -> Option<(f64, f64)> {
    let number = |key: &str| info[place][key].as_f64();
    Some((number("blocks")?, number("static")?))
}

fn check_trace(tools: &Tools, trace: &Path, output: &Path, mode: Mode) -> Result<(), String> {
    tools.verify(trace, output)?;
    if mode != STATIC {
        return Ok(());
    }
    let mut info = Command::new(&tools.dep);
    let info = info.args(["info", "--json", "--output"]).arg(output).arg(trace).output();
    let info = info.map_err(|e| format!("dep info: {e}"))?;
    let text = String::from_utf8_lossy(&info.stdout);
    let info: Value = serde_json::from_str(&text).map_err(|e| format!("dep info: {e}"))?;
    for place in ["main_program", "embedded_libraries"] {
        let (all, ahead) = blocks(&info, place).ok_or_else(|| format!("dep info says {text:?}"))?;
        if all == 0.0 || ahead < all * AHEAD_OF_TIME {
            return Err(format!("{place}: of {all} blocks, only {ahead} made ahead of time"));
        }
    }
    Ok(())
}

type Outcome = (Option<i32>, Vec<u8>, Vec<u8>);

fn check(
    work: &Workload,
    native: &Outcome,
    mode: Mode,
    tools: &Tools,
    dir: &Path,
) -> Result<(), String> {
    let (output, trace) = (dir.join("rewritten"), dir.join("trace.dep"));
    for old in [&output, &trace] {
        let _ = fs::remove_file(old);
    }
    tools.rewrite(&work.program, &output, mode.flags)?;
    let rewritten = work.run(&output, &trace)?;
    for (what, a, b) in [("stdout", &native.1, &rewritten.1), ("stderr", &native.2, &rewritten.2)] {
        if a != b {
            let at = a.iter().zip(b).take_while(|(x, y)| x == y).count();
            let text = String::from_utf8_lossy(&rewritten.2);
            let (a, b) = (a.len(), b.len());
            return Err(format!(
                "{what} ({a} bytes, now {b}) differs at byte {at}; stderr: {text}"
            ));
        }
    }
    if native.0 != rewritten.0 {
        return Err(format!("ended with {:?}, expected {:?}", rewritten.0, native.0));
    }
    if mode.name.ends_with("none") {
        return Ok(());
    }
    check_trace(tools, &trace, &output, mode)
}

#[test]
fn workloads_same_behaviour() {
    let mut tally = Tally::start("workloads_same_behaviour");
    let script = script();
    if !script.exists() {
        tally.skip("workloads", &format!("{} does not exist", script.display()));
        return tally.finish();
    }
    let tools = Tools::get();
    let dir = tempfile::tempdir().unwrap();
    let list = workloads(&script, &dir.path().join("in")).unwrap_or_else(|e| panic!("{e}"));
    assert!(!list.is_empty(), "no workloads");
    for work in &list {
        if !work.program.exists() {
            tally.skip(&work.name, "not installed");
            continue;
        }
        let native = work.run(&work.program, &dir.path().join("trace.dep"));
        for mode in [STATIC, DYNAMIC, STATIC_NONE, DYNAMIC_NONE] {
            let outcome = native.as_ref().map_err(String::clone);
            let outcome = outcome.and_then(|n| check(work, n, mode, tools, dir.path()));
            tally.record(&format!("{} {}", work.name, mode.name), outcome);
        }
    }
    tally.finish();
}
