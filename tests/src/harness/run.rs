//! One run of a program under the launcher, with its output kept.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Result;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::launch::{standard_env, Launch, Stdio};
use crate::sys::Status;

/// What to run.
#[derive(Clone)]
pub struct RunSpec {
    pub program: PathBuf,
    pub args: Vec<String>,
    pub stdin: Vec<u8>,
    /// Besides the standard ones, or in their place.
    pub env: Vec<(String, String)>,
    pub timeout: Duration,
}

/// What a run did.
pub struct Run {
    pub status: Status,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub timed_out: bool,
    /// The trace files that it left, by name.
    pub traces: Vec<PathBuf>,
}

static RUNS: AtomicUsize = AtomicUsize::new(0);

impl RunSpec {
    pub fn new(program: impl Into<PathBuf>) -> Self {
        let timeout = Duration::from_secs(60);
        Self {
            program: program.into(),
            args: Vec::new(),
            stdin: Vec::new(),
            env: Vec::new(),
            timeout,
        }
    }

    pub fn args(mut self, args: &[&str]) -> Self {
        self.args = args.iter().map(|a| (*a).to_owned()).collect();
        self
    }

    pub fn stdin(mut self, bytes: &[u8]) -> Self {
        self.stdin = bytes.to_vec();
        self
    }

    /// Where the traces of a run in `dir` go. The same length for every run, because the
    /// environment's size decides where the stack begins.
    pub fn dep_file(dir: &Path, run: usize) -> OsString {
        dir.join(format!("run{run:06}.%p.dep")).into()
    }

    /// The launch of this program, or of `file` in its place.
    pub fn launch(&self, file: Option<&Path>, dir: &Path) -> Result<(Launch, usize)> {
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let path = |what: &str| dir.join(format!("run{run:06}.{what}"));
        fs::write(path("in"), &self.stdin)?;
        let mut launch = Launch::new(&self.program);
        launch.file = file.map(Path::to_owned);
        launch.args = self.args.iter().map(OsString::from).collect();
        launch.env = standard_env(&Self::dep_file(dir, run));
        launch.env.retain(|(name, _)| !self.env.iter().any(|(own, _)| name == own.as_str()));
        launch.env.extend(self.env.iter().map(|(name, value)| (name.into(), value.into())));
        launch.stdio = Stdio {
            stdin: Some(File::open(path("in"))?),
            stdout: Some(File::create(path("out"))?),
            stderr: Some(File::create(path("err"))?),
        };
        Ok((launch, run))
    }

    /// The trace files that a run left, by name.
    pub fn traces(dir: &Path, run: usize) -> Result<Vec<PathBuf>> {
        let prefix = format!("run{run:06}.");
        let mut traces: Vec<_> = fs::read_dir(dir)?.flatten().map(|e| e.path()).collect();
        traces.retain(|p| {
            let name = p.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(&prefix) && name.contains(".dep")
        });
        traces.sort();
        Ok(traces)
    }

    /// Runs the program to its end, or to the timeout.
    pub fn run(&self, file: Option<&Path>, dir: &Path) -> Result<Run> {
        let (launch, run) = self.launch(file, dir)?;
        let path = |what: &str| dir.join(format!("run{run:06}.{what}"));
        let (status, timed_out) = launch.run_for(self.timeout)?;
        let traces = Self::traces(dir, run)?;
        let (stdout, stderr) = (fs::read(path("out"))?, fs::read(path("err"))?);
        Ok(Run { status, stdout, stderr, timed_out, traces })
    }
}

/// The trace of the program itself: that of the process that was started first.
pub fn first_trace(traces: &[PathBuf]) -> std::result::Result<&Path, String> {
    let most = fs::read_to_string("/proc/sys/kernel/pid_max").map_err(|e| e.to_string())?;
    let most = most.trim().parse().map_err(|e| format!("{most}: {e}"))?;
    first_of(traces, most).ok_or_else(|| "no trace".to_owned())
}

/// The same, where process ids begin anew behind `most`.
fn first_of(traces: &[PathBuf], most: u64) -> Option<&Path> {
    let name = |p: &Path| p.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let pid = |p: &Path| name(p).split('.').nth(1).and_then(|pid| pid.parse::<u64>().ok());
    let highest = traces.iter().filter_map(|p| pid(p)).max().unwrap_or(0);
    // A child far below its parent.
    let since = |pid: u64| if highest - pid > most / 2 { pid + most } else { pid };
    let first = traces.iter().min_by_key(|p| (pid(p).map(since), name(p).len()));
    first.map(PathBuf::as_path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_trace_is_the_parents_also_where_process_ids_begin_anew() {
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        for (names, first) in [
            (&["run0.31.dep", "run0.30.dep", "run0.300.dep"][..], "run0.30.dep"),
            (&["run0.30.dep.1", "run0.30.dep"], "run0.30.dep"),
            (&["run0.302.dep", "run0.32767.dep", "run0.301.dep"], "run0.32767.dep"),
            (&["run0.5.dep", "run0.32767.dep", "run0.32760.dep"], "run0.32760.dep"),
        ] {
            assert_eq!(first_of(&paths(names), 32768), Some(Path::new(first)), "{names:?}");
        }
    }
}
