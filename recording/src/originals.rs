//! The files that ran and were mapped, as they were before anything was rewritten: a replay of a recording
//! of inputs needs them.
//!
//! `originals/programs/IDENTITY` has the path of the program that an output was made of,
//! `originals/files.json` says of each mapped file what it was, and `originals/HASH/NAME`, in a recording
//! that was packed, are the files themselves.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use abi::event::DEVICE;
use abi::image::words_of_hash;
use serde::{Deserialize, Serialize};
use store::{Hash, Store};
use trace::events::Event;
use trace::output::{identity_name, OutputFile};
use trace::Trace;

use crate::folder::places;
use crate::manifest::Name;
use crate::{at, Error};

/// The folder.
pub const ORIGINALS: &str = "originals";
/// In it, a file for each output, named by its identity: the path of the original.
pub const PROGRAMS: &str = "programs";
/// In it, what mapped files were.
pub const FILES: &str = "files.json";
/// What helps if a file is not what it was.
const WAY_OUT: &str = "`dep pack` takes such files along, while they are as they were";

/// A file, and its name in an archive.
pub type Packed = (PathBuf, PathBuf);

/// A file that a program had mapped.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Wanted {
    /// Where it was.
    pub path: PathBuf,
    /// Bytes.
    pub size: u64,
    /// Last change, in nanoseconds since the epoch.
    pub changed_ns: u64,
}

/// What such a file was.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Known {
    path: Name,
    size: u64,
    changed_ns: u64,
    hash: Hash,
}

impl Wanted {
    /// The file that the event maps, if its contents are not in the event.
    #[must_use]
    pub fn of(event: &Event) -> Option<Wanted> {
        match event {
            Event::Mapped { size, changed_ns, contents, path, .. }
                if contents.is_empty() && !matches!(*size, 0 | DEVICE) && !path.is_empty() =>
            {
                let path = OsStr::from_bytes(path).into();
                Some(Wanted { path, size: *size, changed_ns: *changed_ns })
            }
            _ => None,
        }
    }

    /// All that a trace names, each once.
    #[must_use]
    pub fn all(trace: &Trace) -> Vec<Wanted> {
        let events = trace.threads.iter().flat_map(|thread| &thread.events);
        let events = events.chain(&trace.snapshot).chain(&trace.process_events);
        let mut all: Vec<Wanted> =
            events.filter_map(|placed| Wanted::of(placed.event.as_ref()?)).collect();
        all.sort();
        all.dedup();
        all
    }

    /// Of a file as it is now.
    fn now(path: &Path) -> Result<Wanted, Error> {
        let metadata = std::fs::metadata(path).map_err(|e| at(path, e))?;
        if !metadata.is_file() {
            return Err(at(path, "it is no regular file"));
        }
        Ok(Wanted {
            path: path.to_owned(),
            size: metadata.len(),
            changed_ns: changed_ns(&metadata),
        })
    }
}

fn changed_ns(metadata: &std::fs::Metadata) -> u64 {
    let seconds = u64::try_from(metadata.mtime()).unwrap_or(0);
    let part = u64::try_from(metadata.mtime_nsec()).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(part)
}

/// Of the contents of a file. The cache remembers it: each replay asks for those of all libraries.
fn hash(path: &Path) -> Result<Hash, Error> {
    static KNOWN: LazyLock<Option<Store>> =
        LazyLock::new(|| Store::from_environment("contents").ok());
    let hash = |file: File| match &*KNOWN {
        Some(store) => store.content(&file),
        None => Hash::of_reader(file),
    };
    File::open(path).and_then(hash).map_err(|e| at(path, e))
}

/// The program's interpreter: its path and its build-id, if it has one.
#[must_use]
pub fn interpreter(trace: &Trace) -> Option<(PathBuf, &[u8])> {
    let events = || trace.process_events.iter().filter_map(|placed| placed.event.as_ref());
    let base = events().find_map(|event| match event {
        Event::Layout { interpreter, .. } => Some(*interpreter).filter(|base| base.0 != 0),
        _ => None,
    })?;
    events().find_map(|event| match event {
        Event::Map { start, build_id, path, .. } if *start == base && !path.is_empty() => {
            Some((OsStr::from_bytes(path).into(), &**build_id))
        }
        _ => None,
    })
}

/// What a recording knows of original files. Of a trace alone: nothing.
#[derive(Clone, Default, Debug)]
pub struct Originals {
    folder: Option<PathBuf>,
    known: Vec<Known>,
}

impl Originals {
    /// Those of the recording in this folder.
    pub fn open(folder: &Path) -> Result<Originals, Error> {
        let path = folder.join(ORIGINALS).join(FILES);
        let known = match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .map_err(|e| at(&path, format_args!("damaged, or of something else: {e}")))?,
            // The recorder was killed, or still records.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(at(&path, e)),
        };
        Ok(Originals { folder: Some(folder.join(ORIGINALS)), known })
    }

    fn kept(&self, hash: &Hash, path: &Path) -> Option<PathBuf> {
        let kept = self.folder.as_ref()?.join(hash.as_str()).join(path.file_name()?);
        kept.is_file().then_some(kept)
    }

    /// The file that stands for one that the program had mapped; an error is one line that names it.
    pub fn file(&self, wanted: &Wanted) -> Result<PathBuf, Error> {
        let Wanted { path, size, changed_ns } = wanted;
        let is_it = |known: &&Known| {
            (known.size, known.changed_ns) == (*size, *changed_ns)
                && known.path == Name::from(path.as_os_str())
        };
        let known = self.known.iter().find(is_it);
        if let Some(kept) = known.and_then(|known| self.kept(&known.hash, path)) {
            return same(&kept, known.map(|known| &known.hash));
        }
        let now = Wanted::now(path).map_err(|e| differs(e.to_string()))?;
        if now.size != *size {
            return Err(differs(format!(
                "{}: it had {size} bytes when it was recorded, and has {}",
                path.display(),
                now.size
            )));
        }
        // Another file may have the same time.
        if now.changed_ns == *changed_ns && known.is_none() {
            return Ok(now.path);
        }
        match known {
            Some(known) if hash(path)? == known.hash => Ok(now.path),
            _ => Err(differs(format!("{}: it was changed since it was recorded", path.display()))),
        }
    }

    /// The file that stands for the interpreter of a program; an error is one line that names it.
    pub fn interpreter(&self, trace: &Trace) -> Result<Option<PathBuf>, Error> {
        let Some((path, build_id)) = interpreter(trace) else { return Ok(None) };
        let known = self.known.iter().find(|known| known.path == Name::from(path.as_os_str()));
        if let Some(known) = known {
            let KnownFile(wanted) = known.into();
            return self.file(&wanted).map(Some);
        }
        let bytes = std::fs::read(&path).map_err(|e| differs(at(&path, e).to_string()))?;
        let same = build_id.is_empty() || build_id_of(&bytes).is_some_and(|id| id == build_id);
        match same {
            true => Ok(Some(path)),
            false => {
                Err(differs(format!("{}: it is another one than was recorded", path.display())))
            }
        }
    }

    /// The path that a program had of which an output was made, and its hash as the output has it.
    pub fn program(&self, trace: &Trace, output: Option<&Path>) -> Result<Program, Error> {
        let recording = self.folder.as_deref().and_then(Path::parent);
        let Some(statics) = trace.statics else {
            return Err(Error("the trace does not say which program ran".into()));
        };
        let mut places = recording.map(places).unwrap_or_default();
        places.output = output.map(Path::to_owned);
        let output = places.program(&trace.program, statics.identity);
        let opened = OutputFile::open(&output, statics.identity)?;
        let noted = self.folder.as_ref().and_then(|folder| {
            let note = folder.join(PROGRAMS).join(identity_name(statics.identity));
            std::fs::read(note).ok().map(|path| PathBuf::from(OsStr::from_bytes(&path)))
        });
        Ok(Program { output, noted, original: opened.header().original })
    }

    /// The original of a program; an error is one line that names both files.
    pub fn original(&self, program: &Program, given: Option<&Path>) -> Result<PathBuf, Error> {
        let Program { output, noted, original } = program;
        let output = output.display();
        let Some(path) = given.or(noted.as_deref()) else {
            return Err(Error(format!(
                "{output}: which program it was made of is not recorded: say it with --program FILE"
            )));
        };
        let is_it =
            |path: &Path| hash(path).map(|hash| words_of_hash(hash.as_str()) == Some(*original));
        if given.is_none() {
            let digits = identity_name(*original);
            let kept = self.folder.as_ref().zip(path.file_name());
            let kept = kept.map(|(folder, name)| folder.join(digits).join(name));
            if let Some(kept) = kept.filter(|kept| kept.is_file()) {
                return match is_it(&kept)? {
                    true => Ok(kept),
                    false => Err(at(&kept, "damaged: it is not the file that was packed")),
                };
            }
        }
        match is_it(path).map_err(|e| differs(e.to_string()))? {
            true => Ok(path.to_owned()),
            false => Err(differs(format!(
                "{}: it is not the program that {output} was made of",
                path.display()
            ))),
        }
    }
}

/// A program that ran.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// The output.
    pub output: PathBuf,
    /// The path of the original, if it was noted.
    pub noted: Option<PathBuf>,
    /// Its hash ([`abi::image::ImageHeader::original`]).
    pub original: [u64; 2],
}

struct KnownFile(Wanted);

impl From<&Known> for KnownFile {
    fn from(known: &Known) -> KnownFile {
        let Known { path, size, changed_ns, .. } = known;
        KnownFile(Wanted { path: path.to_os().into(), size: *size, changed_ns: *changed_ns })
    }
}

fn differs(what: String) -> Error {
    Error(format!("{what} ({WAY_OUT})"))
}

/// The file, if it has these contents.
fn same(file: &Path, known: Option<&Hash>) -> Result<PathBuf, Error> {
    match known.is_none_or(|known| hash(file).is_ok_and(|now| now == *known)) {
        true => Ok(file.to_owned()),
        false => Err(at(file, "damaged: it is not the file that was packed")),
    }
}

/// The build-id of an ELF file.
fn build_id_of(bytes: &[u8]) -> Option<Vec<u8>> {
    use object::Object;
    let file = object::read::elf::ElfFile64::<object::Endianness>::parse(bytes).ok()?;
    file.build_id().ok()?.map(<[u8]>::to_vec)
}

/// The original files that the traces of a recording name.
#[derive(Default, Debug)]
pub struct Needed {
    files: Vec<Wanted>,
    interpreters: Vec<(PathBuf, Vec<u8>)>,
    programs: Vec<Program>,
}

impl Needed {
    /// Adds what a trace names, if it is one of inputs.
    pub fn add(&mut self, folder: &Path, trace: &Trace) {
        if !trace.options.recording.inputs() {
            return;
        }
        for wanted in Wanted::all(trace) {
            if !self.files.contains(&wanted) {
                self.files.push(wanted);
            }
        }
        if let Some((path, build_id)) = interpreter(trace) {
            let one = (path, build_id.to_vec());
            if !self.interpreters.contains(&one) {
                self.interpreters.push(one);
            }
        }
        let originals = Originals { folder: Some(folder.join(ORIGINALS)), known: Vec::new() };
        if let Ok(program) = originals.program(trace, None) {
            if !self.programs.contains(&program) {
                self.programs.push(program);
            }
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.interpreters.is_empty() && self.programs.is_empty()
    }

    /// Writes down what the files are, while they are as they were. Returns a line for each that is not:
    /// without it nothing that mapped it can be replayed.
    pub fn note(&self, folder: &Path) -> Result<Vec<Error>, Error> {
        if self.is_empty() {
            return Ok(Vec::new());
        }
        let mut originals = Originals::open(folder)?;
        let mut lost = Vec::new();
        let (mut files, before) = (self.files.clone(), originals.known.clone());
        for (path, build_id) in &self.interpreters {
            let name = Name::from(path.as_os_str());
            if files.iter().any(|file| file.path == *path) || before.iter().any(|k| k.path == name)
            {
                continue;
            }
            let bytes = std::fs::read(path).map_err(|e| at(path, e));
            let is_it = bytes.is_ok_and(|bytes| {
                build_id.is_empty() || build_id_of(&bytes).as_ref() == Some(build_id)
            });
            match is_it {
                true => files.push(Wanted::now(path)?),
                false => lost.push(at(path, "it is not the interpreter that ran")),
            }
        }
        for wanted in &files {
            let name = Name::from(wanted.path.as_os_str());
            let is_known = |k: &Known| {
                k.path == name && (k.size, k.changed_ns) == (wanted.size, wanted.changed_ns)
            };
            if originals.known.iter().any(is_known) {
                continue;
            }
            match Originals::default().file(wanted).and_then(|path| hash(&path)) {
                Ok(hash) => originals.known.push(Known {
                    path: name,
                    size: wanted.size,
                    changed_ns: wanted.changed_ns,
                    hash,
                }),
                Err(error) => lost.push(error),
            }
        }
        if originals.known != before {
            let into = folder.join(ORIGINALS);
            let failed = |e: std::io::Error| at(&into, format_args!("cannot write: {e}"));
            std::fs::create_dir_all(&into).map_err(failed)?;
            let mut file = tempfile::NamedTempFile::new_in(&into).map_err(failed)?;
            serde_json::to_writer_pretty(file.as_file_mut(), &originals.known)
                .map_err(|e| failed(e.into()))?;
            let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
            file.as_file().set_permissions(readable).map_err(failed)?;
            file.persist(into.join(FILES)).map_err(|e| failed(e.error))?;
        }
        Ok(lost)
    }

    /// The files that have to be packed beside what is in the folder, each with its name in the archive,
    /// and a line for each that is not to be had.
    pub fn to_pack(&self, folder: &Path) -> Result<(Vec<Packed>, Vec<Error>), Error> {
        let originals = Originals::open(folder)?;
        let (mut files, mut lost) = (Vec::new(), Vec::new());
        let mut add = |from: PathBuf, hash: &str, path: &Path| {
            let name = path.file_name().unwrap_or(OsStr::new("file"));
            let to = Path::new(ORIGINALS).join(hash).join(name);
            if !from.starts_with(folder) && files.iter().all(|(_, other)| *other != to) {
                files.push((from, to));
            }
        };
        for known in &originals.known {
            let KnownFile(wanted) = known.into();
            match originals.file(&wanted).and_then(|from| same(&from, Some(&known.hash))) {
                Ok(from) => add(from, known.hash.as_str(), &wanted.path),
                Err(error) => lost.push(error),
            }
        }
        for program in &self.programs {
            let Some(noted) = &program.noted else { continue };
            match originals.original(program, None) {
                Ok(from) => add(from, &identity_name(program.original), noted),
                Err(error) => lost.push(error),
            }
        }
        Ok((files, lost))
    }
}
