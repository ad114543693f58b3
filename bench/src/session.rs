//! The measurement: rewrite, run in turn, compare, look at a trace, start.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::formats::{FormatSettings, Formats, Left, Look};
use crate::machine::Machine;
use crate::measure::{self, ending, measure, was_interrupted, Limits, Outcome};
use crate::program::{Executed, Program};
use crate::report::{
    Known, ProgramReport, Report, Role, Spread, Start, TraceFigures, VariantReport,
};
use crate::variant::{Kind, Variant};

pub struct Settings {
    pub deprewrite: PathBuf,
    pub dep: PathBuf,
    pub rounds: u32,
    /// Where rewritten programs and traces go meanwhile; without it, where temporary files go.
    pub dir: Option<PathBuf>,
    /// A run that takes longer has failed.
    pub limit: Duration,
    /// The recording of the run that leaves a trace ends here; without it, there is none.
    pub trace_bytes: Option<u64>,
    /// Arguments that make a program start and end; without them, no start is measured.
    pub startup: Option<Vec<OsString>>,
}

/// Why the measurement ended early.
#[derive(Debug)]
pub enum Stop {
    /// `deprewrite` does not know an option.
    Usage(String),
    Failed(String),
    Interrupted,
}

/// What is about to be done, and where that is between the beginning and the end.
pub struct Progress<'a> {
    pub program: &'a str,
    pub what: &'a str,
    pub done: usize,
    pub total: usize,
}

/// Runs for the median of the start-up time.
const STARTS: usize = 15;
/// What takes longer natively is not a start.
const LONGEST_START: Duration = Duration::from_secs(1);
/// A start of a rewritten program or under a tool.
const START_LIMIT: Duration = Duration::from_secs(60);

const NULL: &str = "null:";
/// The trace of the program; those of what it starts have longer names.
const TRACE: &str = "dep";

pub struct Session<'a> {
    settings: &'a Settings,
    variants: &'a [Variant],
    dir: tempfile::TempDir,
    progress: &'a mut dyn FnMut(Progress),
    /// Who looks at the traces of each program.
    look: Option<(&'a mut dyn Look, FormatSettings)>,
    done: usize,
    total: usize,
}

impl<'a> Session<'a> {
    pub fn new(
        settings: &'a Settings,
        variants: &'a [Variant],
        progress: &'a mut dyn FnMut(Progress),
    ) -> Result<Self, Stop> {
        measure::catch_signals();
        let dir = match &settings.dir {
            Some(dir) => tempfile::tempdir_in(dir),
            None => tempfile::tempdir(),
        };
        // The name of the temporary folder would only confuse.
        let dir = dir.map_err(|e| {
            let place = settings.dir.clone().unwrap_or_else(std::env::temp_dir);
            let (place, why) = (place.display(), io::Error::from(e.kind()));
            Stop::Failed(format!("no folder for rewritten programs in {place}: {why}"))
        })?;
        for place in variants.iter().filter_map(|variant| variant.records_to.as_deref()) {
            if !place.is_dir() {
                let place = place.display();
                return Err(Stop::Failed(format!("cannot record to {place}: not a folder")));
            }
        }
        Ok(Session { settings, variants, dir, progress, look: None, done: 0, total: 0 })
    }

    /// The traces of each program are kept until `look` has looked at them.
    pub fn looking(mut self, look: &'a mut dyn Look, settings: FormatSettings) -> Self {
        self.look = Some((look, settings));
        self
    }

    /// A program that fails is in the report; everything else stops the measurement.
    pub fn run(mut self, programs: &[Program]) -> Result<Report, Stop> {
        let machine = Machine::here();
        let rounds = self.settings.rounds as usize;
        let starts = if self.settings.startup.is_some() { STARTS } else { 0 };
        let each = 2 + rounds + starts + usize::from(self.settings.trace_bytes.is_some());
        let each = each * self.variants.len();
        self.total = each * programs.len();
        let mut reports = Vec::new();
        for (at, program) in programs.iter().enumerate() {
            self.done = at * each;
            let mut report = ProgramReport {
                name: program.name.clone(),
                command: program.command_line(),
                ..ProgramReport::default()
            };
            match self.program(program, &mut report) {
                Err(Stop::Failed(why)) => report.failed = Some(why),
                other => other?,
            }
            report.conclude();
            reports.push(report);
        }
        let startup = self.settings.startup.iter().flatten();
        Ok(Report {
            machine,
            deprewrite: self.settings.deprewrite.clone(),
            rounds: self.settings.rounds,
            startup: startup.map(|a| a.to_string_lossy().into_owned()).collect(),
            formats: self.look.map(|(_, settings)| settings),
            programs: reports,
        })
    }

    fn step(&mut self, program: &Program, what: &str) {
        let (done, total) = (self.done, self.total);
        (self.progress)(Progress { program: &program.name, what, done, total });
        self.done += 1;
    }

    fn program(&mut self, program: &Program, report: &mut ProgramReport) -> Result<(), Stop> {
        let mut ways = self.prepare(program, report)?;
        let nothing = program.nothing().and_then(|command| measure(command, NULL, self.limits()));
        let nothing = nothing.map_err(|e| stop("bash", &e))?;
        report.resident_floor_bytes = nothing.measured.resident_bytes;

        // The first run warms the caches and says what is right.
        self.step(program, "native");
        let native = self.execute(program, &Executed::Native);
        let native = native.map_err(|e| stop("natively", &e))?;
        if !native.status.success() {
            let words = native.last_words.iter().map(|words| format!(" ({words})"));
            let (words, ending) = (words.collect::<String>(), ending(&native));
            return Err(Stop::Failed(format!("natively, it ends with {ending}{words}")));
        }
        report.output = native.output.clone();
        for round in 1..=self.settings.rounds {
            for (way, variant) in ways.iter_mut().zip(&mut report.variants) {
                self.step(program, &format!("{}, round {round}", variant.name));
                let Some(executed) = way.executed(variant) else { continue };
                match way {
                    Way::File { file, traces: Traces::To(dir) } => {
                        self.recorded(program, file, dir, &native, variant)?;
                    }
                    _ => {
                        let outcome = self.execute(program, &executed);
                        self.judge(outcome, &native, way, variant)?;
                    }
                }
            }
        }
        if let Some(limit) = self.settings.trace_bytes {
            let mut all = Vec::new();
            for (way, variant) in ways.iter_mut().zip(&mut report.variants) {
                self.step(program, &format!("{}, trace", variant.name));
                let left = self.trace(program, way, variant, &native, limit)?;
                all.extend(left.filter(|_| self.look.is_some()));
            }
            report.formats = self.look(program, &report.variants, &all)?;
        }
        self.starts(program, &mut ways, &mut report.variants)
    }

    /// What the traces say of their formats, if somebody looks at them.
    fn look(
        &mut self,
        program: &Program,
        variants: &[VariantReport],
        traces: &[Left],
    ) -> Result<Option<Known<Formats>>, Stop> {
        let Some((look, _)) = &mut self.look else { return Ok(None) };
        let without = variants.iter().find(|v| {
            v.records
                && v.recorded_to.is_none()
                && !traces.iter().any(|left| left.variant == v.name)
        });
        if let Some(v) = without {
            let why = v.wrong.as_deref().or(v.trace.missing()).unwrap_or("it left no trace");
            return Ok(Some(Known::not(format!("{}: {why}", v.name))));
        }
        let (done, total, progress) = (self.done, self.total, &mut self.progress);
        let mut say = |what: &str| progress(Progress { program: &program.name, what, done, total });
        match look.look(traces, &mut say) {
            Ok(formats) => Ok(Some(Known::Known(formats))),
            Err(_) if was_interrupted() => Err(Stop::Interrupted),
            Err(why) => Err(Stop::Failed(why)),
        }
    }

    /// The rewritten programs, and a line in the report for each variant.
    fn prepare(&mut self, program: &Program, report: &mut ProgramReport) -> Result<Vec<Way>, Stop> {
        let mut ways = Vec::new();
        for (at, variant) in self.variants.iter().enumerate() {
            self.step(program, &format!("{}, rewriting", variant.name));
            let mut line = VariantReport {
                name: variant.name.clone(),
                flags: variant.flags(),
                records: variant.records(),
                recorded_to: variant.records_to.clone(),
                trace: Known::not(match variant.records() {
                    false => "nothing is recorded",
                    true => "no run left a trace",
                }),
                ..VariantReport::default()
            };
            let way = match &variant.kind {
                Kind::Native => {
                    line.role = Role::Native;
                    line.file_bytes = size(&program.path);
                    Way::Native
                }
                Kind::Rewritten(flags) => {
                    line.role = Role::Rewritten;
                    let file = self.dir.path().join(format!("rewritten{at}"));
                    self.rewrite(&program.path, &file, flags)?;
                    line.file_bytes = size(&file);
                    let traces = match (&variant.records_to, variant.records()) {
                        (Some(dir), _) => Traces::To(dir.clone()),
                        (None, true) => Traces::Discarded,
                        (None, false) => Traces::None,
                    };
                    Way::File { file, traces }
                }
                Kind::Peer(peer) => {
                    line.role = Role::Peer;
                    let words = peer.words();
                    line.missing = words.as_ref().err().cloned();
                    Way::Under(words.unwrap_or_default())
                }
            };
            report.variants.push(line);
            ways.push(way);
        }
        Ok(ways)
    }

    fn rewrite(&self, input: &Path, written: &Path, flags: &[String]) -> Result<(), Stop> {
        let tool = &self.settings.deprewrite;
        let mut command = Command::new(tool);
        command.arg(input).arg("-o").arg(written).arg("--quiet").args(flags);
        let output = command.output().map_err(|e| stop(&tool.display().to_string(), &e))?;
        if was_interrupted() {
            return Err(Stop::Interrupted);
        }
        if output.status.success() {
            return match written.is_file() {
                true => Ok(()),
                false => Err(Stop::Failed(format!("{} has written nothing", tool.display()))),
            };
        }
        let text = String::from_utf8_lossy(&output.stderr);
        let line = text.lines().find(|line| !line.trim().is_empty());
        let line = line.map_or(output.status.to_string(), |line| line.trim().to_owned());
        if output.status.code() == Some(2) {
            let line = line.trim_start_matches("error: ");
            return Err(Stop::Usage(format!("deprewrite: {line}")));
        }
        Err(Stop::Failed(match line.starts_with("deprewrite:") {
            true => line,
            false => format!("deprewrite: {line}"),
        }))
    }

    fn limits(&self) -> Limits {
        Limits { time: self.settings.limit, file_bytes: None }
    }

    fn execute(&self, program: &Program, executed: &Executed) -> io::Result<Outcome> {
        measure(program.command(executed)?, NULL, self.limits())
    }

    /// Notes what was measured, or what is wrong with it.
    fn judge(
        &self,
        outcome: io::Result<Outcome>,
        native: &Outcome,
        way: &Way,
        variant: &mut VariantReport,
    ) -> Result<(), Stop> {
        let wrong = match outcome {
            Ok(outcome) => {
                variant.rounds.push(outcome.measured);
                outcome.difference(native)
            }
            Err(_) if was_interrupted() => return Err(Stop::Interrupted),
            Err(error) => Some(error.to_string()),
        };
        match wrong {
            Some(why) if matches!(way, Way::Native) => {
                Err(Stop::Failed(format!("two native runs differ: the second: {why}")))
            }
            wrong => {
                variant.wrong = wrong;
                Ok(())
            }
        }
    }

    fn trace(
        &self,
        program: &Program,
        way: &Way,
        variant: &mut VariantReport,
        native: &Outcome,
        limit: u64,
    ) -> Result<Option<Left>, Stop> {
        let Way::File { file, traces: Traces::Discarded } = way else { return Ok(None) };
        let Some(executed) = way.executed(variant) else { return Ok(None) };
        let limits = Limits { file_bytes: Some(limit), ..self.limits() };
        let dir = match tempfile::tempdir_in(self.dir.path()) {
            Ok(dir) => dir,
            Err(error) => return Err(stop("no folder for a trace", &error)),
        };
        let (run, figures) = self.run_and_trace(program, &executed, file, dir.path(), limits, true);
        let wrong = match &run {
            Ok(outcome) => outcome.difference(native),
            Err(_) if was_interrupted() => return Err(Stop::Interrupted),
            Err(error) => Some(error.to_string()),
        };
        variant.wrong = wrong.map(|why| format!("writing a trace of at most {limit} bytes: {why}"));
        if variant.wrong.is_none() {
            match figures {
                Ok(known) => variant.trace = known,
                Err(why) => variant.wrong = Some(why),
            }
        }
        let trace = dir.path().join(TRACE);
        Ok(variant.trace.get().map(|figures| Left {
            variant: variant.name.clone(),
            trace,
            output: file.clone(),
            only_first_bytes: figures.only_first_bytes,
            _dir: dir,
        }))
    }

    /// A round that writes its trace to `dir`. The first one's trace is looked at: where recording
    /// ended early, the time says nothing.
    fn recorded(
        &self,
        program: &Program,
        file: &Path,
        dir: &Path,
        native: &Outcome,
        variant: &mut VariantReport,
    ) -> Result<(), Stop> {
        let first = variant.rounds.is_empty();
        let executed = Executed::File(file);
        // Whatever else the program starts leaves its traces here, too.
        let traces = tempfile::tempdir_in(dir).map_err(|e| stop(&dir.display().to_string(), &e))?;
        let limits = self.limits();
        let (run, figures) =
            self.run_and_trace(program, &executed, file, traces.path(), limits, first);
        let way = Way::File { file: file.to_owned(), traces: Traces::None };
        self.judge(run, native, &way, variant)?;
        match figures {
            _ if !first || variant.wrong.is_some() => {}
            Ok(known) => {
                variant.missing = known.missing().map(str::to_owned);
                variant.trace = known;
            }
            Err(why) => variant.wrong = Some(why),
        }
        Ok(())
    }

    /// A run that leaves its traces in `dir`.
    fn run_and_trace(
        &self,
        program: &Program,
        executed: &Executed,
        file: &Path,
        dir: &Path,
        limits: Limits,
        look: bool,
    ) -> (io::Result<Outcome>, Result<Known<TraceFigures>, String>) {
        let nothing = Ok(Known::not("nobody looked at it"));
        let trace = dir.join(TRACE);
        let command = program.command(executed);
        let run = command.and_then(|c| measure(c, &trace.to_string_lossy(), limits));
        let figures = match (&run, look) {
            (Ok(_), true) => self.figures(&trace, file, limits.file_bytes),
            _ => nothing,
        };
        (run, figures)
    }

    /// What `dep info` says of a trace; an error if it is not what a trace has to be.
    fn figures(
        &self,
        trace: &Path,
        file: &Path,
        limit: Option<u64>,
    ) -> Result<Known<TraceFigures>, String> {
        let Some(trace_bytes) = size(trace) else {
            return Ok(Known::not("the program left no trace"));
        };
        let mut command = Command::new(&self.settings.dep);
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
        let losses = info["losses"].as_array().map_or(&[][..], |losses| losses);
        let losses: Vec<&str> = losses.iter().filter_map(|loss| loss.as_str()).collect();
        let unwanted = |loss: &&&str| limit.is_none() || !loss.starts_with("file size limit");
        if let Some(lost) = losses.iter().find(unwanted) {
            return Ok(Known::not(format!("the recording lost something: {lost}")));
        }
        let limit = limit.filter(|_| !losses.is_empty());
        Ok(trace_figures(&info, trace_bytes, limit).map_or_else(Known::not, Known::Known))
    }

    fn starts(
        &mut self,
        program: &Program,
        ways: &mut [Way],
        variants: &mut [VariantReport],
    ) -> Result<(), Stop> {
        let Some(arguments) = self.settings.startup.clone() else { return Ok(()) };
        let start = |executed: &Executed, time| {
            let limits = Limits { time, file_bytes: None };
            measure(program.start(executed, &arguments)?, NULL, limits)
        };
        let failed = match start(&Executed::Native, LONGEST_START) {
            Err(_) if was_interrupted() => return Err(Stop::Interrupted),
            Err(error) => Some(error.to_string()),
            Ok(run) if !run.status.success() => Some(format!("it ends with {}", ending(&run))),
            Ok(_) => None,
        };
        let words = arguments.iter().map(|a| a.to_string_lossy()).collect::<Vec<_>>().join(" ");
        if let Some(why) = failed {
            let why = format!("with `{words}`, {why} natively");
            variants.iter_mut().for_each(|v| v.start = Known::not(&why));
            return Ok(());
        }
        let mut runs = vec![Vec::new(); variants.len()];
        for number in 1..=STARTS {
            for ((way, variant), runs) in ways.iter().zip(&mut *variants).zip(&mut runs) {
                self.step(program, &format!("{}, start {number}", variant.name));
                let Some(executed) = way.executed(variant) else { continue };
                // Only how it ends: what a program says of itself may hold a time or a number.
                let wrong = match start(&executed, START_LIMIT) {
                    Ok(run) => {
                        runs.push(run.measured.wall_seconds);
                        let failed = !run.status.success();
                        failed.then(|| format!("ends with {}, natively status 0", ending(&run)))
                    }
                    Err(_) if was_interrupted() => return Err(Stop::Interrupted),
                    Err(error) => Some(error.to_string()),
                };
                variant.wrong = wrong.map(|why| format!("with `{words}`: {why}"));
            }
        }
        for (variant, runs) in variants.iter_mut().zip(runs) {
            if let Some(wall_seconds) = Spread::of(runs.iter().copied()) {
                variant.start = Known::Known(Start { wall_seconds, runs });
            }
        }
        Ok(())
    }
}

/// How a variant is run.
enum Way {
    Native,
    File { file: PathBuf, traces: Traces },
    Under(Vec<OsString>),
}

enum Traces {
    None,
    Discarded,
    To(PathBuf),
}

impl Way {
    /// Not for what does not run, or has been found wrong.
    fn executed(&self, variant: &VariantReport) -> Option<Executed<'_>> {
        (variant.wrong.is_none() && variant.missing.is_none()).then_some(match self {
            Way::Native => Executed::Native,
            Way::File { file, .. } => Executed::File(file),
            Way::Under(words) => Executed::Under(words),
        })
    }
}

fn trace_figures(
    info: &serde_json::Value,
    trace_bytes: u64,
    only_first_bytes: Option<u64>,
) -> Result<TraceFigures, String> {
    let number = |path: &str| {
        info.pointer(path).and_then(|v| v.as_f64()).ok_or(format!("dep info has no {path}"))
    };
    let share = |place: &str| -> Result<(f64, f64), String> {
        Ok((number(&format!("/{place}/static"))?, number(&format!("/{place}/blocks"))?))
    };
    let main = share("main_program")?;
    let all = ["embedded_libraries", "elsewhere"].into_iter().try_fold(main, |(a, b), place| {
        share(place).map(|(ahead, blocks)| (a + ahead, b + blocks))
    })?;
    Ok(TraceFigures {
        instructions: number("/instructions")? as u64,
        bytes_per_instruction: number("/bytes_per_instruction")?,
        static_share_main: main.0 / main.1.max(1.0),
        static_share: all.0 / all.1.max(1.0),
        trace_bytes,
        control_flow_bytes: number("/control_flow_bytes")? as u64,
        memory_bytes: number("/memory_bytes")? as u64,
        only_first_bytes,
    })
}

fn size(file: &Path) -> Option<u64> {
    std::fs::metadata(file).ok().map(|metadata| metadata.len())
}

fn stop(what: &str, error: &io::Error) -> Stop {
    match was_interrupted() {
        true => Stop::Interrupted,
        false => Stop::Failed(format!("{what}: {error}")),
    }
}
