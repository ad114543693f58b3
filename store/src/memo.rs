//! What is known of files outside of the cache, by their stat.

use crate::hash::{Hash, Hasher};
use crate::root::Store;
use crate::stamp::Stamp;
use serde::de::DeserializeOwned;
use serde::Serialize;
use std::fs::File;
use std::io::{Read, Result};
use std::path::PathBuf;
use std::time::SystemTime;

impl Store {
    /// What was remembered of `what` of a file with this stamp.
    pub fn recall<T: DeserializeOwned>(&self, stamp: &Stamp, what: &[&[u8]]) -> Option<T> {
        crate::record::read(&self.memo_path(stamp, what))
    }

    /// Remembers `what` of a file. `since`: a time before the file was first read for it. Does nothing
    /// if the file could have changed since then and have the same stamp; and if the memo cannot be
    /// written, as it only saves time.
    pub fn remember<T: Serialize>(
        &self,
        stamp: &Stamp,
        what: &[&[u8]],
        since: SystemTime,
        value: &T,
    ) {
        if stamp.is_settled(since) {
            let _ = crate::record::write(&self.new_folder(), &self.memo_path(stamp, what), value);
        }
    }

    /// Hash of the contents of an open file, which is read only if it has changed since it was read
    /// last.
    pub fn content(&self, file: &File) -> Result<Hash> {
        const WHAT: &[&[u8]] = &[b"content"];
        let since = SystemTime::now();
        let stamp = Stamp::of(&file.metadata()?);
        if let Some(hash) = self.recall(&stamp, WHAT) {
            return Ok(hash);
        }
        let hash = Hash::of_reader(ReadAt { file, at: 0 })?;
        // Changed while it was read: the hash is of what was there, but of no stamp.
        if Stamp::of(&file.metadata()?) == stamp {
            self.remember(&stamp, WHAT, since, &hash);
        }
        Ok(hash)
    }

    fn memo_path(&self, stamp: &Stamp, what: &[&[u8]]) -> PathBuf {
        let mut hasher = Hasher::default();
        let Stamp { dev, ino, size, mtime, ctime } = stamp;
        for word in [dev, ino, size] {
            hasher.part(word.to_le_bytes());
        }
        for time in [mtime, ctime] {
            hasher.part(time.to_le_bytes());
        }
        for part in what {
            hasher.part(part);
        }
        self.folder.join("memo").join(hasher.finish().as_str())
    }
}

/// Reads a file from its start, wherever it stands.
struct ReadAt<'a> {
    file: &'a File,
    at: u64,
}

impl Read for ReadAt<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let len = std::os::unix::fs::FileExt::read_at(self.file, buffer, self.at)?;
        self.at += len as u64;
        Ok(len)
    }
}
