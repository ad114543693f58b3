//! Locks that end with the process that holds them.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Result};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A lock that is held. Its file goes with it: a folder of locks does not grow.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Waits until nobody else holds the lock at `path`.
    pub(crate) fn take(path: &Path) -> Result<Lock> {
        loop {
            let file = open(path)?;
            file.lock()?;
            if let Some(lock) = Lock::of(path, file) {
                return Ok(lock);
            }
        }
    }

    /// The lock at `path`, unless somebody holds it.
    pub(crate) fn try_take(path: &Path) -> Result<Option<Lock>> {
        loop {
            let file = open(path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(e)) => return Err(e),
            }
            if let Some(lock) = Lock::of(path, file) {
                return Ok(Some(lock));
            }
        }
    }

    /// A file that its last holder has removed locks nothing any more.
    fn of(path: &Path, file: File) -> Option<Lock> {
        let held = file.metadata().ok()?;
        let there = std::fs::metadata(path).ok()?;
        let same = (held.dev(), held.ino()) == (there.dev(), there.ino());
        same.then(|| Lock { path: path.to_owned(), _file: file })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Still held: whoever waits for it finds that it is gone, and makes another.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn open(path: &Path) -> Result<File> {
    let open = || {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600).open(path)
    };
    match open() {
        // The cache was cleared meanwhile.
        Err(e) if e.kind() == ErrorKind::NotFound => {
            std::fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
            open()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    #[test]
    fn one_at_a_time_although_the_file_goes_with_each_holder() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lock");
        let (inside, total) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let lock = Lock::take(&path).expect("a lock");
                        assert_eq!(inside.fetch_add(1, SeqCst), 0);
                        assert!(Lock::try_take(&path).expect("a try").is_none());
                        inside.fetch_sub(1, SeqCst);
                        total.fetch_add(1, SeqCst);
                        drop(lock);
                    }
                });
            }
        });
        assert_eq!(total.into_inner(), 1600);
        assert!(!path.exists());
        assert!(Lock::try_take(&path).expect("a try").is_some());
    }
}
