//! `recording.json`: what was recorded, and how it ended.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::{at, Error};

/// Name of the file. A folder that has it is a recording.
pub const FILE: &str = "recording.json";
/// Version of the folder's format.
pub const VERSION: u32 = 1;
/// A longer file is not believed.
const MOST: u64 = 64 << 20;

/// A path or an argument: text where it is UTF-8, else its bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Name {
    /// UTF-8.
    Text(String),
    /// Anything else.
    Bytes(Vec<u8>),
}

impl From<&OsStr> for Name {
    fn from(name: &OsStr) -> Name {
        match name.to_str() {
            Some(text) => Name::Text(text.to_owned()),
            None => Name::Bytes(name.as_bytes().to_vec()),
        }
    }
}

impl Name {
    /// As the system has it.
    pub fn to_os(&self) -> OsString {
        match self {
            Name::Text(text) => text.into(),
            Name::Bytes(bytes) => OsString::from_vec(bytes.clone()),
        }
    }
}

/// How the program ended that was recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It ended with this exit status.
    Exit(i32),
    /// This signal killed it.
    Signal(i32),
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Status::Exit(status) => write!(f, "exit status {status}"),
            Status::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// The end of the program, which is not the end of what it has started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct End {
    /// How.
    pub status: Status,
    /// When, in nanoseconds since the epoch.
    pub time_ns: u64,
}

/// What `recording.json` says. Fields that this version does not know are skipped.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// Of the folder's format: [`VERSION`].
    pub version: u32,
    /// Who recorded: `dep 0.1.0`.
    pub tool: String,
    /// The program and its arguments, as they were typed.
    pub command: Vec<Name>,
    /// Real path of the file that was run: of a script, the script.
    pub program: Name,
    /// The working directory.
    pub directory: Name,
    /// How it was recorded, as `dep record` takes it.
    pub options: Vec<String>,
    /// How programs are rewritten, as `deprewrite` takes it.
    #[serde(default)]
    pub rewrite: Vec<String>,
    /// Folder of the cache that programs come from; missing if its name is not UTF-8.
    #[serde(default)]
    pub cache: Option<PathBuf>,
    /// When, in nanoseconds since the epoch.
    pub start_ns: u64,
    /// Process id of the program, once it runs.
    #[serde(default)]
    pub pid: Option<u64>,
    /// Missing while the program runs, and if the recorder was killed.
    #[serde(default)]
    pub end: Option<End>,
}

/// Now, in nanoseconds since the epoch.
pub fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl Manifest {
    /// Reads the file of a recording.
    pub fn read(folder: &Path) -> Result<Manifest, Error> {
        let path = folder.join(FILE);
        let metadata = std::fs::metadata(&path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
                at(folder, format_args!("not a recording: it has no {FILE}"))
            }
            _ => at(&path, e),
        })?;
        // Asked first: to open a pipe may take for ever.
        if !metadata.is_file() || metadata.len() > MOST {
            return Err(at(&path, "not a file that describes a recording"));
        }
        let text = std::fs::read(&path).map_err(|e| at(&path, e))?;
        Manifest::parse(&text).map_err(|what| at(&path, what))
    }

    fn parse(text: &[u8]) -> Result<Manifest, String> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let damaged = |e| format!("damaged, or of something else: {e}");
        let Version { version } = serde_json::from_slice(text).map_err(damaged)?;
        if version != VERSION {
            return Err(format!("recording of version {version}, this reader knows {VERSION}"));
        }
        serde_json::from_slice(text).map_err(damaged)
    }

    /// Writes the file. It is there whole, or as it was before.
    pub fn write(&self, folder: &Path) -> Result<(), Error> {
        let path = folder.join(FILE);
        let failed = |e: std::io::Error| at(&path, format_args!("cannot write: {e}"));
        let mut text = serde_json::to_vec_pretty(self).map_err(|e| failed(e.into()))?;
        text.push(b'\n');
        let mut file =
            tempfile::Builder::new().prefix(".recording").tempfile_in(folder).map_err(failed)?;
        file.write_all(&text).map_err(failed)?;
        let readable = std::fs::Permissions::from_mode(0o644);
        file.as_file().set_permissions(readable).map_err(failed)?;
        file.persist(&path).map_err(|e| failed(e.error))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        Manifest {
            version: VERSION,
            tool: "dep 0.0.0".into(),
            command: vec![OsStr::new("ls").into(), OsStr::from_bytes(b"\xff").into()],
            program: Name::Text("/bin/ls".into()),
            directory: Name::Text("/".into()),
            options: Vec::new(),
            rewrite: Vec::new(),
            cache: None,
            start_ns: u64::MAX,
            pid: None,
            end: Some(End { status: Status::Signal(9), time_ns: 1 }),
        }
    }

    #[test]
    fn it_survives_writing_and_reading() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut manifest = manifest();
        manifest.write(folder.path()).expect("written");
        assert_eq!(Manifest::read(folder.path()).expect("read"), manifest);
        assert_eq!(manifest.command[1].to_os().as_bytes(), b"\xff");
        manifest.end = None;
        manifest.write(folder.path()).expect("written again");
        assert_eq!(Manifest::read(folder.path()).expect("read"), manifest);
        assert_eq!(std::fs::read_dir(folder.path()).expect("list").count(), 1);
    }

    #[test]
    fn what_is_none_is_refused_with_its_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let read = |text: &str| {
            std::fs::write(folder.path().join(FILE), text).expect("written");
            Manifest::read(folder.path()).expect_err("refused").to_string()
        };
        let missing = Manifest::read(&folder.path().join("x")).expect_err("missing").to_string();
        assert!(missing.ends_with("x: not a recording: it has no recording.json"), "{missing}");
        for garbage in ["", "{}", "[1]", "\u{0}\u{1}", "{\"version\":1}", "{\"version\":-1}"] {
            let why = read(garbage);
            assert!(why.contains("recording.json: damaged, or of something else"), "{why}");
        }
        let later = serde_json::to_string(&Manifest { version: 7, ..manifest() }).expect("text");
        assert!(read(&later).ends_with("recording of version 7, this reader knows 1"));
    }
}
