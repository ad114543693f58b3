//! `bench`: what recording costs.
//!
//! Each program runs natively and rewritten, in turn, for several rounds; the figures are ratios of
//! processor time to the native median of the same session. One more run leaves a trace, for its
//! size. A rewritten program whose output differs from the native one is WRONG, has no figures, and
//! makes the exit status 1.
//!
//! Ahead-of-time and run-time translation are measured with the profile (`dep`, discarded when a
//! buffer is full: `DEP_FILE=null:`) and with nothing inserted (`none`).

mod measure;
mod report;
mod workload;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use serde::Serialize;
use tests::harness::{Mode, Tools};

use measure::{measure, Outcome, Times};
use workload::Workload;

#[derive(Parser)]
#[command(about = "Measures what recording costs")]
struct Args {
    /// The programs: a line `NAME<TAB>COMMAND` for each; the command's first word is the program
    #[arg(long, value_name = "FILE", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/small.tsv"))]
    workloads: PathBuf,
    /// Only these programs
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Leave out the run that writes a trace (some bytes for each instruction)
    #[arg(long)]
    no_trace: bool,
    /// Where rewritten programs and traces go meanwhile
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Longest run, in seconds; a longer one is WRONG
    #[arg(long, default_value_t = 300)]
    limit: u64,
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// The same as --format json
    #[arg(long)]
    json: bool,
    /// The same as --format markdown
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
}

#[derive(Clone, Copy, ValueEnum, PartialEq)]
enum Format {
    Text,
    Markdown,
    Json,
}

/// The ways of rewriting, in the order of the table.
const MODES: [Mode; 4] = [
    Mode { name: "static", flags: &[] },
    Mode { name: "dynamic", flags: &["--translate", "dynamic"] },
    Mode { name: "static none", flags: &["--instrument", "none"] },
    Mode { name: "dynamic none", flags: &["--translate", "dynamic", "--instrument", "none"] },
];

/// Runs for each figure of the start-up cost.
const STARTS: usize = 15;

/// What was measured of one program.
#[derive(Serialize, Default)]
pub struct Row {
    pub name: String,
    pub native: Vec<Times>,
    /// In the order of [`MODES`].
    pub modes: Vec<ModeRow>,
    pub trace: Option<TraceFigures>,
    /// Wall seconds of `PROGRAM --version`: native, then the modes; medians.
    pub start: Vec<f64>,
    /// Why there is nothing to say about the program itself.
    pub failed: Option<String>,
}

#[derive(Serialize)]
pub struct ModeRow {
    pub name: &'static str,
    pub times: Vec<Times>,
    pub wrong: Option<String>,
}

/// Of the run that left a trace, rewritten ahead of time.
#[derive(Serialize, Clone)]
pub struct TraceFigures {
    pub instructions: u64,
    pub bytes_per_instruction: f64,
    /// Of the blocks of the main program, and of all blocks: what ran from ahead-of-time code.
    pub static_share_main: f64,
    pub static_share: f64,
}

impl Row {
    pub fn is_wrong(&self) -> bool {
        self.failed.is_some() || self.modes.iter().any(|m| m.wrong.is_some())
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::from(2)
        }
    }
}

/// Whether everything was right.
fn run(args: &Args) -> Result<bool, String> {
    let mut workloads = Workload::read(&args.workloads)?;
    if !args.only.is_empty() {
        workloads.retain(|w| args.only.contains(&w.name));
    }
    let tools = Tools::get();
    let dir = match &args.dir {
        Some(dir) => tempfile::tempdir_in(dir),
        None => tempfile::tempdir(),
    };
    let dir = dir.map_err(|e| format!("no directory for rewritten programs: {e}"))?;
    let mut rows = Vec::new();
    for workload in &workloads {
        if !workload.program.exists() {
            eprintln!("skipped {}: no {}", workload.name, workload.program.display());
            continue;
        }
        eprintln!("{} ...", workload.name);
        let row = Bench { args, tools, dir: dir.path(), workload }.row();
        eprint!("{}", report::progress(&row));
        rows.push(row);
    }
    if rows.is_empty() {
        return Err("nothing was measured".into());
    }
    let format = match (args.json, args.markdown) {
        (true, _) => Format::Json,
        (_, true) => Format::Markdown,
        _ => args.format,
    };
    match format {
        Format::Text => print!("{}", report::text(&rows)),
        Format::Markdown => print!("{}", report::markdown(&rows, args.rounds)),
        Format::Json => {
            println!("{}", serde_json::to_string_pretty(&rows).map_err(|e| e.to_string())?)
        }
    }
    Ok(!rows.iter().any(Row::is_wrong))
}

struct Bench<'a> {
    args: &'a Args,
    tools: &'a Tools,
    dir: &'a Path,
    workload: &'a Workload,
}

impl Bench<'_> {
    fn row(&self) -> Row {
        let mut row = Row { name: self.workload.name.clone(), ..Row::default() };
        if let Err(why) = self.fill(&mut row) {
            eprintln!("WRONG {}: {why}", row.name);
            row.failed = Some(why);
        }
        row
    }

    fn fill(&self, row: &mut Row) -> Result<(), String> {
        // The first run warms the caches and says what is right.
        let expected = self.execute(&self.workload.program, "null:")?;
        if expected.status != 0 || expected.stdout.is_empty() {
            return Err(format!("natively it ends with {:#x}", expected.status));
        }
        let mut files = Vec::new();
        for mode in MODES {
            let file = self.dir.join(mode.name.replace(' ', "-"));
            let wrong = self.tools.rewrite(&self.workload.program, &file, mode.flags).err();
            row.modes.push(ModeRow { name: mode.name, times: Vec::new(), wrong });
            files.push(file);
        }
        for _ in 0..self.args.rounds {
            let native = self.execute(&self.workload.program, "null:")?;
            if !native.same_as(&expected) {
                return Err("two native runs differ".into());
            }
            row.native.push(native.times);
            for (mode, file) in row.modes.iter_mut().zip(&files) {
                if mode.wrong.is_some() {
                    continue;
                }
                let run = self.execute(file, "null:")?;
                mode.wrong = difference(&expected, &run);
                mode.times.push(run.times);
            }
        }
        for mode in row.modes.iter().filter(|m| m.wrong.is_some()) {
            let why = mode.wrong.as_deref().unwrap_or_default();
            eprintln!("WRONG {} {}: {why}", row.name, mode.name);
        }
        if !self.args.no_trace && row.modes[0].wrong.is_none() {
            match self.trace(&files[0], &expected) {
                Ok(figures) => row.trace = Some(figures),
                Err(why) => {
                    eprintln!("WRONG {} trace: {why}", row.name);
                    row.modes[0].wrong = Some(why);
                }
            }
        }
        row.start.push(self.start(&self.workload.program)?);
        for (mode, file) in row.modes.iter().zip(&files) {
            row.start.push(if mode.wrong.is_some() { f64::NAN } else { self.start(file)? });
        }
        Ok(())
    }

    fn execute(&self, file: &Path, dep_file: &str) -> Result<Outcome, String> {
        let mut command = Command::new("bash");
        command.arg("-c").arg(self.workload.script(file));
        measure(command, dep_file, Duration::from_secs(self.args.limit))
            .map_err(|e| format!("bash: {e}"))
    }

    fn trace(&self, file: &Path, expected: &Outcome) -> Result<TraceFigures, String> {
        let trace = self.dir.join("trace.dep");
        let run = self.execute(file, &trace.display().to_string())?;
        let figures = match difference(expected, &run) {
            Some(why) => Err(why),
            None => self.figures(&trace, file),
        };
        // The name is one file only: the commands start the program once.
        let _ = std::fs::remove_file(&trace);
        figures
    }

    fn figures(&self, trace: &Path, file: &Path) -> Result<TraceFigures, String> {
        let mut command = Command::new(&self.tools.dep);
        let command = command.args(["info", "--json", "--output"]).arg(file).arg(trace);
        let output = command.output().map_err(|e| format!("dep: {e}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        let info: serde_json::Value =
            serde_json::from_slice(&output.stdout).map_err(|e| format!("dep info: {e}"))?;
        if let Some(what) = info["not_recovered"].as_str() {
            return Err(format!("not recovered: {what}"));
        }
        if let Some(lost) = info["losses"].as_array().and_then(|l| l.first()) {
            return Err(format!("the recording lost something: {lost}"));
        }
        let number = |path: &str| {
            info.pointer(path).and_then(|v| v.as_f64()).ok_or(format!("dep info has no {path}"))
        };
        let main = (number("/main_program/static")?, number("/main_program/blocks")?);
        let other = (number("/elsewhere/static")?, number("/elsewhere/blocks")?);
        Ok(TraceFigures {
            instructions: number("/instructions")? as u64,
            bytes_per_instruction: number("/bytes_per_instruction")?,
            static_share_main: main.0 / main.1.max(1.0),
            static_share: (main.0 + other.0) / (main.1 + other.1).max(1.0),
        })
    }

    /// Median wall time of a run that does next to nothing.
    fn start(&self, file: &Path) -> Result<f64, String> {
        use std::os::unix::process::CommandExt;
        let mut walls = Vec::new();
        for _ in 0..STARTS {
            let mut command = Command::new(file);
            command.arg0(&self.workload.program).arg("--version");
            let run = measure(command, "null:", Duration::from_secs(20));
            walls.push(run.map_err(|e| e.to_string())?.times.wall);
        }
        Ok(report::Spread::of(&walls).median)
    }
}

fn difference(expected: &Outcome, got: &Outcome) -> Option<String> {
    if got.same_as(expected) {
        None
    } else if got.status != expected.status {
        Some(format!("ends with {:#x}, natively {:#x}", got.status, expected.status))
    } else {
        Some("its output differs from the native one".into())
    }
}
