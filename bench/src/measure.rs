//! One run of a command: processor time of everything that it started, wall time, output.

use std::fs::File;
use std::io::Result;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::Serialize;

/// Seconds.
#[derive(Clone, Copy, Serialize, Debug, Default)]
pub struct Times {
    /// User and system time of the process and of all its descendants that were waited for.
    pub cpu: f64,
    pub wall: f64,
}

pub struct Outcome {
    pub times: Times,
    pub stdout: Vec<u8>,
    /// As `wait` reports it.
    pub status: i32,
}

impl Outcome {
    pub fn same_as(&self, other: &Outcome) -> bool {
        self.status == other.status && self.stdout == other.stdout
    }
}

/// What makes runs repeatable.
pub const ENVIRONMENT: [(&str, &str); 3] =
    [("LC_ALL", "C"), ("PYTHONHASHSEED", "0"), ("PERL_HASH_SEED", "0")];

/// Runs `command` to its end, or kills it after `limit`.
pub fn measure(mut command: Command, dep_file: &str, limit: Duration) -> Result<Outcome> {
    // A file, so that nobody competes for the processor by reading a pipe.
    let stdout = tempfile::NamedTempFile::new()?;
    command
        .envs(ENVIRONMENT)
        .env("DEP_FILE", dep_file)
        .stdin(Stdio::null())
        .stdout(File::create(stdout.path())?)
        .stderr(Stdio::null())
        .process_group(0);
    let start = Instant::now();
    let pid = command.spawn()?.id() as libc::pid_t;
    let (finished, watch) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if watch.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            // SAFETY: a signal to the process group that was made for this run.
            unsafe { libc::kill(-pid, libc::SIGKILL) };
        }
    });
    let (status, usage) = wait(pid)?;
    let wall = start.elapsed().as_secs_f64();
    drop(finished);
    let _ = watchdog.join();
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 * 1e-6;
    let cpu = seconds(usage.ru_utime) + seconds(usage.ru_stime);
    Ok(Outcome { times: Times { cpu, wall }, stdout: std::fs::read(stdout.path())?, status })
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
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn time_of_descendants_counts_and_time_asleep_does_not() {
        let limit = Duration::from_secs(30);
        let busy = "(i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done); echo done";
        let run = measure(shell(busy), "null:", limit).unwrap();
        assert_eq!((run.status, run.stdout.as_slice()), (0, b"done\n".as_slice()));
        assert!(run.times.cpu > 0.005, "{:?}", run.times);
        let run = measure(shell("sleep 0.2"), "null:", limit).unwrap();
        assert!(run.times.cpu < 0.1 && run.times.wall >= 0.2, "{:?}", run.times);
    }

    #[test]
    fn what_does_not_end_is_killed() {
        let run = measure(shell("sleep 60"), "null:", Duration::from_millis(50)).unwrap();
        assert_eq!(run.status, libc::SIGKILL);
    }
}
