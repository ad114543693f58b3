//! What is in the cache, of all versions; and its end.

use crate::entry::Record;
use crate::hash::Hash;
use crate::record;
use crate::root::{Trouble, TAG, TAG_TEXT};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An entry of the cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Whose it is.
    pub version: String,
    /// Where it is in the version's folder.
    pub file: PathBuf,
    /// Where it is.
    pub path: PathBuf,
    /// Bytes on the disk.
    pub size: u64,
    /// When it was used last.
    pub last_use: SystemTime,
    pub(crate) record: PathBuf,
    pub(crate) lock: PathBuf,
}

/// What [`clear`] has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cleared {
    /// Entries that are gone.
    pub entries: usize,
    /// Bytes that they took.
    pub bytes: u64,
}

/// The entries of all versions in the cache at `root`, by version and path. There is none where there
/// is no cache.
pub fn list(root: &Path) -> Vec<Listed> {
    let mut all = Vec::new();
    for folder in versions(root) {
        let version = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let records = std::fs::read_dir(folder.join("records")).into_iter().flatten().flatten();
        for at in records.map(|entry| entry.path()) {
            let Some(Record { id, file, .. }) = record::read(&at) else { continue };
            let path = folder.join(&file);
            let Ok(metadata) = std::fs::symlink_metadata(&path) else { continue };
            let nanos = u32::try_from(metadata.atime_nsec()).unwrap_or(0);
            let seconds = u64::try_from(metadata.atime()).unwrap_or(0);
            all.push(Listed {
                version: version.clone(),
                file,
                path,
                size: metadata.blocks() * 512,
                last_use: UNIX_EPOCH + Duration::new(seconds, nanos),
                record: at,
                lock: folder.join("locks").join(Hash::of(id.as_bytes()).as_str()),
            });
        }
    }
    all.sort_by(|a, b| (&a.version, &a.file).cmp(&(&b.version, &b.file)));
    all
}

/// Removes everything that is in the cache at `root`, of all versions, and nothing else. Programs that
/// run out of it go on.
pub fn clear(root: &Path) -> Result<Cleared, Trouble> {
    let entries = list(root);
    let cleared =
        Cleared { entries: entries.len(), bytes: entries.iter().map(|entry| entry.size).sum() };
    for folder in versions(root) {
        // Gone at once for all who look, and then really.
        let name = record::unused(root).file_name().unwrap_or_default().to_owned();
        let aside = root.join(format!("cleared.{}", name.to_string_lossy()));
        let failed = |e: std::io::Error| Trouble::new(&folder, e);
        let target = std::fs::rename(&folder, &aside).map(|()| &aside).unwrap_or(&folder);
        match std::fs::remove_dir_all(target) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        }
    }
    Ok(cleared)
}

/// Folders of versions: those with our tag.
pub(crate) fn versions(root: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
    let ours = |path: &PathBuf| {
        std::fs::read(path.join(TAG)).is_ok_and(|text| text == TAG_TEXT.as_bytes())
    };
    all.filter(ours).collect()
}
