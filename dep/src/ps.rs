//! `dep ps`: the processes of a recording.

use std::io::Write;
use std::path::Path;

use indicatif::BinaryBytes;
use recording::compress::{self, Done};
use recording::processes::{Ending, Image, Process, Processes};
use recording::Recording;
use serde::Serialize;
use trace::Error;

use crate::args::{Compression, Folder};
use crate::progress::Progress;
use crate::text::{command_line, seconds};
use crate::Stop;

/// A process as a line of JSON.
#[derive(Serialize)]
struct ProcessRow {
    pid: u64,
    parent: Option<u64>,
    /// The trace of the parent in which it is a thread, until it ends or executes a program.
    #[serde(skip_serializing_if = "Option::is_none")]
    within: Option<String>,
    /// How it ended, as its parent was told, if it has no image.
    #[serde(flatten)]
    told: Option<End>,
    images: Vec<ImageRow>,
}

/// How an image, or a process, ended.
#[derive(Serialize)]
struct End {
    /// `exit`, `signal`, `refused`, `exec`, `left`, `running`, `none` or `unreadable`.
    ended: &'static str,
    /// Exit status or signal.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<i32>,
    /// What was executed and not recorded; or why the trace cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

impl End {
    fn new(ending: &Ending) -> End {
        let (ended, status, note) = match ending {
            Ending::Exit(status) => ("exit", Some(*status), None),
            Ending::Signal(signal) => ("signal", Some(*signal), None),
            Ending::Refused => ("refused", None, None),
            Ending::Exec => ("exec", None, None),
            Ending::Left(path, why) => ("left", None, Some(not_recorded(path, why.as_deref()))),
            Ending::Running => ("running", None, None),
            Ending::None => ("none", None, None),
            Ending::Unreadable(why) => ("unreadable", None, Some(why.clone())),
        };
        End { ended, status, note }
    }
}

/// One image of a process.
#[derive(Serialize)]
struct ImageRow {
    /// What `-p` takes.
    name: String,
    command: Vec<String>,
    #[serde(flatten)]
    end: End,
    start_ns: u64,
    end_ns: Option<u64>,
    bytes: u64,
    damaged: bool,
}

impl ImageRow {
    fn new(image: &Image) -> ImageRow {
        let words = image.arguments.iter().map(|word| String::from_utf8_lossy(word).into_owned());
        ImageRow {
            name: image.name.to_string(),
            command: words.collect(),
            end: End::new(&image.ending),
            start_ns: image.start_ns,
            end_ns: image.end_ns,
            bytes: image.bytes,
            damaged: image.damage > 0,
        }
    }
}

/// What went on unrecorded, and why.
fn not_recorded(path: &Path, why: Option<&str>) -> String {
    let why = why.unwrap_or("not followed");
    format!("{}: {why}", path.display())
}

/// How an image, or a process, ended, in a few words.
pub fn ending(ending: &Ending) -> String {
    match ending {
        Ending::Exit(status) => format!("exit {status}"),
        Ending::Signal(signal) => match signal_hook::low_level::signal_name(*signal) {
            Some(name) => name.to_owned(),
            None => format!("signal {signal}"),
        },
        Ending::Refused => "stopped".into(),
        Ending::Exec => "exec".into(),
        Ending::Left(..) => "exec".into(),
        Ending::Running => "running".into(),
        Ending::None => "killed".into(),
        Ending::Unreadable(_) => "unreadable".into(),
    }
}

/// What an image was started with; its program, if that is not known.
pub fn command(image: &Image) -> String {
    match image.arguments.is_empty() {
        false => command_line(image.arguments.iter().map(Vec::as_slice)),
        true => image.program.to_string_lossy().into_owned(),
    }
}

/// What `-p` takes for an image: the process alone where that says it all.
pub fn name(process: &Process, image: &Image) -> String {
    match process.images.len() {
        1 if image.name.image == 0 => process.pid.to_string(),
        _ => image.name.to_string(),
    }
}

pub fn list(what: &Folder, out: &mut impl Write) -> Result<(), Stop> {
    let recording = Recording::open(&what.recording)?;
    let processes = Processes::read(&recording);
    match what.json {
        true => json(&processes, out)?,
        false => text(&recording, &processes, out)?,
    }
    out.flush()?;
    let unreadable = |image: &&Image| matches!(image.ending, Ending::Unreadable(_));
    if let Some(image) = processes.images().find(unreadable) {
        let Ending::Unreadable(why) = &image.ending else { return Ok(()) };
        return Err(Error(why.clone()).into());
    }
    Ok(())
}

fn json(processes: &Processes, out: &mut impl Write) -> Result<(), Stop> {
    for (_, index) in in_order(processes) {
        let process = &processes.all[index];
        let row = ProcessRow {
            pid: process.pid,
            parent: process.parent.map(|parent| processes.all[parent].pid),
            within: process.within.map(|name| name.to_string()),
            told: process.told.as_ref().map(End::new),
            images: process.images.iter().map(ImageRow::new).collect(),
        };
        serde_json::to_writer(&mut *out, &row).map_err(std::io::Error::from)?;
        writeln!(out)?;
    }
    Ok(())
}

/// Each process behind the one that started it, with what stands in front of it in a tree.
fn in_order(processes: &Processes) -> Vec<(String, usize)> {
    let mut ordered = Vec::new();
    // What stands in front of the process itself, and of those that it started.
    let mut stack: Vec<(String, String, usize)> = Vec::new();
    let mut roots: Vec<usize> = processes.roots().collect();
    roots.sort_by_key(|&root| (processes.all[root].start_ns(), processes.all[root].pid));
    stack.extend(roots.into_iter().rev().map(|root| (String::new(), String::new(), root)));
    while let Some((own, inner, index)) = stack.pop() {
        ordered.push((own, index));
        let children = &processes.all[index].children;
        for (n, &child) in children.iter().enumerate().rev() {
            let (branch, below) = match n + 1 == children.len() {
                true => ("└─ ", "   "),
                false => ("├─ ", "│  "),
            };
            stack.push((format!("{inner}{branch}"), format!("{inner}{below}"), child));
        }
    }
    ordered
}

fn text(recording: &Recording, processes: &Processes, out: &mut impl Write) -> Result<(), Stop> {
    let started = recording.manifest.start_ns;
    let mut rows: Vec<[String; 6]> =
        vec![["PID", "ENDED", "START", "TIME", "SIZE", "COMMAND"].map(str::to_owned)];
    for (tree, index) in in_order(processes) {
        let process = &processes.all[index];
        if process.images.is_empty() {
            let none = String::new;
            let note = processes.notes.iter().find(|(pid, _)| *pid == Some(process.pid));
            let command = match (note, process.within) {
                (Some((_, note)), _) => format!("{tree}(not recorded: {note})"),
                (None, Some(parent)) => format!("{tree}(a thread in the trace {parent})"),
                (None, None) => format!("{tree}(not recorded)"),
            };
            let ended = process.told.as_ref().map_or_else(|| "?".into(), ending);
            rows.push([process.pid.to_string(), ended, none(), none(), none(), command]);
        }
        // What a process was later stands below what it was first.
        let below = tree.replace("├─ ", "│  ").replace("└─ ", "   ");
        for (n, image) in process.images.iter().enumerate() {
            let tree = if n == 0 { &tree } else { &below };
            let note = match &image.ending {
                Ending::Left(path, why) => {
                    format!(" (not recorded: {})", not_recorded(path, why.as_deref()))
                }
                _ if image.damage > 0 => " (damaged)".into(),
                _ => String::new(),
            };
            let time = image.end_ns.map(|end| seconds(end - image.start_ns));
            rows.push([
                name(process, image),
                ending(&image.ending),
                seconds(image.start_ns.saturating_sub(started)),
                time.unwrap_or_default(),
                BinaryBytes(image.bytes).to_string(),
                format!("{tree}{}{note}", command(image)),
            ]);
        }
    }
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 5] = std::array::from_fn(width);
    for [pid, ended, start, time, size, command] in &rows {
        let [a, b, c, d, e] = widths;
        writeln!(out, "{pid:>a$}  {ended:<b$}  {start:>c$}  {time:>d$}  {size:>e$}  {command}")?;
    }
    let known = |pid: u64| processes.all.iter().any(|process| process.pid == pid);
    for (pid, note) in processes.notes.iter().filter(|(pid, _)| !pid.is_some_and(known)) {
        let pid = pid.map_or_else(String::new, |pid| format!("{pid} "));
        writeln!(out, "{pid}not recorded: {note}")?;
    }
    Ok(())
}

/// `dep pack`.
pub fn pack(recording: &Path, file: Option<&Path>) -> Result<(), Stop> {
    let open = Recording::open(recording)?;
    if open.is_unpacked() {
        return Err(Error(format!("{}: it is packed", recording.display())).into());
    }
    let processes = Processes::read(&open);
    let running: Vec<String> = processes
        .images()
        .filter(|image| image.ending == Ending::Running)
        .map(|image| image.name.pid.to_string())
        .collect();
    if !running.is_empty() {
        let (shown, pids) = (recording.display(), running.join(", "));
        return Err(Error(format!("{shown}: still recording: process {pids}")).into());
    }
    // The recorder may have been killed before it did so.
    if let Some(lost) = processes.needed.gather(&open.folder).first() {
        eprintln!("dep: warning: {lost}");
    }
    // The recorder may have been killed before it did so.
    for lost in processes.originals.note(&open.folder)? {
        eprintln!("dep: warning: {lost}");
    }
    let (originals, lost) = processes.originals.to_pack(&open.folder)?;
    for lost in lost {
        eprintln!("dep: warning: {lost}: without it not everything can be replayed");
    }
    let file = file.map_or_else(|| with_suffix(recording), Path::to_owned);
    Ok(recording::packed::pack(&open.folder, &file, &originals)?)
}

/// Compresses the traces of a recording, or one trace.
pub fn compress(path: &Path, level: Compression) -> Result<(), Stop> {
    let progress = Progress::start(format!("compressing {}", path.display()));
    let done = match Recording::is_one(path) {
        false => compress::trace(path, level.into()).map(|done| vec![done]).map_err(|e| vec![e]),
        true if !path.is_dir() => {
            let what = format!("{}: it is packed, and so compressed already", path.display());
            Err(vec![Error(what)])
        }
        true => compress::recording(path, level.into()),
    };
    progress.finish();
    let done = done.map_err(|mut errors| {
        let last = errors.pop().unwrap_or_else(|| Error("nothing was compressed".into()));
        errors.iter().for_each(|error| eprintln!("dep: {error}"));
        last
    })?;
    match done.iter().filter(|&&done| done == Done::Running).count() {
        0 => Ok(()),
        n => {
            let what = format!(
                "{}: {n} of {} traces are still recorded, and left as they are",
                path.display(),
                done.len()
            );
            Err(Error(what).into())
        }
    }
}

/// Of a packed recording.
const SUFFIX: &str = ".tar.zst";

fn with_suffix(recording: &Path) -> std::path::PathBuf {
    // The name without a slash at its end.
    let mut name = recording.components().as_path().as_os_str().to_owned();
    name.push(SUFFIX);
    name.into()
}

/// `dep unpack`.
pub fn unpack(file: &Path, folder: Option<&Path>) -> Result<(), Stop> {
    if !recording::packed::is_packed(file) {
        std::fs::metadata(file).map_err(|e| Error(format!("{}: {e}", file.display())))?;
        return Err(Error(format!("{}: not a packed recording", file.display())).into());
    }
    let folder = match folder {
        Some(folder) => folder.to_owned(),
        None => match file.to_str().and_then(|name| name.strip_suffix(SUFFIX)) {
            Some(name) => name.into(),
            None => {
                return Err(Error(format!("{}: say where to with -o FOLDER", file.display())).into())
            }
        },
    };
    Ok(recording::packed::unpack(file, &folder)?)
}
