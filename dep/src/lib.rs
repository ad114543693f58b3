//! `dep`: what a trace holds, and what recording costs.
//!
//! Exit codes: 0 all right, 1 the trace (or the output file that it needs) cannot be read or is
//! not what the format promises, 2 wrong usage. What is intact is shown all the same.
//! `compare` has a module of its own.
#![forbid(unsafe_code)]

pub mod args;
mod compare;
mod info;
mod list;
mod row;
mod symbols;
mod syscalls;
mod text;
mod undo;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use serde::Serialize;
use trace::verify::Summary;
use trace::{Error, Trace};

use args::{Args, Command};
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
    let args = Args::parse();
    if let Command::Compare(what) = &args.command {
        return compare::run(what);
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
    let Some(common) = args.command.common() else { return Ok(()) };
    let trace = Trace::open_with(&common.file, common.output.as_deref())?;
    if trace.not_started {
        eprintln!("dep: warning: nothing was recorded: the process ended before its first unit");
    }
    let mut warnings = Warnings::default();
    if !matches!(args.command, Command::Verify(_)) {
        trace.damage.iter().for_each(|damage| warnings.add(damage));
    }
    let result = match &args.command {
        Command::Info(_) => info::info(&trace, common.json, &mut warnings, out),
        Command::Blocks(blocks) => {
            list::blocks(&trace, &blocks.what, blocks.outside, &mut warnings, out)
        }
        Command::Memrefs(what) => list::memrefs(&trace, what, &mut warnings, out),
        Command::Syscalls(what) => syscalls::list(&trace, what, out),
        Command::Undo(what) => undo::list(&trace, what, out),
        Command::Verify(_) => verify(&trace, common.json, out),
        Command::Compare(_) => Ok(()),
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
}

impl Row for Verified {
    fn text(&self, out: &mut Vec<u8>) {
        let Verified { ok: _, frames, chunks, units, instructions, blocks, references } = self;
        let text = format!(
            "ok: {frames} frames, {chunks} chunks, {units} units, {instructions} instructions, \
             {blocks} blocks, {references} references"
        );
        out.extend_from_slice(text.as_bytes());
    }
}

fn verify(trace: &Trace, json: bool, out: &mut impl Write) -> Result<(), Stop> {
    let Summary { frames, chunks, units, instructions, blocks, references } =
        trace::verify::verify(trace)?;
    let row = Verified { ok: true, frames, chunks, units, instructions, blocks, references };
    Ok(Form::new(json).write(&row, out)?)
}
