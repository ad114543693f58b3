//! Listings of what a replay does while it does it: chunks are read as soon as they are complete, on other
//! processors, and given back. A replay that is ahead waits, and one of which nobody wants more is ended.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use abi::script::Verdict;
use nix::fcntl::{fallocate, FallocateFlags};
use trace::growing::{self, Reader};
use trace::open::Chunk;
use trace::pipeline::Task;
use trace::{Error, Trace};

use super::process::{self, Besides, Finished, Running};
use super::{is_damaged, warn_unless_whole, Ready};
use crate::args::Common;
use crate::list::{list_tasks, no_thread, Listing, Progress};
use crate::{Stop, Warnings};

/// Chunks, of two MiB each, that a replay may be ahead of whoever reads.
const AHEAD: usize = 16;
/// How often it is looked whether there is more.
const EACH: Duration = Duration::from_millis(1);

/// The replay's trace is read while it is written. Returns how many lines more there could be: none, if as many were
/// listed as were asked for.
pub fn show(
    listing: &Listing<'_>,
    ready: &Ready,
    common: &Common,
    out: &mut impl Write,
) -> Result<u64, Stop> {
    let output = match listing.references {
        true => ready.output("dep")?,
        false => ready.output_of_control_flow()?,
    };
    let path = ready.folder.join("replay.dep");
    let besides = Besides { trace: Some(path.clone()), ahead: Some(AHEAD), ..Besides::default() };
    let running = process::start(ready, &output, &besides)?;
    std::thread::scope(|scope| {
        let ending = scope.spawn(|| running.finish());
        let killer = Killer(&running);
        let listed = listed(listing, ready, &running, &path, &output, out);
        // Whatever keeps us from reading on, nobody else does. (What has ended is past that.)
        drop(killer);
        let finished = ending.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        conclude(listed?, finished, listing, ready, (&path, &output), common, out)
    })
}

/// The replay does not outlive this.
struct Killer<'a>(&'a Running);

impl Drop for Killer<'_> {
    fn drop(&mut self) {
        self.0.kill();
    }
}

/// What was found in the trace.
struct Found {
    /// There were chunks.
    has_begun: bool,
    /// So many lines were asked for, and not listed.
    left: u64,
    warnings: Warnings,
    damage: Vec<trace::file::Damage>,
    is_lossy: bool,
    /// The thread that was asked for was there, or none was.
    has_thread: bool,
}

/// What is to be said when everything has been listed.
fn conclude(
    found: Found,
    finished: Result<Finished, Error>,
    listing: &Listing<'_>,
    ready: &Ready,
    (path, output): (&Path, &Path),
    common: &Common,
    out: &mut impl Write,
) -> Result<u64, Stop> {
    let file = common.file.display();
    let Found { has_begun, left, mut warnings, mut damage, mut is_lossy, mut has_thread } = found;
    let is_right = match left {
        // What would have come is not known.
        0 => true,
        _ => {
            // (What it has written stands in front of what is said of it.)
            out.flush()?;
            let finished = finished?;
            let equal = finished.is_equal(&ready.script);
            warn_unless_whole(ready, &finished);
            if finished.outcome.verdict == Verdict::Impossible {
                return Err(Error(format!("{file}: it cannot be replayed")).into());
            }
            equal
        }
    };
    if !has_begun {
        // It may say why there are none.
        let trace = Trace::open_with(path, Some(output))?;
        (damage, is_lossy) = (trace.damage, trace.is_lossy);
        let mut names = trace.threads.iter().map(|thread| ready.thread_name(thread.index));
        has_thread = listing.what.thread.is_none_or(|tid| names.any(|name| name == tid));
    }
    damage.iter().for_each(|damage| warnings.add(damage));
    if let (false, Some(tid)) = (has_thread, listing.what.thread) {
        return Err(no_thread(tid).into());
    }
    out.flush()?;
    let why = if warnings.any() {
        "damaged: this is not all that was recorded".into()
    } else if is_lossy {
        let temporary = std::env::temp_dir();
        let why = "the list is cut short: no room for the trace of the replay in TMPDIR";
        format!("{why} ({})", temporary.display())
    } else if !is_right || is_damaged(ready) {
        "this is not what was recorded".into()
    } else {
        return Ok(left);
    };
    Err(Error(format!("{file}: {why}")).into())
}

/// Lists what is there until the replay has ended, or enough is listed.
fn listed(
    listing: &Listing<'_>,
    ready: &Ready,
    running: &Running,
    path: &Path,
    output: &Path,
    out: &mut impl Write,
) -> Result<Found, Stop> {
    let Some(trace) = opened(running, path, output)? else {
        return Ok(Found {
            has_begun: false,
            left: listing.limit,
            warnings: Warnings::default(),
            damage: Vec::new(),
            is_lossy: false,
            has_thread: false,
        });
    };
    let reader = Reader::new(&trace, output.to_owned());
    let (wanted, stop) = (listing.what.thread, AtomicBool::new(false));
    let open = || OpenOptions::new().write(true).open(path).ok();
    let giver = Giver { file: open(), running, stop: &stop };
    let mut feed = Feed { reader, giver, ready, wanted, from: 0, ended: false, failed: None };
    let progress = Giver { file: open(), running, stop: &stop };
    let mut warnings = Warnings::default();
    let left = list_tasks(&trace, &mut feed, &progress, listing, &mut warnings, out)?;
    if let Some(error) = feed.failed {
        return Err(error.into());
    }
    let has_thread = left == 0 || feed.reader.threads().any(|t| feed.wants(t));
    let Reader { damage, is_lossy, .. } = feed.reader;
    Ok(Found { has_begun: true, left, warnings, damage, is_lossy, has_thread })
}

/// The trace, as soon as something is recorded in it. `None`: nothing ever was.
fn opened(running: &Running, path: &Path, output: &Path) -> Result<Option<Trace>, Error> {
    loop {
        let ended = running.is_over();
        let opened = growing::open(path, output)?;
        if ended || opened.is_some() {
            return Ok(opened);
        }
        std::thread::sleep(EACH);
    }
}

/// Gives the room of chunks back that were read, and so lets the replay go on.
struct Giver<'a> {
    file: Option<File>,
    running: &'a Running,
    /// No more is wanted.
    stop: &'a AtomicBool,
}

impl Giver<'_> {
    /// (Where the file system cannot do that, the trace stays as large as it is.)
    fn drop_chunk(&self, chunk: &Chunk) {
        let place =
            i64::try_from(chunk.frame.offset).ok().zip(i64::try_from(chunk.frame.present).ok());
        let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        if let (Some(file), Some((start, len)), true) = (&self.file, place, chunk.frame.is_sealed())
        {
            let _ = fallocate(file, punch, start, len);
        }
    }
}

impl Progress for Giver<'_> {
    fn read(&self, task: &Task<'_>) {
        self.drop_chunk(&task.chunk);
        if task.chunk.frame.was_written_out() {
            self.running.may_go_on();
        }
    }

    fn enough(&self) {
        self.stop.store(true, SeqCst);
    }
}

/// The chunks of the threads that are wanted, thread by thread, each as soon as it is complete.
struct Feed<'a> {
    reader: Reader<'a>,
    giver: Giver<'a>,
    ready: &'a Ready,
    wanted: Option<u32>,
    /// Threads with smaller indexes have been listed.
    from: u32,
    ended: bool,
    failed: Option<Error>,
}

impl Feed<'_> {
    fn wants(&self, index: u32) -> bool {
        self.wanted.is_none_or(|tid| tid == self.ready.thread_name(index))
    }

    /// The thread that is listed now. (One with a smaller index may start later, where a replay begins with a
    /// snapshot: the script says which there will be.)
    fn front(&self) -> Option<u32> {
        let wanted = |&index: &u32| index >= self.from && self.wants(index);
        let to_come = self.ready.script.running.iter().copied().find(wanted);
        match self.ended {
            true => self.reader.threads().find(wanted).into_iter().chain(to_come).min(),
            false => to_come,
        }
    }

    /// Looks for more. Whether there is any, or none comes any more.
    fn look(&mut self) -> Result<bool, Error> {
        self.ended = self.giver.running.is_over();
        self.reader.look(self.ended)?;
        let front = self.front();
        let found = self.reader.found();
        let others: Vec<u32> = self.reader.threads().filter(|&index| !self.wants(index)).collect();
        for index in others {
            while let Some(task) = self.reader.next(index, 0) {
                self.giver.drop_chunk(&task.chunk);
            }
        }
        // Nobody reads these soon: they wait in the file until their thread's turn comes.
        let is_behind = |&&(index, was_written): &&(u32, bool)| was_written && Some(index) != front;
        let behind = found.iter().filter(is_behind);
        behind.for_each(|_| self.giver.running.may_go_on());
        Ok(!found.is_empty() || self.ended)
    }
}

impl Iterator for Feed<'_> {
    type Item = Task<'static>;

    fn next(&mut self) -> Option<Task<'static>> {
        while !self.giver.stop.load(SeqCst) && self.failed.is_none() {
            let front = self.front();
            let name = front.map_or(0, |index| self.ready.thread_name(index));
            if let Some(task) = front.and_then(|index| self.reader.next(index, name)) {
                return Some(task);
            }
            match (self.ended, front) {
                (true, Some(index)) => self.from = index.checked_add(1)?,
                (true, None) => return None,
                (false, _) => match self.look() {
                    Ok(true) => {}
                    Ok(false) => std::thread::sleep(EACH),
                    Err(error) => self.failed = Some(error),
                },
            }
        }
        None
    }
}
