//! `dep`: what a trace holds, and what recording costs.
//!
//! Exit codes: 0 all right, 1 the trace (or the output file that it needs) cannot be read or is
//! not what the format promises, 2 wrong usage. What is intact is shown all the same.
//! `compare` and `record` have modules of their own.
#![forbid(unsafe_code)]

pub mod args;
mod ask;
mod cache;
pub mod caller;
mod cleanup;
mod compare;
mod control;
mod debug;
mod feed;
mod folder;
mod info;
mod known;
mod line;
mod list;
mod prepare;
mod progress;
mod ps;
mod races;
mod recorder;
pub mod replay;
mod row;
mod symbols;
mod syscalls;
mod text;
mod trim;
mod undo;
mod window;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;
use recording::Recording;
use serde::Serialize;
use trace::verify::Summary;
use trace::{Error, Trace, NOT_STARTED};

use args::{Args, Command, Common, Quick};
use list::Listing;
use row::{Form, Row};

/// Why a command stopped.
pub enum Stop {
    Error(Error),
    /// Whoever reads the output has seen enough.
    Quiet,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Error(error)
    }
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Stop {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Stop::Quiet,
            _ => Stop::Error(Error(format!("cannot write: {error}"))),
        }
    }
}

/// What is damaged or missing, a line each on stderr; of many only the first.
#[derive(Default)]
pub struct Warnings {
    count: u64,
}

impl Warnings {
    const SHOWN: u64 = 20;

    /// Whether there were any.
    pub fn any(&self) -> bool {
        self.count > 0
    }

    pub fn add(&mut self, what: &dyn std::fmt::Display) {
        self.count += 1;
        match self.count {
            ..=Self::SHOWN => eprintln!("dep: warning: {what}"),
            n if n == Self::SHOWN + 1 => eprintln!("dep: warning: there is more like this"),
            _ => {}
        }
    }
}

/// The command.
pub fn main() -> ExitCode {
    let mut args = Args::of_process();
    args.command.find_recording();
    match &args.command {
        Command::Compare(what) => return compare::run(what),
        Command::Cache(what) => return cache::run(what),
        Command::Quick(Quick::Prepare(what)) => return prepare::run(what),
        Command::Replay(what) => return replay::run(what),
        Command::Debug(what) => return debug::run(what),
        _ => {}
    }
    if let Command::Quick(Quick::Record(what)) = &mut args.command {
        if let Err(why) = what.check() {
            Args::command().error(clap::error::ErrorKind::ArgumentConflict, why).exit();
        }
        return recorder::run(what);
    }
    let mut out = std::io::BufWriter::with_capacity(1 << 18, std::io::stdout().lock());
    match run(&args, &mut out) {
        Ok(()) | Err(Stop::Quiet) => ExitCode::SUCCESS,
        Err(Stop::Error(error)) => {
            eprintln!("dep: {error}");
            ExitCode::from(1)
        }
    }
}

/// Runs a command; what it shows goes to `out`, warnings to stderr.
pub fn run(args: &Args, out: &mut impl Write) -> Result<(), Stop> {
    let result = match (&args.command, args.command.common()) {
        (Command::Ps(what), _) => ps::list(what, out),
        (Command::Pack { recording, output }, _) => ps::pack(recording, output.as_deref()),
        (Command::Compress { path, level }, _) => ps::compress(path, *level),
        (Command::Trim(what), _) => trim::run(what, out),
        (Command::Unpack { file, output }, _) => ps::unpack(file, output.as_deref()),
        (Command::On(what), _) => control::switch(true, what, out),
        (Command::Off(what), _) => control::switch(false, what, out),
        (Command::Mark(what), _) => control::mark(what, out),
        (Command::Values(what), _) => ask::values::list(what, out),
        (Command::When(what), _) => ask::when::list(what, out),
        (Command::Dump(what), _) => control::dump(what, out),
        (_, Some(common)) if Recording::is_one(&common.file) => folder::run(args, common, out),
        (_, Some(common)) => trace_file(args, common, out),
        (_, None) => Ok(()),
    };
    // What was found before an error is shown.
    let flushed = out.flush();
    let finished = args.command.table().map_or(Ok(()), |table| table.finish());
    result?;
    flushed?;
    finished
}

/// Runs a command on a trace.
fn trace_file(args: &Args, common: &Common, out: &mut impl Write) -> Result<(), Stop> {
    folder::has_one(&common.file, common.process)?;
    let trace = match common.replayed {
        true => open_inputs(&common.file)?,
        false => Trace::open_with(&common.file, common.output.as_deref())?,
    };
    if let Some(shown) = replay::show(&trace, args, common, None, out) {
        return shown;
    }
    let replayable = || replay::completeness(&trace, None, common);
    show_with(&trace, args, common, &replayable, out)
}

/// The inputs of a trace, whatever it has besides.
fn open_inputs(path: &Path) -> Result<Trace, Error> {
    let trace = Trace::open_alone(path)?;
    match trace.options.recording.inputs() {
        true => Ok(trace),
        false => Err(Error(format!("{}: it has no inputs to replay", path.display()))),
    }
}

/// Runs a command on an open trace that is none of inputs.
fn show(trace: &Trace, args: &Args, common: &Common, out: &mut impl Write) -> Result<(), Stop> {
    show_with(trace, args, common, &|| None, out)
}

/// Runs a command on an open trace; `replayable` says how far it can be replayed.
fn show_with(
    trace: &Trace,
    args: &Args,
    common: &Common,
    replayable: &dyn Fn() -> Option<String>,
    out: &mut impl Write,
) -> Result<(), Stop> {
    if trace.not_started {
        eprintln!("dep: warning: {NOT_STARTED}");
    }
    let mut warnings = Warnings::default();
    if !matches!(args.command, Command::Verify(_)) {
        trace.damage.iter().for_each(|damage| warnings.add(damage));
    }
    let result = match &args.command {
        Command::Info(_) => info::info(trace, common.json, replayable(), &mut warnings, out),
        Command::Blocks(blocks) => list::list(trace, &Listing::blocks(blocks), &mut warnings, out),
        Command::Memrefs(what) => list::list(trace, &Listing::references(what), &mut warnings, out),
        Command::Syscalls(what) => syscalls::list(trace, what, out),
        Command::Undo(what) => {
            undo::list(trace, what, what.limit.unwrap_or(u64::MAX), out).map(drop)
        }
        Command::Races(_) | Command::Window(_) => Err(feed::stretches::needs_inputs(common)),
        Command::Verify(_) => verify(trace, common.json, out),
        _ => Ok(()),
    };
    let flushed = out.flush();
    result?;
    flushed?;
    match warnings.count {
        0 => Ok(()),
        _ => {
            let file = common.file.display();
            Err(Error(format!("{file}: damaged: this is not all that was recorded")).into())
        }
    }
}

/// What `dep verify` says of a trace that is as it should be.
#[derive(Serialize)]
struct Verified {
    ok: bool,
    frames: u64,
    chunks: u64,
    units: u64,
    instructions: u64,
    blocks: u64,
    references: u64,
    events: u64,
}

impl Row for Verified {
    fn text(&self, out: &mut Vec<u8>) {
        let Verified { ok: _, frames, chunks, units, instructions, blocks, references, events } =
            self;
        let mut text = format!("ok: {frames} frames");
        if *chunks > 0 || *events == 0 {
            text += &format!(
                ", {chunks} chunks, {units} units, {instructions} instructions, \
                 {blocks} blocks, {references} references"
            );
        }
        if *events > 0 {
            text += &format!(", {events} events of inputs");
        }
        out.extend_from_slice(text.as_bytes());
    }
}

impl From<Summary> for Verified {
    fn from(summary: Summary) -> Verified {
        let Summary { frames, chunks, units, instructions, blocks, references, events } = summary;
        Verified { ok: true, frames, chunks, units, instructions, blocks, references, events }
    }
}

fn verify(trace: &Trace, json: bool, out: &mut impl Write) -> Result<(), Stop> {
    let row = Verified::from(trace::verify::verify(trace)?);
    Ok(Form::new(json).write(&row, out)?)
}
