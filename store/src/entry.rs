//! Entries: found, made once, put in place whole.

use crate::hash::Hash;
use crate::record;
use crate::root::{Store, Trouble};
use crate::stamp::Stamp;
use rustix::fs::{AtFlags, Mode, OFlags, CWD};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::{File, Permissions};
use std::io::{ErrorKind, Result, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The time of the last use is written again only if it is older than this: a use is not a write.
pub(crate) const USED_STEP: Duration = Duration::from_secs(5 * 60);

/// What an entry is called.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// Its name for whoever looks for it.
    pub id: String,
    /// Its path in the version's folder, if it has to be made.
    pub file: PathBuf,
}

/// What goes into the cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Content {
    /// The file.
    pub bytes: Vec<u8>,
    /// Whether it is started (mode 0555) or read (0444).
    pub executable: bool,
    /// What the caller wants to know again when it finds the entry.
    pub note: Value,
}

/// An entry that is there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Where.
    pub path: PathBuf,
    /// Its stat, for [`Store::holds`].
    pub stamp: Stamp,
    /// What [`Content::note`] was.
    pub note: Value,
    /// Whether it was made just now, by this process.
    pub made: bool,
}

/// Why there is no entry.
#[derive(Debug)]
pub enum Failed<E> {
    /// It could not be made.
    NotMade(E),
    /// It was made, and the cache cannot take it.
    NotStored(Trouble, Content),
}

/// What is known of an entry.
#[derive(Serialize, Deserialize)]
pub(crate) struct Record {
    pub id: String,
    pub file: PathBuf,
    pub stamp: Stamp,
    pub sum: Hash,
    pub note: Value,
}

impl Store {
    /// The entry with this [`Place::id`], if it is there and is what was put there.
    pub fn find(&self, id: &str) -> Option<Entry> {
        let at = self.record_path(id);
        let mut record: Record = record::read(&at).filter(|record: &Record| record.id == id)?;
        let path = self.folder.join(&record.file);
        let metadata = std::fs::symlink_metadata(&path).ok().filter(|m| m.is_file())?;
        let stamp = Stamp::of(&metadata);
        if !stamp.same_contents(&record.stamp) {
            // Damaged, or a copy of the cache: the contents decide.
            let file = File::open(&path).ok().filter(|_| stamp.size == record.stamp.size)?;
            if Hash::of_reader(file).ok()? != record.sum {
                return None;
            }
            record.stamp = stamp;
            let _ = record::write(&self.new_folder(), &at, &record);
        }
        self.used(&path, metadata.accessed().ok());
        Some(Entry { path, stamp, note: record.note, made: false })
    }

    /// Whether the entry at `path` is what it was when it had this stamp, by one stat.
    pub fn holds(&self, path: &Path, stamp: &Stamp) -> bool {
        let Ok(metadata) = std::fs::symlink_metadata(path) else { return false };
        let same = metadata.is_file() && Stamp::of(&metadata).same_contents(stamp);
        if same {
            self.used(path, metadata.accessed().ok());
        }
        same
    }

    /// The entry at `place`. If it is not there, or damaged, `make` makes it: once, while all others who
    /// ask for it wait.
    pub fn find_or_make<E>(
        &self,
        place: &Place,
        make: impl FnOnce() -> std::result::Result<Content, E>,
    ) -> std::result::Result<Entry, Failed<E>> {
        self.find_or_make_if(place, |_| true, make)
    }

    /// The same, of an entry that is only good if `fits` says so of its note; another one is replaced.
    pub fn find_or_make_if<E>(
        &self,
        place: &Place,
        fits: impl Fn(&Value) -> bool,
        make: impl FnOnce() -> std::result::Result<Content, E>,
    ) -> std::result::Result<Entry, Failed<E>> {
        let find = || self.find(&place.id).filter(|entry| fits(&entry.note));
        if let Some(entry) = find() {
            return Ok(entry);
        }
        let lock = self.lock(&place.id);
        if let Some(entry) = find() {
            return Ok(entry);
        }
        let content = make().map_err(Failed::NotMade)?;
        let lock = match lock {
            Ok(lock) => lock,
            Err(trouble) => return Err(Failed::NotStored(trouble, content)),
        };
        let entry = match self.put(place, &content) {
            Ok(stamp) => {
                let path = self.folder.join(&place.file);
                Entry { path, stamp, note: content.note, made: true }
            }
            Err(e) => return Err(Failed::NotStored(self.trouble(&e), content)),
        };
        drop(lock);
        self.evict();
        Ok(entry)
    }

    fn put(&self, place: &Place, content: &Content) -> Result<Stamp> {
        let path = self.folder.join(&place.file);
        let mode = if content.executable { 0o555 } else { 0o444 };
        let temporary = record::unused(&self.new_folder());
        let done = write_read_only(&temporary, &content.bytes, mode).and_then(|stamp| {
            let record = Record {
                id: place.id.clone(),
                file: place.file.clone(),
                stamp,
                sum: Hash::of(&content.bytes),
                note: content.note.clone(),
            };
            // First the record: an entry that none describes would not be believed.
            record::write(&self.new_folder(), &self.record_path(&place.id), &record)?;
            record::rename(&temporary, &path)?;
            Ok(stamp)
        });
        if done.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        done
    }

    /// Puts down that the file at `path` is used now.
    fn used(&self, path: &Path, last: Option<SystemTime>) {
        let now = SystemTime::now();
        let recently = |last| now.duration_since(last).is_ok_and(|since| since < USED_STEP);
        if last.is_some_and(recently) {
            return;
        }
        let time = |nsec| rustix::fs::Timespec { tv_sec: 0, tv_nsec: nsec };
        let times = rustix::fs::Timestamps {
            last_access: time(rustix::fs::UTIME_NOW as _),
            last_modification: time(rustix::fs::UTIME_OMIT as _),
        };
        // In a cache that can only be read, nothing is thrown away either.
        let _ = rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW);
    }

    pub(crate) fn record_path(&self, id: &str) -> PathBuf {
        self.folder.join("records").join(Hash::of(id.as_bytes()).as_str())
    }
}

/// Writes a file that nobody sees before it has its mode and nobody writes to it.
fn write_read_only(path: &Path, bytes: &[u8], mode: u32) -> Result<Stamp> {
    let fill = |mut file: &File| {
        file.write_all(bytes)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        Ok(Stamp::of(&file.metadata()?))
    };
    let folder = path.parent().unwrap_or(Path::new("."));
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let nameless = match rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR) {
        Err(rustix::io::Errno::NOENT) => {
            std::fs::create_dir_all(folder)?;
            rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR)
        }
        other => other,
    };
    // A process that is killed while it writes leaves nothing, where the file system can do that.
    if let Ok(file) = nameless {
        let file = File::from(file);
        let stamp = fill(&file)?;
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        match rustix::fs::linkat(CWD, name, CWD, path, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) => return Ok(stamp),
            Err(rustix::io::Errno::NOENT) if !folder.exists() => {
                std::fs::create_dir_all(folder)?;
            }
            // Without /proc.
            Err(_) => {}
        }
    }
    let create = || std::fs::OpenOptions::new().write(true).create_new(true).open(path);
    let file = match create() {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            record::make_parent(path)?;
            create()?
        }
        other => other?,
    };
    fill(&file)
}

#[cfg(test)]
mod tests;
