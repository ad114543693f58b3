//! Starts a program so that two runs of it begin alike.
//!
//! A native and a rewritten run get the same path (the rewritten file is bound over the original
//! in a mount namespace of its own, so that `argv[0]`, AT_EXECFN and /proc/self/exe agree), the same
//! environment, descriptors, signal mask, dispositions and limits; ASLR is off; rseq answers
//! ENOSYS. At the stop after `execve` the launcher sets the AT_RANDOM bytes and hides the vDSO.
//! After that it lets go, or leaves the stopped program to the oracle.
//!
//! Binding needs root. Without it, run both files from the same place instead: copy each in turn
//! to one path.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use crate::sys::{self, Pid, Status};

/// The descriptors that the program gets. None: inherited from the caller.
#[derive(Default)]
pub struct Stdio {
    pub stdin: Option<File>,
    pub stdout: Option<File>,
    pub stderr: Option<File>,
}

/// What to run, and how it should look to the program.
pub struct Launch {
    /// The path that the program sees.
    pub program: PathBuf,
    /// The file that runs in its place.
    pub file: Option<PathBuf>,
    pub argv0: Option<OsString>,
    pub args: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    pub dir: Option<PathBuf>,
    pub stdio: Stdio,
    pub cpu: Option<usize>,
}

/// The environment of every run unless the caller says otherwise. `DEP_FILE` is among it on both
/// sides, because the environment's size decides where the stack begins.
pub fn standard_env(dep_file: &OsStr) -> Vec<(OsString, OsString)> {
    let fixed = [
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("HOME", "/tmp"),
        ("TERM", "dumb"),
        ("LC_ALL", "C"),
        ("TZ", "UTC"),
        ("PYTHONHASHSEED", "0"),
        ("PERL_HASH_SEED", "0"),
    ];
    let fixed = fixed.map(|(name, value)| (name.into(), value.into()));
    fixed.into_iter().chain([("DEP_FILE".into(), dep_file.to_owned())]).collect()
}

const AT_RANDOM: u64 = 25;
const AT_SYSINFO_EHDR: u64 = 33;
const AT_IGNORE: u64 = 1;
const RANDOM_BYTES: [u8; 16] = *b"\0deprewrite test";

impl Launch {
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            file: None,
            argv0: None,
            args: Vec::new(),
            env: standard_env(OsStr::new("/dev/null")),
            dir: None,
            stdio: Stdio::default(),
            cpu: None,
        }
    }

    /// Starts the program and stops it before its first instruction, traced by this thread.
    pub fn start(&self) -> Result<Pid> {
        let program = std::path::absolute(&self.program)?;
        let c = |s: &OsStr| CString::new(s.as_bytes()).map_err(Error::other);
        let argv0 = self.argv0.as_deref().unwrap_or(self.program.as_os_str());
        let argv = std::iter::once(argv0).chain(self.args.iter().map(OsString::as_os_str));
        let env = self.env.iter().map(|(name, value)| {
            let mut pair = name.clone();
            pair.push("=");
            pair.push(value);
            c(&pair)
        });
        let bind = match &self.file {
            Some(file) => {
                Some((c(std::path::absolute(file)?.as_os_str())?, c(program.as_os_str())?))
            }
            None => None,
        };
        let plan = sys::ExecPlan {
            path: c(program.as_os_str())?,
            argv: argv.map(c).collect::<Result<_>>()?,
            envp: env.collect::<Result<_>>()?,
            stdio: self.stdio.descriptors(),
            bind,
            dir: self.dir.as_deref().map(|d| c(d.as_os_str())).transpose()?,
            cpu: self.cpu,
        };
        let pid = sys::spawn_traced(&plan)?;
        match sys::wait(pid) {
            Some((_, Status::Stopped(..))) => make_start_alike(pid)?,
            other => {
                return Err(Error::other(format!("{} did not start: {other:?}", program.display())))
            }
        }
        Ok(pid)
    }

    /// Runs the program to its end, untraced but for its start.
    pub fn run(&self) -> Result<Status> {
        let pid = self.start()?;
        sys::detach(pid, 0)?;
        ended(pid)
    }

    /// The same, but kills the program and what it started after `limit`. Says whether it did.
    pub fn run_for(&self, limit: Duration) -> Result<(Status, bool)> {
        let pid = self.start()?;
        sys::detach(pid, 0)?;
        let (finished, wait) = mpsc::channel::<()>();
        let watch = std::thread::spawn(move || {
            let late = wait.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
            if late {
                sys::kill(-pid, libc::SIGKILL);
            }
            late
        });
        let status = ended(pid);
        drop(finished);
        let late = watch.join().map_err(|_| Error::other("the watch panicked"))?;
        Ok((status?, late))
    }
}

/// How a program that is no longer traced ended.
fn ended(pid: Pid) -> Result<Status> {
    loop {
        match sys::wait(pid) {
            Some((_, Status::Stopped(..))) => {}
            Some((_, status)) => return Ok(status),
            None => return Err(Error::other("the program vanished")),
        }
    }
}

impl Stdio {
    fn descriptors(&self) -> [RawFd; 3] {
        let fd =
            |file: &Option<File>, inherited| file.as_ref().map_or(inherited, |f| f.as_raw_fd());
        [fd(&self.stdin, 0), fd(&self.stdout, 1), fd(&self.stderr, 2)]
    }
}

/// Removes what the kernel makes different from run to run: the random bytes and the vDSO.
fn make_start_alike(pid: Pid) -> Result<()> {
    let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
    let word = |at: u64| -> Result<u64> {
        let mut bytes = [0; 8];
        memory.read_exact_at(&mut bytes, at)?;
        Ok(u64::from_le_bytes(bytes))
    };
    let mut at = sys::registers(pid)?.rsp;
    at += 8 * (word(at)? + 2); // argc, argv and its null
    while word(at)? != 0 {
        at += 8;
    }
    at += 8;
    loop {
        match word(at)? {
            0 => return Ok(()),
            AT_RANDOM => memory.write_all_at(&RANDOM_BYTES, word(at + 8)?)?,
            AT_SYSINFO_EHDR => memory.write_all_at(&AT_IGNORE.to_le_bytes(), at)?,
            _ => {}
        }
        at += 16;
    }
}

/// How the launching command ends: as the program did.
pub fn end_as(status: Status) -> ! {
    match status {
        Status::Exited(code) => std::process::exit(code),
        Status::Killed(signal) | Status::Stopped(signal, _) => sys::die_by(signal),
    }
}

/// `NAME=VALUE` from a command line.
pub fn parse_env(pair: &OsStr) -> std::result::Result<(OsString, OsString), String> {
    let text = pair.to_str().ok_or("not UTF-8")?;
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.into(), value.into()))
}

/// The program as a path: names without a slash are looked up in the fixed PATH.
pub fn find(program: &Path) -> PathBuf {
    if program.as_os_str().as_bytes().contains(&b'/') {
        return program.to_owned();
    }
    let dirs = ["/usr/local/bin", "/usr/bin", "/bin"];
    let found = dirs.iter().map(|d| Path::new(d).join(program)).find(|p| p.exists());
    found.unwrap_or_else(|| program.to_owned())
}
