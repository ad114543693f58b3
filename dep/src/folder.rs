//! The commands that read a trace, of a recording with many.

use std::io::Write;
use std::path::Path;

use recording::processes::{Image, Process, Processes};
use recording::{Recording, TraceName};
use serde::Serialize;
use trace::{Error, Trace};

use crate::args::{Args, Command, Common, Which};
use crate::cleanup::Guard;
use crate::ps;
use crate::replay;
use crate::row::{Form, Row};
use crate::text::{command_line, seconds};
use crate::{Stop, Verified};

/// Traces that an error names.
const NAMED: usize = 20;

/// Runs a command on a recording.
pub fn run(args: &Args, common: &Common, out: &mut impl Write) -> Result<(), Stop> {
    let recording = Recording::open(&common.file)?;
    let _guard = recording.temporary().map(Guard::new);
    let chosen = match common.process {
        Some(Which { pid, image }) => recording.select(pid, image),
        None => recording.traces.clone(),
    };
    if let (Some(which), true) = (common.process, chosen.is_empty()) {
        let what = format!("no process {which}; {}", choices(&recording, &recording.traces));
        return Err(error(common, &what));
    }
    match &args.command {
        Command::Info(_) if common.process.is_none() => summary(&recording, common, out),
        Command::Verify(_) => verify(&recording, common, &chosen, out),
        Command::Info(_) => {
            for &name in &chosen {
                one(&recording, name, args, common, out)?;
            }
            Ok(())
        }
        _ => match chosen[..] {
            [] => Err(error(common, "it has no trace")),
            [name] => one(&recording, name, args, common, out),
            _ => Err(error(common, &choices(&recording, &chosen))),
        },
    }
}

fn error(common: &Common, what: &str) -> Stop {
    Error(format!("{}: {what}", common.file.display())).into()
}

/// What `-p` can be, in one line.
fn choices(recording: &Recording, among: &[TraceName]) -> String {
    let processes = Processes::read(recording);
    let named = |process: &Process, image: &Image| {
        let command = image.arguments.first().map(Vec::as_slice);
        format!("{} ({})", ps::name(process, image), command_line(command.into_iter()))
    };
    let all = processes
        .all
        .iter()
        .flat_map(|process| process.images.iter().map(move |image| (process, image)));
    let among: Vec<String> = all
        .filter(|(_, image)| among.contains(&image.name))
        .map(|(process, image)| named(process, image))
        .collect();
    match among.len() {
        0 => "it has no trace".into(),
        1..=NAMED => format!("choose with -p: {}", among.join(", ")),
        n => format!("choose one of {n} traces with -p; `dep ps` lists them"),
    }
}

fn one(
    recording: &Recording,
    name: TraceName,
    args: &Args,
    common: &Common,
    out: &mut impl Write,
) -> Result<(), Stop> {
    let trace = match common.replayed {
        true => crate::open_inputs(&recording.path(name))?,
        false => recording.trace(name, common.output.as_deref())?,
    };
    let which = Which { pid: name.pid, image: Some(name.image) };
    if let Some(shown) = replay::show(&trace, args, common, Some((recording, which)), out) {
        return shown;
    }
    let replayable = || replay::completeness(&trace, Some((recording, name)), common);
    crate::show_with(&trace, args, common, &replayable, out)
}

/// The one trace that is meant; an error names the choices.
pub fn select_one(
    recording: &Recording,
    file: &Path,
    process: Option<Which>,
) -> Result<TraceName, Error> {
    let failed = |what: &str| Error(format!("{}: {what}", file.display()));
    let chosen = match process {
        Some(Which { pid, image }) => recording.select(pid, image),
        None => recording.traces.clone(),
    };
    match (chosen[..].as_ref(), process) {
        ([name], _) => Ok(*name),
        ([], Some(which)) => {
            let choices = choices(recording, &recording.traces);
            Err(failed(&format!("no process {which}; {choices}")))
        }
        ([], None) => Err(failed("it has no trace")),
        (several, _) => Err(failed(&choices(recording, several))),
    }
}

/// A trace is of one process, and none can be chosen.
pub fn has_one(file: &Path, process: Option<Which>) -> Result<(), Error> {
    match process {
        None => Ok(()),
        Some(which) => Err(Error(format!(
            "{}: a trace has one process: -p {which} is for a recording",
            file.display()
        ))),
    }
}

/// What `dep verify` says of one trace of many.
#[derive(Serialize)]
struct VerifiedRow {
    process: String,
    #[serde(flatten)]
    verified: Option<Verified>,
    #[serde(skip_serializing_if = "Option::is_none")]
    violation: Option<String>,
}

impl Row for VerifiedRow {
    fn text(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.process.as_bytes());
        out.push(b' ');
        match (&self.verified, &self.violation) {
            (Some(verified), _) => verified.text(out),
            (None, Some(why)) => out.extend_from_slice(format!("violation: {why}").as_bytes()),
            (None, None) => {}
        }
    }
}

fn verify(
    recording: &Recording,
    common: &Common,
    chosen: &[TraceName],
    out: &mut impl Write,
) -> Result<(), Stop> {
    if chosen.is_empty() {
        return Err(error(common, "it has no trace"));
    }
    let form = Form::new(common.json);
    let mut bad = 0usize;
    for &name in chosen {
        let verified = recording
            .trace(name, common.output.as_deref())
            .and_then(|trace| trace::verify::verify(&trace));
        bad += usize::from(verified.is_err());
        let (verified, violation) = match verified {
            Ok(summary) => (Some(Verified::from(summary)), None),
            Err(why) => (None, Some(why.to_string())),
        };
        form.write(&VerifiedRow { process: name.to_string(), verified, violation }, out)?;
    }
    match bad {
        0 => Ok(()),
        _ => {
            let what = format!("{bad} of {} traces are not what the format promises", chosen.len());
            Err(error(common, &what))
        }
    }
}

/// What `dep info` says of a recording.
#[derive(Serialize)]
struct Report<'a> {
    command: Vec<String>,
    directory: String,
    tool: &'a str,
    options: &'a [String],
    start_ns: u64,
    end_ns: Option<u64>,
    ended: String,
    processes: usize,
    not_recorded: usize,
    running: usize,
    traces: usize,
    damaged: usize,
    bytes: u64,
    /// Of a recording of inputs: how far each trace can be replayed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    replayable: Vec<Replayable>,
    notes: Vec<String>,
}

/// How far a trace can be replayed.
#[derive(Serialize)]
struct Replayable {
    name: String,
    how: String,
}

/// What is said of watched threads that can be replayed to their ends ends with this.
const ALONE: &str = ", each alone";

/// Traces that are named of those that cannot be replayed to their ends.
const NAMED_INCOMPLETE: usize = 5;

fn replayable(recording: &Recording, common: &Common) -> Vec<Replayable> {
    let of = |&name: &TraceName| {
        let trace = Trace::open_alone(&recording.path(name)).ok()?;
        let how = replay::completeness(&trace, Some((recording, name)), common)?;
        Some(Replayable { name: name.to_string(), how })
    };
    recording.traces.iter().filter_map(of).collect()
}

fn summary(recording: &Recording, common: &Common, out: &mut impl Write) -> Result<(), Stop> {
    let json = common.json;
    let processes = Processes::read(recording);
    let manifest = &recording.manifest;
    let words: Vec<_> = manifest.command.iter().map(|word| word.to_os()).collect();
    let is_recorded = |process: &&Process| !process.images.is_empty() || process.within.is_some();
    let recorded = processes.all.iter().filter(is_recorded).count();
    let report = Report {
        command: words.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        directory: manifest.directory.to_os().to_string_lossy().into_owned(),
        tool: &manifest.tool,
        options: &manifest.options,
        start_ns: manifest.start_ns,
        end_ns: manifest.end.map(|end| end.time_ns),
        ended: match manifest.end {
            Some(end) => end.status.to_string(),
            None => "no end: the program runs, or the recorder was killed".into(),
        },
        processes: recorded,
        not_recorded: processes.all.len() - recorded,
        running: processes.all.iter().filter(|process| process.is_running()).count(),
        traces: recording.traces.len(),
        damaged: processes.images().filter(|image| image.damage > 0).count(),
        bytes: processes.images().map(|image| image.bytes).sum(),
        replayable: replayable(recording, common),
        notes: processes.left().into_iter().map(|(pid, note)| format!("{pid} {note}")).collect(),
    };
    if json {
        serde_json::to_writer(&mut *out, &report).map_err(std::io::Error::from)?;
        writeln!(out)?;
        return Ok(out.flush()?);
    }
    use std::os::unix::ffi::OsStrExt;
    writeln!(out, "recording      {}", recording.named.display())?;
    writeln!(out, "command        {}", command_line(words.iter().map(|word| word.as_bytes())))?;
    writeln!(out, "directory      {}", report.directory)?;
    writeln!(out, "options        {} ({})", report.options.join(" "), report.tool)?;
    writeln!(out, "ended          {}", report.ended)?;
    if let Some(end) = report.end_ns {
        writeln!(out, "time           {}", seconds(end.saturating_sub(report.start_ns)))?;
    }
    let mut line = format!("{} recorded", report.processes);
    for (count, what) in [(report.not_recorded, "not recorded"), (report.running, "still running")]
    {
        if count > 0 {
            line += &format!(", {count} {what}");
        }
    }
    writeln!(out, "processes      {line}")?;
    let bytes = indicatif::BinaryBytes(report.bytes);
    let damaged = match report.damaged {
        0 => String::new(),
        n => format!(", {n} damaged"),
    };
    writeln!(out, "traces         {} ({bytes}){damaged}", report.traces)?;
    if !report.replayable.is_empty() {
        let whole = "to its end";
        let (all, rest): (Vec<&Replayable>, Vec<&Replayable>) =
            report.replayable.iter().partition(|trace| {
                trace.how == whole || trace.how.starts_with(whole) && trace.how.ends_with(ALONE)
            });
        match (&all[..], &rest[..]) {
            ([one], []) => writeln!(out, "replayable     {}", one.how)?,
            (all, []) => writeln!(out, "replayable     all {} to their ends", all.len())?,
            (all, rest) => {
                writeln!(
                    out,
                    "replayable     {} of {} to their ends",
                    all.len(),
                    all.len() + rest.len()
                )?;
            }
        }
        for Replayable { name, how } in rest.iter().take(NAMED_INCOMPLETE) {
            writeln!(out, "  {name:<12} {how}")?;
        }
        if let more @ 1.. = rest.len().saturating_sub(NAMED_INCOMPLETE) {
            writeln!(out, "  and {more} more: `dep info -p` says how far")?;
        }
    }
    for note in &report.notes {
        writeln!(out, "not followed   {note}")?;
    }
    Ok(out.flush()?)
}
