//! One run of a command: processor time of everything that it started, wall time, memory, output.

use std::fs::File;
use std::io::{BufRead, BufReader, Error, ErrorKind, Result};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

#[derive(Clone, Copy, Serialize, Deserialize, Debug, Default, PartialEq)]
pub struct Measured {
    /// User and system time of the process and of all its descendants that were waited for.
    pub cpu_seconds: f64,
    pub wall_seconds: f64,
    /// The most that one process of the tree had in memory. It counts from the fork, so it is
    /// never less than this process has itself.
    pub resident_bytes: u64,
}

/// What was written to stdout.
#[derive(Clone, Serialize, Deserialize, Debug, Default, PartialEq)]
pub struct Output {
    pub bytes: u64,
    pub sha256: String,
}

pub struct Outcome {
    pub measured: Measured,
    pub output: Output,
    pub status: ExitStatus,
    /// What the runtime of a rewritten program said on stderr, if anything.
    pub runtime_said: Option<String>,
    /// The last line on stderr.
    pub last_words: Option<String>,
}

impl Outcome {
    /// How this run differs from a native one.
    pub fn difference(&self, native: &Outcome) -> Option<String> {
        if self.status != native.status {
            let said = self.runtime_said.as_ref().map_or(String::new(), |s| format!(" ({s})"));
            return Some(format!("ends with {}, natively {}{said}", ending(self), ending(native)));
        }
        (self.output != native.output).then(|| {
            let (bytes, natively) = (self.output.bytes, native.output.bytes);
            match bytes == natively {
                true => "its output differs from the native one".to_string(),
                false => format!("its output has {bytes} bytes, natively {natively}"),
            }
        })
    }
}

pub fn ending(outcome: &Outcome) -> String {
    match (outcome.status.code(), outcome.status.signal()) {
        (Some(code), _) => format!("status {code}"),
        (_, Some(signal)) => format!("signal {signal}"),
        _ => outcome.status.to_string(),
    }
}

/// What makes runs repeatable.
const ENVIRONMENT: [(&str, &str); 3] =
    [("LC_ALL", "C"), ("PYTHONHASHSEED", "0"), ("PERL_HASH_SEED", "0")];

/// What a run may take.
#[derive(Clone, Copy)]
pub struct Limits {
    pub time: Duration,
    /// No file grows beyond it.
    pub file_bytes: Option<u64>,
}

/// Runs `command` to its end, or kills it when its time is over. Its stdin is what `command` says.
pub fn measure(mut command: Command, dep_file: &str, limits: Limits) -> Result<Outcome> {
    // Files, so that nobody competes for the processor by reading a pipe.
    let (stdout, stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command
        .envs(ENVIRONMENT)
        .env("DEP_FILE", dep_file)
        .stdout(stdout.try_clone()?)
        .stderr(stderr.try_clone()?)
        .process_group(0);
    if let Some(bytes) = limits.file_bytes {
        limit_files(&mut command, bytes);
    }
    interruption()?;
    let start = Instant::now();
    let pid = command.spawn()?.id() as libc::pid_t;
    let group = Group::enter(pid);
    let (finished, watch) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let late = watch.recv_timeout(limits.time) == Err(mpsc::RecvTimeoutError::Timeout);
        if late {
            kill_group(pid);
        }
        late
    });
    let (status, usage) = wait(pid)?;
    let wall_seconds = start.elapsed().as_secs_f64();
    drop(group);
    drop(finished);
    let late = watchdog.join().unwrap_or(false);
    interruption()?;
    if late {
        let text = format!("it did not end within {} s", limits.time.as_secs_f64());
        return Err(Error::new(ErrorKind::TimedOut, text));
    }
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 * 1e-6;
    let measured = Measured {
        cpu_seconds: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        wall_seconds,
        resident_bytes: usage.ru_maxrss as u64 * 1024,
    };
    let (runtime_said, last_words) = words(stderr)?;
    let status = ExitStatus::from_raw(status);
    Ok(Outcome { measured, output: digest(stdout)?, status, runtime_said, last_words })
}

/// Stdin from `file`, else empty.
pub fn stdin(command: &mut Command, file: Option<&Path>) -> Result<()> {
    command.stdin(match file {
        Some(file) => {
            let named = |e: Error| Error::new(e.kind(), format!("{}: {e}", file.display()));
            Stdio::from(File::open(file).map_err(named)?)
        }
        None => Stdio::null(),
    });
    Ok(())
}

/// In pieces: what this process has in memory is the least that a child is said to have.
fn digest(mut file: File) -> Result<Output> {
    use std::io::{Read, Seek};
    file.rewind()?;
    let (mut hash, mut bytes, mut piece) = (Sha256::new(), 0, [0; 1 << 14]);
    loop {
        let n = file.read(&mut piece)?;
        if n == 0 {
            break;
        }
        hash.update(&piece[..n]);
        bytes += n as u64;
    }
    let sha256 = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    Ok(Output { bytes, sha256 })
}

/// The runtime's line on stderr, and the last line that says anything.
fn words(mut file: File) -> Result<(Option<String>, Option<String>)> {
    use std::io::Seek;
    file.rewind()?;
    let (mut said, mut last) = (None, None);
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        let text = String::from_utf8_lossy(&line).trim().chars().take(200).collect::<String>();
        if text.starts_with("deprewrite:") {
            said = Some(text.clone());
        }
        if !text.is_empty() {
            last = Some(text);
        }
        line.clear();
    }
    Ok((said, last))
}

fn limit_files(command: &mut Command, bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    let set = move || {
        // SAFETY: the structure outlives the call.
        match unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) } {
            0 => Ok(()),
            _ => Err(Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec it makes one system call and allocates nothing.
    unsafe { command.pre_exec(set) };
}

fn wait(pid: libc::pid_t) -> Result<(i32, libc::rusage)> {
    let mut status = 0;
    // SAFETY: zeros are a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both point to variables that outlive the call.
        let got = unsafe { libc::wait4(pid, &mut status, 0, &mut usage) };
        if got == pid {
            return Ok((status, usage));
        }
        let error = Error::last_os_error();
        if error.kind() != ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn kill_group(leader: libc::pid_t) {
    // SAFETY: a signal to the process group that was made for this run.
    unsafe { libc::kill(-leader, libc::SIGKILL) };
}

/// The process group that runs now, for [`on_signal`]; 0 if none does.
static RUNNING: AtomicI32 = AtomicI32::new(0);
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

struct Group;

impl Group {
    fn enter(leader: libc::pid_t) -> Group {
        RUNNING.store(leader, Ordering::SeqCst);
        if INTERRUPTED.load(Ordering::SeqCst) {
            kill_group(leader);
        }
        Group
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        RUNNING.store(0, Ordering::SeqCst);
    }
}

extern "C" fn on_signal(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::SeqCst);
    let leader = RUNNING.load(Ordering::SeqCst);
    if leader != 0 {
        kill_group(leader);
    }
}

/// From here on a terminal's or a supervisor's signal ends the run that is under way, which is in a
/// process group of its own, and [`measure`] fails, so that temporary files are removed.
pub fn catch_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let handler = on_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: the handler touches atomics and makes one system call.
        unsafe { libc::signal(signal, handler) };
    }
}

/// Not `ErrorKind::Interrupted`, which the library retries.
fn interruption() -> Result<()> {
    match was_interrupted() {
        true => Err(Error::other("interrupted")),
        false => Ok(()),
    }
}

pub fn was_interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str, limits: Limits) -> Result<Outcome> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        stdin(&mut command, None).unwrap();
        measure(command, "null:", limits)
    }

    fn seconds(seconds: u64) -> Limits {
        Limits { time: Duration::from_secs(seconds), file_bytes: None }
    }

    #[test]
    fn time_of_descendants_counts_and_time_asleep_does_not() {
        let busy = "(i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done); echo done";
        let busy = run(busy, seconds(30)).unwrap();
        assert!(busy.status.success());
        // `echo done | sha256sum`
        let sha256 = "d117fa006ba9208500b2930ce69cbde436c647afa917cb7396a9bc9111a46dd2";
        assert_eq!((busy.output.bytes, busy.output.sha256.as_str()), (5, sha256));
        assert!(busy.measured.cpu_seconds > 0.005, "{:?}", busy.measured);
        let asleep = run("sleep 0.2; echo other", seconds(30)).unwrap();
        assert!(asleep.measured.cpu_seconds < 0.1, "{:?}", asleep.measured);
        assert!(asleep.measured.wall_seconds >= 0.2, "{:?}", asleep.measured);
        assert!(asleep.measured.resident_bytes > 100_000, "{:?}", asleep.measured);
        assert!(asleep.difference(&busy).unwrap().contains("6 bytes, natively 5"));
    }

    #[test]
    fn what_does_not_end_is_killed() {
        let limits = Limits { time: Duration::from_millis(50), file_bytes: None };
        let error = run("sleep 60", limits).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "it did not end within 0.05 s");
    }

    #[test]
    fn how_it_ended_and_what_the_runtime_said() {
        let native = run("exit 3", seconds(30)).unwrap();
        let script = "echo 'deprewrite: stopped' >&2; echo >&2; kill -11 $$";
        let run = run(script, seconds(30)).unwrap();
        let difference = run.difference(&native).unwrap();
        assert_eq!(difference, "ends with signal 11, natively status 3 (deprewrite: stopped)");
        assert_eq!(run.last_words.as_deref(), Some("deprewrite: stopped"));
        assert_eq!(native.difference(&native), None);
    }

    #[test]
    fn files_are_limited() {
        let limits = Limits { file_bytes: Some(4096), ..seconds(30) };
        let run = run("head -c 10000 /dev/zero; true", limits).unwrap();
        assert_eq!(run.output.bytes, 4096);
    }
}
