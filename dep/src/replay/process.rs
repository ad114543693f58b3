//! The process that replays.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use abi::script::{Outcome, Verdict, OUTCOME_SIZE};
use nix::fcntl::{fcntl, FcntlArg, FdFlag};
use trace::Error;

use super::ready::Ready;

/// What a replay is to do besides.
#[derive(Default)]
pub struct Besides {
    /// What the program wrote to its standard output and error goes to ours.
    pub output: bool,
    /// The trace that it leaves.
    pub trace: Option<PathBuf>,
}

/// How it ended.
pub struct Finished {
    /// As it said itself.
    pub outcome: Outcome,
    /// What it said besides.
    pub text: String,
}

/// Runs `output` under the script.
pub fn run(ready: &Ready, output: &Path, besides: &Besides) -> Result<Finished, Error> {
    let failed = |what: &str, e: std::io::Error| Error(format!("{what}: {e}"));
    let (read, write) = nix::unistd::pipe().map_err(|e| failed("cannot make a pipe", e.into()))?;
    fcntl(&read, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))
        .map_err(|e| failed("cannot make a pipe", e.into()))?;
    let mut command = Command::new(output);
    command
        .env_clear()
        .env("DEP_REPLAY", &ready.script_path)
        .env("DEP_REPLAY_RESULT", write.as_raw_fd().to_string())
        .env("DEP_FOLLOW", "0")
        .stdin(Stdio::null());
    match besides.output {
        // What its ancestors wrote is theirs.
        true => command.env("DEP_REPLAY_OUTPUT", ready.lineage.traces().len().to_string()),
        false => command.stdout(Stdio::null()),
    };
    match &besides.trace {
        Some(trace) => command.env("DEP_FILE", escaped(trace)),
        None => command.env("DEP_FILE", "null:"),
    };
    let child = command.spawn();
    drop(write);
    let mut child = child.map_err(|e| failed(&format!("cannot run {}", output.display()), e))?;
    let mut said = Vec::new();
    let heard = File::from(read).read_to_end(&mut said);
    let status = child.wait().map_err(|e| failed("cannot wait for the replay", e))?;
    heard.map_err(|e| failed("cannot hear how the replay ended", e))?;
    let Some(outcome) = Outcome::from_bytes(&said) else {
        return Err(Error(format!("the replay did not say how it ended: {}", ended(status))));
    };
    let text = String::from_utf8_lossy(&said[OUTCOME_SIZE..]).trim_end().replace('\n', " ");
    Ok(Finished { outcome, text })
}

fn ended(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown".into(),
    }
}

/// A path, for a pattern.
fn escaped(path: &Path) -> std::ffi::OsString {
    crate::recorder::escaped(path)
}

impl Finished {
    /// Whether the replay did what the recording did, as far as that goes.
    pub fn is_equal(&self, ready: &Ready) -> bool {
        match self.outcome.verdict {
            Verdict::Ended => true,
            // A recording that has its end says how it ended.
            Verdict::Exhausted => ready.script.end != replay::End::Whole,
            Verdict::Differs | Verdict::Impossible => false,
        }
    }

    /// In one line.
    pub fn line(&self, ready: &Ready) -> String {
        let Outcome { verdict, thread, turns, pc, .. } = self.outcome;
        let script = &ready.script;
        let equal = format!(
            "replayed {} turns, {} events: equal to the recording",
            script.turns, script.events
        );
        match (verdict, self.is_equal(ready)) {
            (Verdict::Impossible, _) => format!("cannot be replayed: {}", self.text),
            (_, false) => format!(
                "differs from the recording at turn {turns} of thread {}, at pc {pc:#x}: {}",
                ready.thread_name(thread),
                self.text
            ),
            (_, true) if script.end == replay::End::Whole => equal,
            (_, true) => format!("{equal}, which is replayable {}", script.end),
        }
    }
}
