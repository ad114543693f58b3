//! Where the cache is, and whether it can be used.

use crate::hash::Hash;
use crate::lock::Lock;
use std::fmt;
use std::io::{Error, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What a cache may take, unless `$DEP_CACHE_SIZE` says otherwise.
pub const DEFAULT_LIMIT: u64 = 10 << 30;

/// The file that says that a folder is a cache, as backup programs know it.
pub(crate) const TAG: &str = "CACHEDIR.TAG";
/// Its contents. The first line is the standard's; the second tells our folders from others'.
pub(crate) const TAG_TEXT: &str = "Signature: 8a477f597d28d172789f06886806bc55\n\
     # A cache of deprewrite. It may be removed at any time.\n";
/// Folders in a version's folder.
const FOLDERS: [&str; 4] = ["records", "locks", "memo", "new"];

/// Why the cache cannot be used, in one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trouble(String);

impl Trouble {
    /// Of a file or folder of the cache.
    pub(crate) fn new(path: &Path, why: impl fmt::Display) -> Trouble {
        Trouble(format!(
            "the cache cannot be used: {}: {why} (DEP_CACHE names another folder)",
            path.display()
        ))
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Trouble {}

/// The cache's root, as the environment says.
pub fn root() -> Result<PathBuf, Trouble> {
    let folder = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(given) = folder("DEP_CACHE") {
        return std::path::absolute(&given).map_err(|e| Trouble::new(&given, e));
    }
    // The standard says that a relative path there does not count.
    let xdg = folder("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    let xdg =
        xdg.or_else(|| Some(folder("HOME").filter(|path| path.is_absolute())?.join(".cache")));
    xdg.map(|path| path.join("deprewrite")).ok_or_else(|| {
        Trouble("there is no cache: none of DEP_CACHE, XDG_CACHE_HOME and HOME is set".into())
    })
}

/// Bytes that a cache may take, as `$DEP_CACHE_SIZE` says: a number, with `K`, `M`, `G` or `T`.
pub fn limit() -> Result<u64, Trouble> {
    match std::env::var("DEP_CACHE_SIZE") {
        Err(_) => Ok(DEFAULT_LIMIT),
        Ok(text) if text.is_empty() => Ok(DEFAULT_LIMIT),
        Ok(text) => size(&text).ok_or_else(|| {
            Trouble(format!("DEP_CACHE_SIZE={text} is not a size (for example 500M or 20G)"))
        }),
    }
}

fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text[digits.len()..].trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        "T" | "t" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// The cache of one version.
#[derive(Debug)]
pub struct Store {
    pub(crate) root: PathBuf,
    pub(crate) folder: PathBuf,
    pub(crate) limit: u64,
}

impl Store {
    /// The folder of `version` in `root`, which may grow to `limit` bytes. `version`: everything that
    /// the results depend on and that no key names.
    pub fn open(root: &Path, version: &str, limit: u64) -> Result<Store, Trouble> {
        let folder = root.join(version);
        let store = Store { root: root.to_owned(), folder, limit };
        match store.check() {
            // A folder that is complete has its tag; made last.
            Ok(true) => {}
            Ok(false) => store.create()?,
            Err(trouble) => return Err(trouble),
        }
        Ok(store)
    }

    /// The cache of `version` that the environment names.
    pub fn from_environment(version: &str) -> Result<Store, Trouble> {
        Store::open(&root()?, version, limit()?)
    }

    /// The folder of this version, in which all entries lie.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Waits for the lock of this name. The kernel releases it if the process ends.
    pub fn lock(&self, name: &str) -> Result<Lock, Trouble> {
        let path = self.lock_path(name);
        Lock::take(&path).map_err(|e| Trouble::new(&path, plain(&e)))
    }

    /// The lock of this name, or `None` if somebody holds it.
    pub fn try_lock(&self, name: &str) -> Result<Option<Lock>, Trouble> {
        let path = self.lock_path(name);
        Lock::try_take(&path).map_err(|e| Trouble::new(&path, plain(&e)))
    }

    pub(crate) fn lock_path(&self, name: &str) -> PathBuf {
        self.folder.join("locks").join(Hash::of(name.as_bytes()).as_str())
    }

    pub(crate) fn new_folder(&self) -> PathBuf {
        self.folder.join("new")
    }

    pub(crate) fn trouble(&self, error: &Error) -> Trouble {
        Trouble::new(&self.folder, plain(error))
    }

    /// Whether the folder is there. Entries of others are not run, and neither is what lies where
    /// nothing may be executed.
    fn check(&self) -> Result<bool, Trouble> {
        let tag = match std::fs::metadata(self.folder.join(TAG)) {
            Ok(tag) => tag,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(Trouble::new(&self.folder, plain(&e))),
        };
        if tag.uid() != rustix::process::geteuid().as_raw() {
            return Err(Trouble::new(&self.folder, "it belongs to another user"));
        }
        let mounted = rustix::fs::statvfs(&self.folder)
            .map_err(|e| Trouble::new(&self.folder, plain(&e.into())))?;
        if mounted.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC) {
            return Err(Trouble::new(&self.folder, "nothing may be executed there (noexec)"));
        }
        if mounted.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
            return Err(Trouble::new(&self.folder, "Read-only file system"));
        }
        Ok(true)
    }

    fn create(&self) -> Result<(), Trouble> {
        let failed = |path: &Path, e: &Error| Trouble::new(path, plain(e));
        let make = |path: &Path| {
            let mut builder = std::fs::DirBuilder::new();
            builder.recursive(true).mode(0o700).create(path).map_err(|e| failed(path, &e))
        };
        for name in FOLDERS {
            make(&self.folder.join(name))?;
        }
        let owner = std::fs::metadata(&self.folder).map_err(|e| failed(&self.folder, &e))?.uid();
        if owner != rustix::process::geteuid().as_raw() {
            return Err(Trouble::new(&self.folder, "it belongs to another user"));
        }
        let temporary = crate::record::unused(&self.new_folder());
        std::fs::File::create(&temporary)
            .and_then(|mut file| file.write_all(TAG_TEXT.as_bytes()))
            .and_then(|()| std::fs::rename(&temporary, self.folder.join(TAG)))
            .map_err(|e| failed(&self.folder, &e))?;
        match self.check()? {
            true => Ok(()),
            // Somebody clears the cache at this moment: what is missing is made when it is needed.
            false => Ok(()),
        }
    }
}

/// What the system says, without the number.
fn plain(error: &Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_numbers_with_a_letter() {
        assert_eq!(size("123"), Some(123));
        assert_eq!(size("3K"), Some(3072));
        assert_eq!(size("2GiB"), Some(2 << 30));
        assert_eq!(size("10MB"), Some(10 << 20));
        for wrong in ["", "G", "-1", "1X", "1.5G", "99999999T", "1 G"] {
            assert_eq!(size(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_in_the_way_is_named_in_one_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        std::fs::write(&file, "").expect("writes");
        let trouble = Store::open(&file, "1", 0).expect_err("a file").to_string();
        assert!(trouble.contains("Not a directory") && !trouble.contains('\n'), "{trouble}");
        assert!(trouble.contains(file.to_str().expect("a name")), "{trouble}");
    }
}
