//! The folder: its paths, its traces, and opening one of them.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use trace::output::Places;
use trace::Trace;

use crate::manifest::Manifest;
use crate::{at, packed, Error};

/// The traces, `PID.dep` and `PID.dep.K`.
pub const TRACES: &str = "traces";
/// The outputs that ran, `IDENTITY/NAME`.
pub const PROGRAMS: &str = "programs";
/// The translations of libraries that were used.
pub const LIBRARIES: &str = "libraries";
/// What could not be followed.
pub const NOTES: &str = "notes";

/// Name of a trace: of the K-th image of a process, that is, what it was after K execs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct TraceName {
    /// The process.
    pub pid: u64,
    /// Counts from 0.
    pub image: u32,
}

impl TraceName {
    /// Of a file in the folder of traces.
    fn of_file(name: &str) -> Option<TraceName> {
        let (pid, rest) = name.split_once(".dep")?;
        let image = match rest.strip_prefix('.') {
            Some(number) => number.parse().ok().filter(|&image| image > 0)?,
            None if rest.is_empty() => 0,
            None => return None,
        };
        Some(TraceName { pid: pid.parse().ok()?, image })
    }

    /// The file's name.
    pub fn file(self) -> String {
        match self.image {
            0 => format!("{}.dep", self.pid),
            image => format!("{}.dep.{image}", self.pid),
        }
    }
}

/// `PID.K`.
impl std::fmt::Display for TraceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.pid, self.image)
    }
}

/// A recording that can be read.
#[derive(Debug)]
pub struct Recording {
    /// As it was named: the folder, or the one file.
    pub named: PathBuf,
    /// Where it is.
    pub folder: PathBuf,
    /// What it says of itself.
    pub manifest: Manifest,
    /// By process and image.
    pub traces: Vec<TraceName>,
    /// Holds what one file was unpacked to.
    unpacked: Option<TempDir>,
}

impl Recording {
    /// Whether this is a recording, and not a trace: a folder, or one file of a recording.
    pub fn is_one(path: &Path) -> bool {
        path.is_dir() || packed::is_packed(path)
    }

    /// The folder of the recording that a trace lies in, and the name of the trace in it.
    pub fn with_trace(trace: &Path) -> Option<(PathBuf, TraceName)> {
        let trace = trace.canonicalize().ok()?;
        let name = TraceName::of_file(trace.file_name()?.to_str()?)?;
        let traces = trace.parent()?;
        let folder = traces.parent()?;
        let is_one = traces.ends_with(TRACES) && Manifest::read(folder).is_ok();
        is_one.then(|| (folder.to_owned(), name))
    }

    /// Opens a folder, or a file that was made of one.
    pub fn open(path: &Path) -> Result<Recording, Error> {
        if !packed::is_packed(path) {
            return Recording::open_folder(path);
        }
        let temporary = tempfile::Builder::new().prefix("dep.").tempdir();
        let temporary = temporary
            .map_err(|e| at(path, format_args!("cannot make a folder to unpack it to: {e}")))?;
        let folder = temporary.path().join("recording");
        packed::unpack(path, &folder)?;
        let mut recording = Recording::open_folder(&folder)?;
        recording.named = path.to_owned();
        recording.unpacked = Some(temporary);
        Ok(recording)
    }

    fn open_folder(folder: &Path) -> Result<Recording, Error> {
        let manifest = Manifest::read(folder)?;
        let traces = list(folder)?;
        Ok(Recording {
            named: folder.to_owned(),
            folder: folder.to_owned(),
            manifest,
            traces,
            unpacked: None,
        })
    }

    /// Whether it was unpacked to be read: nothing that is written to its folder lasts.
    pub fn is_unpacked(&self) -> bool {
        self.unpacked.is_some()
    }

    /// The folder that goes away with this value.
    pub fn temporary(&self) -> Option<&Path> {
        self.unpacked.as_ref().map(TempDir::path)
    }

    /// Path of a trace.
    pub fn path(&self, name: TraceName) -> PathBuf {
        self.folder.join(TRACES).join(name.file())
    }

    /// Where the files are that its traces need.
    pub fn places(&self) -> Places {
        places(&self.folder)
    }

    /// Opens a trace with the files that ran. `output`: where the output is, if not in the recording.
    pub fn trace(&self, name: TraceName, output: Option<&Path>) -> Result<Trace, Error> {
        let output = output.map(Path::to_owned);
        Trace::open_in(&self.path(name), &Places { output, ..self.places() })
    }

    /// The traces of a process, or the one of its K-th image.
    pub fn select(&self, pid: u64, image: Option<u32>) -> Vec<TraceName> {
        let wanted = |name: &TraceName| name.pid == pid && image.is_none_or(|k| name.image == k);
        self.traces.iter().copied().filter(wanted).collect()
    }

    /// What could not be followed: a line, and the process that executed it, if the file is named by one.
    pub fn notes(&self) -> Vec<(Option<u64>, String)> {
        let Ok(entries) = std::fs::read_dir(self.folder.join(NOTES)) else { return Vec::new() };
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        files.sort();
        let mut notes = Vec::new();
        for file in files.iter().filter(|file| file.is_file()) {
            let Ok(bytes) = std::fs::read(file) else { continue };
            let pid = file.file_name().and_then(|name| name.to_str()?.parse().ok());
            let lines = String::from_utf8_lossy(&bytes);
            notes.extend(lines.lines().map(|line| (pid, line.to_owned())));
        }
        notes
    }
}

/// Where a folder keeps the files that its traces need.
pub fn places(folder: &Path) -> Places {
    Places {
        output: None,
        programs: Some(folder.join(PROGRAMS)),
        libraries: Some(folder.join(LIBRARIES)),
    }
}

/// The traces of a folder. Of a recorder that has just started, there is none yet.
pub(crate) fn list(folder: &Path) -> Result<Vec<TraceName>, Error> {
    let traces = folder.join(TRACES);
    let entries = match std::fs::read_dir(&traces) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(at(&traces, e)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| at(&traces, e))?;
        names.extend(entry.file_name().to_str().and_then(TraceName::of_file));
    }
    names.sort_unstable();
    Ok(names)
}

/// Makes the folder of a new recording: `folder`, or `NAME.N.rec` here with the first number that is
/// free. A folder that is there is never used: who makes it owns it.
pub fn create(folder: Option<&Path>, name: &str) -> Result<PathBuf, Error> {
    let make = |folder: &Path| {
        std::fs::create_dir(folder)?;
        [TRACES, PROGRAMS, LIBRARIES, NOTES]
            .iter()
            .try_for_each(|part| std::fs::create_dir(folder.join(part)))
    };
    let failed = |path: &Path, e: std::io::Error| {
        at(path, format_args!("cannot make the folder of the recording: {e}"))
    };
    if let Some(folder) = folder {
        return match make(folder) {
            Ok(()) => Ok(folder.to_owned()),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                Err(at(folder, "there is something of this name; give another one with -o"))
            }
            Err(e) => Err(failed(folder, e)),
        };
    }
    for n in 0u32.. {
        let folder = PathBuf::from(format!("{name}.{n}.rec"));
        match make(&folder) {
            Ok(()) => return Ok(folder),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(failed(&folder, e)),
        }
    }
    Err(Error(format!("no number is free for {name}.N.rec")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_traces() {
        for (text, pid, image) in [("1.dep", 1, 0), ("77.dep.1", 77, 1), ("3.dep.12", 3, 12)] {
            let name = TraceName { pid, image };
            assert_eq!(TraceName::of_file(text), Some(name));
            assert_eq!(name.file(), text);
        }
        for other in ["", "dep", ".dep", "x.dep", "1.dep.", "1.dep.0", "1.dep.x", "1.depx", "1"] {
            assert_eq!(TraceName::of_file(other), None, "{other}");
        }
        // By number, not by text.
        assert!(TraceName { pid: 9, image: 0 } < TraceName { pid: 10, image: 0 });
    }

    #[test]
    fn a_folder_that_is_there_is_not_used() {
        let here = tempfile::tempdir().expect("a folder");
        let folder = here.path().join("a");
        create(Some(&folder), "x").expect("made");
        let why = create(Some(&folder), "x").expect_err("there").to_string();
        assert!(why.contains("there is something of this name"), "{why}");
    }
}
