//! `dep`: what a trace holds.
//!
//! Exit codes: 0 all right, 1 the trace (or the output file that it needs) cannot be read or is
//! not what the format promises, 2 wrong usage.
#![forbid(unsafe_code)]

mod args;
mod info;
mod list;
mod symbols;
mod syscalls;
mod text;
mod undo;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use trace::{Error, Trace};

use args::{Args, Command};

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

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) | Err(Stop::Quiet) => ExitCode::SUCCESS,
        Err(Stop::Error(error)) => {
            eprintln!("dep: {error}");
            ExitCode::from(1)
        }
    }
}

fn run(args: &Args) -> Result<(), Stop> {
    let common = args.command.common();
    let trace = Trace::open_with(&common.file, common.output.as_deref())?;
    let mut out = std::io::BufWriter::with_capacity(1 << 18, std::io::stdout().lock());
    if trace.not_started {
        eprintln!("dep: warning: nothing was recorded: the process ended before its first unit");
    }
    if !matches!(args.command, Command::Verify(_)) {
        for damage in &trace.damage {
            eprintln!("dep: warning: {damage}");
        }
    }
    let result = match &args.command {
        Command::Info(_) => info::info(&trace, common.json, &mut out),
        Command::Blocks(what) => list::blocks(&trace, what, &mut out),
        Command::Memrefs(what) => list::memrefs(&trace, what, &mut out),
        Command::Syscalls(what) => syscalls::list(&trace, what, &mut out),
        Command::Undo(what) => undo::list(&trace, what, &mut out),
        Command::Verify(_) => verify(&trace, common.json, &mut out),
    };
    let flushed = out.flush();
    result?;
    Ok(flushed?)
}

fn verify(trace: &Trace, json: bool, out: &mut impl Write) -> Result<(), Stop> {
    let s = trace::verify::verify(trace)?;
    let fields = [
        ("frames", s.frames),
        ("chunks", s.chunks),
        ("units", s.units),
        ("instructions", s.instructions),
        ("blocks", s.blocks),
        ("references", s.references),
    ];
    if json {
        let fields: Vec<String> = fields.iter().map(|(k, v)| format!("\"{k}\":{v}")).collect();
        writeln!(out, "{{\"ok\":true,{}}}", fields.join(","))?;
    } else {
        let fields: Vec<String> = fields.iter().map(|(k, v)| format!("{v} {k}")).collect();
        writeln!(out, "ok: {}", fields.join(", "))?;
    }
    Ok(())
}
