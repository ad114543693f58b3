//! What a replay needs before it can run: the script, the original program, an output of it.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use record::prepare::{self, Prepared};
use recording::originals::{Originals, Wanted};
use recording::Recording;
use replay::script::{write_part, Family, Part};
use replay::{Lineage, Script};
use tempfile::TempDir;
use trace::Error;

use crate::args::Which;
use crate::cleanup::Guard;
use crate::folder;

/// Name of the script; those of forked processes have their number behind it.
pub const SCRIPT: &str = "script";

/// From more stops on it pays to translate all code once more.
const STOPPED_OFTEN: u64 = 1000;
/// With fewer turns between two stops, too: then there is little code. (2,000 watched threads of 29 turns and a dozen stops
/// take 6 s of processor time in place of 16.)
const TURNS_BETWEEN: u64 = 100;

/// What the user names.
pub struct Named<'a> {
    /// The recording or the trace.
    pub file: &'a Path,
    /// Which process of it.
    pub process: Option<Which>,
    /// The original program.
    pub program: Option<&'a Path>,
    /// The output that ran.
    pub output: Option<&'a Path>,
    /// Of a process whose threads were watched: what of it.
    pub thread: Option<Watched>,
    /// The traces, if they are open: each of a thousand threads has the same.
    pub lineage: Option<Arc<Lineage>>,
}

impl Named<'_> {
    /// The traces, in the file or in a recording.
    pub fn open(&self, recording: Option<&Recording>) -> Result<Arc<Lineage>, Error> {
        if let Some(lineage) = &self.lineage {
            return Ok(Arc::clone(lineage));
        }
        let lineage = match recording {
            Some(recording) => {
                let name = folder::select_one(recording, self.file, self.process)?;
                Lineage::of_recording(recording, name)?
            }
            None => {
                folder::has_one(self.file, self.process)?;
                Lineage::of_file(self.file)?
            }
        };
        Ok(Arc::new(lineage))
    }
}

/// What is replayed of a process whose threads were watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Watched {
    /// What its only thread did until it was watched.
    Beginning,
    /// The thread with this index, from where it was watched on.
    Thread(u32),
    /// The same of the thread with this kernel thread id, or of the first one; of other processes all of it.
    Named(Option<u32>),
}

/// A replay that can be run.
pub struct Ready {
    /// The traces.
    pub lineage: Arc<Lineage>,
    /// What the script has.
    pub script: Script,
    /// Where it is.
    pub script_path: PathBuf,
    /// The program that was recorded.
    pub original: PathBuf,
    /// Files that were mapped, and what stands for them.
    files: Vec<(PathBuf, PathBuf)>,
    /// For what goes away with this value.
    pub folder: PathBuf,
    /// What looks after the folder, unless somebody else does.
    pub guard: Option<Guard>,
    _own: TempDir,
    _recording: Option<Recording>,
}

/// What stands in the way of a replay, as far as it can be told without one: a line each.
pub fn obstacles(lineage: &Lineage, originals: &Originals, output: Option<&Path>) -> Vec<Error> {
    let mut all = Vec::new();
    let program = originals.program(lineage.last(), output);
    // Without a note nobody can say where it is; that is no fault of the recording.
    match program {
        Ok(program) if program.noted.is_some() => {
            all.extend(originals.original(&program, None).err());
        }
        Ok(_) => {}
        Err(error) => all.push(error),
    }
    all.extend(originals.interpreter(lineage.first()).err());
    let wanted = lineage.traces().into_iter().flat_map(recording::originals::Wanted::all);
    all.extend(wanted.filter_map(|wanted| originals.file(&wanted).err()));
    all
}

impl Ready {
    /// Finds everything and writes the script.
    pub fn new(named: &Named<'_>) -> Result<Ready, Error> {
        if Recording::is_one(named.file) {
            let recording = Recording::open(named.file)?;
            let guard = recording.temporary().map(Guard::new);
            let mut ready = Ready::in_recording(named, &recording)?;
            ready.guard = ready.guard.or(guard);
            ready._recording = Some(recording);
            return Ok(ready);
        }
        let lineage = named.open(None)?;
        Ready::of(named, None, lineage, &Originals::default(), Part::Alone)
    }

    /// The same of an open recording, which has to outlive it.
    pub fn in_recording(named: &Named<'_>, recording: &Recording) -> Result<Ready, Error> {
        Ready::one_of(named, recording, recording.temporary(), Part::Alone)
    }

    /// The same, in a folder that somebody else looks after.
    pub fn in_folder(
        named: &Named<'_>,
        recording: &Recording,
        folder: &Path,
    ) -> Result<Ready, Error> {
        Ready::one_of(named, recording, Some(folder), Part::Alone)
    }

    /// The same of the first process of a tree: the scripts of the others are in the folder.
    pub fn of_tree(
        named: &Named<'_>,
        recording: &Recording,
        folder: &Path,
        family: &Family,
    ) -> Result<Ready, Error> {
        Ready::one_of(named, recording, Some(folder), Part::First(family))
    }

    /// The same process, whose trace is at `path` instead.
    pub fn instead(
        named: &Named<'_>,
        recording: Option<&Recording>,
        path: &Path,
    ) -> Result<Ready, Error> {
        let originals =
            recording.map(|recording| Originals::open(&recording.folder)).transpose()?;
        let unpacked = recording.and_then(Recording::temporary);
        let lineage = Arc::new(Lineage::of_file(path)?);
        Ready::of(named, unpacked, lineage, &originals.unwrap_or_default(), Part::Alone)
    }

    /// As [`Ready::of`], of the process of an open recording.
    fn one_of(
        named: &Named<'_>,
        recording: &Recording,
        unpacked: Option<&Path>,
        part: Part<'_>,
    ) -> Result<Ready, Error> {
        let lineage = named.open(Some(recording))?;
        let originals = Originals::open(&recording.folder)?;
        Ready::of(named, unpacked, lineage, &originals, part)
    }

    /// `unpacked`: a folder that goes away.
    fn of(
        named: &Named<'_>,
        unpacked: Option<&Path>,
        lineage: Arc<Lineage>,
        originals: &Originals,
        part: Part<'_>,
    ) -> Result<Ready, Error> {
        let in_file = |e: Error| Error(format!("{}: {e}", named.file.display()));
        // Forks do not change the program.
        let program = originals.program(lineage.first(), named.output)?;
        let original = originals.original(&program, named.program)?;
        let interpreter = originals.interpreter(lineage.first())?;
        let failed = |e: std::io::Error| Error(format!("cannot make a folder for the replay: {e}"));
        let own = match unpacked {
            Some(unpacked) => tempfile::Builder::new().prefix("replay.").tempdir_in(unpacked),
            None => tempfile::Builder::new().prefix("dep.").tempdir(),
        };
        let own = own.map_err(failed)?;
        let folder = own.path().to_owned();
        // Whoever has unpacked it looks after it.
        let guard = unpacked.is_none().then(|| Guard::new(&folder));
        let script_path = match (part, unpacked) {
            (Part::First(_), Some(of_tree)) => of_tree.join(SCRIPT),
            _ => folder.join(SCRIPT),
        };
        let failed = |e: std::io::Error| Error(format!("{}: {e}", script_path.display()));
        let mut file = BufWriter::new(File::create(&script_path).map_err(failed)?);
        let recorded = recording::originals::interpreter(lineage.first()).map(|(path, _)| path);
        let mut files: Vec<_> = recorded.zip(interpreter.clone()).into_iter().collect();
        let mut resolve = |wanted: &Wanted| {
            let path = originals.file(wanted)?;
            files.push((wanted.path.clone(), path.clone()));
            Ok(path)
        };
        let interpreter = interpreter.as_deref();
        let watched = replay::alone::is_watched(lineage.last());
        let part_of = match named.thread {
            Some(Watched::Named(None)) if !watched => None,
            Some(Watched::Named(tid)) => {
                let parts = super::parts(lineage.last(), named.file, tid)?;
                let mut parts = parts.into_iter().flatten().map(|(what, _)| what);
                let found = parts.find(|what| matches!(what, Watched::Thread(_)));
                Some(found.ok_or_else(super::needs_watched)?)
            }
            Some(Watched::Beginning) if !watched => return Err(super::needs_watched()),
            Some(Watched::Beginning) if !replay::alone::has_beginning(lineage.last()) => {
                let why = "all that its first thread did was watched: it has no beginning";
                return Err(in_file(Error(why.into())));
            }
            other => other,
        };
        let script = match part_of {
            Some(Watched::Thread(thread)) if watched => {
                let resolve = &mut resolve;
                replay::script::write_thread(&lineage, thread, interpreter, resolve, &mut file)
            }
            Some(Watched::Beginning) if watched => {
                replay::script::write_beginning(&lineage, interpreter, &mut resolve, &mut file)
            }
            _ if watched => Err(Error(
                "its threads are watched, and each is replayed alone: for what needs one order of all of them record with --threads serial".into(),
            )),
            _ => write_part(&lineage, part, interpreter, &mut resolve, &mut file),
        };
        let script = script.map_err(in_file)?;
        drop(file);
        Ok(Ready {
            lineage,
            script,
            script_path,
            original,
            files,
            folder,
            guard,
            _own: own,
            _recording: None,
        })
    }

    /// An output of the program whose code replays, and does this besides (`none`, `dep`, `undo`).
    pub fn output(&self, instrument: &str) -> Result<PathBuf, Error> {
        self.output_with(instrument, self.translation())
    }

    /// The same, which records control flow alone.
    pub fn output_of_control_flow(&self) -> Result<PathBuf, Error> {
        self.output_with("dep", &[&["--memory", "none"], self.translation()].concat())
    }

    /// When code is translated.
    fn translation(&self) -> &'static [&'static str] {
        // In code that was translated at run time a replay is stopped in a hundredth of the time.
        let Script { sought, turns, .. } = self.script;
        let is_stopped_often =
            sought > STOPPED_OFTEN || sought.saturating_mul(TURNS_BETWEEN) > turns;
        if is_stopped_often {
            &["--translate", "dynamic"]
        } else {
            &[]
        }
    }

    /// An output that replays, and does nothing besides. `straight`: so does all that is replayed with it.
    pub fn plain_output(&self, straight: bool) -> Result<PathBuf, Error> {
        match straight && self.script.straight {
            true => self.output_with("none", &["--straight"]),
            false => self.output("none"),
        }
    }

    /// The same, rewritten with further options.
    pub fn output_with(&self, instrument: &str, further: &[&str]) -> Result<PathBuf, Error> {
        let options: Vec<String> = ["--instrument", instrument, "--replays"]
            .iter()
            .chain(further)
            .map(|&option| option.to_owned())
            .collect();
        match prepare::for_replay(&self.original, &options, &self.script.code, &self.folder) {
            Ok(Prepared::Run(program)) => Ok(program.output),
            Ok(Prepared::Native { reason }) | Err(reason) => Err(Error(format!(
                "{}: no output for a replay can be made of it: {reason}",
                self.original.display()
            ))),
        }
    }

    /// Files that were mapped, and what stands for them.
    pub fn files(&self) -> &[(PathBuf, PathBuf)] {
        &self.files
    }

    /// The file that stands for one that was mapped.
    pub fn file(&self, recorded: &Path) -> PathBuf {
        let found = self.files.iter().find(|(path, _)| path == recorded);
        found.map_or(recorded, |(_, path)| path).to_owned()
    }

    /// Kernel thread id of the thread with this index.
    pub fn thread_name(&self, index: u32) -> u32 {
        self.script.thread_name(index)
    }
}
