//! `dep cache`: what is kept of earlier rewritings.

use std::io::Write;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::row::{Form, Row};
use crate::Stop;
use trace::Error;

/// The command line.
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// The entries: a line `BYTES LAST-USE VERSION FILE` for each, and the sum
    List {
        /// A JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Remove everything. Programs that run go on
    Clear,
}

/// An entry.
#[derive(Serialize)]
struct Line {
    bytes: u64,
    /// Seconds since the epoch.
    last_use: u64,
    version: String,
    file: String,
    path: String,
}

impl Row for Line {
    fn text(&self, out: &mut Vec<u8>) {
        let Line { bytes, last_use, version, file, path: _ } = self;
        let age = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let age = ago(age.saturating_sub(*last_use));
        out.extend_from_slice(format!("{bytes:>12} {age:>8} {version} {file}").as_bytes());
    }
}

fn ago(seconds: u64) -> String {
    match seconds {
        ..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86400),
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> ExitCode {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let done = match arguments.what {
        What::List { json } => list(json, &mut out),
        What::Clear => clear(),
    };
    match done.and_then(|()| Ok(out.flush()?)) {
        Ok(()) | Err(Stop::Quiet) => ExitCode::SUCCESS,
        Err(Stop::Error(error)) => {
            eprintln!("dep: {error}");
            ExitCode::from(1)
        }
    }
}

fn list(json: bool, out: &mut impl Write) -> Result<(), Stop> {
    let root = store::root().map_err(|e| Error(e.to_string()))?;
    let entries = store::list(&root);
    let form = Form::new(json);
    let (count, mut sum) = (entries.len(), 0);
    for entry in entries {
        let last_use = entry.last_use.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        sum += entry.size;
        let line = Line {
            bytes: entry.size,
            last_use,
            version: entry.version,
            file: entry.file.display().to_string(),
            path: entry.path.display().to_string(),
        };
        form.write(&line, out)?;
    }
    if !json {
        let limit = store::limit().map_err(|e| Error(e.to_string()))?;
        writeln!(out, "{}: {count} entries, {sum} bytes of {limit}", root.display())?;
    }
    Ok(())
}

fn clear() -> Result<(), Stop> {
    let root = store::root().map_err(|e| Error(e.to_string()))?;
    let cleared = store::clear(&root).map_err(|e| Error(e.to_string()))?;
    let store::Cleared { entries, bytes } = cleared;
    eprintln!("{}: {entries} entries removed, {bytes} bytes", root.display());
    Ok(())
}
