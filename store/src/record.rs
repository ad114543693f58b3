//! Small files of JSON that are whole or not there: the first line is the checksum of the second.

use crate::hash::Hash;
use serde::de::DeserializeOwned;
use serde::Serialize;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Result, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What the file at `path` says; `None` if there is none, or it is damaged.
pub fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let bytes = std::fs::read(path).ok()?;
    let end = bytes.iter().position(|b| *b == b'\n')?;
    let (sum, json) = (&bytes[..end], &bytes[end + 1..]);
    (Hash::of(json).as_str().as_bytes() == sum).then(|| serde_json::from_slice(json).ok())?
}

/// Writes the file at `path`, by way of a name in `new`.
pub fn write<T: Serialize>(new: &Path, path: &Path, value: &T) -> Result<()> {
    let json = serde_json::to_vec(value)?;
    let mut bytes = Hash::of(&json).as_str().as_bytes().to_vec();
    bytes.push(b'\n');
    bytes.extend_from_slice(&json);
    let temporary = unused(new);
    let done = write_and_rename(&temporary, path, &bytes);
    if done.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    done
}

fn write_and_rename(temporary: &Path, path: &Path, bytes: &[u8]) -> Result<()> {
    let create = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(temporary);
    let mut file = match create() {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            make_parent(temporary)?;
            create()?
        }
        other => other?,
    };
    file.write_all(bytes)?;
    drop(file);
    rename(temporary, path)
}

/// Renames, and makes the folder again if the cache was cleared meanwhile.
pub fn rename(from: &Path, to: &Path) -> Result<()> {
    match std::fs::rename(from, to) {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            make_parent(to)?;
            std::fs::rename(from, to)
        }
        other => other,
    }
}

/// Makes the folder that `path` lies in.
pub fn make_parent(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))
}

/// A name that nobody else uses, in `folder`. A process id alone comes again.
pub fn unused(folder: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.unwrap_or_default().as_nanos();
    folder.join(format!("{}.{now:x}.{}", std::process::id(), COUNT.fetch_add(1, Relaxed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changed_byte_makes_it_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a/record");
        let value = vec![1u32, 20, 300];
        write(&folder.path().join("new"), &path, &value).expect("writes");
        assert_eq!(read(&path), Some(value));
        let bytes = std::fs::read(&path).expect("reads");
        for i in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[i] ^= 1;
            std::fs::write(&path, &changed).expect("writes");
            assert_eq!(read::<Vec<u32>>(&path), None, "byte {i}");
            std::fs::write(&path, &bytes[..i]).expect("writes");
            assert_eq!(read::<Vec<u32>>(&path), None, "{i} bytes");
        }
        assert_eq!(std::fs::read_dir(folder.path().join("new")).expect("lists").count(), 0);
    }
}
