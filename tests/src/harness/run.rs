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
