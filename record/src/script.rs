//! The program behind a path: a script names its interpreter, which may be a script.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes at a file's start that Linux looks at (`BINPRM_BUF_SIZE`).
const HEAD: usize = 256;
/// Scripts that Linux goes through until it gives up.
const MOST_SCRIPTS: usize = 5;

/// What Linux would start.
#[derive(Debug)]
pub struct Resolved {
    /// The program, open for reading.
    pub file: File,
    /// Its metadata.
    pub metadata: Metadata,
    /// Its real path, as `/proc/self/exe` would show it.
    pub exe: PathBuf,
    /// The files that were opened to find it, by their paths: scripts, and the program last.
    pub through: Vec<(PathBuf, Metadata)>,
    /// Of a script: what replaces the first argument (interpreter, its argument, script).
    pub arguments: Vec<OsString>,
}

impl Resolved {
    /// Whether its path leads to it: not to one that has been deleted, or has never had a name (`memfd_create`).
    pub fn is_there(&self) -> bool {
        let identity = |metadata: &Metadata| (metadata.dev(), metadata.ino());
        std::fs::metadata(&self.exe).is_ok_and(|there| identity(&there) == identity(&self.metadata))
    }

    /// A path that leads to it, for this process.
    pub fn path(&self) -> PathBuf {
        match self.is_there() {
            true => self.exe.clone(),
            false => format!("/proc/self/fd/{}", self.file.as_raw_fd()).into(),
        }
    }
}

/// Finds the program behind `path`, or says why Linux should be left to say what is wrong with it.
pub fn resolve(path: &Path) -> Result<Resolved, String> {
    let mut path = path.to_owned();
    // Innermost last: interpreters come in front.
    let mut arguments: Vec<OsString> = Vec::new();
    let mut through = Vec::new();
    for _ in 0..=MOST_SCRIPTS {
        let (file, metadata) = open(&path).map_err(|why| format!("{}: {why}", path.display()))?;
        through.push((path.clone(), metadata.clone()));
        let mut head = [0; HEAD];
        let len = read_head(&file, &mut head).map_err(|e| format!("{}: {e}", path.display()))?;
        if len < 2 || !head.starts_with(b"#!") {
            let exe = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
            let exe = exe.or_else(|_| path.canonicalize());
            let exe = exe.map_err(|e| format!("{}: {e}", path.display()))?;
            return Ok(Resolved { file, metadata, exe, through, arguments });
        }
        let Some(line) = interpreter(&head) else {
            return Err(format!("{}: its first line names no interpreter", path.display()));
        };
        match arguments.first_mut() {
            Some(first) => *first = path.into_os_string(),
            None => arguments.push(path.into_os_string()),
        }
        let front = [Some(line.name), line.argument].into_iter().flatten();
        arguments.splice(0..0, front.map(|bytes| OsStr::from_bytes(bytes).to_owned()));
        path = PathBuf::from(OsStr::from_bytes(line.name));
    }
    Err("too many interpreters, each a script".into())
}

fn open(path: &Path) -> Result<(File, Metadata), String> {
    // Asked first: to open something else may do something.
    let plain = |e: std::io::Error| e.kind().to_string();
    if !std::fs::metadata(path).map_err(plain)?.is_file() {
        return Err("not a regular file".into());
    }
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).custom_flags(nonblocking).open(path);
    let file = file.map_err(|e| format!("it cannot be read ({})", plain(e)))?;
    let metadata = file.metadata().map_err(plain)?;
    if !metadata.is_file() {
        return Err("not a regular file".into());
    }
    let (execute, flags) = (rustix::fs::Access::EXEC_OK, rustix::fs::AtFlags::EACCESS);
    match rustix::fs::accessat(rustix::fs::CWD, path, execute, flags) {
        Ok(()) => Ok((file, metadata)),
        Err(_) => Err("it may not be executed".into()),
    }
}

fn read_head(file: &File, head: &mut [u8; HEAD]) -> std::io::Result<usize> {
    let mut len = 0;
    while len < HEAD {
        match file.read_at(&mut head[len..], len as u64)? {
            0 => break,
            more => len += more,
        }
    }
    Ok(len)
}

/// What a `#!` line says.
#[derive(PartialEq, Eq, Debug)]
struct Line<'a> {
    name: &'a [u8],
    argument: Option<&'a [u8]>,
}

/// The interpreter that a script's first bytes name, zeros behind its end: what `load_script` in Linux's
/// `fs/binfmt_script.c` does.
fn interpreter(head: &[u8; HEAD]) -> Option<Line<'_>> {
    let is_space = |byte: u8| byte == b' ' || byte == b'\t';
    let text = &head[2..];
    // The last byte is never part of it.
    let (text, whole) = match text.iter().position(|b| *b == b'\n') {
        Some(end) => (&text[..end], true),
        None => (&text[..text.len() - 1], false),
    };
    let start = text.iter().position(|b| !is_space(*b))?;
    let text = &text[start..];
    let end_of_name = text.iter().position(|b| is_space(*b) || *b == 0);
    // A name that may have been cut off is none.
    if !whole && end_of_name.is_none() {
        return None;
    }
    let trailing = text.iter().rev().take_while(|b| is_space(**b)).count();
    let text = &text[..text.len() - trailing];
    let end_of_name = end_of_name.unwrap_or(text.len()).min(text.len());
    let (name, rest) = text.split_at(end_of_name);
    if name.is_empty() {
        return None;
    }
    // Strings end at a zero.
    let argument = match rest.first() {
        None | Some(0) => None,
        Some(_) => rest.iter().position(|b| !is_space(*b)).map(|start| &rest[start..]),
    };
    let argument = argument.map(|a| &a[..a.iter().position(|b| *b == 0).unwrap_or(a.len())]);
    Some(Line { name, argument })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    fn line(text: &str) -> Option<(String, Option<String>)> {
        let mut head = [0; HEAD];
        let len = text.len().min(HEAD);
        head[..len].copy_from_slice(&text.as_bytes()[..len]);
        let show = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        interpreter(&head).map(|line| (show(line.name), line.argument.map(show)))
    }

    #[test]
    fn lines_are_read_as_linux_reads_them() {
        let of = |name: &str, argument: Option<&str>| Some((name.into(), argument.map(Into::into)));
        assert_eq!(line("#!/bin/sh\nx"), of("/bin/sh", None));
        assert_eq!(line("#! \t/bin/sh  -e  x \t\n"), of("/bin/sh", Some("-e  x")));
        assert_eq!(line("#!/bin/sh"), of("/bin/sh", None));
        assert_eq!(line("#!/bin/sh -e"), of("/bin/sh", Some("-e")));
        assert_eq!(line("#!\n/bin/sh"), None);
        assert_eq!(line("#!   \t\n"), None);
        let long = "x".repeat(300);
        assert_eq!(line(&format!("#!/{long}\n")), None);
        let cut = format!("#!/bin/sh {long}\n");
        assert_eq!(line(&cut), of("/bin/sh", Some(&"x".repeat(HEAD - 1 - 10))));
    }

    fn script(path: &Path, text: &str) {
        std::fs::write(path, text).expect("writes");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("mode");
    }

    /// What a process really gets.
    fn natively(path: &Path) -> Result<Vec<OsString>, ()> {
        let done = Command::new(path).arg("last").output().map_err(|_| ())?;
        let parts = done.stdout.split(|b| *b == 0).filter(|part| !part.is_empty());
        let mut all: Vec<_> = parts.map(|part| OsStr::from_bytes(part).to_owned()).collect();
        assert_eq!(all.pop().as_deref(), Some(OsStr::new("last")));
        Ok(all)
    }

    #[test]
    fn scripts_of_scripts_get_the_arguments_that_linux_gives() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        script(&at("show"), "#!/bin/sh\nprintf '%s\\0' /bin/sh \"$0\" \"$@\"\n");
        script(&at("1"), &format!("#! {} one  two \n", at("show").display()));
        for n in 2..8 {
            let inner = at(&(n - 1).to_string());
            script(&at(&n.to_string()), &format!("#!{}\n", inner.display()));
        }
        for name in ["show", "1", "2", "3", "4", "5", "6", "7"] {
            let resolved = resolve(&at(name));
            match natively(&at(name)) {
                Ok(arguments) => {
                    let resolved = resolved.expect("Linux starts it");
                    assert_eq!(resolved.arguments, arguments, "{name}");
                    let sh = Path::new("/bin/sh").canonicalize().expect("a shell");
                    assert_eq!(resolved.exe, sh);
                }
                Err(()) => assert!(resolved.is_err(), "{name}"),
            }
        }
    }

    #[test]
    fn what_linux_would_refuse_is_left_to_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x");
        let why = |path: &Path| resolve(path).expect_err("refused");
        assert!(why(&path).ends_with("entity not found"), "{}", why(&path));
        assert!(why(folder.path()).ends_with("not a regular file"));
        std::fs::write(&path, "#!/bin/sh\n").expect("writes");
        assert!(why(&path).ends_with("it may not be executed"));
        script(&path, "#!/nowhere/interpreter\n");
        assert!(why(&path).starts_with("/nowhere/interpreter: "));
        script(&path, "#!\n");
        assert!(why(&path).ends_with("its first line names no interpreter"));
    }
}
