//! One translation of a library for all programs: packs in the cache.
//!
//! A pack has unit numbers of its own, which its code contains, so no two packs that one process may
//! map can share a window. The packs in the folder say which windows they have. Those of packs that
//! are being made stand in the file `windows`, which counts as long as their makers live. Both are read,
//! and the file is written, under one lock. The windows of a pack that was thrown away are free again:
//! a process that still has it refuses another with the same ones, and translates that library when it
//! runs.

use crate::convert::index;
use crate::error::{unsupported, Error, Result};
use crate::library::{Library, Report};
use crate::selection::Selection;
use abi::file::State;
use abi::library::{
    file_name_for, key, PackHeader, END_OF_SHARED_WINDOWS, FIRST_SHARED_WINDOW, HEAD, HEADER_SIZE,
};
use abi::options::Options;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use store::{Content, Entry, Failed, Hash, Place, Stamp, Store, Trouble};

/// Folder of the packs, in the cache's folder.
const FOLDER: &str = "libraries";
/// File with the windows of packs that are being made.
const WINDOWS: &str = "windows";

/// The translation of a library in the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pack {
    /// The library's real path.
    pub library: PathBuf,
    /// The library when it was asked for.
    pub library_stamp: Stamp,
    /// The pack's file.
    pub path: PathBuf,
    /// The pack's file, as it was put there.
    pub stamp: Stamp,
    /// [`PackHeader::identity`].
    pub identity: [u64; 2],
}

/// What the cache's record of a pack says besides.
#[derive(Serialize, Deserialize)]
struct Note {
    /// The library's contents.
    content: Hash,
    /// Its path, if rules say which code is recorded: they may name it.
    named: Option<PathBuf>,
    /// Addresses of code that runs have found, which are translated, too.
    more: Vec<u64>,
    units: usize,
    code_bytes: usize,
    identity: [u64; 2],
}

/// The packs of a cache.
pub struct SharedLibraries<'a> {
    store: &'a Store,
    trouble: RefCell<Option<Trouble>>,
}

impl<'a> SharedLibraries<'a> {
    /// Those in `store`, which is of [`crate::BUILD`].
    pub fn new(store: &'a Store) -> SharedLibraries<'a> {
        SharedLibraries { store, trouble: RefCell::default() }
    }

    /// The folder in which a program finds them.
    pub fn folder(&self) -> PathBuf {
        self.store.folder().join(FOLDER)
    }

    /// Why a pack could not be stored, if that has happened.
    pub fn trouble(&self) -> Option<Trouble> {
        self.trouble.borrow().clone()
    }

    /// The packs of these libraries, found or made, and a report of each. `more`: addresses of code in a
    /// library that a run has found.
    pub fn packs(
        &self,
        libraries: &[PathBuf],
        options: Options,
        selection: &Selection,
        more: &BTreeMap<PathBuf, Vec<u64>>,
    ) -> (Vec<Pack>, Vec<Report>) {
        let (mut packs, mut reports) = (Vec::new(), Vec::new());
        for path in libraries {
            let more = more.get(path).map_or(&[][..], |more| more);
            match self.pack(path, options, selection, more) {
                Ok((pack, report)) => {
                    packs.push(pack);
                    reports.push(report);
                }
                Err(error) => reports.push(Report::left(path, error.to_string())),
            }
        }
        (packs, reports)
    }

    /// The pack of the library at `path`, found or made.
    pub fn pack(
        &self,
        path: &Path,
        options: Options,
        selection: &Selection,
        more: &[u64],
    ) -> Result<(Pack, Report)> {
        let failed = |e: std::io::Error| Error::file("read", path, e);
        // Something else than a file is refused before it is opened.
        let metadata = std::fs::metadata(path).map_err(failed)?;
        if !metadata.is_file() {
            return Err(Error::file("read", path, "not a regular file"));
        }
        let file = File::open(path).map_err(failed)?;
        let library_stamp = Stamp::of(&file.metadata().map_err(failed)?);
        let content = self.store.content(&file).map_err(failed)?;
        let mut head = Vec::new();
        (&file).take(HEAD as u64).read_to_end(&mut head).map_err(failed)?;
        let name = file_name_for(key(&head), options.to_word(), selection.rules.key());
        let place = Place { id: format!("{FOLDER}/{name}"), file: Path::new(FOLDER).join(name) };
        let known = |note: &serde_json::Value| Note::deserialize(note).ok();
        let named = (!selection.rules.is_everything()).then(|| path.to_owned());
        let of_this = |note: &Note| note.content == content && note.named == named;
        let fits = |note: &Note| of_this(note) && more.iter().all(|a| note.more.contains(a));
        let found = self.store.find_or_make_if(
            &place,
            |note| known(note).is_some_and(|note| fits(&note)),
            || {
                // What earlier runs have found stays found.
                let earlier = self.store.find(&place.id).and_then(|entry| known(&entry.note));
                let mut all = more.to_vec();
                all.extend(earlier.filter(of_this).into_iter().flat_map(|note| note.more));
                all.sort_unstable();
                all.dedup();
                let (pack, note) = self.make(path, options, selection, &place.id, &content, all)?;
                let note = Note { named: named.clone(), ..note };
                let note =
                    serde_json::to_value(note).map_err(|e| Error::Internal(e.to_string()))?;
                Ok(Content { bytes: pack, executable: false, note })
            },
        );
        let Entry { path: file, stamp, note, .. } = match found {
            Ok(entry) => entry,
            Err(Failed::NotMade(error)) => return Err(error),
            Err(Failed::NotStored(trouble, _)) => {
                let error = Error::File(trouble.to_string());
                self.trouble.replace(Some(trouble));
                return Err(error);
            }
        };
        let Some(note) = known(&note) else {
            return Err(Error::Internal("a translation has no note".into()));
        };
        let report = Report {
            path: path.to_owned(),
            units: note.units,
            code_bytes: note.code_bytes,
            left: None,
            file: Some(file.clone()),
        };
        let library = path.to_owned();
        Ok((Pack { library, library_stamp, path: file, stamp, identity: note.identity }, report))
    }

    fn make(
        &self,
        path: &Path,
        options: Options,
        selection: &Selection,
        id: &str,
        content: &Hash,
        more: Vec<u64>,
    ) -> Result<(Vec<u8>, Note)> {
        let since = SystemTime::now();
        let before = settled(path, since);
        let library = Library::read(path)?;
        if Hash::of(library.bytes()) != *content {
            return Err(Error::file("read", path, "it changes while it is read"));
        }
        let lifted = library.translate(options, selection, false, &more);
        let first = self.reserve(id, lifted.windows())?;
        let (mut bytes, Report { units, code_bytes, .. }) = lifted.pack(first);
        if before == settled(path, since) {
            note_file(&mut bytes, before.unwrap_or_default());
        }
        let header = PackHeader::from_bytes(&bytes);
        let header =
            header.ok_or_else(|| Error::Internal("a library's translation is not one".into()))?;
        let (content, identity) = (content.clone(), header.identity);
        Ok((bytes, Note { content, named: None, more, units, code_bytes, identity }))
    }

    /// Windows that no other pack has, for the pack that is being made under the lock of `id`. They are
    /// its own as long as that lock is held, and then by the pack.
    fn reserve(&self, id: &str, count: u32) -> Result<u32> {
        let failed = |e: Trouble| Error::File(e.to_string());
        let _lock = self.store.lock(WINDOWS).map_err(failed)?;
        let folder = self.folder();
        let path = folder.join(WINDOWS);
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let (next, mut reserved) = parse(&text);
        reserved.retain(|other| {
            other.id != id && matches!(self.store.try_lock(&other.id), Ok(None) | Err(_))
        });
        let mut taken = taken(&folder);
        taken.extend(reserved.iter().map(|other| other.windows.clone()));
        let Some(first) = free(&taken, next, count) else {
            return Err(unsupported!(
                "all numbers for units of libraries are taken; dep cache clear makes room"
            ));
        };
        reserved.push(Reserved { windows: first..first + count, id: id.to_owned() });
        let written = std::fs::create_dir_all(&folder).and_then(|()| {
            let temporary = folder.join(format!("{WINDOWS}.new"));
            std::fs::write(&temporary, print(first + count, &reserved))?;
            std::fs::rename(&temporary, &path)
        });
        written.map_err(|e| Error::file("write", &path, e))?;
        Ok(first)
    }
}

/// What the kernel says of the library at `path`, if that changes whenever the library does after `since`.
fn settled(path: &Path, since: SystemTime) -> Option<State> {
    let stamp = Stamp::of(&std::fs::metadata(path).ok()?);
    stamp.is_settled(since).then(|| state_of(&stamp))
}

/// The same that the kernel says, in the form that a running program compares.
pub fn state_of(stamp: &Stamp) -> State {
    let [modified, changed] = stamp.times();
    State { file: [stamp.dev, stamp.ino], size: stamp.size, modified, changed }
}

/// Notes in each of these packs which file it was made of.
fn note_file(packs: &mut [u8], file: State) {
    let mut rest = packs;
    while let Some(header) = PackHeader::from_bytes(rest) {
        rest[..HEADER_SIZE].copy_from_slice(&PackHeader { file, ..header }.to_bytes());
        rest = &mut rest[index(header.len)..];
    }
}

/// Windows of a pack that is being made.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Reserved {
    windows: Range<u32>,
    id: String,
}

/// The window to begin the search at, and what is reserved. A line that makes no sense was not written
/// whole: its maker had not begun.
fn parse(text: &str) -> (u32, Vec<Reserved>) {
    let mut lines = text.lines();
    let next = lines.next().and_then(|line| line.parse().ok());
    let reserved = lines.filter_map(|line| {
        let (first, rest) = line.split_once(' ')?;
        let (end, id) = rest.split_once(' ')?;
        Some(Reserved { windows: first.parse().ok()?..end.parse().ok()?, id: id.to_owned() })
    });
    (next.unwrap_or(FIRST_SHARED_WINDOW), reserved.collect())
}

fn print(next: u32, reserved: &[Reserved]) -> String {
    let mut text = format!("{next}\n");
    for Reserved { windows, id } in reserved {
        text.push_str(&format!("{} {} {id}\n", windows.start, windows.end));
    }
    text
}

/// Windows of the packs in `folder`.
fn taken(folder: &Path) -> Vec<Range<u32>> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let packs = entries.map(|entry| entry.path());
    let packs = packs.filter(|path| path.extension() == Some(OsStr::new("dep-library")));
    let windows = packs.flat_map(|path| windows_of(&path));
    windows.collect()
}

/// Windows of the packs in a file.
fn windows_of(path: &Path) -> Vec<Range<u32>> {
    let mut windows = Vec::new();
    let Ok(file) = File::open(path) else { return windows };
    let mut at = 0;
    loop {
        let mut bytes = [0; HEADER_SIZE];
        let read = file.read_exact_at(&mut bytes, at).ok();
        let Some(header) = read.and_then(|()| PackHeader::from_bytes(&bytes)) else { break };
        let Range { start, end } = header.windows();
        let (Ok(start), Ok(end)) = (u32::try_from(start), u32::try_from(end)) else { break };
        windows.push(start..end);
        at += header.len;
        if header.following == 0 {
            break;
        }
    }
    windows
}

/// The first of `count` windows that nobody has: the first ones from `next` on, so that those that have
/// just become free are used last.
fn free(taken: &[Range<u32>], next: u32, count: u32) -> Option<u32> {
    let search = |from: u32, end: u32| {
        let mut first = from;
        while first.checked_add(count)? <= end {
            let wanted = first..first + count;
            let in_the_way = taken.iter().filter(|t| t.start < wanted.end && wanted.start < t.end);
            match in_the_way.map(|t| t.end).max() {
                None => return Some(first),
                Some(end) => first = end,
            }
        }
        None
    };
    let next = next.clamp(FIRST_SHARED_WINDOW, END_OF_SHARED_WINDOWS);
    search(next, END_OF_SHARED_WINDOWS)
        .or_else(|| search(FIRST_SHARED_WINDOW, END_OF_SHARED_WINDOWS))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: u32 = FIRST_SHARED_WINDOW;
    const END: u32 = END_OF_SHARED_WINDOWS;

    #[test]
    fn windows_are_handed_out_once_until_there_are_none() {
        let mut taken = Vec::new();
        let mut next = FIRST;
        let mut counts = [1, 2, 5, 1, 700, 3].into_iter().cycle();
        while let Some(first) = free(&taken, next, counts.next().expect("endless")) {
            let count = [1, 2, 5, 1, 700, 3][taken.len() % 6];
            let new = first..first + count;
            assert!(FIRST <= new.start && new.end <= END);
            assert!(taken.iter().all(|t: &Range<u32>| t.end <= new.start || new.end <= t.start));
            next = new.end;
            taken.push(new);
        }
        let in_all: u32 = taken.iter().map(|t| t.end - t.start).sum();
        assert!(END - FIRST - in_all < 712, "{in_all}");
        // One in the midst becomes free.
        let gone = taken.remove(10);
        assert_eq!(free(&taken, next, gone.end - gone.start), Some(gone.start));
    }

    #[test]
    fn reservations_survive_the_file_and_nonsense_does_not() {
        let reserved = vec![Reserved { windows: FIRST..FIRST + 3, id: "libraries/a b".into() }];
        let text = print(FIRST + 3, &reserved);
        assert_eq!(parse(&text), (FIRST + 3, reserved));
        assert_eq!(parse(""), (FIRST, Vec::new()));
        assert_eq!(parse("x\n1 2\n3 x y\n\n"), (FIRST, Vec::new()));
    }
}
