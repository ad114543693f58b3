//! `dep replay`, and replays for the commands that list what a recording of inputs does not have.

mod ordered;
mod overlap;
mod process;
mod ready;
mod tree;

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::Sender;
use std::sync::Arc;

use abi::script::Verdict;
use clap::Args as ClapArgs;
use recording::originals::Originals;
use recording::{Recording, TraceName};
use replay::order::{Child, MAKERS};
use replay::{Lineage, Script};
use serde::Serialize;
use trace::events::Event;
use trace::{Error, Trace, NOT_STARTED};

use crate::args::{which, Args, Command, Common, Races, UndoSelection, Which};
use crate::cleanup::Guard;
use crate::list::Listing;
use crate::races;
use crate::row::{Form, Hex, Row};
use crate::Stop;

pub use process::{run as run_process, spawn, Besides, Finished};
pub use ready::{obstacles, Named, Ready, Watched};

/// The replay did something else than the recording.
const DIFFERS: u8 = 1;
/// There was no replay.
const IMPOSSIBLE: u8 = 2;

/// The command line.
#[derive(ClapArgs)]
pub struct Arguments {
    /// The recording (its folder, or the one file of it), or the trace of one process
    pub file: PathBuf,
    /// This process of the recording; PID.K: what it was after its K-th exec
    #[arg(short, long, value_name = "PID", value_parser = which)]
    pub process: Option<Which>,
    /// Of a process whose threads were watched, the one with this thread id
    #[arg(long, value_name = "TID")]
    pub thread: Option<u32>,
    /// Show what the program wrote to its standard output and error
    #[arg(long)]
    pub output: bool,
    /// JSON instead of text
    #[arg(long)]
    pub json: bool,
    /// The program that was rewritten, if the recording does not say where it is
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// The rewritten program that was recorded, if it is no longer where it ran
    #[arg(long, value_name = "FILE")]
    pub rewritten: Option<PathBuf>,
}

/// What a replay came to.
#[derive(Serialize)]
struct Report {
    process: String,
    equal: bool,
    verdict: &'static str,
    /// How far the recording goes.
    replayable: String,
    turns: u64,
    events: u64,
    /// Where the replay ended.
    thread: u32,
    thread_turns: u64,
    pc: Hex,
    /// What is to be said of that.
    text: String,
    #[serde(skip)]
    line: String,
}

impl Row for Report {
    fn text(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.line.as_bytes());
    }
}

impl Report {
    fn new(script: &Script, finished: &Finished, name: &str) -> Report {
        let outcome = &finished.outcome;
        Report {
            process: name.trim_end().into(),
            equal: finished.is_equal(script),
            verdict: match outcome.verdict {
                Verdict::Ended => "ended",
                Verdict::Exhausted => "exhausted",
                Verdict::Differs => "differs",
                Verdict::Impossible => "impossible",
            },
            replayable: script.end.to_string(),
            turns: script.turns,
            events: script.events,
            thread: script.thread_name(outcome.thread),
            thread_turns: outcome.turns,
            pc: Hex(outcome.pc),
            text: finished.text.clone(),
            line: format!("{name}{}", finished.line(script)),
        }
    }
}

/// The command.
pub fn run(arguments: &Arguments) -> ExitCode {
    match replay(arguments) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("dep: {error}");
            ExitCode::from(IMPOSSIBLE)
        }
    }
}

/// Replays what is chosen. The status is that of the worst.
fn replay(arguments: &Arguments) -> Result<ExitCode, Error> {
    let file = &arguments.file;
    let recording = Recording::is_one(file).then(|| Recording::open(file)).transpose()?;
    let _guard = recording.as_ref().and_then(Recording::temporary).map(Guard::new);
    let names = match (&recording, arguments.process) {
        (Some(recording), Some(Which { pid, image })) => recording.select(pid, image),
        (Some(recording), None) => recording.traces.clone(),
        (None, _) => Vec::new(),
    };
    let mut statuses = Vec::new();
    match &recording {
        Some(recording) if names.len() > 1 => {
            if arguments.thread.is_some() {
                return Err(Error("--thread needs the process, too (-p PID)".into()));
            }
            let (mut alone, mut together) = (Vec::new(), Vec::new());
            for name in names {
                match Trace::open_alone(&recording.path(name)) {
                    // Killed as it began, maybe. Nothing stands in the way: there is nothing.
                    Ok(trace) if replay::has_not_begun(&trace) => {
                        eprintln!("dep: {name}: {NOT_STARTED}");
                    }
                    Ok(trace) if replay::alone::is_watched(&trace) => alone.push(name),
                    _ => together.push(name),
                }
            }
            if !together.is_empty() {
                tree::replay(arguments, recording, &together, |status| statuses.push(status))?;
            }
            for name in alone {
                let which = Which { pid: name.pid, image: Some(name.image) };
                let before = format!("{name} ");
                each(arguments, Some(recording), Some(which), &before, &mut statuses)?;
            }
        }
        _ => each(arguments, recording.as_ref(), arguments.process, "", &mut statuses)?,
    }
    Ok(match (statuses.contains(&DIFFERS), statuses.iter().all(|&status| status == 0)) {
        (true, _) => ExitCode::from(DIFFERS),
        (false, false) => ExitCode::from(IMPOSSIBLE),
        (false, true) => ExitCode::SUCCESS,
    })
}

/// Replays a process, or its watched threads, each alone, as many at once as there are processors. `before`: stands in
/// front of what is said of it.
fn each(
    arguments: &Arguments,
    recording: Option<&Recording>,
    process: Option<Which>,
    before: &str,
    statuses: &mut Vec<u8>,
) -> Result<(), Error> {
    let opened = named(arguments, process).open(recording);
    let lineage = opened.as_ref().ok();
    let own;
    let trace = match lineage {
        Some(lineage) => lineage.last(),
        // Its own replay says what stands in the way.
        None => {
            let path = match recording {
                Some(recording) => {
                    recording.path(crate::folder::select_one(recording, &arguments.file, process)?)
                }
                None => arguments.file.clone(),
            };
            own = Trace::open_alone(&path)?;
            &own
        }
    };
    if arguments.thread.is_some() && !replay::alone::is_watched(trace) {
        return Err(needs_watched());
    }
    let parts = parts(trace, &arguments.file, arguments.thread)?;
    let jobs: Vec<_> = parts.into_iter().enumerate().collect();
    let several = replay::alone::had_several(trace);
    let told = |thread: Option<(Watched, u32)>| {
        let mut named = named(arguments, process);
        named.thread = thread.map(|(what, _)| what);
        named.lineage = lineage.cloned();
        let thread = match thread {
            Some((Watched::Thread(_), tid)) => format!("thread {tid} "),
            Some((Watched::Beginning, _)) if several => "all threads together ".into(),
            Some((Watched::Beginning, tid)) => format!("thread {tid} alone "),
            Some((Watched::Named(_), _)) | None => String::new(),
        };
        let ready = match recording {
            Some(recording) => Ready::in_recording(&named, recording),
            None => Ready::new(&named),
        };
        ready.and_then(|ready| one(arguments, &ready, &format!("{before}{thread}")))
    };
    let at_once = ordered::at_once(arguments.output);
    let run = |&(at, part): &(usize, _), sender: &Sender<_>| {
        // Whoever hears it is there until all are done.
        let _ = sender.send((at, told(part)));
    };
    ordered::run(&jobs, at_once, jobs.len(), run, |told| statuses.push(say(arguments, told)));
    Ok(())
}

/// Parts can be chosen of a process whose threads were watched alone.
fn needs_watched() -> Error {
    Error("a thread, or its beginning, can be chosen of a recording of watched threads only".into())
}

/// The threads of a process whose threads were watched, each with its name: those that are asked for, in front of
/// them what they did before. Of another process nothing, once.
fn parts(
    trace: &Trace,
    file: &Path,
    thread: Option<u32>,
) -> Result<Vec<Option<(Watched, u32)>>, Error> {
    if !replay::alone::is_watched(trace) {
        return Ok(vec![None]);
    }
    let indexes: HashSet<u32> = replay::alone::threads(trace).into_iter().collect();
    let is_wanted = |of: &trace::Thread| thread.is_none_or(|wanted| wanted == of.name());
    let wanted = || trace.threads.iter().filter(|&thread| is_wanted(thread));
    // Of several threads it is one replay.
    let beginning = replay::alone::of_beginning(trace).find(|&thread| is_wanted(thread));
    let beginning = beginning.map(|thread| (Watched::Beginning, thread.name()));
    let alone = wanted().filter(|thread| indexes.contains(&thread.index));
    let alone = alone.map(|thread| (Watched::Thread(thread.index), thread.name()));
    let chosen: Vec<_> = beginning.into_iter().chain(alone).map(Some).collect();
    let file = file.display();
    match (chosen.is_empty(), not_watched(trace, thread)) {
        (false, None) => {}
        (false, Some(why)) => eprintln!("dep: warning: {file}: {why}"),
        (true, why) => {
            let why = why.unwrap_or_else(|| "it has no such thread".into());
            return Err(Error(format!("{file}: {why}")));
        }
    }
    Ok(chosen)
}

/// Which threads cannot be replayed where others were watched, of those that are asked for.
fn not_watched(trace: &Trace, asked: Option<u32>) -> Option<String> {
    const SHOWN: usize = 8;
    let names = replay::alone::unwatched(trace);
    let names = names.iter().map(|thread| thread.name());
    let names: Vec<_> = names.filter(|name| asked.is_none_or(|asked| asked == *name)).collect();
    let shown: Vec<_> = names.iter().take(SHOWN).map(u32::to_string).collect();
    let more = match names.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let shown = shown.join(", ");
    (!names.is_empty())
        .then(|| format!("thread {shown}{more} was not watched, and cannot be replayed"))
}

/// A process of what the command line names.
fn named(arguments: &Arguments, process: Option<Which>) -> Named<'_> {
    Named {
        file: &arguments.file,
        process,
        program: arguments.program.as_deref(),
        output: arguments.rewritten.as_deref(),
        thread: None,
        lineage: None,
    }
}

/// What a replay came to, and the status that follows.
struct Told {
    report: Report,
    status: u8,
    /// What has not been said yet.
    damage: Vec<String>,
}

impl Told {
    /// `name`: in front of its line.
    fn new(script: &Script, finished: &Finished, name: &str, damaged: bool) -> Told {
        let report = Report::new(script, finished, name);
        let status = match (finished.outcome.verdict, report.equal) {
            (Verdict::Impossible, _) => IMPOSSIBLE,
            (_, false) => DIFFERS,
            (_, true) => u8::from(damaged),
        };
        Told { report, status, damage: Vec::new() }
    }
}

/// Replays one process.
fn one(arguments: &Arguments, ready: &Ready, name: &str) -> Result<Told, Error> {
    warn_of_damage(ready);
    let output = ready.plain_output(true)?;
    let besides = Besides { output: arguments.output, ..Besides::default() };
    let finished = process::run(ready, &output, &besides)?;
    Ok(Told::new(&ready.script, &finished, name, is_damaged(ready)))
}

/// Says what a replay came to. Returns the status.
fn say(arguments: &Arguments, told: Result<Told, Error>) -> u8 {
    let Told { report, status, damage } = match told {
        Ok(told) => told,
        Err(error) => {
            eprintln!("dep: {error}");
            return IMPOSSIBLE;
        }
    };
    let mut warnings = crate::Warnings::default();
    damage.iter().for_each(|damage| warnings.add(damage));
    let mut bytes = Vec::new();
    // It goes to memory.
    let _ = Form::new(arguments.json).append(&report, &mut bytes);
    // The standard output may be the program's. Nobody may be listening; the status says it, too.
    let _ = match !arguments.output && (status == 0 || arguments.json) {
        true => std::io::stdout().write_all(&bytes),
        false if arguments.json => std::io::stderr().write_all(&bytes),
        false => std::io::stderr().write_all(&[b"dep: ", &*bytes].concat()),
    };
    status
}

fn is_damaged(ready: &Ready) -> bool {
    ready.lineage.traces().iter().any(|trace| !trace.damage.is_empty())
}

/// Says so if the replay differs, or does not go to the end of what is replayed.
fn warn_unless_whole(ready: &Ready, finished: &Finished) {
    if finished.is_equal(&ready.script) && ready.script.end.is_whole() {
        return;
    }
    let thread = match ready.script.header.alone {
        0 => String::new(),
        _ => format!("thread {} ", ready.thread_name(finished.outcome.thread)),
    };
    eprintln!("dep: warning: {thread}{}", finished.line(&ready.script));
}

pub fn warn_of_damage(ready: &Ready) {
    let mut warnings = crate::Warnings::default();
    ready.lineage.traces().iter().flat_map(|t| &t.damage).for_each(|d| warnings.add(d));
}

/// Lists the trace that a replay leaves, if the command needs one: then `trace` is one of inputs, `of` a
/// recording or alone. `None`: it does not.
pub fn show(
    trace: &Trace,
    args: &Args,
    common: &Common,
    of: Option<(&Recording, Which)>,
    out: &mut impl Write,
) -> Option<Result<(), Stop>> {
    // The profile of the same run does not have what these commands show.
    let needs_replay =
        matches!(args.command, Command::Races(_) | Command::Window(_) | Command::Undo(_));
    let is_replayed = trace.options.recording.inputs() || trace.both && needs_replay;
    if !is_replayed {
        return None;
    }
    if let Command::Syscalls(what) = &args.command {
        return crate::ask::calls::list(trace, what, of.map(|(_, which)| which), out);
    }
    let instrument = match &args.command {
        Command::Blocks(what) => {
            return Some(each_listed(trace, Listing::blocks(what), args, common, of, out));
        }
        Command::Memrefs(what) => {
            return Some(each_listed(trace, Listing::references(what), args, common, of, out));
        }
        Command::Undo(what) if replay::alone::is_watched(trace) => {
            return Some(each_undo(trace, what, common, of, out));
        }
        Command::Races(what) if replay::alone::is_watched(trace) => {
            return Some(races_of_watched(trace, what, of, out));
        }
        Command::Races(_) | Command::Window(_) => "dep",
        Command::Undo(_) => "undo",
        _ => return None,
    };
    let ready = ready(common, of, None).map_err(Stop::from);
    Some(ready.and_then(|ready| replayed(&ready, args, common, instrument, out)))
}

/// Lists what the replay of a process does, or the replays of its watched threads, one after another.
fn each_listed(
    trace: &Trace,
    mut listing: Listing<'_>,
    args: &Args,
    common: &Common,
    of: Option<(&Recording, Which)>,
    out: &mut impl Write,
) -> Result<(), Stop> {
    for part in parts(trace, &common.file, listing.what.thread)? {
        let ready = ready(common, of, part.map(|(what, _)| what))?;
        listing.limit = match ready.script.child {
            Some(_) => {
                let mut lines = Lines { out: &mut *out, count: 0 };
                replayed(&ready, args, common, "dep", &mut lines)?;
                listing.limit.saturating_sub(lines.count)
            }
            None => overlap::show(&listing, &ready, common, out)?,
        };
        if listing.limit == 0 {
            break;
        }
    }
    Ok(())
}

/// Counts the lines that are written.
struct Lines<'a, W> {
    out: &'a mut W,
    count: u64,
}

impl<W: Write> Write for Lines<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.out.write(bytes)?;
        let lines = bytes.iter().take(written).filter(|&&byte| byte == b'\n').count();
        self.count += lines as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// Lists the undo logs of watched threads, one after another. No order of threads is known, but what they did before
/// they were watched was first.
fn each_undo(
    trace: &Trace,
    what: &UndoSelection,
    common: &Common,
    of: Option<(&Recording, Which)>,
    out: &mut impl Write,
) -> Result<(), Stop> {
    let file = common.file.display();
    let mut parts = parts(trace, &common.file, what.thread)?;
    if let ([Some((Watched::Beginning, _)), _, ..], true) = (&parts[..], what.is_newest_first()) {
        match replay::alone::had_several(trace) {
            true => parts.rotate_left(1),
            // Each thread's in one piece.
            false => parts[..2].reverse(),
        }
    }
    let mut left = what.limit.unwrap_or(u64::MAX);
    let mut warnings = crate::Warnings::default();
    for part in parts {
        let ready = ready(common, of, part.map(|(what, _)| what))?;
        left = match ready.script.header.alone {
            0 => {
                let (trace, equal) = leave_trace(&ready, "undo", &file)?;
                trace.damage.iter().for_each(|damage| warnings.add(damage));
                let left = crate::undo::list(&trace, what, left, out)?;
                conclude(&trace, equal, &ready, &file)?;
                left
            }
            _ => crate::undo::alone::list(&ready, what, left, &mut warnings, out)?,
        };
        if left == 0 {
            break;
        }
    }
    match warnings.any() {
        false => Ok(()),
        true => Err(Error(format!("{file}: this is not all, or not what was recorded")).into()),
    }
}

/// Lists the races of threads that were watched: each is replayed alone.
fn races_of_watched(
    recorded: &Trace,
    what: &Races,
    of: Option<(&Recording, Which)>,
    out: &mut impl Write,
) -> Result<(), Stop> {
    let file = what.common.file.display();
    if replay::alone::had_several(recorded) {
        let why = "several threads ran one at a time before they were watched, so there is no one order of all that they did: record it with --threads watched";
        return Err(Error(format!("{file}: {why}")).into());
    }
    let (mut replayed, mut is_whole, mut is_lossy) = (Vec::new(), true, false);
    for (part, _) in parts(recorded, &what.common.file, None)?.into_iter().flatten() {
        let ready = ready(&what.common, of, Some(part))?;
        let (trace, equal) = leave_trace(&ready, "dep", &file)?;
        is_whole &= equal && !is_damaged(&ready);
        is_lossy |= trace.is_lossy;
        replayed.push(races::Part { what: part, ready, trace });
    }
    races::list_watched(recorded, &replayed, what, out)?;
    Ok(end(is_whole, is_lossy, &file)?)
}

/// Tells `go` what is needed to replay the process that is named: once, or, if its threads were watched, of each of
/// them (and its name), the first one in two parts, as long as it wants more. `thread`: of those this one alone.
pub fn each_ready(
    common: &Common,
    thread: Option<u32>,
    mut go: impl FnMut(&Ready, Option<u32>) -> Result<bool, Stop>,
) -> Result<(), Stop> {
    let file = &common.file;
    let recording = Recording::is_one(file).then(|| Recording::open(file)).transpose()?;
    let _guard = recording.as_ref().and_then(Recording::temporary).map(Guard::new);
    let mut named = Named {
        file,
        process: common.process,
        program: common.program.as_deref(),
        output: common.output.as_deref(),
        thread: None,
        lineage: None,
    };
    let lineage = named.open(recording.as_ref())?;
    named.lineage = Some(Arc::clone(&lineage));
    for part in parts(lineage.last(), file, thread)? {
        named.thread = part.map(|(what, _)| what);
        let ready = match &recording {
            Some(recording) => Ready::in_recording(&named, recording)?,
            None => Ready::new(&named)?,
        };
        warn_of_damage(&ready);
        if !go(&ready, part.map(|(_, tid)| tid))? {
            break;
        }
    }
    Ok(())
}

/// What is needed to replay a process, or this of a process whose threads were watched.
fn ready(
    common: &Common,
    of: Option<(&Recording, Which)>,
    thread: Option<Watched>,
) -> Result<Ready, Error> {
    let named = Named {
        file: &common.file,
        process: of.map(|(_, which)| which),
        program: common.program.as_deref(),
        output: common.output.as_deref(),
        thread,
        lineage: None,
    };
    let ready = match of {
        Some((recording, _)) => Ready::in_recording(&named, recording)?,
        None => Ready::new(&named)?,
    };
    warn_of_damage(&ready);
    Ok(ready)
}

/// Lists what a replay does when it has come to its end.
fn replayed(
    ready: &Ready,
    args: &Args,
    common: &Common,
    instrument: &str,
    out: &mut impl Write,
) -> Result<(), Stop> {
    let file = common.file.display();
    let (trace, equal) = leave_trace(ready, instrument, &file)?;
    match &args.command {
        Command::Races(what) => races::list(&trace, ready, what, out)?,
        Command::Window(what) => crate::window::show(&trace, ready, what, out)?,
        _ => crate::show(&trace, args, common, out)?,
    }
    Ok(conclude(&trace, equal, ready, &file)?)
}

/// What is to be said of the trace of a replay when it has been listed.
pub fn conclude(
    trace: &Trace,
    equal: bool,
    ready: &Ready,
    file: &impl std::fmt::Display,
) -> Result<(), Error> {
    end(equal && !is_damaged(ready), trace.is_lossy, file)
}

/// The same, of traces of several replays.
fn end(is_whole: bool, is_lossy: bool, file: &impl std::fmt::Display) -> Result<(), Error> {
    if is_lossy {
        let temporary = std::env::temp_dir();
        let why = "the list is cut short: no room for the trace of the replay in TMPDIR";
        return Err(Error(format!("{file}: {why} ({})", temporary.display())));
    }
    match is_whole {
        true => Ok(()),
        false => Err(Error(format!("{file}: this is not what was recorded"))),
    }
}

/// Replays with an instrument; the trace of that, and whether the replay did what was recorded.
fn leave_trace(
    ready: &Ready,
    instrument: &str,
    file: &impl std::fmt::Display,
) -> Result<(Trace, bool), Error> {
    let (mut trace, finished) = whole_trace(ready, instrument, file)?;
    warn_unless_whole(ready, &finished);
    only_the_process(&mut trace, ready)?;
    for thread in &mut trace.threads {
        thread.tid = Some(ready.thread_name(thread.index));
    }
    Ok((trace, finished.is_equal(&ready.script)))
}

/// The same, with what the processes did that forked the one that is replayed. Nothing is said of how far it came.
pub fn whole_trace(
    ready: &Ready,
    instrument: &str,
    file: &impl std::fmt::Display,
) -> Result<(Trace, Finished), Error> {
    let output = ready.output(instrument)?;
    let path = ready.folder.join("replay.dep");
    let besides = Besides { trace: Some(path.clone()), ..Besides::default() };
    let finished = process::run(ready, &output, &besides)?;
    if finished.outcome.verdict == Verdict::Impossible {
        warn_unless_whole(ready, &finished);
        return Err(Error(format!("{file}: it cannot be replayed")));
    }
    Ok((Trace::open_with(&path, Some(&output))?, finished))
}

/// What `look` finds in the trace that a replay leaves which lists memory references.
pub fn listed<T>(
    ready: &Ready,
    warnings: &mut crate::Warnings,
    look: impl FnOnce(&Trace, &mut crate::Warnings) -> T,
) -> Result<T, Error> {
    let (trace, finished) = whole_trace(ready, "dep", &"the recording")?;
    warn_unless_whole(ready, &finished);
    if !finished.is_equal(&ready.script) {
        warnings.add(&"the replay is not what was recorded");
    }
    if trace.is_lossy {
        let temporary = std::env::temp_dir();
        let why = "no room for the trace of the replay in TMPDIR";
        return Err(Error(format!("{why} ({})", temporary.display())));
    }
    trace.damage.iter().for_each(|damage| warnings.add(damage));
    let found = look(&trace, warnings);
    // It is large, and was needed for this.
    let _ = std::fs::remove_file(ready.folder.join("replay.dep"));
    Ok(found)
}

/// Leaves out what the processes did that forked the one that was replayed: in its trace their calls
/// returned 0, each at the start of a chunk.
fn only_the_process(trace: &mut Trace, ready: &Ready) -> Result<(), Error> {
    let Some(Child { thread, above, .. }) = ready.script.child else { return Ok(()) };
    let of_thread = trace.threads.iter().find(|t| t.index == thread);
    let events = of_thread.into_iter().flat_map(|thread| &thread.events);
    // Behind its own fork the process is a parent.
    let mut made = events.filter(|placed| {
        matches!(placed.event, Some(Event::Syscall { number, result: 0, .. }) if MAKERS.contains(&number))
    });
    let chunk = match made.next_back() {
        Some(placed) => placed.position.chunk,
        None => {
            return Err(Error("the replay did not come to where the process was forked".into()))
        }
    };
    trace.forget_before(thread, chunk, above);
    Ok(())
}

/// How completely a trace can be replayed, for a person; `None`: it is none of inputs.
pub fn completeness(
    trace: &Trace,
    recording: Option<(&Recording, TraceName)>,
    common: &Common,
) -> Option<String> {
    if !trace.options.recording.inputs() && !trace.both {
        return None;
    }
    let lineage = match recording {
        Some((recording, name)) => Lineage::of_recording(recording, name),
        None => Lineage::of_file(&common.file),
    };
    let lineage = match lineage {
        Ok(lineage) => lineage,
        Err(error) => return Some(format!("no: {error}")),
    };
    let watched = replay::alone::is_watched(trace).then(|| of_watched(trace));
    let end = match watched.map_or_else(|| of_order(&lineage), Ok) {
        Ok(end) => end,
        Err(error) => return Some(format!("no: {error}")),
    };
    let originals = match recording {
        Some((recording, _)) => Originals::open(&recording.folder),
        None => Ok(Originals::default()),
    };
    let obstacles = match originals {
        Ok(originals) => obstacles(&lineage, &originals, common.output.as_deref()),
        Err(error) => vec![error],
    };
    Some(match obstacles.first() {
        None => end,
        Some(first) => format!("{end}, but not here: {first}"),
    })
}

/// How far the processes can be replayed together.
fn of_order(lineage: &Lineage) -> Result<String, Error> {
    let end = replay::order::order(&lineage.traces())?.end;
    Ok(match lineage.first().first_stretch() {
        Some(_) => {
            format!("{end}, from where the part begins that was kept{}", left_out(lineage.first()))
        }
        None => end.to_string(),
    })
}

/// What is missing of the memory, behind what is said of a ring; empty: nothing.
fn left_out(trace: &Trace) -> String {
    match trace::trim::untouched(trace).iter().map(|range| range.end - range.start).sum() {
        0 => String::new(),
        bytes => {
            format!(", without {} of memory that it never touches", indicatif::BinaryBytes(bytes))
        }
    }
}

/// How far watched threads can be replayed, each alone.
fn of_watched(trace: &Trace) -> String {
    let ends = replay::alone::ends(trace);
    let count = ends.len();
    let threads = if count == 1 { "thread" } else { "threads" };
    let cut: Vec<_> = ends.iter().filter(|end| !end.is_whole()).collect();
    let is_cut = |thread: &trace::Thread| {
        matches!(
            thread.events.first().and_then(|placed| placed.event.as_ref()),
            Some(trace::events::Event::Actions(_))
        )
    };
    let from = match trace.threads.iter().any(is_cut) {
        true => ", from where the part begins that was kept",
        false => "",
    };
    match cut.first() {
        None => format!("to its end, {count} watched {threads}, each alone{from}"),
        Some(first) => {
            format!("{} of {count} watched {threads} {first}, each alone{from}", cut.len())
        }
    }
}
