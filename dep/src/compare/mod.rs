//! `dep compare`: what recording costs, for one program or a list of them.
//!
//! The crate `bench` measures; here are the command line, the table, the figure, and JSON.

mod figure;
mod formats;
mod table;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bench::{Choice, Program, Progress, Report, Role, Session, Settings, Stop, Variant};
use clap::Args as ClapArgs;
use indicatif::{ProgressBar, ProgressStyle};

#[derive(ClapArgs)]
pub struct Arguments {
    /// The program, as deprewrite takes it
    #[arg(required_unless_present_any = ["workloads", "report"], conflicts_with = "workloads")]
    input: Option<PathBuf>,
    /// What the program is run with
    #[arg(last = true, value_name = "ARGS", conflicts_with = "workloads")]
    arguments: Vec<OsString>,
    /// What the program reads from stdin; without it, nothing
    #[arg(long, value_name = "FILE", conflicts_with = "workloads")]
    stdin: Option<PathBuf>,
    /// Several programs: a line `NAME<TAB>COMMAND` for each; the command's first word, an absolute
    /// path, is the program
    #[arg(long, value_name = "FILE")]
    workloads: Option<PathBuf>,
    /// Only these programs of the list
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        requires = "workloads",
        conflicts_with = "input"
    )]
    only: Vec<String>,
    /// Measure nothing: show what --json said
    #[arg(long, value_name = "FILE", conflicts_with_all = ["input", "workloads"])]
    report: Option<PathBuf>,

    /// Compare the formats of a trace instead: time, bytes, compressed bytes, recovery
    #[arg(long, conflicts_with_all = ["instrument", "control_flow", "memory", "variant", "peers", "startup", "no_trace"])]
    formats: bool,
    /// With --formats: also with these flags of deprewrite, as one word, each time
    #[arg(long, value_name = "FLAGS", allow_hyphen_values = true, requires = "formats")]
    flags: Option<String>,
    /// With --formats: millions of instructions whose streams are compressed
    #[arg(long, value_name = "MILLIONS", default_value_t = 10, requires = "formats", value_parser = clap::value_parser!(u64).range(1..=1000))]
    sample: u64,

    /// Also with this --instrument of deprewrite, ahead of time and at run time
    #[arg(long, value_name = "VALUE,...", value_delimiter = ',')]
    instrument: Vec<String>,
    /// Also with this --control-flow
    #[arg(long, value_name = "VALUE,...", value_delimiter = ',')]
    control_flow: Vec<String>,
    /// Also with this --memory
    #[arg(long, value_name = "VALUE,...", value_delimiter = ',')]
    memory: Vec<String>,
    /// Also with these flags of deprewrite, as one word; can be given several times
    #[arg(long, value_name = "[NAME=]FLAGS", allow_hyphen_values = true, value_parser = variant)]
    variant: Vec<(String, Vec<String>)>,
    /// Also with traces written to a directory (gigabytes; one at a time), not discarded
    #[arg(long, value_name = "DIR,...", value_delimiter = ',')]
    record_to: Vec<PathBuf>,
    /// Also under Valgrind: none, and lackey, which counts
    #[arg(long)]
    peers: bool,

    /// How often each is run, in turn; the medians count
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// What makes the program start and end, separated by spaces
    #[arg(long, value_name = "ARGS", default_value = "--version", allow_hyphen_values = true)]
    startup: String,
    /// Leave out the run that leaves a trace: no bytes per instruction, no static share
    #[arg(long)]
    no_trace: bool,
    /// The trace ends here [default: 1024; of each format: 256]
    #[arg(long, value_name = "MIB", conflicts_with = "no_trace", value_parser = clap::value_parser!(u64).range(1..))]
    trace_limit: Option<u64>,
    /// Where rewritten programs and a trace go meanwhile
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Longest run; a longer one is WRONG
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// The rewriter, if it is neither beside this command nor in PATH
    #[arg(long, value_name = "FILE")]
    deprewrite: Option<PathBuf>,

    /// JSON with every run
    #[arg(long)]
    json: bool,
    /// The table as Markdown
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Also a figure
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Flags, with or without a name before them.
fn variant(text: &str) -> Result<(String, Vec<String>), String> {
    let (name, flags) = match text.split_once('=') {
        Some((name, flags)) if !name.starts_with('-') => (Some(name), flags),
        _ => (None, text),
    };
    let flags: Vec<String> = flags.split_whitespace().map(str::to_owned).collect();
    if !flags.first().is_some_and(|flag| flag.starts_with('-')) {
        return Err("expected flags of deprewrite, as in 'small=--memory none'".into());
    }
    let name = name.map_or_else(|| flags.join(" ").replace("--", ""), str::to_owned);
    Ok((name, flags))
}

const INTERRUPTED: u8 = 130;
/// MiB at which a trace ends, if nothing else is said.
const TRACE_LIMIT: u64 = 1024;

pub fn run(arguments: &Arguments) -> ExitCode {
    let (code, why) = match compare(arguments) {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => return ExitCode::FAILURE,
        Err(Stop::Failed(why)) => (1, why),
        Err(Stop::Usage(why)) => (2, why),
        Err(Stop::Interrupted) => (INTERRUPTED, "interrupted".into()),
    };
    eprintln!("dep: {why}");
    ExitCode::from(code)
}

/// Whether everything was right.
fn compare(arguments: &Arguments) -> Result<bool, Stop> {
    let report = match &arguments.report {
        Some(file) => {
            let named =
                |e: &dyn std::fmt::Display| Stop::Failed(format!("{}: {e}", file.display()));
            let text = std::fs::read_to_string(file).map_err(|e| named(&e))?;
            Report::parse(&text).map_err(|e| named(&e))?
        }
        None => measure(arguments)?,
    };
    print(arguments, &report)?;
    Ok(report.is_right())
}

fn measure(arguments: &Arguments) -> Result<Report, Stop> {
    let programs = programs(arguments).map_err(Stop::Failed)?;
    let variants = match arguments.formats {
        true => {
            let flags = arguments.flags.iter().flat_map(|flags| flags.split_whitespace());
            let flags: Vec<String> = flags.map(str::to_owned).collect();
            formats::variants(&flags, &arguments.record_to)
        }
        false => Variant::all(&choice(arguments)),
    };
    let limit = if arguments.formats { formats::TRACE_LIMIT } else { TRACE_LIMIT };
    let trace_bytes = arguments.trace_limit.unwrap_or(limit) << 20;
    let startup = arguments.startup.split_whitespace().map(OsString::from).collect();
    let dep = std::env::current_exe().map_err(|e| Stop::Failed(format!("/proc/self/exe: {e}")))?;
    let settings = Settings {
        deprewrite: deprewrite(arguments.deprewrite.as_deref(), &dep).map_err(Stop::Failed)?,
        dep,
        rounds: arguments.rounds,
        dir: arguments.dir.clone(),
        limit: Duration::from_secs(arguments.limit),
        trace_bytes: (!arguments.no_trace).then_some(trace_bytes),
        startup: (!arguments.formats).then_some(startup),
    };
    let bar = bar();
    let mut show = |progress: Progress| {
        bar.set_length(progress.total as u64);
        bar.set_position(progress.done as u64);
        bar.set_message(format!("{}: {}", progress.program, progress.what));
    };
    let sample = arguments.sample * 1_000_000;
    let mut reader = formats::reader(sample, arguments.rounds);
    let mut session = Session::new(&settings, &variants, &mut show)?;
    if arguments.formats {
        session = session.looking(&mut reader, formats::settings(sample, trace_bytes));
    }
    let report = session.run(&programs);
    bar.finish_and_clear();
    report
}

fn print(arguments: &Arguments, report: &Report) -> Result<(), Stop> {
    let alone = arguments.input.is_some();
    let failed = report.programs.iter().filter_map(|p| Some((&p.name, p.failed.as_ref()?)));
    for (name, why) in failed {
        if alone {
            return Err(Stop::Failed(why.clone()));
        }
        eprintln!("dep: {name}: {why}");
    }
    for program in &report.programs {
        for variant in program.variants.iter().filter(|v| v.role != Role::Peer) {
            if let Some(why) = &variant.wrong {
                eprintln!("dep: WRONG: {} {}: {why}", program.name, variant.name);
            }
        }
    }
    let of_formats = report.formats.is_some();
    let text = match (arguments.json, arguments.markdown) {
        (true, _) => {
            let json = serde_json::to_string_pretty(report);
            json.map_err(|e| Stop::Failed(e.to_string()))? + "\n"
        }
        (_, true) if of_formats => formats::markdown(report),
        (_, true) => table::markdown(report),
        _ if of_formats => formats::text(report),
        _ => table::text(report),
    };
    let written = std::io::Write::write_all(&mut std::io::stdout().lock(), text.as_bytes());
    if let Err(e) = written.or_else(unread) {
        return Err(Stop::Failed(format!("cannot write: {e}")));
    }
    let Some(file) = &arguments.svg else { return Ok(()) };
    let svg = if of_formats { formats::svg(report) } else { figure::svg(report) };
    std::fs::write(file, svg).map_err(|e| Stop::Failed(format!("{}: {e}", file.display())))
}

/// Whoever reads the output may have seen enough.
fn unread(error: std::io::Error) -> std::io::Result<()> {
    match error.kind() {
        std::io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(error),
    }
}

fn programs(arguments: &Arguments) -> Result<Vec<Program>, String> {
    let Some(file) = &arguments.workloads else {
        let input = arguments.input.as_deref().unwrap_or(Path::new(""));
        // A name without a slash is looked for in PATH by whoever executes it.
        let input = match input.is_relative() {
            true => Path::new(".").join(input),
            false => input.to_owned(),
        };
        let stdin = arguments.stdin.as_deref();
        return Ok(vec![Program::direct(&input, &arguments.arguments, stdin)]);
    };
    let mut programs = Program::list(file)?;
    for name in &arguments.only {
        if !programs.iter().any(|p| p.name == *name) {
            return Err(format!("{}: no program {name}", file.display()));
        }
    }
    programs.retain(|p| arguments.only.is_empty() || arguments.only.contains(&p.name));
    match programs.is_empty() {
        true => Err(format!("{}: no programs", file.display())),
        false => Ok(programs),
    }
}

fn choice(arguments: &Arguments) -> Choice {
    let options = [
        ("--instrument", &arguments.instrument),
        ("--control-flow", &arguments.control_flow),
        ("--memory", &arguments.memory),
    ];
    let each = |(name, values): (&'static str, &Vec<String>)| {
        values.iter().map(|value| (name, value.clone())).collect::<Vec<_>>()
    };
    Choice {
        options: options.into_iter().flat_map(each).collect(),
        others: arguments.variant.clone(),
        records_to: arguments.record_to.clone(),
        peers: arguments.peers,
    }
}

/// The rewriter: as given, else beside this command, else in PATH.
fn deprewrite(given: Option<&Path>, dep: &Path) -> Result<PathBuf, String> {
    if let Some(file) = given {
        return match file.is_file() {
            true => std::path::absolute(file).map_err(|e| format!("{}: {e}", file.display())),
            false => Err(format!("--deprewrite {}: no such file", file.display())),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = dep.parent().map(Path::to_owned).into_iter().chain(std::env::split_paths(&path));
    let mut files = dirs.map(|dir| dir.join("deprewrite"));
    files.find(|file| file.is_file()).ok_or_else(|| {
        let dir = dep.parent().unwrap_or(dep).display();
        format!("no deprewrite in {dir}, nor in PATH; name it with --deprewrite FILE")
    })
}

/// On a terminal only.
fn bar() -> ProgressBar {
    let bar = ProgressBar::new(1);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {percent:>3} % {eta} {msg:40!}") {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests;
