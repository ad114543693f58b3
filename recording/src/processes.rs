//! Processes of a recording: which there were, who started whom, and how each ended.
//!
//! A trace is of one image of a process: what it executes from its start, or from an exec, to its end or
//! to the next exec. It says of itself who it is; the names of the files only say which are images of one
//! process.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use abi::event::End;
use trace::events::Event;
use trace::Trace;

use crate::gather::Needed;
use crate::manifest::{Manifest, Status};
use crate::{originals, Error, Recording, TraceName};

/// How an image ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ending {
    /// With this exit status.
    Exit(i32),
    /// By this signal.
    Signal(i32),
    /// The runtime stopped it: it needs something unsupported.
    Refused,
    /// By an exec: the process went on as its next image.
    Exec,
    /// By an exec of this path, which is not recorded: why, if the trace says so.
    Left(PathBuf, Option<String>),
    /// It has none yet.
    Running,
    /// None is recorded, and the process is gone: it was killed.
    None,
    /// The trace cannot be read: why.
    Unreadable(String),
}

/// One trace.
#[derive(Clone, Debug)]
pub struct Image {
    /// Which.
    pub name: TraceName,
    /// The file that ran: the output.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<Vec<u8>>,
    /// Nanoseconds since the epoch.
    pub start_ns: u64,
    /// The same of the end, if it has one.
    pub end_ns: Option<u64>,
    /// How it ended.
    pub ending: Ending,
    /// Bytes of the trace.
    pub bytes: u64,
    /// Places where the trace is damaged.
    pub damage: usize,
    /// The process that started this one, if the trace says so.
    parent: Option<u64>,
    /// Processes that it started.
    children: Vec<u64>,
    /// Those of them that are recorded in this trace, until they end or execute a program.
    within: Vec<u64>,
    /// It was not recorded any more when it ended.
    unrecorded: bool,
    /// Children of which it was told the end, with their statuses as `wait4` gives them.
    reaped: Vec<(u64, u64)>,
}

/// A process: its images, in their order. Without any it has no trace.
#[derive(Clone, Debug)]
pub struct Process {
    /// Process id.
    pub pid: u64,
    /// Index of the process that started it.
    pub parent: Option<usize>,
    /// Indexes of the processes that it started, in the order of their start.
    pub children: Vec<usize>,
    /// What it was, one after the other.
    pub images: Vec<Image>,
    /// The trace of its parent in which it is recorded as a thread: it shared the memory (`vfork`), until
    /// it ended or executed a program.
    pub within: Option<TraceName>,
    /// How it ended, as its parent was told: of a process that has no image to say so.
    pub told: Option<Ending>,
}

impl Process {
    /// Nanoseconds since the epoch; 0 if it is not recorded.
    pub fn start_ns(&self) -> u64 {
        self.images.first().map_or(0, |image| image.start_ns)
    }

    /// Whether it still runs, as far as its trace and the system tell.
    pub fn is_running(&self) -> bool {
        self.images.last().is_some_and(|image| image.ending == Ending::Running)
    }
}

/// All processes, each behind the one that started it.
#[derive(Debug, Default)]
pub struct Processes {
    /// The processes.
    pub all: Vec<Process>,
    /// The files that their traces need.
    pub needed: Needed,
    /// The original files that a replay of those of inputs needs.
    pub originals: originals::Needed,
    /// What was executed and not recorded, and why: a line, and the process, if it is known.
    pub notes: Vec<(Option<u64>, String)>,
}

impl Processes {
    /// Reads the traces of a recording, one after the other.
    pub fn read(recording: &Recording) -> Processes {
        let mut needed = Needed::default();
        let mut originals = originals::Needed::default();
        let mut images: Vec<Image> = Vec::with_capacity(recording.traces.len());
        for &name in &recording.traces {
            let path = recording.path(name);
            images.push(match Trace::open_outline(&path) {
                Ok(trace) => {
                    needed.add(&trace);
                    originals.add(&recording.folder, &trace);
                    image(name, &path, &trace)
                }
                Err(error) => unreadable(name, &path, error.to_string()),
            });
        }
        let mut all = tree(images);
        know_the_reaped(&mut all);
        know_the_first(&mut all, &recording.manifest);
        Processes { all, needed, originals, notes: recording.notes() }
    }

    /// Programs that were executed and not recorded: the path and why, with the process.
    pub fn left(&self) -> Vec<(u64, String)> {
        let mut left: BTreeMap<u64, String> = BTreeMap::new();
        for image in self.images() {
            if let Ending::Left(path, why) = &image.ending {
                let why = why.as_deref().unwrap_or("not followed");
                left.insert(image.name.pid, format!("{}: {why}", path.display()));
            }
        }
        let notes = self.notes.iter().filter_map(|(pid, note)| Some(((*pid)?, note.clone())));
        left.extend(notes);
        left.into_iter().collect()
    }

    /// Indexes of the processes that nobody in the recording started.
    pub fn roots(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.all.len()).filter(|&index| self.all[index].parent.is_none())
    }

    /// All images.
    pub fn images(&self) -> impl Iterator<Item = &Image> {
        self.all.iter().flat_map(|process| &process.images)
    }
}

/// Who was ended by a signal could not record it, but its parent was told.
fn know_the_reaped(all: &mut [Process]) {
    for index in 0..all.len() {
        let Some(parent) = all[index].parent else { continue };
        let pid = all[index].pid;
        // Of several with this number it cannot be said which.
        if all.iter().filter(|process| process.pid == pid).count() != 1 {
            continue;
        }
        let mut told = all[parent].images.iter().flat_map(|image| &image.reaped);
        let Some(&(_, status)) = told.rfind(|(child, _)| *child == pid) else {
            continue;
        };
        let of = |part: u64| i32::try_from(part).unwrap_or_default();
        let told = match status & 0x7f {
            0 => Ending::Exit(of(status >> 8 & 0xff)),
            signal => Ending::Signal(of(signal)),
        };
        match all[index].images.last_mut() {
            Some(image) if image.ending == Ending::None => image.ending = told,
            Some(_) => {}
            None => all[index].told = Some(told),
        }
    }
}

/// The recorder has seen how the program ended, even if the program could not record it: a signal may
/// kill it at once.
fn know_the_first(all: &mut [Process], manifest: &Manifest) {
    let (Some(pid), Some(end)) = (manifest.pid, manifest.end) else { return };
    let Some(first) = all.iter_mut().find(|process| process.pid == pid) else { return };
    let Some(image) = first.images.last_mut() else { return };
    if matches!(image.ending, Ending::None | Ending::Running) {
        image.ending = match end.status {
            Status::Exit(status) => Ending::Exit(status),
            Status::Signal(signal) => Ending::Signal(signal),
        };
        image.end_ns = Some(end.time_ns.max(image.start_ns));
    }
}

fn unreadable(name: TraceName, path: &Path, why: String) -> Image {
    Image {
        name,
        program: PathBuf::new(),
        arguments: Vec::new(),
        start_ns: 0,
        end_ns: None,
        ending: Ending::Unreadable(why),
        bytes: path.metadata().map_or(0, |metadata| metadata.len()),
        damage: 0,
        parent: None,
        children: Vec::new(),
        within: Vec::new(),
        unrecorded: false,
        reaped: Vec::new(),
    }
}

fn image(name: TraceName, path: &Path, trace: &Trace) -> Image {
    let mut ending = None;
    let threads = trace.threads.iter().map(|thread| &thread.events);
    for placed in threads.chain([&trace.process_events]).flatten() {
        if let Some(Event::ProcessEnd { reason, status, .. }) = placed.event {
            ending = Some(match reason {
                End::Exit => Ending::Exit(status),
                End::Signal => Ending::Signal(status),
                End::Refused | End::Unknown(_) => Ending::Refused,
            });
        }
    }
    let metadata = path.metadata().ok();
    let written = metadata.as_ref().and_then(|metadata| metadata.modified().ok());
    let written = written.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let written = written.and_then(|time| u64::try_from(time.as_nanos()).ok());
    let threads = trace.threads.iter().flat_map(|thread| &thread.events);
    let reaped = threads.filter_map(|placed| match placed.event {
        Some(Event::Reaped { pid, status }) => Some((pid, status)),
        _ => None,
    });
    // One that ended before it could say anything was made at that time.
    let start_ns = match trace.start_ns {
        0 => written.unwrap_or(0),
        start_ns => start_ns,
    };
    // What nothing is written to any more was written to when it ended, or somebody has copied it.
    let end_ns = ending.as_ref().and(trace.end_ns.or(written));
    // Then nothing says that another program was executed.
    let unrecorded = trace.is_lossy
        || trace.process_events.iter().rev().find_map(|placed| match placed.event {
            Some(Event::Switch { on, .. }) => Some(!on),
            _ => None,
        }) == Some(true);
    let ending = ending.or_else(|| last_exec(trace).map(|(path, why)| Ending::Left(path, why)));
    let ending =
        ending.unwrap_or_else(|| match metadata.is_some_and(|m| is_open(name.pid, path, &m)) {
            true => Ending::Running,
            false => Ending::None,
        });
    Image {
        name,
        program: trace.program.clone(),
        arguments: trace.arguments.clone(),
        start_ns,
        end_ns: end_ns.map(|end| end.max(start_ns)),
        ending,
        bytes: trace.file.stored(),
        damage: trace.damage.len(),
        parent: trace.parent,
        children: trace.children().collect(),
        within: trace.threads.iter().filter_map(trace::Thread::own_process).collect(),
        unrecorded,
        reaped: reaped.collect(),
    }
}

/// The path of an exec behind which its thread did nothing, and why what followed is not recorded.
fn last_exec(trace: &Trace) -> Option<(PathBuf, Option<String>)> {
    // A thread that is a process of its own leaves alone.
    let mut threads = trace.threads.iter().filter(|thread| thread.own_process().is_none());
    threads.find_map(|thread| {
        let mut last = thread.events.iter().rev().map(|placed| &placed.event);
        let path = |path: &[u8]| PathBuf::from(OsStr::from_bytes(path));
        match last.next()? {
            Some(Event::Exec(program)) => Some((path(program), None)),
            Some(Event::NotFollowed(why)) => match last.next()? {
                Some(Event::Exec(program)) => {
                    Some((path(program), Some(String::from_utf8_lossy(why).into_owned())))
                }
                _ => None,
            },
            _ => None,
        }
    })
}

/// Whether a process still writes to the trace at `path`, as far as the system tells.
pub(crate) fn is_written(path: &Path) -> Result<bool, Error> {
    let trace = Trace::open_outline(path)?;
    let file = path.metadata().map_err(|e| crate::at(path, e))?;
    let within = trace.threads.iter().filter_map(trace::Thread::own_process);
    Ok(within.chain([trace.pid]).any(|pid| is_open(pid, path, &file)))
}

/// Whether the process has this file open or mapped: it runs, and it is no later one with its number.
fn is_open(pid: u64, path: &Path, file: &std::fs::Metadata) -> bool {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let descriptors = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let is_it = |other: std::fs::Metadata| (other.dev(), other.ino()) == (file.dev(), file.ino());
    let mut descriptors = descriptors.filter_map(|entry| entry.path().metadata().ok());
    if descriptors.any(is_it) {
        return true;
    }
    let (Ok(maps), Ok(path)) = (std::fs::read(process.join("maps")), path.canonicalize()) else {
        return false;
    };
    // Paths come last in their lines.
    maps.split(|&byte| byte == b'\n').any(|line| line.ends_with(path.as_os_str().as_bytes()))
}

/// Puts images (by process id and number) together to processes, and these into a tree.
fn tree(images: Vec<Image>) -> Vec<Process> {
    let mut all: Vec<Process> = Vec::new();
    for image in images {
        match all.last_mut().filter(|process| process.pid == image.name.pid) {
            Some(process) if goes_on(process) => {
                if let Some(before) = process.images.last_mut() {
                    before.ending = Ending::Exec;
                    before.end_ns = Some(image.start_ns);
                }
                process.images.push(image);
            }
            // A number that was free again.
            _ => all.push(Process {
                pid: image.name.pid,
                parent: None,
                children: Vec::new(),
                images: vec![image],
                within: None,
                told: None,
            }),
        }
    }
    let recorded = all.len();
    let known: BTreeSet<u64> = all.iter().map(|process| process.pid).collect();
    let mut parents: BTreeMap<usize, usize> = BTreeMap::new();
    // A process knows best who started it.
    for (index, process) in all.iter().enumerate() {
        if let Some(parent) = process.images.iter().find_map(|image| image.parent) {
            let parent = find(&all, parent, process.start_ns(), index);
            parents.extend(parent.map(|parent| (index, parent)));
        }
    }
    for index in 0..recorded {
        // Each process is the child of one of the parent's calls.
        let mut taken = BTreeSet::new();
        for image in all[index].images.clone() {
            for pid in image.children {
                let within = image.within.contains(&pid).then_some(image.name);
                // Which of several with this number: the first that started later, and names no other parent.
                let child = (0..recorded).filter(|&child| {
                    all[child].pid == pid
                        && child != index
                        && all[child].start_ns() >= image.start_ns
                        && parents.get(&child).is_none_or(|&parent| parent == index)
                        && !taken.contains(&child)
                });
                if let Some(child) = child.min_by_key(|&child| all[child].start_ns()) {
                    taken.insert(child);
                    parents.insert(child, index);
                    all[child].within = within;
                } else if !known.contains(&pid) {
                    parents.insert(all.len(), index);
                    all.push(Process {
                        pid,
                        parent: None,
                        children: Vec::new(),
                        images: Vec::new(),
                        within,
                        told: None,
                    });
                }
            }
        }
    }
    for (&child, &parent) in &parents {
        if !is_above(&parents, child, parent) {
            all[child].parent = Some(parent);
            all[parent].children.push(child);
        }
    }
    let starts: Vec<(u64, u64)> =
        all.iter().map(|process| (process.start_ns(), process.pid)).collect();
    for process in &mut all {
        process.children.sort_by_key(|&child| starts[child]);
    }
    all
}

/// Whether the next image of the same number is the same process.
fn goes_on(process: &Process) -> bool {
    process.images.last().is_some_and(|image| match image.ending {
        Ending::Left(..) | Ending::Unreadable(_) => true,
        Ending::None => image.unrecorded,
        _ => false,
    })
}

/// The last process with this number that had started by then.
fn find(all: &[Process], pid: u64, by: u64, but: usize) -> Option<usize> {
    let with = all
        .iter()
        .enumerate()
        .filter(|&(index, process)| process.pid == pid && index != but && process.start_ns() <= by);
    with.max_by_key(|(_, process)| process.start_ns()).map(|(index, _)| index)
}

/// Whether `child` is `parent` or one of those that started it: a damaged trace can say that.
fn is_above(parents: &BTreeMap<usize, usize>, child: usize, parent: usize) -> bool {
    let mut at = Some(parent);
    for _ in 0..=parents.len() {
        match at {
            Some(index) if index == child => return true,
            Some(index) => at = parents.get(&index).copied(),
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(pid: u64, k: u32, start_ns: u64, ending: Ending) -> Image {
        let name = TraceName { pid, image: k };
        Image { start_ns, ending, ..unreadable(name, Path::new(""), String::new()) }
    }

    fn left() -> Ending {
        Ending::Left("/bin/x".into(), None)
    }

    #[test]
    fn images_of_one_process_and_a_number_that_is_used_again() {
        let all = tree(vec![
            image(7, 0, 1, left()),
            image(7, 1, 2, Ending::Exit(0)),
            image(7, 2, 5, Ending::Signal(9)),
        ]);
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].images.len(), 2);
        assert_eq!(all[0].images[0].ending, Ending::Exec);
        assert_eq!(all[0].images[0].end_ns, Some(2));
        assert_eq!(all[1].images[0].name.image, 2);
    }

    #[test]
    fn parents_by_what_either_side_says() {
        let mut shell = image(10, 0, 1, Ending::Exit(0));
        // One that is recorded, one that is not.
        shell.children = vec![11, 13];
        let mut other = image(12, 0, 3, Ending::Exit(0));
        other.parent = Some(11);
        let all = tree(vec![shell, image(11, 0, 2, Ending::Exit(0)), other]);
        let pids: Vec<u64> = all.iter().map(|process| process.pid).collect();
        assert_eq!(pids, [10, 11, 12, 13]);
        let parents: Vec<Option<usize>> = all.iter().map(|process| process.parent).collect();
        assert_eq!(parents, [None, Some(0), Some(1), Some(0)]);
        assert!(all[3].images.is_empty());
        // By their start; what is not recorded has none.
        assert_eq!(all[0].children, [3, 1]);
    }

    #[test]
    fn of_several_with_one_number_each_has_its_own_parent() {
        // The shell starts a subshell 11, which starts 12; both end, and their numbers are free again.
        let mut shell = image(10, 0, 1, Ending::Exit(0));
        shell.children = vec![11, 12, 11];
        let mut subshell = image(11, 0, 2, Ending::Exit(0));
        (subshell.parent, subshell.children) = (Some(10), vec![12]);
        let mut again = image(11, 1, 6, Ending::Exit(0));
        again.parent = Some(10);
        let mut of_subshell = image(12, 0, 3, Ending::Exit(0));
        of_subshell.parent = Some(11);
        let mut of_shell = image(12, 1, 5, Ending::Exit(0));
        of_shell.parent = Some(10);
        let all = tree(vec![shell, subshell, again, of_subshell, of_shell]);
        let parents: Vec<Option<usize>> = all.iter().map(|process| process.parent).collect();
        assert_eq!(parents, [None, Some(0), Some(0), Some(1), Some(0)]);
        assert_eq!(all[0].children, [1, 4, 2]);
    }

    #[test]
    fn who_left_no_trace_ended_as_its_parent_was_told() {
        let mut shell = image(10, 0, 1, Ending::Exit(0));
        shell.children = vec![11, 12, 13];
        shell.reaped = vec![(11, 9), (12, 3 << 8)];
        let mut all = tree(vec![shell]);
        know_the_reaped(&mut all);
        let told: Vec<_> = all.iter().map(|process| process.told.clone()).collect();
        let (killed, exited) = (Some(Ending::Signal(9)), Some(Ending::Exit(3)));
        assert_eq!(told, [None, killed, exited, None]);
    }

    #[test]
    fn a_circle_is_none() {
        let mut a = image(1, 0, 1, Ending::Exit(0));
        let mut b = image(2, 0, 1, Ending::Exit(0));
        (a.parent, b.parent) = (Some(2), Some(1));
        let mut own = image(3, 0, 1, Ending::Exit(0));
        (own.parent, own.children) = (Some(3), vec![3]);
        let all = tree(vec![a, b, own]);
        // Nobody is lost.
        let mut seen = 0;
        let mut stack: Vec<usize> = (0..3).filter(|&index| all[index].parent.is_none()).collect();
        while let Some(index) = stack.pop() {
            seen += 1;
            assert!(seen <= 3);
            stack.extend(&all[index].children);
        }
        // Of the two that name each other, neither is believed.
        assert_eq!(seen, 3);
    }
}
