//! `dep trim`: a ring's trace begins with the memory of the process, of which a replay looks at a few pages.
//!
//! Which those are, a replay finds out. The trace is written again beside the old one, replayed, and takes its place
//! only if that replay is equal, too.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use indicatif::BinaryBytes;
use recording::{Recording, TraceName};
use replay::Lineage;
use tempfile::NamedTempFile;
use trace::trim::{kept, write};
use trace::{Error, Trace};

use crate::args::Which;
use crate::replay::{run_process, Besides, Named, Ready};
use crate::Stop;

/// Less memory is not worth a replay.
const LEAST: u64 = 1 << 20;
/// Less is not worth that whoever records waits for one.
const LEAST_OF_RECORD: u64 = 16 << 20;

/// The command line.
#[derive(ClapArgs)]
pub struct Arguments {
    /// The recording (its folder), or the trace of one process
    pub path: PathBuf,
    /// The program that was rewritten, if the recording does not say where it is
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// The rewritten program that was recorded, if it is no longer where it ran
    #[arg(long, value_name = "FILE")]
    pub rewritten: Option<PathBuf>,
}

/// The command.
pub fn run(arguments: &Arguments, out: &mut impl Write) -> Result<(), Stop> {
    let path = &arguments.path;
    let mut named = Named {
        file: path,
        process: None,
        program: arguments.program.as_deref(),
        output: arguments.rewritten.as_deref(),
        thread: None,
        lineage: None,
    };
    if !Recording::is_one(path) {
        let ready = Ready::new(&named)?;
        if has_heirs(path, ready.lineage.last()) {
            return Err(inherited(path).into());
        }
        let done = match nothing(ready.lineage.last(), LEAST) {
            Some(why) => Done::Nothing(why),
            None => one(&named, None, &ready, path)?,
        };
        return Ok(writeln!(out, "{}: {done}", path.display())?);
    }
    let recording = Recording::open(path)?;
    if recording.is_unpacked() {
        let what =
            format!("{}: it is packed: trim the recording, and pack it again", path.display());
        return Err(Error(what).into());
    }
    let mut failed = None;
    for &name in &recording.traces {
        named.process = Some(Which { pid: name.pid, image: Some(name.image) });
        match in_recording(&named, &recording, name, LEAST) {
            Ok(done) => writeln!(out, "{name}: {done}")?,
            Err(error) => failed.replace(error).iter().for_each(|error| eprintln!("dep: {error}")),
        }
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// Trims what is large of a recording that was just made; what went wrong.
pub fn recording(recording: &Recording) -> Vec<Error> {
    let trim = |&name: &TraceName| {
        let process = Some(Which { pid: name.pid, image: Some(name.image) });
        let file = &recording.folder;
        let named =
            Named { file, process, program: None, output: None, thread: None, lineage: None };
        in_recording(&named, recording, name, LEAST_OF_RECORD).err()
    };
    recording.traces.iter().filter_map(trim).collect()
}

/// What was done to a trace.
enum Done {
    /// There is nothing to leave out, for this reason.
    Nothing(&'static str),
    /// Bytes of the file before and after.
    Trimmed(u64, u64),
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Done::Nothing(why) => write!(f, "left as it is: {why}"),
            Done::Trimmed(from, to) => {
                write!(f, "{} instead of {}", BinaryBytes(*to), BinaryBytes(*from))
            }
        }
    }
}

fn in_recording(
    named: &Named<'_>,
    recording: &Recording,
    name: TraceName,
    least: u64,
) -> Result<Done, Error> {
    let path = recording.path(name);
    // Opening it takes as long as it is large.
    if fs::metadata(&path).is_ok_and(|file| file.len() < least) {
        return Ok(Done::Nothing(LITTLE));
    }
    let trace = Trace::open_alone(&path)?;
    if let Some(why) = nothing(&trace, least) {
        return Ok(Done::Nothing(why));
    }
    let is_heir = |&other: &TraceName| {
        let lineage = Lineage::of_recording(recording, other).ok();
        other != name && lineage.is_some_and(|lineage| inherits(&lineage, &trace))
    };
    if recording.traces.iter().any(is_heir) {
        return Ok(Done::Nothing("the replays of processes that it forked begin with its memory"));
    }
    drop(trace);
    one(named, Some(recording), &Ready::in_recording(named, recording)?, &path)
}

const LITTLE: &str = "it has little memory";

/// Why there is nothing to leave out.
fn nothing(trace: &Trace, least: u64) -> Option<&'static str> {
    match trace.first_stretch() {
        None => Some("it begins where the program does"),
        Some(_) if kept(trace) < least => Some(LITTLE),
        Some(_) if trace.file.is_compressed() => Some("it is compressed"),
        Some(_) => None,
    }
}

/// Whether the replay of the last trace of the lineage begins in `trace`, another one.
fn inherits(lineage: &Lineage, trace: &Trace) -> bool {
    let first = lineage.first();
    lineage.traces().len() > 1 && (first.pid, first.start_ns) == (trace.pid, trace.start_ns)
}

/// Whether a trace beside the one at `path` begins with what that has.
fn has_heirs(path: &Path, trace: &Trace) -> bool {
    let Some(name) = path.file_name().map(|name| name.to_string_lossy().into_owned()) else {
        return false;
    };
    trace.children().any(|child| {
        let beside = name.replace(&trace.pid.to_string(), &child.to_string());
        let lineage = Lineage::of_file(&path.with_file_name(beside));
        lineage.is_ok_and(|lineage| inherits(&lineage, trace))
    })
}

fn inherited(path: &Path) -> Error {
    let path = path.display();
    Error(format!(
        "{path}: left as it is: the replays of processes that it forked begin with its memory"
    ))
}

/// Trims the trace at `path`, which `ready` replays, and which has something to leave out.
fn one(
    named: &Named<'_>,
    recording: Option<&Recording>,
    ready: &Ready,
    path: &Path,
) -> Result<Done, Error> {
    let trace = ready.lineage.last();
    let in_file = |e: Error| Error(format!("{}: not trimmed: {e}", path.display()));
    let failed = |e: std::io::Error| in_file(Error(e.to_string()));
    let output = ready.output("none").map_err(in_file)?;
    let left = left_alone(ready, &output).map_err(in_file)?;
    if left.is_empty() {
        return Ok(Done::Nothing("all of it is looked at"));
    }
    let old = fs::metadata(path).map_err(failed)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    // No name of a trace: whoever lists them meanwhile finds one of each process.
    let folder = folder.unwrap_or(Path::new("."));
    let mut new = tempfile::Builder::new().prefix(".trim.").tempfile_in(folder).map_err(failed)?;
    write(trace, &left, new.as_file_mut()).map_err(in_file)?;
    check(named, recording, &new, &output).map_err(in_file)?;
    fs::set_permissions(new.path(), old.permissions()).map_err(failed)?;
    new.as_file().sync_all().map_err(failed)?;
    let size = new.as_file().metadata().map_err(failed)?.len();
    new.persist(path).map_err(|e| failed(e.error))?;
    Ok(Done::Trimmed(old.len(), size))
}

/// The pages that a replay never touches, in the order of their addresses.
fn left_alone(ready: &Ready, output: &Path) -> Result<Vec<Range<u64>>, Error> {
    let failed = |e: std::io::Error| Error(format!("cannot make a file for the replay: {e}"));
    let mut told = tempfile::tempfile().map_err(failed)?;
    rustix::io::fcntl_setfd(told.as_fd(), rustix::io::FdFlags::empty())
        .map_err(|e| failed(e.into()))?;
    let besides = Besides { untouched: Some(told.as_raw_fd()), ..Besides::default() };
    equal(ready, output, &besides)?;
    pages(&mut told).map_err(|e| Error(format!("cannot read what the replay says: {e}")))
}

fn pages(told: &mut File) -> std::io::Result<Vec<Range<u64>>> {
    told.rewind()?;
    let mut bytes = Vec::new();
    told.read_to_end(&mut bytes)?;
    let words: Vec<u64> =
        bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    Ok(words.as_chunks().0.iter().map(|&[start, end]| start..end).collect())
}

/// Replays, which has to be equal.
fn equal(ready: &Ready, output: &Path, besides: &Besides) -> Result<(), Error> {
    let finished = run_process(ready, output, besides)?;
    match finished.is_equal(&ready.script) {
        true => Ok(()),
        false => Err(Error(format!("its replay is not equal: {}", finished.line(&ready.script)))),
    }
}

/// Whether what was written replays as well.
fn check(
    named: &Named<'_>,
    recording: Option<&Recording>,
    new: &NamedTempFile,
    output: &Path,
) -> Result<(), Error> {
    let ready = Ready::instead(named, recording, new.path())?;
    equal(&ready, output, &Besides::default())
}
