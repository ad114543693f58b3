//! Finds a program as `execvp` does.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::unistd::{access, AccessFlags};

/// Why there is no program to run.
#[derive(PartialEq, Eq, Debug)]
pub enum Missing {
    /// There is no such file.
    NotFound,
    /// It cannot be executed: why.
    NotExecutable(String),
}

/// Where a program is that is called `name`: a path if it has a slash, else a name in one of the folders
/// of `PATH`.
pub fn search(name: &OsStr, path: Option<OsString>) -> Result<PathBuf, Missing> {
    if name.is_empty() {
        return Err(Missing::NotFound);
    }
    if name.as_bytes().contains(&b'/') {
        let file = PathBuf::from(name);
        return check(&file).map(|()| file);
    }
    // As libc does where there is no PATH.
    let path = path.unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut why = Missing::NotFound;
    for folder in path.as_bytes().split(|&byte| byte == b':') {
        // No name means the working directory.
        let folder =
            if folder.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(folder)) };
        let file = folder.join(name);
        match check(&file) {
            Ok(()) => return Ok(file),
            // A later folder may have one that can be executed.
            Err(other) if why == Missing::NotFound => why = other,
            Err(_) => {}
        }
    }
    Err(why)
}

fn check(file: &Path) -> Result<(), Missing> {
    use std::io::ErrorKind;
    let metadata = std::fs::metadata(file).map_err(|e| match e.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => Missing::NotFound,
        _ => Missing::NotExecutable(e.to_string()),
    })?;
    if !metadata.is_file() {
        return Err(Missing::NotExecutable("not a regular file".into()));
    }
    access(file, AccessFlags::X_OK).map_err(|e| Missing::NotExecutable(e.desc().to_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn as_execvp_does() {
        let here = tempfile::tempdir().expect("a folder");
        let file = |name: &str, mode: u32| {
            let path = here.path().join(name);
            std::fs::create_dir_all(path.parent().expect("parent")).expect("folders");
            std::fs::write(&path, "").expect("written");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("mode");
            path
        };
        file("a/one", 0o644);
        let one = file("b/one", 0o755);
        file("a/two", 0o644);
        std::fs::create_dir(here.path().join("a/three")).expect("a folder");
        let three = file("b/three", 0o755);
        let dir = |name: &str| here.path().join(name).into_os_string();
        let path: OsString = [dir("none"), dir("a"), dir("b")].join(OsStr::new(":"));
        let find = |name: &str| search(OsStr::new(name), Some(path.clone()));
        assert_eq!(find("one"), Ok(one.clone()));
        // A folder is not taken for a program.
        assert_eq!(find("three"), Ok(three));
        assert!(matches!(find("two"), Err(Missing::NotExecutable(_))));
        assert_eq!(find("four"), Err(Missing::NotFound));
        assert_eq!(find(""), Err(Missing::NotFound));
        assert_eq!(search(one.as_os_str(), None), Ok(one));
        assert!(search(OsStr::new("sh"), None).is_ok());
    }
}
