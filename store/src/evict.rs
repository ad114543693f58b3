//! What is thrown away when the cache is too large.

use crate::entry::USED_STEP;
use crate::listing::{self, Listed};
use crate::lock::Lock;
use crate::root::Store;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// An entry that was used more recently than this stays: whoever asked for it is about to start it. More
/// than `USED_STEP`: a use need not show.
pub const RECENT: Duration = Duration::from_secs(15 * 60);
const _: () = assert!(RECENT.as_secs() > 2 * USED_STEP.as_secs());
/// More memos than this are too many: the oldest half goes.
const MOST_MEMOS: usize = 20_000;
/// What was left by a process that was killed while it wrote goes after this time.
const ABANDONED: Duration = Duration::from_secs(60 * 60);

impl Store {
    /// Throws away the entries of all versions whose last use is longest ago, until the cache keeps its
    /// limit. Who runs or has mapped one of them keeps it.
    pub fn evict(&self) {
        // One at a time; another process does the same at this moment.
        let Ok(Some(_lock)) = self.try_lock("evict") else { return };
        let mut entries = listing::list(&self.root);
        let mut size: u64 = entries.iter().map(|entry| entry.size).sum();
        let now = SystemTime::now();
        let older = |time: SystemTime, age| now.duration_since(time).is_ok_and(|since| since > age);
        if size > self.limit {
            entries.sort_by_key(|entry| entry.last_use);
        }
        for entry in &entries {
            if size <= self.limit {
                break;
            }
            if older(entry.last_use, RECENT) && self.remove(entry) {
                size -= entry.size;
            }
        }
        remove_old(&self.new_folder(), |time| older(time, ABANDONED));
        // Of all versions: there is one that has nothing but memos.
        listing::versions(&self.root).iter().for_each(|folder| thin_out(&folder.join("memo")));
    }

    /// Removes an entry that nobody makes at this moment.
    fn remove(&self, entry: &Listed) -> bool {
        let Ok(Some(_lock)) = Lock::try_take(&entry.lock) else { return false };
        // First the file: a record alone is no entry.
        let removed = std::fs::remove_file(&entry.path).is_ok();
        let _ = std::fs::remove_file(&entry.record);
        if let Some(folder) = entry.path.parent() {
            // Only the folder of a single entry is empty now, or nearly so.
            let _ = std::fs::remove_dir(folder);
        }
        removed
    }
}

fn files(folder: &Path) -> Vec<(SystemTime, std::path::PathBuf)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let dated = entries.filter_map(|e| Some((e.metadata().ok()?.modified().ok()?, e.path())));
    dated.collect()
}

fn remove_old(folder: &Path, old: impl Fn(SystemTime) -> bool) {
    for (_, path) in files(folder).into_iter().filter(|(time, _)| old(*time)) {
        let _ = std::fs::remove_file(path);
    }
}

fn thin_out(folder: &Path) {
    let names = std::fs::read_dir(folder).map_or(0, Iterator::count);
    if names <= MOST_MEMOS {
        return;
    }
    let mut all = files(folder);
    all.sort();
    for (_, path) in &all[..all.len() / 2] {
        let _ = std::fs::remove_file(path);
    }
}
