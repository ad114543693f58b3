//! What to run instead of a path.

use crate::program::Program;
use crate::{keep, libraries, script};
use clap::Parser;
use rewriter::error::Error;
use rewriter::options::Arguments;
use rewriter::rewrite::{self, Built};
use rewriter::selection::Selection;
use rewriter::shared::{Pack, SharedLibraries};
use script::Resolved;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use store::{Content, Entry, Failed, Hash, Hasher, Place, Stamp, Store, Trouble};

/// Changes whenever libraries are found elsewhere.
const LIBRARY_PATHS: &str = "/etc/ld.so.cache";

/// The answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Prepared {
    /// Run this instead.
    Run(Box<Program>),
    /// Run the path as it is.
    Native {
        /// Why, in one line.
        reason: String,
    },
}

/// What is remembered of a program, by its stat.
#[derive(Serialize, Deserialize)]
enum Decision {
    Native {
        reason: String,
    },
    Run {
        output: PathBuf,
        stamp: Stamp,
        identity: [u64; 2],
        packs: Vec<Pack>,
        inputs: bool,
        watched: Watched,
    },
}

/// Files outside of the cache that a decision depends on, and what they were.
type Watched = Vec<(PathBuf, Option<Stamp>)>;

/// The command line that rewrites `input`. The translations of libraries are shared unless the options
/// say something else.
pub(crate) fn arguments_for(options: &[String], input: &Path) -> Result<Arguments, String> {
    let mut all: Vec<OsString> = vec!["deprewrite".into(), "--quiet".into()];
    let says = |flag: &str| {
        options
            .iter()
            .any(|o| o.strip_prefix(flag).is_some_and(|v| v.is_empty() || v.starts_with('=')))
    };
    if !says("--libraries") {
        all.extend(["--libraries".into(), "cache".into()]);
    }
    all.extend(options.iter().map(OsString::from));
    all.extend(["--output".into(), "output".into(), "--".into(), input.into()]);
    let mut arguments = Arguments::try_parse_from(all).map_err(|e| {
        let text = e.to_string();
        let line = text.lines().next().unwrap_or_default();
        format!("options for rewriting: {}", line.trim_start_matches("error: "))
    })?;
    arguments.for_several = true;
    arguments.check().map_err(|e| format!("options for rewriting: {e}"))?;
    let printing = arguments.dump.is_some() || arguments.json || arguments.time;
    if printing || !arguments.learn.is_empty() {
        let what = "--dump, --json, --time and --learn are for one program";
        return Err(format!("options for rewriting: {what}"));
    }
    Ok(arguments)
}

/// What to run instead of `path`, by what is in `store` (of [`rewriter::BUILD`]), or can be put there.
/// `options`: those of `deprewrite`. An error: the cache cannot take what was made.
pub fn prepare(path: &Path, options: &[String], store: &Store) -> Result<Prepared, Trouble> {
    let since = SystemTime::now();
    let question = match Question::of(path, options) {
        Ok(question) => question,
        Err(reason) => return Ok(Prepared::Native { reason }),
    };
    if let Some(known) = question.known(store) {
        return Ok(known);
    }
    let made = decide(&question.resolved, options, store)?;
    let Resolved { file, metadata, .. } = &question.resolved;
    let is_there = question.resolved.is_there();
    let lasts = made.lasts
        && is_there
        && Stamp::of(&file.metadata().unwrap_or_else(|_| metadata.clone())) == question.stamp;
    if lasts {
        store.remember(&question.stamp, &question.what(), since, &made.decision);
    }
    let depends = |decision: &Decision| question.depends(decision, since).filter(|_| lasts);
    let mut answer = question.answer(made.decision, depends);
    if let Prepared::Run(program) = &mut answer {
        let stays = question.stamp.is_settled(since) && is_there;
        let opened = question.resolved.through.last().map(|(path, _)| path.clone());
        program.young = made.content.filter(|_| !stays).zip(opened);
    }
    Ok(answer)
}

/// What is asked, and under which name the answer is remembered.
struct Question {
    resolved: Resolved,
    stamp: Stamp,
    options: String,
    search: OsString,
}

impl Question {
    /// An error: nothing can run instead of `path`.
    fn of(path: &Path, options: &[String]) -> Result<Question, String> {
        let resolved = script::resolve(path)?;
        let stamp = Stamp::of(&resolved.metadata);
        let search = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        Ok(Question { resolved, stamp, options: options.join("\0"), search })
    }

    fn what(&self) -> [&[u8]; 4] {
        // $ORIGIN depends on the path.
        let exe = self.resolved.exe.as_os_str().as_bytes();
        [b"prepare", self.options.as_bytes(), self.search.as_bytes(), exe]
    }

    /// What was answered before, if that still holds.
    fn known(&self, store: &Store) -> Option<Prepared> {
        let since = SystemTime::now();
        let known = store.recall::<Decision>(&self.stamp, &self.what());
        let known = known.filter(|known| still_holds(store, known))?;
        Some(self.answer(known, |decision| self.depends(decision, since)))
    }

    /// The files that a decision depends on, if each of them has another stamp when it changes after `since`.
    fn depends(&self, decision: &Decision, since: SystemTime) -> Option<Watched> {
        let Decision::Run { watched, .. } = decision else { return None };
        let stamp = |(path, metadata): &(PathBuf, _)| (path.clone(), Some(Stamp::of(metadata)));
        let all: Watched =
            self.resolved.through.iter().map(stamp).chain(watched.iter().cloned()).collect();
        let settled = |stamp: &Option<Stamp>| stamp.is_none_or(|stamp| stamp.is_settled(since));
        all.iter().all(|(_, stamp)| settled(stamp)).then_some(all)
    }

    fn answer(
        &self,
        decision: Decision,
        depends: impl FnOnce(&Decision) -> Option<Watched>,
    ) -> Prepared {
        let depends = depends(&decision);
        match decision {
            Decision::Native { reason } => Prepared::Native { reason },
            Decision::Run { output, stamp, identity, packs, inputs, .. } => {
                Prepared::Run(Box::new(Program {
                    output,
                    exe: self.resolved.exe.clone(),
                    script_arguments: self.resolved.arguments.clone(),
                    identity,
                    stamp,
                    packs,
                    inputs,
                    young: None,
                    depends,
                }))
            }
        }
    }
}

fn still_holds(store: &Store, decision: &Decision) -> bool {
    let Decision::Run { output, stamp, packs, watched, .. } = decision else { return true };
    store.holds(output, stamp)
        && packs.iter().all(|pack| store.holds(&pack.path, &pack.stamp))
        && watched.iter().all(|(path, stamp)| stamp_of(path) == *stamp)
}

fn stamp_of(path: &Path) -> Option<Stamp> {
    std::fs::metadata(path).ok().map(|metadata| Stamp::of(&metadata))
}

/// A decision that was made just now.
struct Made {
    decision: Decision,
    /// It depends on nothing but what it names.
    lasts: bool,
    /// The program's contents.
    content: Option<Hash>,
}

impl Made {
    fn native(reason: impl ToString, lasts: bool) -> Made {
        Made { decision: Decision::Native { reason: reason.to_string() }, lasts, content: None }
    }

    /// What the rewriter says. The system's faults may pass.
    fn refused(error: &Error) -> Made {
        Made::native(error, matches!(error, Error::Unsupported(_)))
    }
}

/// Makes what is not known yet.
fn decide(program: &Resolved, options: &[String], store: &Store) -> Result<Made, Trouble> {
    let Resolved { file, metadata, exe, .. } = program;
    if let Some(reason) = privileges(file, metadata) {
        return Ok(Made::native(reason, true));
    }
    let arguments = match arguments_for(options, &program.path()) {
        Ok(arguments) => arguments,
        Err(reason) => return Ok(Made::native(reason, true)),
    };
    let since = SystemTime::now();
    let libraries = match rewrite::libraries(&arguments) {
        Ok(libraries) => libraries,
        Err(error) => return Ok(Made::refused(&error)),
    };
    let watched: Watched = libraries.iter().map(|path| (path.clone(), stamp_of(path))).collect();
    let shared = SharedLibraries::new(store);
    let selection = match arguments.how.rules() {
        Ok(rules) => Selection::new(rules),
        Err(why) => return Ok(Made::native(why, true)),
    };
    let packs = match arguments.shares_libraries() {
        true => shared.packs(&libraries, arguments.options(), &selection, &BTreeMap::new()).0,
        false => Vec::new(),
    };
    if let Some(trouble) = shared.trouble() {
        return Err(trouble);
    }
    // Which code is recorded may depend on the path.
    let named = (!selection.rules.is_everything()).then_some(exe.as_path());
    let made_of = store.content(file).and_then(|content| {
        let key = key(&content, named, options, &arguments, &libraries, store)?;
        Ok((content, key))
    });
    let (content, key) = match made_of {
        Ok(both) => both,
        Err(e) => return Ok(Made::native(format!("it cannot be read: {e}"), false)),
    };
    let name = exe.file_name().unwrap_or("program".as_ref());
    let id = format!("programs/{key}");
    let place = Place { file: Path::new(&id).join(name), id };
    let found = store.find_or_make(&place, || make(&arguments, &shared));
    if let Some(trouble) = shared.trouble() {
        return Err(trouble);
    }
    let Entry { path: output, stamp, note, .. } = match found {
        Ok(entry) => entry,
        Err(Failed::NotMade(error)) => return Ok(Made::refused(&error)),
        Err(Failed::NotStored(trouble, _)) => return Err(trouble),
    };
    let Ok(identity) = <[u64; 2]>::deserialize(&note) else {
        return Ok(Made::native("internal error: a program in the cache has no identity", false));
    };
    // Of libraries that may change and keep their stamp, nothing is remembered.
    let lasts = watched.iter().all(|(_, stamp)| stamp.is_none_or(|stamp| stamp.is_settled(since)));
    let mut watched = watched;
    let paths = Path::new(LIBRARY_PATHS);
    watched.push((paths.to_owned(), stamp_of(paths)));
    let inputs = arguments.options().recording.inputs();
    let decision = Decision::Run { output, stamp, identity, packs, inputs, watched };
    Ok(Made { decision, lasts, content: Some(content) })
}

fn make(arguments: &Arguments, shared: &SharedLibraries) -> Result<Content, Error> {
    let Some(Built { bytes, identity, .. }) = rewrite::build(arguments, Some(shared))? else {
        return Err(Error::Internal("there is no output".into()));
    };
    let note = serde_json::to_value(identity).map_err(|e| Error::Internal(e.to_string()))?;
    Ok(Content { bytes, executable: true, note })
}

/// What an output depends on. Its name is not among it, unless rules may name it: one file may have
/// many.
fn key(
    content: &Hash,
    named: Option<&Path>,
    options: &[String],
    arguments: &Arguments,
    libraries: &[PathBuf],
    store: &Store,
) -> std::io::Result<Hash> {
    let mut hasher = Hasher::default();
    hasher.part(content.as_str());
    if let Some(path) = named {
        hasher.part(path.as_os_str().as_bytes());
    }
    options.iter().for_each(|option| {
        hasher.part(option);
    });
    match arguments.shares_libraries() {
        true => {
            hasher.part(store.folder().as_os_str().as_bytes());
        }
        false => {
            for path in libraries {
                hasher.part(path.as_os_str().as_bytes());
                hasher.part(store.content(&File::open(path)?)?.as_str());
            }
        }
    }
    Ok(hasher.finish())
}

/// Why a program that gets other rights than its caller's is left alone: they would go to whoever can
/// write the output.
fn privileges(file: &File, metadata: &std::fs::Metadata) -> Option<&'static str> {
    const SET_USER: u32 = 0o4000;
    const SET_GROUP: u32 = 0o2010;
    if metadata.mode() & SET_USER != 0 {
        return Some("it runs with the rights of its owner (set-user-id)");
    }
    if metadata.mode() & SET_GROUP == SET_GROUP {
        return Some("it runs with the rights of its group (set-group-id)");
    }
    match rustix::fs::fgetxattr_query(file, "security.capability") {
        Ok(1..) => Some("it runs with rights of its own (file capabilities)"),
        _ => None,
    }
}

/// What a recording says about itself, as far as it matters here.
#[derive(Deserialize)]
struct Manifest {
    rewrite: Option<Vec<String>>,
    #[serde(default)]
    options: Vec<String>,
    cache: Option<PathBuf>,
}

/// What to run instead of `path` in the recording at `folder`, whose `recording.json` has the options
/// (`rewrite`) and perhaps the cache's folder (`cache`: the environment of a recorded program need not
/// have it). The recording keeps what it needs, and the answer is its own link.
pub fn for_recording(folder: &Path, path: &Path) -> Prepared {
    let file = folder.join("recording.json");
    let manifest = std::fs::read(&file).map_err(|e| e.to_string());
    let manifest = manifest
        .and_then(|text| serde_json::from_slice::<Manifest>(&text).map_err(|e| e.to_string()));
    let Manifest { rewrite, options, cache } = match manifest {
        Ok(manifest) => manifest,
        Err(e) => return Prepared::Native { reason: format!("{}: {e}", file.display()) },
    };
    for_recording_with(folder, path, &rewrite.unwrap_or(options), cache.as_deref())
}

/// The same, without `recording.json`.
pub fn for_recording_with(
    folder: &Path,
    path: &Path,
    options: &[String],
    cache: Option<&Path>,
) -> Prepared {
    // The program may change its working directory before it starts the output.
    let absolute = std::path::absolute(folder);
    let folder = absolute.as_deref().unwrap_or(folder);
    let limit = store::limit().unwrap_or_else(|trouble| {
        keep::note(folder, &trouble.to_string());
        store::DEFAULT_LIMIT
    });
    let root = cache.map_or_else(store::root, |cache| Ok(cache.to_owned()));
    let usual = root.and_then(|root| Store::open(&root, rewriter::BUILD, limit));
    let trouble = match usual.and_then(|store| prepare(path, options, &store)) {
        Ok(prepared) => match kept(folder, prepared) {
            Ok(prepared) => {
                if let Prepared::Run(program) = &prepared {
                    if let Some(depends) = &program.depends {
                        keep::remember_answer(folder, path, depends, &prepared.to_bytes());
                    }
                }
                return prepared;
            }
            // Cleared or thrown away between two looks: once more, then.
            Err(e) => e,
        },
        Err(trouble) => trouble.to_string(),
    };
    keep::note(folder, &trouble);
    let own = Store::open(&folder.join(".cache"), rewriter::BUILD, u64::MAX);
    let prepared = own.and_then(|store| prepare(path, options, &store)).map_err(|e| e.to_string());
    prepared
        .and_then(|prepared| kept(folder, prepared))
        .unwrap_or_else(|reason| Prepared::Native { reason: format!("{trouble}; {reason}") })
}

/// The same out of the cache alone, within a millisecond: `None` if something has to be made, or anything is
/// the matter.
pub fn known(
    folder: &Path,
    path: &Path,
    options: &[String],
    cache: Option<&Path>,
) -> Option<Prepared> {
    let root = cache.map_or_else(store::root, |cache| Ok(cache.to_owned())).ok()?;
    let store = Store::open(&root, rewriter::BUILD, store::limit().ok()?).ok()?;
    let known = Question::of(path, options).ok()?.known(&store)?;
    kept(folder, known).ok()
}

/// What to run to replay a recording of `original`: out of the cache, or, if that cannot be used, made in
/// `own`, a folder of the caller's. `code`: the files with code that the recorded program had mapped;
/// they need not be what the program would find here.
pub fn for_replay(
    original: &Path,
    options: &[String],
    code: &[PathBuf],
    own: &Path,
) -> Result<Prepared, String> {
    let made = |store: Store| {
        let prepared = prepare(original, options, &store)?;
        let shares = arguments_for(options, original).is_ok_and(|how| how.shares_libraries());
        if shares {
            // What cannot be translated, or stored, is translated when it runs.
            let _ = libraries::translate(&store, options, code, &BTreeMap::new());
        }
        Ok(prepared)
    };
    let limit = store::limit().unwrap_or(store::DEFAULT_LIMIT);
    let usual = store::root().and_then(|root| Store::open(&root, rewriter::BUILD, limit));
    usual.and_then(made).or_else(|_: Trouble| {
        let own = Store::open(&own.join("cache"), rewriter::BUILD, u64::MAX);
        own.and_then(made).map_err(|e| e.to_string())
    })
}

fn kept(folder: &Path, prepared: Prepared) -> Result<Prepared, String> {
    let Prepared::Run(program) = prepared else { return Ok(prepared) };
    let kept = keep::keep(folder, &program).and_then(|output| {
        if program.inputs {
            keep::note_original(folder, &program)?;
            if let Some((content, opened)) = &program.young {
                // Without it a replay says that it is missing, if it is then.
                let _ = keep::keep_original(folder, &program.exe, opened, content);
            }
        }
        Ok(output)
    });
    match kept {
        Ok(output) => Ok(Prepared::Run(Box::new(Program { output, ..*program }))),
        Err(e) => Err(format!("{}: what runs cannot be kept: {e}", folder.display())),
    }
}

impl Prepared {
    /// What `dep prepare` answers: fields that end with a zero.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut field = |text: &[u8]| {
            bytes.extend(text.iter().copied().filter(|byte| *byte != 0));
            bytes.push(0);
        };
        match self {
            Prepared::Native { reason } => {
                field(b"native");
                field(reason.as_bytes());
            }
            Prepared::Run(program) => {
                field(b"run");
                field(program.output.as_os_str().as_bytes());
                field(program.exe.as_os_str().as_bytes());
                program.script_arguments.iter().for_each(|argument| field(argument.as_bytes()));
            }
        }
        bytes
    }
}
