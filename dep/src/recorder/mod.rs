//! `dep record`: runs a program and leaves a recording of it and of what it starts.

/// Says it on stderr. Whether anybody can read it changes nothing.
macro_rules! say {
    ($($what:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "dep: {}", format_args!($($what)*));
    }};
}

mod child;
mod dumps;
mod search;
mod selectors;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use abi::layout::{LEAST_ADDRESSES, TOO_FEW_ADDRESSES};
use clap::builder::ArgPredicate;
use clap::{Arg, Args as ClapArgs};
use indicatif::BinaryBytes;
use nix::errno::Errno;
use nix::sys::resource::{getrlimit, Resource};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use recording::compress::Compressor;
use recording::folder::{self, TRACES};
use recording::manifest::{now_ns, End, Manifest, Name, Status, VERSION};
use recording::processes::{Ending, Processes};
use recording::Recording;
use replay::Lineage;
use rewriter::options::How;

use crate::args::Compression;
use crate::cleanup::Guard;
use crate::progress::Progress;
use crate::text::seconds;
pub use child::escaped;
use child::{Child, Start};
use record::prepare::{for_recording_with, Prepared};
use record::program::Program;
use search::Missing;
use selectors::without_code;

/// Of `dep record`, as of `env` and `timeout`: it could not do what it is for.
const FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// A program that runs no longer than this has ended before it is described as one that runs.
const BRIEF: Duration = Duration::from_millis(50);

/// Variables that a recording sets itself. Others, as `DEP_ONLY`, are the caller's to set.
const VARIABLES: [&str; 7] = [
    "DEP_FILE",
    "DEP_RECORDER",
    "DEP_RECORDING",
    "DEP_EXECFN",
    "DEP_EXE",
    "DEP_CACHE",
    "DEP_CACHE_SIZE",
];

/// What says something about how a profile is made asks for one.
const OF_A_PROFILE: [&str; 6] = ["control_flow", "memory", "log_size", "only", "skip", "start"];

/// The smallest recording, which every question can be asked of, unless something is said that it does not have.
fn inputs_by_default(instrument: Arg) -> Arg {
    let given = OF_A_PROFILE.map(|option| (option, ArgPredicate::IsPresent));
    let set = ("switchable", ArgPredicate::Equals("true".into()));
    let profiles = given.into_iter().chain([set]).map(|(option, when)| (option, when, Some("dep")));
    instrument
        .help("What is recorded; dep if an option is given that only a profile has")
        .default_value("inputs")
        .default_value_ifs(profiles)
}

#[derive(ClapArgs)]
#[command(mut_arg("instrument", inputs_by_default))]
pub struct Arguments {
    /// The folder to make; without it PROGRAM.N.rec in the working directory, N being the first number
    /// that is free
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Record the program alone: not the processes and programs that it starts
    #[arg(long)]
    no_follow: bool,
    /// Record what a replay needs, which is the default: what the programs could not compute themselves
    /// (--instrument inputs)
    #[arg(long, conflicts_with = "instrument")]
    replayable: bool,
    /// Keep the newest part only, of each process: a number of turns (100M), a size (64MiB) or a time (10s)
    #[arg(long, value_name = "PART", value_parser = part)]
    keep_last: Option<String>,
    /// With --keep-last: keep all of the memory that the kept part begins with, also what it never looks at
    #[arg(long, requires = "keep_last")]
    whole_memory: bool,
    /// Compress what is recorded, beside the program, and the rest when it has ended
    #[arg(long, value_name = "LEVEL")]
    compress: Option<Compression>,
    /// When `dep record` is sent this signal (USR1, USR2, HUP, ...), write what is kept of each process that
    /// runs to a file, as `dep dump` does
    #[arg(long, value_name = "SIGNAL", requires = "keep_last", value_parser = dumps::signal)]
    dump_signal: Option<i32>,
    /// Which thread is next, and for how long, is left to chance, so that errors that depend on the order of threads
    /// show sooner
    #[arg(long, value_name = "random:SEED", value_parser = schedule)]
    schedule: Option<String>,
    #[command(flatten)]
    how: How,
    /// The program, searched in PATH, and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_names = ["PROGRAM", "ARGS"])]
    command: Vec<OsString>,
}

/// How much of a recording is kept.
fn part(text: &str) -> Result<String, String> {
    let known = abi::ring::Ring::parse(text);
    known.map(|_| text.to_owned()).ok_or_else(|| format!("expected {}", abi::ring::EXPECTED))
}

/// A schedule of threads, as `DEP_SCHEDULE` has it.
fn schedule(text: &str) -> Result<String, String> {
    let seed = text.strip_prefix("random:").and_then(|seed| seed.parse::<u64>().ok());
    seed.map(|_| text.to_owned())
        .ok_or_else(|| "expected random:SEED, with a number for SEED".into())
}

impl Arguments {
    /// What cannot be had together.
    pub fn check(&mut self) -> Result<(), &'static str> {
        if self.command.first().is_some_and(|program| program.as_bytes().starts_with(b"-")) {
            return Err("no such option of dep record (a program whose name begins with - needs a path: ./-NAME)");
        }
        if self.dump_signal.is_some_and(crate::caller::ignores) {
            return Err("the signal of --dump-signal is ignored by whoever has started dep record: choose another");
        }
        if self.replayable {
            self.how.record_inputs();
        }
        if (self.keep_last.is_some() || self.schedule.is_some()) && !self.how.records_inputs_alone()
        {
            return Err("--keep-last and --schedule need --instrument inputs, the default without options of a profile (its newest part is kept by --ring and --log-size)");
        }
        if self.how.is_watched() && self.schedule.is_some() {
            return Err("--schedule needs --threads serial: watched threads run all at once");
        }
        self.how.check()
    }

    /// The options as they are typed.
    fn flags(&self) -> Vec<String> {
        let mut flags = self.how.flags();
        flags.extend(self.no_follow.then(|| "--no-follow".to_owned()));
        if let Some(part) = &self.keep_last {
            flags.extend(["--keep-last".to_owned(), part.clone()]);
        }
        if let Some(schedule) = &self.schedule {
            flags.extend(["--schedule".to_owned(), schedule.clone()]);
        }
        flags.extend(self.whole_memory.then(|| "--whole-memory".to_owned()));
        if let Some(signal) = self.dump_signal.and_then(|n| Signal::try_from(n).ok()) {
            let name = signal.as_str().trim_start_matches("SIG");
            flags.extend(["--dump-signal".to_owned(), name.to_owned()]);
        }
        flags
    }

    /// The environment of the program.
    fn environment(
        &self,
        folder: &Path,
        named: &Path,
        original: &Path,
        cache: Option<&Path>,
    ) -> Vec<(OsString, OsString)> {
        let is_ours = |name: &OsString| VARIABLES.iter().any(|ours| name == ours);
        let mut all: Vec<_> = std::env::vars_os().filter(|(name, _)| !is_ours(name)).collect();
        let mut set = |name: &str, value: OsString| all.push((name.into(), value));
        let mut file = child::escaped(&folder.join(TRACES));
        file.push("/%p.dep");
        set("DEP_FILE", file);
        if let Ok(own) = std::env::current_exe() {
            set("DEP_RECORDER", own.into());
        }
        set("DEP_RECORDING", folder.into());
        set("DEP_EXECFN", named.into());
        set("DEP_EXE", original.into());
        // Wherever the program goes, and whatever it does with its environment.
        if let Some(cache) = cache {
            set("DEP_CACHE", cache.into());
        }
        if let Some(size) = std::env::var_os("DEP_CACHE_SIZE") {
            set("DEP_CACHE_SIZE", size);
        }
        for (name, asked) in [("DEP_RING", &self.keep_last), ("DEP_SCHEDULE", &self.schedule)] {
            if let Some(value) = asked {
                all.retain(|(other, _)| other != name);
                all.push((name.into(), value.into()));
            }
        }
        if self.no_follow {
            all.retain(|(other, _)| other != "DEP_FOLLOW");
            all.push(("DEP_FOLLOW".into(), "0".into()));
        }
        all
    }
}

/// The command. Its exit status is the program's.
pub fn run(arguments: &mut Arguments) -> ExitCode {
    arguments.how.be_switchable();
    match record(arguments) {
        Ok(status) => ExitCode::from(child::end_as(status)),
        Err((why, status)) => {
            say!("{why}");
            ExitCode::from(status)
        }
    }
}

/// Why nothing was run, and the exit status that says so.
type Refused = (String, u8);

fn record(arguments: &Arguments) -> Result<Status, Refused> {
    let failed = |why: String| (why, FAILED);
    let Some(program) = arguments.command.first() else { return Err(failed("no program".into())) };
    let shown = program.to_string_lossy().into_owned();
    let named =
        search::search(program, std::env::var_os("PATH")).map_err(|missing| match missing {
            Missing::NotFound => (format!("{shown}: not found"), NOT_FOUND),
            Missing::NotExecutable(why) => {
                (format!("{shown}: cannot be executed: {why}"), NOT_EXECUTABLE)
            }
        })?;
    // The shell runs what is neither.
    let (named, mut command) = match child::is_for_the_shell(&named) {
        false => (named, arguments.command.clone()),
        true => {
            let mut command = arguments.command.clone();
            command.splice(0..1, [OsString::from("/bin/sh"), named.into_os_string()]);
            (PathBuf::from("/bin/sh"), command)
        }
    };
    let name = Path::new(program).file_name().unwrap_or(program).to_string_lossy();
    let folder =
        folder::create(arguments.output.as_deref(), &name).map_err(|e| failed(e.to_string()))?;
    let shown_folder = folder.clone();
    let folder = folder.canonicalize().map_err(|e| failed(format!("{}: {e}", folder.display())))?;
    // What could not be started leaves no recording.
    let started = start(arguments, &folder, &named, &mut command).inspect_err(|_| {
        let _ = std::fs::remove_dir_all(&folder);
    });
    let (child, mut manifest) = started?;
    let compressor = arguments.compress.map(|level| Compressor::start(&folder, level.into()));
    let status = child.wait().map_err(|e| failed(format!("cannot wait for {shown}: {e}")))?;
    manifest.end = Some(End { status, time_ns: now_ns() });
    if let Err(error) = manifest.write(&folder) {
        say!("{error}");
    }
    if arguments.keep_last.is_some() {
        await_beginnings(&folder);
        // Compressed pages that nobody looks at take little room.
        if !arguments.whole_memory && arguments.compress.is_none() {
            trim(&folder);
        }
    }
    if let Some(compressor) = compressor {
        let progress = Progress::start("compressing".into());
        let errors = compressor.finish();
        progress.finish();
        errors.iter().for_each(|error| say!("{error}"));
    }
    finish(&folder, &shown_folder, &arguments.how);
    Ok(status)
}

/// Of a process that was killed, a copy of it finds out a moment later, and writes down where its ring begins:
/// whoever reads the recording next is to find that there.
fn await_beginnings(folder: &Path) {
    const EACH: Duration = Duration::from_millis(20);
    const LONGEST: Duration = Duration::from_secs(3);
    let Ok(recording) = Recording::open(folder) else { return };
    let is_gone = |pid: u64| !Path::new("/proc").join(pid.to_string()).exists();
    let mut headless: Vec<_> =
        recording.traces.iter().copied().filter(|name| is_gone(name.pid)).collect();
    let begun = Instant::now();
    loop {
        headless.retain(|&name| Lineage::of_recording(&recording, name).is_err());
        if headless.is_empty() || begun.elapsed() > LONGEST {
            return;
        }
        std::thread::sleep(EACH);
    }
}

/// Memory that a replay never looks at is left out. What cannot be trimmed is whole, which is no fault.
fn trim(folder: &Path) {
    let Ok(recording) = Recording::open(folder) else { return };
    let progress = Progress::start("trimming".into());
    let errors = crate::trim::recording(&recording);
    progress.finish();
    errors.iter().for_each(|error| say!("{error}"));
}

fn start(
    arguments: &Arguments,
    folder: &Path,
    named: &Path,
    command: &mut Vec<OsString>,
) -> Result<(Child, Manifest), Refused> {
    let failed = |why: String| (why, FAILED);
    let real = named.canonicalize().unwrap_or_else(|_| named.to_owned());
    let directory = std::env::current_dir().unwrap_or_default();
    let mut manifest = Manifest {
        version: VERSION,
        tool: concat!("dep ", env!("CARGO_PKG_VERSION")).into(),
        command: arguments.command.iter().map(|word| Name::from(word.as_os_str())).collect(),
        program: real.as_os_str().into(),
        directory: directory.as_os_str().into(),
        options: arguments.flags(),
        rewrite: arguments.how.flags(),
        // Without one, the recording has its own.
        cache: store::root().ok().filter(|cache| cache.to_str().is_some()),
        start_ns: now_ns(),
        pid: None,
        end: None,
    };
    // From one listener to the next no signal is lost: it waits until it is read.
    let mut passed_on = SigSet::empty();
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM] {
        passed_on.add(signal);
    }
    let before = passed_on.thread_swap_mask(SigmaskHow::SIG_BLOCK).ok();
    manifest.write(folder).map_err(|e| failed(e.to_string()))?;
    let cache = manifest.cache.as_deref();
    let prepared = match record::prepare::known(folder, named, &manifest.rewrite, cache) {
        Some(known) => known,
        // Only what takes long may be interrupted.
        None => {
            let guard = Guard::new(folder);
            if let Some(before) = before {
                let _ = before.thread_set_mask();
            }
            let progress = Progress::start(format!("rewriting {}", real.display()));
            let prepared = for_recording_with(folder, named, &manifest.rewrite, cache);
            progress.finish();
            let _ = passed_on.thread_block();
            guard.keeps(folder);
            prepared
        }
    };
    let refused =
        |reason: &str| Err(failed(format!("{}: cannot be recorded: {reason}", named.display())));
    let Program { output, exe, script_arguments, .. } = match prepared {
        Prepared::Run(program) => *program,
        Prepared::Native { reason } => return refused(&reason),
    };
    if getrlimit(Resource::RLIMIT_AS).is_ok_and(|(soft, _)| soft < LEAST_ADDRESSES) {
        return refused(TOO_FEW_ADDRESSES);
    }
    if !script_arguments.is_empty() {
        command.splice(0..1, script_arguments);
    }
    let environment = arguments.environment(folder, named, &exe, manifest.cache.as_deref());
    manifest.start_ns = now_ns();
    let answered = arguments.dump_signal.map(|signal| (signal, dumps::of(folder, &directory)));
    let start =
        Start { file: &output, arguments: command.clone(), environment, mask: before, answered };
    let child = Child::start(start).map_err(|e| match e {
        Errno::E2BIG => failed("the arguments and the environment are too long".into()),
        e => failed(format!("cannot run {}: {e}", output.display())),
    })?;
    manifest.pid = Some(child.pid());
    // What ends at once is described once, when it has ended. The program runs: what cannot be written now is
    // said, and changes nothing else.
    if !child.ends_within(BRIEF) {
        if let Err(error) = manifest.write(folder) {
            say!("{error}");
        }
    }
    Ok((child, manifest))
}

/// Brings in what is needed to read the recording, and says what there is; to a terminal, or if it is
/// not all that was asked for.
fn finish(folder: &Path, shown: &Path, how: &How) {
    let recording = match Recording::open(folder) {
        Ok(recording) => recording,
        Err(error) => return say!("{error}"),
    };
    let processes = Processes::read(&recording);
    for lost in processes.needed.gather(folder) {
        say!("{lost}");
    }
    match processes.originals.note(folder) {
        Ok(lost) => lost.iter().for_each(|lost| say!("{lost}")),
        Err(error) => say!("{error}"),
    }
    // What went wrong, and is about no program of its own.
    for (_, note) in processes.notes.iter().filter(|(pid, _)| pid.is_none()) {
        say!("{note}");
    }
    let shown = shown.display();
    if processes.images().next().is_none() {
        return say!("{shown}: nothing was recorded");
    }
    for selector in
        how.rules().map_or_else(|_| Vec::new(), |rules| without_code(&rules, &recording))
    {
        say!("{shown}: {selector} (--only, --skip) names no code of any program or library that was recorded");
    }
    let count =
        |is: &dyn Fn(&Ending) -> bool| processes.images().filter(|image| is(&image.ending)).count();
    let left = processes.left().len();
    if std::io::stderr().is_terminal() {
        let end = recording.manifest.end.map_or(0, |end| end.time_ns);
        let mut line = format!(
            "{shown}: {}, {}, {}",
            plural(
                processes.all.iter().filter(|p| !p.images.is_empty() || p.within.is_some()).count(),
                "process",
                "processes"
            ),
            BinaryBytes(processes.images().map(|image| image.bytes).sum()),
            seconds(end.saturating_sub(recording.manifest.start_ns)),
        );
        let running = count(&|ending| *ending == Ending::Running);
        if running > 0 {
            line += &format!(", {} still recording", plural(running, "process", "processes"));
        }
        say!("{line}");
    }
    if left > 0 {
        say!(
            "{shown}: {} not recorded: `dep ps {shown}` names them",
            plural(left, "program was", "programs were")
        );
    }
}

fn plural(count: usize, one: &str, more: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        count => format!("{count} {more}"),
    }
}
